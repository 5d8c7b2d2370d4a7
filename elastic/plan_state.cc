#include "elastic/plan_state.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "core/check.h"

namespace ravenstore::elastic {

using core::Bytes;
using core::ToInt;

namespace {

// Records of events for each call that is remembered.
constexpr size_t kRecordsPerCall = 2;
constexpr size_t kFewestCalls = 256;
constexpr size_t kFewestRecords = 4 * RingPeak::kMargin;
// After a jump so much of what is to come is looked through with each call.
constexpr size_t kScannedPerCall = 64;
// A twin that moves ahead by more calls is a jump.
constexpr uint64_t kFewCalls = 64;
// Calls in a stretch; more where it is known what they take.
constexpr int64_t kStretch = 8;
constexpr int64_t kStretchMost = 64;
constexpr core::Duration kUnknown{-1};

uint64_t Mix(uint64_t hash, uint64_t more) {
  // The finalizer of MurmurHash3 (Appleby).
  hash = (hash ^ more) * 0xff51afd7ed558ccd;
  return (hash ^ hash >> 33) * 0xc4ceb9fe1a85ec53;
}

}  // namespace

Plan::State::State(const PlanOptions& options)
    : follower_(options.most_calls),
      mask_(std::max(kFewestRecords, std::bit_ceil(options.most_calls * kRecordsPerCall)) - 1),
      records_(std::make_unique_for_overwrite<Record[]>(mask_ + 1)),
      live_then_(mask_ + 1),
      call_mask_(std::bit_ceil(std::max(options.most_calls, kFewestCalls)) - 1),
      calls_(std::make_unique_for_overwrite<Call[]>(call_mask_ + 1)),
      kinds_(std::make_unique_for_overwrite<CallKind[]>(call_mask_ + 1)),
      in_{RingSet(mask_ + 1), RingSet(mask_ + 1)},
      by_record_{RingSet(mask_ + 1), RingSet(mask_ + 1), RingSet(mask_ + 1)},
      away_until_(mask_ + 1),
      device_(Signed(options.device)),
      part_(Signed(options.part)),
      bytes_per_second_(options.bytes_per_second),
      seconds_per_part_(options.seconds_per_part) {}

// ---- What happened

Plan::State::Range& Plan::State::RangeOf(RangeId range) {
  if (ToInt(range) >= ranges_.size()) {
    ranges_.resize(std::max<size_t>(ToInt(range) + 1, ranges_.size() * 2));
    for (SlotSet& set : by_range_) set.Grow(ranges_.size());
  }
  return ranges_[ToInt(range)];
}

void Plan::State::Account(Range& range, int64_t size, int64_t away, bool is_live) {
  const auto count = [&](int64_t sign) {
    resident_ += sign * range.resident();
    if (!range.is_live) return;
    live_ += sign * range.size;
    live_away_ += sign * range.away;
  };
  count(-1);
  range.size = size;
  range.away = away;
  range.is_live = is_live;
  count(1);
}

void Plan::State::Append(Kind kind, uint32_t range) {
  const uint64_t number = end_++;
  if (number > mask_) {
    const uint64_t lost = number - mask_ - 1;
    // Nothing that is expected is ever overwritten, nor its summaries.
    if (now_ && *now_ <= lost + RingPeak::kMargin) Forget();
    const uint32_t of = At(lost).range;
    if (ranges_[of].is_remembered && ranges_[of].last == lost) {
      ranges_[of].is_remembered = false;
      Rekey(of);
    }
  }
  Record& record = At(number);
  record = {range, kNoSlot, static_cast<uint32_t>(follower_.calls()), kind, false};
  live_then_.Append(number, static_cast<uint64_t>(live_));
  ranges_[range].last = number;
  ranges_[range].is_remembered = true;
}

void Plan::State::Allocated(RangeId id, Bytes bytes) {
  Range& range = RangeOf(id);
  // What lies on the device of a range that is dead stays there.
  const int64_t size = Signed(bytes);
  Account(range, size, range.size == size ? range.away : size, true);
  range.last_use = position();
  range.gap = 0;
  Happened(Kind::kAllocate, ToInt(id));
  allocated_ = ToInt(id);
}

void Plan::State::Freed(RangeId id) {
  Range& range = RangeOf(id);
  Account(range, range.size, range.away, false);
  Happened(Kind::kFree, ToInt(id));
}

// Between calls: if it is expected next of its range, it is expected no more.
void Plan::State::Happened(Kind kind, uint32_t id) {
  const uint32_t head = ranges_[id].head;
  if (head != kNoSlot && records_[head].kind == kind) Unlink(Number(head));
  Append(kind, id);
  Rekey(id);
}

void Plan::State::SetAway(RangeId id, Bytes away) {
  Range& range = RangeOf(id);
  Account(range, range.size, std::min(Signed(away), range.size), range.is_live);
  Rekey(ToInt(id));
}

void Plan::State::Used(uint64_t identity, std::span<const RangeId> ranges, core::Tick now) {
  uint64_t kind = Mix(identity, ranges.size());
  uint64_t place = kind;
  for (const RangeId range : ranges) {
    kind = Mix(kind, static_cast<uint64_t>(RangeOf(range).size));
    place = Mix(place, ToInt(range));
  }
  const auto twin_before = follower_.twin();
  const int64_t call = position();
  follower_.Add(kind, Mix(kind, place));
  Follow(ranges, twin_before);
  for (const RangeId id : ranges) {
    Range& range = RangeOf(id);
    range.gap = std::max<int64_t>(1, call - range.last_use);
    range.last_use = call;
    Append(Kind::kUse, ToInt(id));
    // It belongs to this call, not to the next.
    --At(end_ - 1).call;
    Rekey(ToInt(id));
  }
  CallAt(static_cast<uint64_t>(call)).end = end_;
  Time(static_cast<uint64_t>(call), now);
  Scan(kScannedPerCall);
}

// When it begins, by the least that those before it took in any step, without what they waited for.
void Plan::State::Time(uint64_t call, core::Tick now) {
  core::Duration gap = std::max(core::Duration{0}, now - std::exchange(last_used_, now));
  const auto twin = follower_.Matches() ? follower_.twin() : std::nullopt;
  if (twin && *twin > 0) gap = std::min(gap, TimeOf(*twin) - TimeOf(*twin - 1));
  Call& timed = CallAt(call);
  timed.kind = twin ? CallAt(*twin).kind : call & call_mask_;
  if (!twin) kinds_[timed.kind] = {kUnknown, false};
  timed.begins = {};
  if (call == 0) return;
  const core::Duration took = KindOf(call - 1).took;
  timed.begins = TimeOf(call - 1) + (took >= core::Duration{0} ? took : gap);
}

void Plan::State::Took(int64_t from, int64_t to, core::Duration all) {
  if (from < 0 || from >= to || to > position()) return;
  if (static_cast<uint64_t>(position() - from) > call_mask_) return;
  core::Duration known{0};
  bool all_known = true;
  for (int64_t call = from; call < to; ++call) {
    const core::Duration took = KindOf(static_cast<uint64_t>(call)).took;
    all_known = all_known && took >= core::Duration{0};
    known += std::max(took, core::Duration{0});
  }
  if (all_known && all >= known) return;
  const double share = core::Seconds(all) / core::Seconds(known);
  for (int64_t call = from; call < to; ++call) {
    core::Duration& took = KindOf(static_cast<uint64_t>(call)).took;
    took = all_known ? core::FromSeconds(core::Seconds(took) * share) : all / (to - from);
  }
}

bool Plan::State::EndsStretch() {
  if (position() == 0) return false;
  CallKind& last = KindOf(static_cast<uint64_t>(position() - 1));
  const int64_t most = last.took >= core::Duration{0} ? kStretchMost : kStretch;
  if (++stretch_ < most && !last.ends_stretch) return false;
  stretch_ = 0;
  return last.ends_stretch = true;
}

core::Duration Plan::State::TimeSince(int64_t call) const {
  if (call >= position()) return {};
  const int64_t oldest = position() - static_cast<int64_t>(call_mask_);
  const auto last = static_cast<uint64_t>(position() - 1);
  return TimeOf(last) - TimeOf(static_cast<uint64_t>(std::max({call, oldest, int64_t{0}})));
}

// ---- What is expected

// The last call has another twin now.
void Plan::State::Follow(std::span<const RangeId> ranges, std::optional<uint64_t> twin_before) {
  const auto twin = follower_.twin();
  if (!twin) return Forget();
  const bool goes_on =
      now_ && twin_before && *twin >= *twin_before && *twin - *twin_before <= kFewCalls;
  if (goes_on) {
    if (!follower_.Matches()) return;
    const bool right = Advance(*twin, ranges);
    follower_.Confirm(right);
    if (!follower_.twin()) return Forget();
  } else {
    Forget();
    const uint64_t from = CallAt(*twin).end;
    if (end_ - from > mask_ - RingPeak::kMargin * 2) return;
    now_ = scanned_ = from;
  }
  live_more_ = live_ - (*now_ > 0 ? static_cast<int64_t>(live_then_[*now_ - 1]) : 0);
  expected_call_ = *twin + 1;
}

// What was expected up to the end of `call` has happened, or does not. Whether the ranges of that
// call were those that were expected.
bool Plan::State::Advance(uint64_t call, std::span<const RangeId> ranges) {
  bool right = true;
  size_t use = 0;
  Scan(kScannedPerCall);
  for (; *now_ < end_; ++*now_) {
    const Record record = At(*now_);
    if (static_cast<int32_t>(record.call - static_cast<uint32_t>(call)) > 0) break;
    if (*now_ >= scanned_) {
      scanned_ = *now_ + 1;
    } else if (record.is_linked) {
      Unlink(*now_);
    }
    const bool is_this = record.kind == Kind::kUse && record.call == static_cast<uint32_t>(call);
    if (is_this && use < ranges.size()) right = right && record.range == ToInt(ranges[use++]);
    if (record.is_linked) Rekey(record.range);
  }
  return right;
}

void Plan::State::Forget() {
  if (!now_) return;
  for (Range& range : ranges_) range.head = range.tail = kNoSlot;
  now_.reset();
  for (uint32_t id = 0; id < ranges_.size(); ++id) Rekey(id);
}

void Plan::State::Scan(size_t most) {
  if (!now_) return;
  for (; most > 0 && scanned_ < end_; --most) Link(scanned_++);
}

void Plan::State::Link(uint64_t number) {
  Record& record = At(number);
  record.next = kNoSlot;
  record.is_linked = true;
  Range& range = ranges_[record.range];
  const auto slot = static_cast<uint32_t>(number & mask_);
  (range.tail != kNoSlot ? records_[range.tail].next : range.head) = slot;
  range.tail = slot;
  // Mostly there is something before it that says more.
  if (range.head == slot ||
      (range.in != In::kKnown && range.out != Out::kLiveKnown && range.out != Out::kDeadKnown))
    Rekey(record.range);
}

void Plan::State::Unlink(uint64_t number) {
  Record& record = At(number);
  if (!record.is_linked) return;
  Range& range = ranges_[record.range];
  const auto slot = static_cast<uint32_t>(number & mask_);
  uint32_t before = kNoSlot;
  uint32_t* link = &range.head;
  while (*link != slot) {
    RAVEN_CHECK(*link != kNoSlot);
    before = *link;
    link = &records_[before].next;
  }
  *link = record.next;
  if (range.tail == slot) range.tail = before;
  record.is_linked = false;
}

std::optional<uint64_t> Plan::State::KeyOf(const Range& range) const {
  uint32_t slot = range.head;
  while (slot != kNoSlot && records_[slot].kind == Kind::kFree) slot = records_[slot].next;
  return slot != kNoSlot ? std::optional(Number(slot)) : std::nullopt;
}

void Plan::State::Rekey(uint32_t id) {
  const Range& range = ranges_[id];
  const auto key = KeyOf(range);
  const bool is_ending =
      range.is_live && range.head != kNoSlot && records_[range.head].kind != Kind::kUse;
  In in = In::kNone;
  if (range.away > 0 && !is_ending) {
    if (key) in = In::kKnown;
    if (!key && range.is_live && range.is_remembered) in = In::kRecent;
  }
  Enter(id, in, key ? *key : range.last);
  SetAwayUntil(id);
  Out out = Out::kNone;
  if (range.resident() > 0) {
    if (is_ending) {
      out = Out::kEnding;
    } else if (key) {
      out = range.is_live ? Out::kLiveKnown : Out::kDeadKnown;
    } else if (!range.is_live) {
      out = Out::kDeadUnknown;
    } else {
      out = range.is_remembered ? Out::kLiveUnknown : Out::kLiveForgotten;
    }
  }
  Enter(id, out, ByRange(out) != nullptr ? id : key ? *key : range.last);
}

void Plan::State::SetAwayUntil(uint32_t id) {
  Range& range = ranges_[id];
  std::optional<uint64_t> until;
  if (range.is_live && range.away > 0 && range.head != kNoSlot) until = Number(range.head);
  if (range.away_until == until) return;
  if (range.away_until) away_until_.Remove(*range.away_until);
  if (until) away_until_.Add(*until);
  range.away_until = until;
}

void Plan::State::Enter(uint32_t id, In in, uint64_t key) {
  Range& range = ranges_[id];
  if (range.in == in && (in == In::kNone || range.in_key == key)) return;
  const auto set = [&](In which) { return &in_[which == In::kKnown ? 0 : 1]; };
  if (range.in != In::kNone) set(range.in)->Remove(range.in_key);
  range.in = in;
  range.in_key = key;
  if (in != In::kNone) set(in)->Add(key);
}

void Plan::State::Enter(uint32_t id, Out out, uint64_t key) {
  Range& range = ranges_[id];
  if (range.out == out && (out == Out::kNone || range.out_key == key)) return;
  if (RingSet* const set = ByRecord(range.out)) set->Remove(range.out_key);
  if (SlotSet* const set = ByRange(range.out)) set->Remove(id);
  range.out = out;
  range.out_key = key;
  if (RingSet* const set = ByRecord(out)) set->Add(key);
  if (SlotSet* const set = ByRange(out)) set->Add(id);
}

RingSet* Plan::State::ByRecord(Out out) {
  const bool is = out >= Out::kLiveKnown && out <= Out::kLiveUnknown;
  return is ? &by_record_[ToIndex(out)] : nullptr;
}

SlotSet* Plan::State::ByRange(Out out) {
  if (out < Out::kDeadUnknown) return nullptr;
  return &by_range_[static_cast<size_t>(out) - static_cast<size_t>(Out::kDeadUnknown)];
}

}  // namespace ravenstore::elastic
