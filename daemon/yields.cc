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
// No byte came free for so long: the rest is in use.
constexpr auto kStalled = std::chrono::seconds(1);
// A job that frees may allocate again at once; the store does not snatch.
constexpr auto kRegainAfter = std::chrono::seconds(2);

}  // namespace

Yields::Yields(std::vector<Bytes> capacities)
    : capacities_(std::move(capacities)), limits_(capacities_), last_yield_(capacities_.size()) {}

void Yields::Begin(const Ask& ask, Tick now) {
  RAVEN_CHECK(ask.device < capacities_.size());
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

bool Yields::Possible(const Pending& pending, Bytes held) {
  // `free` is younger than `ask.held` and older than `held`: no slab that came or went in between
  // is missing in both sums.
  return pending.ask.bytes <= pending.ask.free + std::max(pending.ask.held, held);
}

void Yields::Start(Pending& pending, Bytes held, Tick now, Outcome* outcome) {
  pending.begun = true;
  pending.before = held;
  pending.last = held;
  pending.last_progress = now;
  // What others asked for before is going already.
  const Bytes left = std::min(held, limits_[pending.ask.device]);
  pending.target = Minus(left, std::max(pending.ask.bytes, kLeastGiven));
  last_yield_[pending.ask.device] = now;
  SetLimit(pending.ask.device, pending.target, outcome);
}

Yields::Outcome Yields::Look(const std::vector<Bytes>& held, const std::vector<Bytes>& used,
                             Tick now) {
  Outcome outcome;
  std::erase_if(pending_, [&](Pending& pending) {
    const Bytes now_held = held[pending.ask.device];
    if (!pending.begun && !Possible(pending, now_held)) {
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
    last_yield_[pending.ask.device] = now;
    return true;
  });
  for (size_t i = 0; i < capacities_.size(); ++i) {
    if (busy[i]) continue;
    // What could not be given up stays.
    SetLimit(i, std::max(limits_[i], std::min(held[i], capacities_[i])), &outcome);
    if (now - last_yield_[i] < kRegainAfter) continue;
    SetLimit(i, std::max(limits_[i], Minus(capacities_[i], used[i])), &outcome);
  }
  return outcome;
}

}  // namespace ravenstore::daemon
