#include "daemon/wait_queue.h"

#include <algorithm>
#include <set>
#include <utility>

namespace ravenstore::daemon {

using core::Bytes;
using core::TenantId;

std::map<WaitQueue::Turn, WaitQueue::Waiting>::iterator WaitQueue::Find(const Process& process) {
  return std::find_if(waiting_.begin(), waiting_.end(),
                      [&](const auto& entry) { return entry.second.waiter.process == process; });
}

bool WaitQueue::Add(const Waiter& waiter) {
  if (promises_.contains(waiter.process)) return true;
  if (const auto known = Find(waiter.process); known != waiting_.end()) {
    known->second.waiter.connection = waiter.connection;
    known->second.waiter.request = waiter.request;
    known->second.told = 0;
    return false;
  }
  uint64_t turn = turns_[waiter.device];
  for (const auto& [at, other] : waiting_) {
    if (other.waiter.user == waiter.user && other.waiter.device == waiter.device)
      turn = std::max(turn, at.turn);
  }
  waiting_.emplace(Turn{turn + 1, next_arrival_++}, Waiting{waiter});
  return false;
}

void WaitQueue::Leave(uint64_t connection) {
  std::erase_if(waiting_, [connection](const auto& entry) {
    return entry.second.waiter.connection == connection;
  });
}

void WaitQueue::Ended(const Process& process) {
  promises_.erase(process);
  std::erase_if(waiting_,
                [&](const auto& entry) { return entry.second.waiter.process == process; });
}

// What jobs say is no more than what is used, whoever uses it: a lie counts only where somebody
// who waited uses as much.
Bytes WaitQueue::Committed::At(Bytes used) const {
  return promised + std::min(said, used);
}

WaitQueue::Commitments WaitQueue::CommitmentsOf(size_t device, Bytes total,
                                                const std::vector<Use>& uses) {
  Commitments commitments;
  for (const auto& [process, promise] : promises_) {
    if (promise.device != device) continue;
    commitments.all.promised += promise.bytes;
    commitments.by_user[promise.user].promised += promise.bytes;
  }
  std::set<Process> waits;
  for (const auto& [turn, waiting] : waiting_) waits.insert(waiting.waiter.process);
  for (const Use& use : uses) {
    if (promises_.contains(use.process) || waits.contains(use.process)) continue;
    // Strangers' numbers: bounded before they are added up.
    const Bytes bytes = std::min(use.bytes, total);
    commitments.all.said += bytes;
    commitments.by_user[use.user].said += bytes;
  }
  return commitments;
}

std::vector<WaitQueue::Told> WaitQueue::Update(size_t device, Bytes total, Bytes used,
                                               const std::vector<Use>& uses) {
  std::vector<Told> told;
  Commitments commitments = CommitmentsOf(device, total, uses);
  std::set<TenantId> kept_back;
  bool all_kept_back = false;
  uint32_t position = 0;
  for (auto next = waiting_.begin(); next != waiting_.end();) {
    const Waiter& waiter = next->second.waiter;
    if (waiter.device != device) {
      ++next;
      continue;
    }
    Committed& own = commitments.by_user[waiter.user];
    const bool fits = commitments.all.At(used) + waiter.bytes <= total;
    if (fits && !all_kept_back && !kept_back.contains(waiter.user)) {
      turns_[device] = std::max(turns_[device], next->first.turn);
      commitments.all.promised += waiter.bytes;
      own.promised += waiter.bytes;
      told.push_back({waiter, 0});
      promises_[waiter.process] = {waiter.user, device, waiter.bytes};
      next = waiting_.erase(next);
      continue;
    }
    const bool first = kept_back.insert(waiter.user).second;
    if (first && own.At(used) + waiter.bytes <= total) all_kept_back = true;
    next->second.position = ++position;
    if (std::exchange(next->second.told, position) != position) told.push_back({waiter, position});
    ++next;
  }
  return told;
}

WaitQueue::Place WaitQueue::PlaceOf(pid_t pid) const {
  for (const auto& [turn, waiting] : waiting_) {
    if (waiting.waiter.process.pid == pid)
      return {std::max(waiting.position, uint32_t{1}), waiting.waiter.bytes};
  }
  return {0, {}};
}

bool WaitQueue::WaitsFor(size_t device) const {
  return std::any_of(waiting_.begin(), waiting_.end(),
                     [device](const auto& entry) { return entry.second.waiter.device == device; });
}

}  // namespace ravenstore::daemon
