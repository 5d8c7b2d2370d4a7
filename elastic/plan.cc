#include "elastic/plan.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "elastic/plan_state.h"

namespace ravenstore::elastic {

using core::Bytes;
using core::ToInt;

namespace {

// So many candidates are looked at before the answer is that there is none.
constexpr int kCandidates = 64;
constexpr int kRecentCandidates = 8;
// More uses are not counted.
constexpr int kUsesCounted = 8;
// What is too much begins to leave so many times earlier than the moves take: without trouble they
// are late, since others are under way, and what is used must wait.
constexpr double kEarly = 16;

}  // namespace

// ---- What should be done

int64_t Plan::State::CallOf(uint64_t key) const {
  return position() + static_cast<int32_t>(At(key).call - static_cast<uint32_t>(expected_call_));
}

// What of the device is free at the least until then, if what is away stays away.
int64_t Plan::State::Headroom(uint64_t key) const {
  const auto peak = static_cast<int64_t>(live_then_.Peak(*now_, key + 1)) + live_more_;
  return device_ + live_away_ - std::max(peak, live_);
}

// What has not been used for so many calls will not be for as many.
int64_t Plan::State::ExpectedWithout(const Range& range) const {
  return position() + (position() - range.last_use);
}

double Plan::State::SecondsUntil(uint64_t key) const {
  const core::Tick then = TimeOf(expected_call_ - 1);
  const uint64_t call = expected_call_ + (At(key).call - static_cast<uint32_t>(expected_call_));
  // The present call's time is what the next period begins with.
  const core::Duration from_last = TimeOf(std::min(call, follower_.calls() - 1)) - then;
  return core::Seconds(from_last + (passed_ ? TimeSince(*passed_) : core::Duration{0}));
}

// The use of a live range that it can be brought for, or its free if that comes before; none: it is
// not used again. Every use that it is too late for takes place where it is, which gives time.
std::optional<uint64_t> Plan::State::BackFor(const Range& range) const {
  double seconds = SecondsToMove();
  for (uint32_t slot = range.head; slot != kNoSlot; slot = records_[slot].next) {
    const uint64_t number = Number(slot);
    if (records_[slot].kind != Kind::kUse || SecondsUntil(number) >= seconds) return number;
    seconds -= SecondsInPlace();
  }
  return std::nullopt;
}

// The first record from `at` on after which more is live than the device holds beside what is away.
// REQUIRES: there is one.
uint64_t Plan::State::FirstOver(uint64_t at, int64_t away) const {
  while (static_cast<int64_t>(live_then_[at]) + live_more_ - away <= device_) ++at;
  return at;
}

// When there will first be more than the device holds, if what is away comes back for the first use
// that it can be brought for; and only if moves must begin now for that or what comes after.
std::optional<uint64_t> Plan::State::Excess() const {
  if (MostLive() <= device_) return std::nullopt;
  const double soon = SecondsToMove();
  // With the next one it is asked again.
  const double call = SecondsUntil(*now_);
  int64_t away = live_away_;
  std::optional<uint64_t> first;
  std::vector<std::pair<uint64_t, int64_t>> late;  // what cannot come back for its next use
  auto back = away_until_.First(*now_, scanned_);
  while (back && late.size() < kCandidates && SecondsUntil(*back) < soon) {
    const Range& range = ranges_[At(*back).range];
    if (const auto use = BackFor(range)) late.emplace_back(*use, range.away);
    back = away_until_.First(*back + 1, scanned_);
  }
  std::sort(late.begin(), late.end(), std::greater<>());
  for (uint64_t at = *now_; at < scanned_;) {
    uint64_t stop = std::min(scanned_, (at / RingPeak::kBlock + 1) * RingPeak::kBlock);
    if (back) stop = std::min(stop, *back);
    if (!late.empty()) stop = std::min(stop, late.back().first);
    const int64_t over =
        static_cast<int64_t>(live_then_.Peak(at, stop)) + live_more_ - away - device_;
    if (at < stop && over > 0) {
      const int64_t moves = (over + part_ - 1) / part_;
      const auto is_urgent = [&](uint64_t when) {
        return SecondsUntil(when) - call <= kEarly * static_cast<double>(moves) * SecondsToMove();
      };
      if (!first) first = FirstOver(at, away);
      if (is_urgent(at) && is_urgent(FirstOver(at, away))) return first;
    }
    at = stop;
    if (back && *back == at) {
      away -= ranges_[At(*back).range].away;
      back = away_until_.First(*back + 1, scanned_);
    }
    for (; !late.empty() && late.back().first == at; late.pop_back()) away -= late.back().second;
  }
  return std::nullopt;
}

// How often it is used until it is freed.
int Plan::State::UsesOf(const Range& range) const {
  int uses = 0;
  bool has_begun = range.is_live;
  for (uint32_t slot = range.head; slot != kNoSlot && uses < kUsesCounted;
       slot = records_[slot].next) {
    if (records_[slot].kind == Kind::kFree && has_begun) break;
    if (records_[slot].kind == Kind::kAllocate) has_begun = true;
    if (records_[slot].kind == Kind::kUse) ++uses;
  }
  return uses;
}

// An allocation that waits takes longer by a move, one that does not by all of its uses in place.
bool Plan::State::PaysToWait() const {
  if (!allocated_ || !now_) return false;
  return UsesOf(ranges_[*allocated_]) * SecondsInPlace() > SecondsToMove();
}

// The use that it would be brought for, if there is room for it until then.
std::optional<uint64_t> Plan::State::ComesFor(const Range& range, uint64_t key) const {
  if (!range.is_live) {
    const bool has_room = HasRoomFor(range) || !by_range_[0].empty() ||
                          Known(Out::kDeadKnown).Last(key + 1, scanned_).has_value();
    return has_room ? std::optional(key) : std::nullopt;
  }
  const auto use = BackFor(range);
  return use && At(*use).kind == Kind::kUse && Headroom(*use) >= range.away ? use : std::nullopt;
}

// Of what is needed next what can be there soonest.
std::optional<Plan::Wanted> Plan::State::NextKnown(const Skip& skip) const {
  if (!now_) return std::nullopt;
  std::optional<uint64_t> best;
  uint32_t which = 0;
  auto key = in_[0].First(*now_, scanned_);
  for (int tried = 0; key && (!best || *key < *best) && tried < kCandidates; ++tried) {
    const uint32_t id = At(*key).range;
    const auto use = ComesFor(ranges_[id], *key);
    if (use && (!best || *use < *best) && !skip(RangeId{id})) {
      best = use;
      which = id;
    }
    key = in_[0].First(*key + 1, scanned_);
  }
  if (!best) return std::nullopt;
  return Wanted{RangeId{which}, CallOf(*best), ranges_[which].is_live};
}

// Of those that were used last the one that is used most often. As long as nothing is known, one
// comes only if what leaves for it has not been used for more than twice as long as this one, now
// and between its last uses: so neither a cycle nor chance moves much, and no two change places for
// ever.
std::optional<Plan::Wanted> Plan::State::NextRecent(const Skip& skip) const {
  const uint64_t oldest = end_ > mask_ ? end_ - mask_ : 0;
  std::optional<Wanted> best;
  auto key = in_[1].Last(oldest, end_);
  for (int tried = 0; key && tried < kRecentCandidates; ++tried) {
    const RangeId id{At(*key).range};
    const Range& range = ranges_[ToInt(id)];
    const int64_t rest = std::max({range.gap, position() - range.last_use, int64_t{1}});
    const Wanted wanted{id, position() + 2 * rest, true};
    if ((!best || wanted.at < best->at) && !skip(id)) best = wanted;
    key = in_[1].Last(oldest, *key);
  }
  if (!best || HasRoomFor(*Find(best->range))) return best;
  const auto nothing = [](RangeId) { return false; };
  return Victim(best, nothing) ? best : std::nullopt;
}

std::optional<Plan::Wanted> Plan::State::NextIn(const Skip& skip) const {
  if (const auto known = NextKnown(skip)) return known;
  return NextRecent(skip);
}

std::optional<RangeId> Plan::State::AnyOf(Out out, const Skip& skip) const {
  const SlotSet& set = by_range_[static_cast<size_t>(out) - static_cast<size_t>(Out::kDeadUnknown)];
  auto id = set.Next(0);
  for (int tried = 0; id && tried < kCandidates; ++tried) {
    const RangeId range{static_cast<uint32_t>(*id)};
    if (!skip(range)) return range;
    id = set.Next(*id + 1);
  }
  return std::nullopt;
}

// The one whose key is the last, and after `after`.
std::optional<RangeId> Plan::State::LastKnown(Out out, uint64_t after, const Skip& skip) const {
  if (!now_) return std::nullopt;
  auto key = Known(out).Last(after, scanned_);
  for (int tried = 0; key && tried < kCandidates; ++tried) {
    const RangeId range{At(*key).range};
    if (!skip(range)) return range;
    key = Known(out).Last(after, *key);
  }
  return std::nullopt;
}

std::optional<RangeId> Plan::State::DeadVictim(std::optional<uint64_t> after,
                                               const Skip& skip) const {
  if (const auto any = AnyOf(Out::kDeadUnknown, skip)) return any;
  return now_ ? LastKnown(Out::kDeadKnown, after ? *after + 1 : *now_, skip) : std::nullopt;
}

std::optional<RangeId> Plan::State::UnknownVictim(std::optional<int64_t> after,
                                                  const Skip& skip) const {
  if (const auto any = AnyOf(Out::kLiveForgotten, skip)) return any;
  auto key = Known(Out::kLiveUnknown).First(end_ > mask_ ? end_ - mask_ : 0, end_);
  for (int tried = 0; key && tried < kCandidates; ++tried) {
    const RangeId id{At(*key).range};
    if (after && ExpectedWithout(ranges_[ToInt(id)]) <= *after) return std::nullopt;
    if (!skip(id)) return id;
    key = Known(Out::kLiveUnknown).First(*key + 1, end_);
  }
  return std::nullopt;
}

std::optional<RangeId> Plan::State::Victim(const std::optional<Wanted>& for_whom,
                                           const Skip& skip) const {
  const Range* const range = for_whom ? Find(for_whom->range) : nullptr;
  const bool is_known = range != nullptr && range->in == In::kKnown;
  // What is brought has room until its use, whatever is dead; what is dead itself may not.
  const bool is_dead = is_known && !range->is_live;
  const auto dead = DeadVictim(is_dead ? std::optional(range->in_key) : std::nullopt, skip);
  if (dead) return dead;
  if (!for_whom) {
    const auto live = Surplus(skip);
    return live && PaysToWait() ? live : std::nullopt;
  }
  return is_known ? std::nullopt : UnknownVictim(for_whom->at, skip);
}

std::optional<RangeId> Plan::State::Surplus(const Skip& skip) const {
  if (const auto dead = DeadVictim(std::nullopt, skip)) return dead;
  if (const auto unknown = UnknownVictim(std::nullopt, skip)) return unknown;
  const auto known = now_ ? LastKnown(Out::kLiveKnown, *now_, skip) : std::nullopt;
  return known ? known : AnyOf(Out::kEnding, skip);
}

std::optional<RangeId> Plan::State::NextOut(const Skip& skip) const {
  if (!now_) return std::nullopt;
  const auto excess = Excess();
  if (!excess) return std::nullopt;
  if (const auto unknown = UnknownVictim(std::nullopt, skip)) return unknown;
  return LastKnown(Out::kLiveKnown, *excess + 1, skip);
}

std::optional<int64_t> Plan::State::NextUse(RangeId id) const {
  const Range* const range = Find(id);
  if (range == nullptr) return std::nullopt;
  uint32_t slot = range->head;
  while (slot != kNoSlot && records_[slot].kind != Kind::kUse) slot = records_[slot].next;
  return slot != kNoSlot ? std::optional(CallOf(Number(slot))) : std::nullopt;
}

// ---- The class itself

Plan::Plan(const PlanOptions& options) : state_(std::make_unique<State>(options)) {}
Plan::~Plan() = default;
Plan::Plan(Plan&&) noexcept = default;
Plan& Plan::operator=(Plan&&) noexcept = default;

void Plan::Allocated(RangeId range, Bytes size) {
  state_->Allocated(range, size);
}
void Plan::Freed(RangeId range) {
  state_->Freed(range);
}
void Plan::Used(uint64_t identity, std::span<const RangeId> ranges, core::Tick now) {
  state_->Used(identity, ranges, now);
}
void Plan::Took(int64_t from, int64_t to, core::Duration all) {
  state_->Took(from, to, all);
}
void Plan::SetPassed(int64_t call) {
  state_->SetPassed(call);
}
bool Plan::EndsStretch() {
  return state_->EndsStretch();
}
core::Duration Plan::TimeSince(int64_t call) const {
  return state_->TimeSince(call);
}
void Plan::SetAway(RangeId range, Bytes away) {
  state_->SetAway(range, away);
}
void Plan::SetDevice(Bytes device) {
  state_->SetDevice(device);
}
std::optional<Plan::Wanted> Plan::NextIn(const std::function<bool(RangeId)>& skip) const {
  return state_->NextIn(skip);
}
std::optional<RangeId> Plan::Victim(const std::optional<Wanted>& for_whom,
                                    const std::function<bool(RangeId)>& skip) const {
  return state_->Victim(for_whom, skip);
}
std::optional<RangeId> Plan::NextOut(const std::function<bool(RangeId)>& skip) const {
  return state_->NextOut(skip);
}
std::optional<RangeId> Plan::Surplus(const std::function<bool(RangeId)>& skip) const {
  return state_->Surplus(skip);
}
int64_t Plan::position() const {
  return state_->position();
}
std::optional<int64_t> Plan::NextUse(RangeId range) const {
  return state_->NextUse(range);
}
bool Plan::IsShort() const {
  return state_->IsShort();
}
bool Plan::IsLearned() const {
  return state_->IsLearned();
}

}  // namespace ravenstore::elastic
