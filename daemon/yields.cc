#include "daemon/yields.h"

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
// Must be free beside what a job asks for: drivers keep some, and round up.
constexpr Bytes kBeside = core::MiB(64);
// No byte came free for so long: the rest is in use.
constexpr auto kStalled = std::chrono::seconds(1);
// A job that frees may allocate again at once; the store does not snatch.
constexpr auto kRegainAfter = std::chrono::seconds(2);

}  // namespace

Yields::Yields(std::vector<Bytes> capacities)
    : capacities_(std::move(capacities)), limits_(capacities_), last_yield_(capacities_.size()) {}

void Yields::Begin(Ask ask, Tick now) {
  RAVEN_CHECK(ask.device < capacities_.size());
  // What others wait for is as good as taken.
  for (const Pending& other : pending_) {
    if (other.ask.device == ask.device) ask.free = Minus(ask.free, other.ask.bytes);
  }
  pending_.push_back({ask, false, {}, {}, {}, now});
}

void Yields::Forget(uint64_t asker) {
  std::erase_if(pending_, [asker](const Pending& pending) { return pending.ask.asker == asker; });
}

bool Yields::lowered() const {
  return limits_ != capacities_;
}

void Yields::SetLimit(size_t device, Bytes capacity, Outcome* outcome) {
  if (limits_[device] == capacity) return;
  limits_[device] = capacity;
  outcome->limits.push_back({device, capacity});
}

Yields::Given& Yields::GivenTo(const Ask& ask, Tick now) {
  std::erase_if(given_, [now](const auto& entry) { return now - entry.second.at >= kRefill; });
  Given& given = given_[{ask.user, ask.device}];
  const double past = static_cast<double>((now - given.at).count()) /
                      static_cast<double>(core::Duration(kRefill).count());
  const double refilled = static_cast<double>(capacities_[ask.device].count()) * past;
  given.bytes = Minus(given.bytes, Bytes(static_cast<uint64_t>(std::max(refilled, 0.0))));
  given.at = now;
  return given;
}

Bytes Yields::Lacking(const Ask& ask) {
  return Minus(ask.bytes + kBeside, ask.free);
}

bool Yields::Possible(const Pending& pending, Bytes held, Tick now) {
  const Ask& ask = pending.ask;
  // A stranger's number: compared before it is added to anything.
  if (ask.bytes > ask.most) return false;
  // `free` is younger than `ask.held` and older than `held`: no slab that came or went in between
  // is missing in both sums.
  if (ask.bytes > ask.free + Minus(std::max(ask.held, held), ask.kept)) return false;
  return GivenTo(ask, now).bytes + Lacking(ask) <= capacities_[ask.device] + kBeside;
}

void Yields::Start(Pending& pending, Bytes held, Tick now, Outcome* outcome) {
  const Ask& ask = pending.ask;
  pending.begun = true;
  pending.before = held;
  pending.last = held;
  pending.last_progress = now;
  const Bytes lacking = Lacking(ask);
  pending.target = held;
  // Another yield, or a job that ended, has freed enough since the driver said no.
  if (lacking == Bytes{0}) return;
  last_yield_[ask.device] = now;
  // What others asked for before is going already.
  const Bytes left = std::min(held, limits_[ask.device]);
  pending.target = std::max(Minus(left, std::max(lacking, kLeastGiven)), std::min(ask.kept, left));
  GivenTo(ask, now).bytes += left - pending.target;
  SetLimit(ask.device, pending.target, outcome);
}

Yields::Outcome Yields::Look(const std::vector<Bytes>& held, const std::vector<Bytes>& used,
                             Tick now) {
  Outcome outcome;
  std::erase_if(pending_, [&](Pending& pending) {
    const Bytes now_held = held[pending.ask.device];
    if (!pending.begun && !Possible(pending, now_held, now)) {
      outcome.answers.push_back({pending.ask.asker, pending.ask.request, Bytes{0}});
      return true;
    }
    if (!pending.begun) Start(pending, now_held, now, &outcome);
    return false;
  });
  std::vector<bool> busy(capacities_.size());
  std::erase_if(pending_, [&](Pending& pending) {
    const Bytes now_held = held[pending.ask.device];
    if (now_held < pending.last) pending.last_progress = now;
    pending.last = now_held;
    const bool enough = now_held <= pending.target;
    if (!enough && now - pending.last_progress < kStalled) {
      busy[pending.ask.device] = true;
      return false;
    }
    outcome.answers.push_back(
        {pending.ask.asker, pending.ask.request, Minus(pending.before, now_held)});
    if (pending.target < pending.before) last_yield_[pending.ask.device] = now;
    return true;
  });
  for (size_t i = 0; i < capacities_.size(); ++i) {
    if (busy[i]) continue;
    // What could not be given up stays.
    SetLimit(i, std::max(limits_[i], std::min(held[i], capacities_[i])), &outcome);
    if (used.empty() || now - last_yield_[i] < kRegainAfter) continue;
    SetLimit(i, std::max(limits_[i], Minus(capacities_[i], used[i])), &outcome);
  }
  return outcome;
}

}  // namespace ravenstore::daemon
