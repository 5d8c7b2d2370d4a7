#include "daemon/memory_messages.h"

#include <algorithm>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "daemon/packets.h"
#include "proto/layout.h"

namespace ravenstore::daemon {

using core::ClientId;
using core::ErrorCode;

namespace {

// One for each device of the client's process would do.
constexpr int kTicketsMax = 64;

proto::DaemonPacket AnswerOf(uint64_t request, const core::Result<Pinned::Place>& place) {
  if (!place.ok()) return FailureOf(request, place.error());
  proto::DaemonPacket packet;
  packet.set_request(request);
  proto::PinnedAllocated* allocated = packet.mutable_pinned_allocated();
  allocated->set_pool(place->pool);
  allocated->set_numa_node(place->numa_node);
  allocated->set_pool_bytes(place->pool_bytes.count());
  allocated->set_offset(place->offset.count());
  return packet;
}

core::Tick DeadlineOf(uint64_t deadline_ns) {
  constexpr uint64_t kMost = std::numeric_limits<int64_t>::max();
  return core::Tick(core::Duration(static_cast<int64_t>(std::min(deadline_ns, kMost))));
}

}  // namespace

bool MemoryMessages::Handle(const Caller& caller, const proto::ClientPacket& packet) {
  using Body = proto::ClientPacket;
  const ClientId client = caller.client;
  switch (packet.body_case()) {
    case Body::kTrim: Notify(caller, [loop = loop_, client] { loop->Trim(client); }); return true;
    case Body::kPinnedAlloc:
      HandlePinnedAlloc(caller, packet.request(), packet.pinned_alloc());
      return true;
    case Body::kPinnedFree:
      HandlePinnedFree(caller, packet.request(), packet.pinned_free());
      return true;
    case Body::kKeepInPlace:
      HandleKeepInPlace(caller, packet.request(), packet.keep_in_place());
      return true;
    case Body::kSleep: HandleSleep(caller, packet.request(), packet.sleep()); return true;
    case Body::kWake: HandleWake(caller, packet.request()); return true;
    case Body::kPinnedSlabReleased: {
      const auto& released = packet.pinned_slab_released();
      const core::PinnedSlabId slab{released.pool(), core::Bytes(released.offset())};
      Notify(caller, [loop = loop_, client, slab] { loop->PinnedSlabReleased(client, slab); });
      return true;
    }
    default: return false;
  }
}

void MemoryMessages::Notify(const Caller& caller, std::function<void()> work) {
  connections_->PostToLoop(caller.key, Connections::kNotice, std::move(work));
}

void MemoryMessages::FailWithoutClient(const Caller& caller, uint64_t request) {
  connections_->Fail(
      caller.key, request,
      {ErrorCode::kWrongState, "this connection has no client that could have tensors"});
}

void MemoryMessages::HandleKeepInPlace(const Caller& caller, uint64_t request,
                                       const proto::KeepInPlace& keep) {
  if (caller.client == ClientId{}) return FailWithoutClient(caller, request);
  connections_->PostToLoop(
      caller.key, Connections::kQuestion,
      [connections = connections_, loop = loop_, request, key = caller.key, client = caller.client,
       keep] {
        const core::Status kept =
            loop->KeepInPlace(client, core::SlotId{keep.slot()}, core::TensorId{keep.tensor()},
                              keep.ends() ? Keeping::kEnds : Keeping::kBegins);
        if (!kept.ok()) return connections->PostAnswer(key, FailureOf(request, kept.error()));
        proto::DaemonPacket packet;
        packet.set_request(request);
        packet.mutable_kept_in_place();
        connections->PostAnswer(key, std::move(packet));
      });
}

void MemoryMessages::HandleSleep(const Caller& caller, uint64_t request,
                                 const proto::Sleep& sleep) {
  if (caller.client == ClientId{}) return FailWithoutClient(caller, request);
  const auto reply = [connections = connections_, request,
                      key = caller.key](core::Result<core::Bytes> bytes) {
    if (!bytes.ok()) return connections->PostAnswer(key, FailureOf(request, bytes.error()));
    proto::DaemonPacket packet;
    packet.set_request(request);
    packet.mutable_asleep()->set_bytes(bytes->count());
    connections->PostAnswer(key, std::move(packet));
  };
  connections_->PostToLoop(
      caller.key, Connections::kQuestion,
      [loop = loop_, client = caller.client, deadline = DeadlineOf(sleep.deadline_ns()), reply] {
        loop->PutToSleep(client, deadline, reply);
      });
}

void MemoryMessages::HandleWake(const Caller& caller, uint64_t request) {
  if (caller.client == ClientId{}) return FailWithoutClient(caller, request);
  connections_->PostToLoop(caller.key, Connections::kQuestion,
                           [connections = connections_, loop = loop_, request, key = caller.key,
                            client = caller.client] {
                             loop->WakeUp(client);
                             proto::DaemonPacket packet;
                             packet.set_request(request);
                             packet.mutable_awake();
                             connections->PostAnswer(key, std::move(packet));
                           });
}

void MemoryMessages::HandlePinnedAlloc(const Caller& caller, uint64_t request,
                                       const proto::PinnedAlloc& ask) {
  if (caller.client == ClientId{}) {
    return connections_->Fail(
        caller.key, request,
        {ErrorCode::kWrongState, "this connection has no client that could have pinned memory"});
  }
  if (ask.device() >= devices_) {
    return connections_->Fail(
        caller.key, request,
        {ErrorCode::kInvalidArgument, "there is no device " + std::to_string(ask.device())});
  }
  Pinned::Ask wanted{.block = ask.block(),
                     .bytes = core::Bytes(ask.bytes()),
                     .device = core::DeviceId{static_cast<uint16_t>(ask.device())},
                     .deadline = DeadlineOf(ask.deadline_ns()),
                     .reply = [connections = connections_, request,
                               key = caller.key](core::Result<Pinned::Place> place) {
                       connections->PostAnswer(key, AnswerOf(request, place));
                     }};
  connections_->PostToLoop(
      caller.key, Connections::kQuestion,
      [loop = loop_, client = caller.client, wanted = std::move(wanted)]() mutable {
        loop->PinnedAlloc(client, std::move(wanted));
      });
}

void MemoryMessages::HandlePinnedFree(const Caller& caller, uint64_t request,
                                      const proto::PinnedFree& free) {
  if (free.tickets_size() > kTicketsMax) {
    return connections_->Fail(
        caller.key, request,
        {ErrorCode::kInvalidArgument,
         "a free that waits for " + std::to_string(free.tickets_size()) + " tickets: at most " +
             std::to_string(kTicketsMax) + " are possible"});
  }
  std::vector<proto::WordValue> tickets;
  for (const uint64_t ticket : free.tickets()) tickets.push_back(proto::UnpackWordValue(ticket));
  Notify(caller, [loop = loop_, client = caller.client, block = free.block(),
                  tickets = std::move(tickets)] { loop->pinned().Free(client, block, tickets); });
}

void MemoryMessages::Post(ClientId client, proto::DaemonPacket packet,
                          std::shared_ptr<std::vector<ipc::UniqueFd>> descriptors) {
  mailbox_->Post([this, client, packet = std::move(packet), descriptors = std::move(descriptors)] {
    const uint64_t key = clients_->KeyOf(client);
    if (key == 0) return;
    connections_->Send(key, packet,
                       descriptors ? std::move(*descriptors) : std::vector<ipc::UniqueFd>());
  });
}

void MemoryMessages::PostMemoryReady(std::shared_ptr<MemoryForClient> memory) {
  proto::DaemonPacket packet;
  packet.mutable_memory_ready()->set_first(memory->batch.first);
  Post(memory->client, std::move(packet), {memory, &memory->batch.descriptors});
}

void MemoryMessages::PostPinnedSlab(std::shared_ptr<PinnedSlabForClient> slab) {
  proto::DaemonPacket packet;
  packet.mutable_pinned_slab()->set_pool(slab->slab.pool);
  packet.mutable_pinned_slab()->set_offset(slab->slab.offset.count());
  packet.mutable_pinned_slab()->set_bytes(slab->bytes.count());
  auto descriptors = std::make_shared<std::vector<ipc::UniqueFd>>();
  descriptors->push_back(std::move(slab->descriptor));
  Post(slab->client, std::move(packet), std::move(descriptors));
}

void MemoryMessages::PostReleasePinnedSlab(ClientId client, core::PinnedSlabId slab) {
  proto::DaemonPacket packet;
  packet.mutable_release_pinned_slab()->set_pool(slab.pool);
  packet.mutable_release_pinned_slab()->set_offset(slab.offset.count());
  Post(client, std::move(packet));
}

}  // namespace ravenstore::daemon
