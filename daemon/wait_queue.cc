#include "daemon/wait_queue.h"

#include <algorithm>
#include <utility>

namespace ravenstore::daemon {

using core::Bytes;
using core::TenantId;
using core::Tick;

namespace {

// By which a job may exceed the peak that it has shown.
constexpr uint64_t kMarginPart = 20;

}  // namespace

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
  uint64_t turn = 0;
  for (size_t device = 0; device < kDevices; ++device) {
    if (waiter.devices.test(device)) turn = std::max(turn, turns_[device]);
  }
  for (const auto& [at, other] : waiting_) {
    if (other.waiter.user == waiter.user && (other.waiter.devices & waiter.devices).any())
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

// What jobs report counts up to what is used, by any process. A false report counts only where a
// job that waited uses as much.
Bytes WaitQueue::Committed::At(Bytes used) const {
  return promised + std::min(said, used);
}

WaitQueue::Devices WaitQueue::WaitedFor() const {
  Devices all;
  for (const auto& [turn, waiting] : waiting_) all |= waiting.waiter.devices;
  return all;
}

bool WaitQueue::IsMember(const Use& use, const Process& process, const Promise& promise) {
  return use.process == process || (use.run == process.pid && use.user == promise.user);
}

void WaitQueue::Correct(Tick now, const std::vector<Device>& devices, News* news) {
  const Devices waited_for = WaitedFor();
  for (auto& [process, promise] : promises_) {
    if (!waited_for.test(promise.device) || promise.device >= devices.size()) continue;
    const Bytes total = devices[promise.device].total;
    Bytes peak;
    for (const Use& use : devices[promise.device].uses) {
      if (IsMember(use, process, promise)) peak += std::min(use.peak, total);
    }
    const bool looked = std::exchange(promise.looked, true);
    if (peak > promise.peak) {
      // Usage is read only while a job waits, so it may have held memory from the start.
      if (promise.peak == Bytes{0}) promise.holds_since = looked ? now : promise.since;
      promise.peak = peak;
      promise.peak_since = now;
    }
    const bool is_guess = promise.estimate && promise.estimate->source != "given";
    if (!is_guess || promise.peak == Bytes{0} || now - promise.peak_since < settle_) continue;
    const Bytes shown = promise.peak + Bytes(promise.peak.count() / kMarginPart);
    if (shown >= promise.bytes) continue;
    promise.bytes = shown;
    news->corrected.push_back({process, promise.user, shown});
  }
}

bool WaitQueue::IsUnmeasured(Tick now, const Promise& promise) {
  if (!promise.estimate) return false;
  if (promise.peak == Bytes{0}) return now - promise.since < kBeginsWithin;
  return now - promise.holds_since < kMeasuredAfter;
}

WaitQueue::Commitments WaitQueue::CommitmentsOf(Tick now, size_t index,
                                                const Device& device) const {
  Commitments commitments;
  std::set<Process> waits;
  for (const auto& [turn, waiting] : waiting_) waits.insert(waiting.waiter.process);
  std::vector<std::pair<const Process*, const Promise*>> here;
  for (const auto& [process, promise] : promises_) {
    if (promise.device != index) continue;
    here.emplace_back(&process, &promise);
    commitments.all.promised += promise.bytes;
    commitments.by_user[promise.user].promised += promise.bytes;
    if (IsUnmeasured(now, promise)) ++commitments.unmeasured;
  }
  Bytes said;
  for (const Use& use : device.uses) {
    said += std::min(use.bytes, device.total);
    const bool is_promised = std::any_of(here.begin(), here.end(), [&](const auto& entry) {
      return IsMember(use, *entry.first, *entry.second);
    });
    if (is_promised || promises_.contains(use.process) || waits.contains(use.process)) continue;
    // Strangers' numbers: bounded before they are added up.
    const Bytes bytes = std::min(use.bytes, device.total);
    commitments.all.said += bytes;
    commitments.by_user[use.user].said += bytes;
  }
  commitments.foreign = Minus(device.used, said);
  return commitments;
}

// Used memory that no job reports may be the daemon's context. A job that waits for a whole device
// need not wait for that.
DeviceRoom WaitQueue::RoomOn(const Device& device, Commitments& commitments, const Waiter& waiter) {
  const Bytes foreign = waiter.estimate ? commitments.foreign : Bytes{0};
  return {.total = device.total,
          .committed = commitments.all.At(device.used) + foreign,
          .own = commitments.by_user[waiter.user].At(device.used),
          .held = device.held,
          .give_back_bytes_per_s = device.give_back_bytes_per_s,
          .measured = device.measured,
          .unmeasured = commitments.unmeasured};
}

// Of the devices where it may come the one where it does the least harm, and of several such the
// fullest: what is left whole suits larger jobs.
WaitQueue::Choice WaitQueue::Choose(const Waiter& waiter, const std::vector<Device>& devices,
                                    std::vector<Commitments>& commitments) const {
  Choice choice;
  Bytes left;
  bool looked = false;
  for (size_t i = 0; i < devices.size(); ++i) {
    if (!waiter.devices.test(i)) continue;
    const DeviceRoom room = RoomOn(devices[i], commitments[i], waiter);
    const Judgement judgement = Judge(room, waiter.need, waiter.slowdown_most);
    const bool kept =
        commitments[i].all_kept_back || commitments[i].kept_back.contains(waiter.user);
    if (judgement.verdict != Verdict::kMayCome || kept) {
      if (!std::exchange(looked, true)) choice.judgement = judgement;
      continue;
    }
    const Bytes here = room.total - room.committed - waiter.need.bytes;
    const bool better = !choice.device || judgement.slowdown < choice.judgement.slowdown ||
                        (judgement.slowdown == choice.judgement.slowdown && here < left);
    if (!better) continue;
    choice = {i, judgement};
    left = here;
    looked = true;
  }
  // It may come but for those before it.
  if (!choice.device && choice.judgement.verdict == Verdict::kMayCome)
    choice.judgement.verdict = Verdict::kNotItsTurn;
  return choice;
}

void WaitQueue::KeepBack(const Waiter& waiter, const std::vector<Device>& devices,
                         std::vector<Commitments>& commitments) const {
  for (size_t i = 0; i < devices.size(); ++i) {
    if (!waiter.devices.test(i) || !commitments[i].kept_back.insert(waiter.user).second) continue;
    // Whether it would come if only its own user's jobs were there.
    DeviceRoom room = RoomOn(devices[i], commitments[i], waiter);
    const bool is_alone = room.committed == room.own;
    room.committed = room.own;
    if (!is_alone) room.measured = {};
    const bool waits_for_others =
        Judge(room, waiter.need, waiter.slowdown_most).verdict == Verdict::kMayCome;
    if (waits_for_others) commitments[i].all_kept_back = true;
  }
}

void WaitQueue::Grant(Tick now, const Waiter& waiter, size_t device, Commitments* commitments) {
  commitments->all.promised += waiter.need.bytes;
  commitments->by_user[waiter.user].promised += waiter.need.bytes;
  if (waiter.estimate) ++commitments->unmeasured;
  promises_[waiter.process] = {.user = waiter.user,
                               .device = device,
                               .bytes = waiter.need.bytes,
                               .model = waiter.model,
                               .estimate = waiter.estimate,
                               .since = now};
}

WaitQueue::News WaitQueue::Update(Tick now, const std::vector<Device>& devices) {
  News news;
  Correct(now, devices, &news);
  std::vector<Commitments> commitments;
  for (size_t i = 0; i < devices.size(); ++i)
    commitments.push_back(CommitmentsOf(now, i, devices[i]));
  std::vector<Devices> before;  // of those who still wait
  for (auto next = waiting_.begin(); next != waiting_.end();) {
    Waiting& waiting = next->second;
    const Waiter& waiter = waiting.waiter;
    const Choice choice = Choose(waiter, devices, commitments);
    if (choice.device) {
      const size_t device = *choice.device;
      turns_[device] = std::max(turns_[device], next->first.turn);
      Grant(now, waiter, device, &commitments[device]);
      news.told.push_back({waiter, 0, device, choice.judgement});
      next = waiting_.erase(next);
      continue;
    }
    KeepBack(waiter, devices, commitments);
    const auto shares = [&](const Devices& others) { return (others & waiter.devices).any(); };
    const auto position =
        static_cast<uint32_t>(1 + std::count_if(before.begin(), before.end(), shares));
    before.push_back(waiter.devices);
    waiting.place = {position, waiter.need.bytes, choice.judgement};
    const bool moved = std::exchange(waiting.told, position) != position;
    const Verdict verdict = choice.judgement.verdict;
    if ((std::exchange(waiting.told_verdict, verdict) != verdict) || moved)
      news.told.push_back({waiter, position, 0, choice.judgement});
    ++next;
  }
  return news;
}

WaitQueue::Place WaitQueue::Waiting::Shown() const {
  // One that came since the last update is not placed yet.
  return {std::max(place.position, uint32_t{1}), waiter.need.bytes, place.judgement};
}

WaitQueue::Place WaitQueue::PlaceOf(pid_t pid) const {
  for (const auto& [turn, waiting] : waiting_) {
    if (waiting.waiter.process.pid == pid) return waiting.Shown();
  }
  return {};
}

std::vector<WaitQueue::Told> WaitQueue::All() const {
  std::vector<Told> all;
  for (const auto& [turn, waiting] : waiting_)
    all.push_back({waiting.waiter, waiting.Shown().position, 0, waiting.place.judgement});
  return all;
}

const WaitQueue::Promise* WaitQueue::PromiseTo(TenantId user, pid_t pid, pid_t run) const {
  for (const auto& [owner, promise] : promises_) {
    const bool is_its = owner.pid == pid || (run != 0 && owner.pid == run);
    if (is_its && promise.user == user) return &promise;
  }
  return nullptr;
}

}  // namespace ravenstore::daemon
