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
  if (reservations_.contains(waiter.process)) return true;
  if (const auto known = Find(waiter.process); known != waiting_.end()) {
    known->second.waiter.connection = waiter.connection;
    known->second.waiter.request = waiter.request;
    known->second.notified_position = 0;
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
  reservations_.erase(process);
  std::erase_if(waiting_,
                [&](const auto& entry) { return entry.second.waiter.process == process; });
}

// What jobs report counts up to what is used, by any process. A false report counts only where a
// job that waited uses as much.
Bytes WaitQueue::Committed::At(Bytes used) const {
  return reserved + std::min(reported, used);
}

WaitQueue::Devices WaitQueue::WaitedFor() const {
  Devices all;
  for (const auto& [turn, waiting] : waiting_) all |= waiting.waiter.devices;
  return all;
}

bool WaitQueue::IsMember(const Use& use, const Process& process, const Reservation& reservation) {
  return use.process == process || (use.run == process.pid && use.user == reservation.user);
}

void WaitQueue::Correct(Tick now, const std::vector<Device>& devices, News* news) {
  const Devices waited_for = WaitedFor();
  for (auto& [process, reservation] : reservations_) {
    if (!waited_for.test(reservation.device) || reservation.device >= devices.size()) continue;
    const Bytes total = devices[reservation.device].total;
    Bytes peak;
    for (const Use& use : devices[reservation.device].uses) {
      if (IsMember(use, process, reservation)) peak += std::min(use.peak, total);
    }
    const bool looked = std::exchange(reservation.looked, true);
    if (peak > reservation.peak) {
      // Usage is read only while a job waits, so it may have held memory from the start.
      if (reservation.peak == Bytes{0}) reservation.holds_since = looked ? now : reservation.since;
      reservation.peak = peak;
      reservation.peak_since = now;
    }
    const bool is_guess = reservation.estimate && reservation.estimate->source != "given";
    if (!is_guess || reservation.peak == Bytes{0} || now - reservation.peak_since < settle_)
      continue;
    const Bytes shown = reservation.peak + Bytes(reservation.peak.count() / kMarginPart);
    if (shown >= reservation.bytes) continue;
    reservation.bytes = shown;
    news->corrected.push_back({process, reservation.user, shown});
  }
}

bool WaitQueue::IsUnmeasured(Tick now, const Reservation& reservation) {
  if (!reservation.estimate) return false;
  if (reservation.peak == Bytes{0}) return now - reservation.since < kBeginsWithin;
  return now - reservation.holds_since < kMeasuredAfter;
}

WaitQueue::Commitments WaitQueue::CommitmentsOf(Tick now, size_t index,
                                                const Device& device) const {
  Commitments commitments;
  std::set<Process> waits;
  for (const auto& [turn, waiting] : waiting_) waits.insert(waiting.waiter.process);
  std::vector<std::pair<const Process*, const Reservation*>> here;
  for (const auto& [process, reservation] : reservations_) {
    if (reservation.device != index) continue;
    here.emplace_back(&process, &reservation);
    commitments.all.reserved += reservation.bytes;
    commitments.by_user[reservation.user].reserved += reservation.bytes;
    if (IsUnmeasured(now, reservation)) ++commitments.unmeasured;
  }
  Bytes reported;
  for (const Use& use : device.uses) {
    reported += std::min(use.bytes, device.total);
    const bool has_reservation = std::any_of(here.begin(), here.end(), [&](const auto& entry) {
      return IsMember(use, *entry.first, *entry.second);
    });
    if (has_reservation || reservations_.contains(use.process) || waits.contains(use.process))
      continue;
    // Strangers' numbers: bounded before they are added up.
    const Bytes bytes = std::min(use.bytes, device.total);
    commitments.all.reported += bytes;
    commitments.by_user[use.user].reported += bytes;
  }
  commitments.foreign = Minus(device.used, reported);
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
          .return_bytes_per_s = device.return_bytes_per_s,
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
    const bool blocked =
        commitments[i].all_blocked || commitments[i].blocked_users.contains(waiter.user);
    if (judgement.verdict != Verdict::kMayStart || blocked) {
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
  if (!choice.device && choice.judgement.verdict == Verdict::kMayStart)
    choice.judgement.verdict = Verdict::kNotItsTurn;
  return choice;
}

void WaitQueue::BlockBehind(const Waiter& waiter, const std::vector<Device>& devices,
                            std::vector<Commitments>& commitments) const {
  for (size_t i = 0; i < devices.size(); ++i) {
    if (!waiter.devices.test(i) || !commitments[i].blocked_users.insert(waiter.user).second)
      continue;
    // Whether it would come if only its own user's jobs were there.
    DeviceRoom room = RoomOn(devices[i], commitments[i], waiter);
    const bool is_alone = room.committed == room.own;
    room.committed = room.own;
    if (!is_alone) room.measured = {};
    const bool waits_for_others =
        Judge(room, waiter.need, waiter.slowdown_most).verdict == Verdict::kMayStart;
    if (waits_for_others) commitments[i].all_blocked = true;
  }
}

void WaitQueue::Reserve(Tick now, const Waiter& waiter, size_t device, Commitments* commitments) {
  commitments->all.reserved += waiter.need.bytes;
  commitments->by_user[waiter.user].reserved += waiter.need.bytes;
  if (waiter.estimate) ++commitments->unmeasured;
  reservations_[waiter.process] = {.user = waiter.user,
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
      Reserve(now, waiter, device, &commitments[device]);
      news.notifications.push_back({waiter, 0, device, choice.judgement});
      next = waiting_.erase(next);
      continue;
    }
    BlockBehind(waiter, devices, commitments);
    const auto shares = [&](const Devices& others) { return (others & waiter.devices).any(); };
    const auto position =
        static_cast<uint32_t>(1 + std::count_if(before.begin(), before.end(), shares));
    before.push_back(waiter.devices);
    waiting.place = {position, waiter.need.bytes, choice.judgement};
    const bool moved = std::exchange(waiting.notified_position, position) != position;
    const Verdict verdict = choice.judgement.verdict;
    if ((std::exchange(waiting.notified_verdict, verdict) != verdict) || moved)
      news.notifications.push_back({waiter, position, 0, choice.judgement});
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

std::vector<WaitQueue::Notification> WaitQueue::All() const {
  std::vector<Notification> all;
  for (const auto& [turn, waiting] : waiting_)
    all.push_back({waiting.waiter, waiting.Shown().position, 0, waiting.place.judgement});
  return all;
}

const WaitQueue::Reservation* WaitQueue::FindReservation(TenantId user, pid_t pid,
                                                         pid_t run) const {
  for (const auto& [owner, reservation] : reservations_) {
    const bool is_its = owner.pid == pid || (run != 0 && owner.pid == run);
    if (is_its && reservation.user == user) return &reservation;
  }
  return nullptr;
}

}  // namespace ravenstore::daemon
