// The control thread's part in blocks of pinned memory: what clients ask goes to the loop, and its
// answers come back.
#include <algorithm>
#include <limits>
#include <utility>
#include <vector>

#include "daemon/control.h"

namespace ravenstore::daemon {

using core::ClientId;
using core::ErrorCode;

namespace {

// One for each device of the client's process would do.
constexpr int kTicketsMax = 64;

proto::DaemonPacket AnswerOf(uint64_t request, const core::Result<Pinned::Place>& place) {
  proto::DaemonPacket packet;
  packet.set_request(request);
  if (!place.ok()) {
    packet.mutable_failure()->set_code(static_cast<uint32_t>(place.error().code));
    packet.mutable_failure()->set_message(place.error().message);
    return packet;
  }
  proto::PinnedAllocated* allocated = packet.mutable_pinned_allocated();
  allocated->set_pool(place->pool);
  allocated->set_numa_node(place->numa_node);
  allocated->set_pool_bytes(place->pool_bytes.count());
  allocated->set_offset(place->offset.count());
  return packet;
}

}  // namespace

void Control::HandlePinnedAlloc(Connection& connection, uint64_t request,
                                const proto::PinnedAlloc& ask) {
  if (connection.client == ClientId{}) {
    return Fail(connection, request, ErrorCode::kWrongState,
                "this connection has no client that could have pinned memory");
  }
  if (ask.device() >= devices_.size()) {
    return Fail(connection, request, ErrorCode::kInvalidArgument,
                "there is no device " + std::to_string(ask.device()));
  }
  Pinned::Ask wanted{
      .block = ask.block(),
      .bytes = core::Bytes(ask.bytes()),
      .device = core::DeviceId{static_cast<uint16_t>(ask.device())},
      .deadline = core::Tick(core::Duration(static_cast<int64_t>(
          std::min<uint64_t>(ask.deadline_ns(), std::numeric_limits<int64_t>::max())))),
      .reply = [this, request, key = connection.key](core::Result<Pinned::Place> place) {
        PostAnswer(key, AnswerOf(request, place));
      }};
  PostToLoop(connection, kQuestion,
             [loop = loop_, client = connection.client, wanted = std::move(wanted)]() mutable {
               loop->PinnedAlloc(client, std::move(wanted));
             });
}

void Control::HandlePinnedFree(Connection& connection, uint64_t request,
                               const proto::PinnedFree& free) {
  if (free.tickets_size() > kTicketsMax) {
    return Fail(connection, request, ErrorCode::kInvalidArgument,
                "a free that waits for " + std::to_string(free.tickets_size()) +
                    " tickets: at most " + std::to_string(kTicketsMax) + " are possible");
  }
  std::vector<proto::WordValue> tickets;
  for (const uint64_t ticket : free.tickets()) tickets.push_back(proto::UnpackWordValue(ticket));
  PostToLoop(connection, kNotice,
             [loop = loop_, client = connection.client, block = free.block(),
              tickets = std::move(tickets)]() mutable {
               loop->PinnedFree(client, block, std::move(tickets));
             });
}

void Control::PostPinnedSlab(std::shared_ptr<PinnedSlabForClient> slab) {
  mailbox_.Post([this, slab = std::move(slab)] {
    Connection* connection = FindClient(slab->client);
    if (connection == nullptr) return;
    proto::DaemonPacket packet;
    packet.mutable_pinned_slab()->set_pool(slab->slab.pool);
    packet.mutable_pinned_slab()->set_offset(slab->slab.offset.count());
    packet.mutable_pinned_slab()->set_bytes(slab->bytes.count());
    std::vector<ipc::UniqueFd> descriptors;
    descriptors.push_back(std::move(slab->descriptor));
    Send(*connection, packet, std::move(descriptors));
  });
}

void Control::PostReleasePinnedSlab(ClientId client, core::PinnedSlabId slab) {
  mailbox_.Post([this, client, slab] {
    Connection* connection = FindClient(client);
    if (connection == nullptr) return;
    proto::DaemonPacket packet;
    packet.mutable_release_pinned_slab()->set_pool(slab.pool);
    packet.mutable_release_pinned_slab()->set_offset(slab.offset.count());
    Send(*connection, packet);
  });
}

}  // namespace ravenstore::daemon
