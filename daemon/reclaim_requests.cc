#include "daemon/reclaim_requests.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "core/check.h"

namespace ravenstore::daemon {

using core::Bytes;
using core::Tick;

namespace {

// A job that asks once will ask again: it gets a slab's worth at least.
constexpr Bytes kLeastGiven = core::MiB(256);
// Must be free in addition to what a job asks for: drivers keep some, and round up.
constexpr Bytes kMargin = core::MiB(64);
// No byte came free for this long: the rest is in use.
constexpr auto kStalled = std::chrono::seconds(1);
// A job that frees may allocate again immediately; the store does not snatch.
constexpr auto kRegainAfter = std::chrono::seconds(2);

}  // namespace

ReclaimRequests::ReclaimRequests(std::vector<Bytes> capacities)
    : capacities_(std::move(capacities)), limits_(capacities_), last_reclaim_(capacities_.size()) {}

void ReclaimRequests::Begin(Reclaim reclaim, Tick now) {
  RAVEN_CHECK(reclaim.device < capacities_.size());
  // What others wait for is as good as taken.
  for (const Pending& other : pending_) {
    if (other.reclaim.device == reclaim.device)
      reclaim.free = Minus(reclaim.free, other.reclaim.bytes);
  }
  pending_.push_back({reclaim, false, {}, {}, {}, now});
}

void ReclaimRequests::Forget(uint64_t requester) {
  std::erase_if(pending_, [requester](const Pending& pending) {
    return pending.reclaim.requester == requester;
  });
}

bool ReclaimRequests::lowered() const {
  return limits_ != capacities_;
}

void ReclaimRequests::SetLimit(size_t device, Bytes capacity, Outcome* outcome) {
  if (limits_[device] == capacity) return;
  limits_[device] = capacity;
  outcome->limits.push_back({device, capacity});
}

ReclaimRequests::Given& ReclaimRequests::GivenTo(const Reclaim& reclaim, Tick now) {
  std::erase_if(given_, [now](const auto& entry) { return now - entry.second.at >= kRefill; });
  Given& given = given_[{reclaim.user, reclaim.device}];
  const double past = static_cast<double>((now - given.at).count()) /
                      static_cast<double>(core::Duration(kRefill).count());
  const double refilled = static_cast<double>(capacities_[reclaim.device].count()) * past;
  given.bytes = Minus(given.bytes, Bytes(static_cast<uint64_t>(std::max(refilled, 0.0))));
  given.at = now;
  return given;
}

Bytes ReclaimRequests::Lacking(const Reclaim& reclaim) {
  return Minus(reclaim.bytes + kMargin, reclaim.free);
}

bool ReclaimRequests::Possible(const Pending& pending, Bytes held, Tick now) {
  const Reclaim& reclaim = pending.reclaim;
  // A stranger's number: compared before it is added to anything.
  if (reclaim.bytes > reclaim.most) return false;
  // `free` is younger than `reclaim.held` and older than `held`: no slab that came or went in
  // between is missing in both sums.
  if (reclaim.bytes > reclaim.free + Minus(std::max(reclaim.held, held), reclaim.kept))
    return false;
  return GivenTo(reclaim, now).bytes + Lacking(reclaim) <= capacities_[reclaim.device] + kMargin;
}

void ReclaimRequests::Start(Pending& pending, Bytes held, Tick now, Outcome* outcome) {
  const Reclaim& reclaim = pending.reclaim;
  pending.begun = true;
  pending.before = held;
  pending.last = held;
  pending.last_progress = now;
  const Bytes lacking = Lacking(reclaim);
  pending.target = held;
  // Another yield, or a job that ended, has freed enough since the driver said no.
  if (lacking == Bytes{0}) return;
  last_reclaim_[reclaim.device] = now;
  // What others asked for before is going already.
  const Bytes left = std::min(held, limits_[reclaim.device]);
  pending.target =
      std::max(Minus(left, std::max(lacking, kLeastGiven)), std::min(reclaim.kept, left));
  GivenTo(reclaim, now).bytes += left - pending.target;
  SetLimit(reclaim.device, pending.target, outcome);
}

ReclaimRequests::Outcome ReclaimRequests::Update(const std::vector<Bytes>& held,
                                                 const std::vector<Bytes>& used, Tick now) {
  Outcome outcome;
  std::erase_if(pending_, [&](Pending& pending) {
    const Bytes now_held = held[pending.reclaim.device];
    if (!pending.begun && !Possible(pending, now_held, now)) {
      outcome.answers.push_back({pending.reclaim.requester, pending.reclaim.request, Bytes{0}});
      return true;
    }
    if (!pending.begun) Start(pending, now_held, now, &outcome);
    return false;
  });
  std::vector<bool> busy(capacities_.size());
  std::erase_if(pending_, [&](Pending& pending) {
    const Bytes now_held = held[pending.reclaim.device];
    if (now_held < pending.last) pending.last_progress = now;
    pending.last = now_held;
    const bool enough = now_held <= pending.target;
    if (!enough && now - pending.last_progress < kStalled) {
      busy[pending.reclaim.device] = true;
      return false;
    }
    outcome.answers.push_back(
        {pending.reclaim.requester, pending.reclaim.request, Minus(pending.before, now_held)});
    if (pending.target < pending.before) last_reclaim_[pending.reclaim.device] = now;
    return true;
  });
  for (size_t i = 0; i < capacities_.size(); ++i) {
    if (busy[i]) continue;
    // What could not be given up stays.
    SetLimit(i, std::max(limits_[i], std::min(held[i], capacities_[i])), &outcome);
    if (used.empty() || now - last_reclaim_[i] < kRegainAfter) continue;
    SetLimit(i, std::max(limits_[i], Minus(capacities_[i], used[i])), &outcome);
  }
  return outcome;
}

}  // namespace ravenstore::daemon
