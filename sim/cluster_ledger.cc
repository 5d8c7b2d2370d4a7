#include "sim/cluster_ledger.h"

#include <algorithm>
#include <iterator>

namespace ravenstore::sim {

using transport::CallId;
using transport::ConnectionId;

namespace {

// REQUIRES: a transfer.
cluster::SlotRef SlotOf(const cluster::AnyRequest& request) {
  const auto* const write = std::get_if<cluster::WriteRequest>(&request);
  return write != nullptr ? write->slot : std::get<cluster::ReadRequest>(request).slot;
}

}  // namespace

ClusterCounts& ClusterCounts::operator+=(const ClusterCounts& other) {
  wrong_bytes += other.wrong_bytes;
  late_calls += other.late_calls;
  lent_twice += other.lent_twice;
  served_late += other.served_late;
  operations += other.operations;
  bytes_read += other.bytes_read;
  pieces_lost += other.pieces_lost;
  pieces_moved += other.pieces_moved;
  if (first.empty()) first = other.first;
  return *this;
}

core::Result<std::span<std::byte>> LenderLedger::Make(core::Bytes bytes) {
  if (regions_.size() >= limit_) {
    violation_(&ClusterCounts::lent_twice, "memory was lent that its owner was to have");
  }
  auto memory = std::make_unique<std::vector<std::byte>>(bytes.count());
  const std::span<std::byte> made(*memory);
  regions_.emplace(made.data(), Region{.number = ++made_, .bytes = std::move(memory)});
  return made;
}

void LenderLedger::Release(std::span<std::byte> memory) {
  for (const auto& [id, call] : calls_) {
    if (!call.uses.empty() && call.uses.data() >= memory.data() &&
        call.uses.data() < memory.data() + memory.size()) {
      violation_(&ClusterCounts::lent_twice, "memory was given back while a transfer used it");
      // Kept: what the transfer does to it then does no other harm.
      return;
    }
  }
  regions_.erase(memory.data());
}

bool LenderLedger::CorruptByte(uint64_t random) {
  if (regions_.empty()) return false;
  const auto region = std::ranges::min_element(
      regions_, {}, [random](const auto& one) { return one.second.number ^ random; });
  auto& bytes = *region->second.bytes;
  bytes[random / 64 % bytes.size()] ^= std::byte{0x10};
  return true;
}

transport::Sink LenderLedger::OnAccepted(const transport::IncomingCall& call,
                                         const cluster::AnyRequest& request, transport::Sink sink) {
  const Call accepted{.node = std::string(call.node), .request = request, .uses = sink.bytes};
  calls_.emplace(call.id, accepted);
  if (sink.bytes.empty()) return sink;
  Uses(call.id.connection, accepted);
  return {.bytes = sink.bytes,
          .check = Checks(call.id.connection, accepted, std::move(sink.check))};
}

transport::Answer LenderLedger::OnAnswered(CallId id, transport::Answer answer) {
  Call& call = calls_.at(id);
  if (const auto* open = std::get_if<cluster::OpenRequest>(&call.request)) {
    const HomeKey home(call.node, open->home);
    opened_[id.connection] = home;
    newest_[home] = id.connection;
    expires_.try_emplace(home, lease_clock_() + lease_);
  } else if (std::holds_alternative<cluster::RenewRequest>(call.request) ||
             std::holds_alternative<cluster::BorrowRequest>(call.request)) {
    expires_[opened_.at(id.connection)] = lease_clock_() + lease_;
  }
  if (answer.send.empty()) return answer;
  call.uses = answer.send;
  Uses(id.connection, call);
  answer.check = Checks(id.connection, call, std::move(answer.check));
  return answer;
}

void LenderLedger::OnEnded(CallId call) {
  calls_.erase(call);
}

bool LenderLedger::IsExpired(const HomeKey& home) const {
  const auto expires = expires_.find(home);
  return expires == expires_.end() || lease_clock_() >= expires->second;
}

core::Duration LenderLedger::LeaseLeft(const HomeKey& home) const {
  return IsExpired(home) ? core::Duration{} : expires_.at(home) - lease_clock_();
}

void LenderLedger::Uses(ConnectionId connection, const Call& call) {
  const HomeKey& home = opened_.at(connection);
  if (newest_.at(home) != connection) {
    violation_(&ClusterCounts::served_late, "a connection was served that was replaced");
  }
  if (IsExpired(home)) {
    violation_(&ClusterCounts::served_late, "a loan was served that had expired");
  }
  Region& region = std::prev(regions_.upper_bound(call.uses.data()))->second;
  const std::pair user(home, SlotOf(call.request));
  if (!region.user) region.user = user;
  if (region.user->first != home) {
    violation_(&ClusterCounts::lent_twice, "two homes used the same memory, uncleared");
  } else if (*region.user != user) {
    violation_(&ClusterCounts::lent_twice, "a slot was used that had been lent anew");
  }
}

transport::ChunkCheck LenderLedger::Checks(ConnectionId connection, const Call& call,
                                           transport::ChunkCheck check) {
  return [this, connection, call, check = std::move(check)]() -> core::Status {
    RAVEN_RETURN_IF_ERROR(check());
    Uses(connection, call);
    return core::Ok();
  };
}

}  // namespace ravenstore::sim
