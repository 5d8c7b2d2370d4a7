#include "elastic/plan.h"

#include <algorithm>
#include <array>
#include <bit>
#include <utility>
#include <vector>

#include "core/check.h"
#include "elastic/follower.h"
#include "elastic/ring_peak.h"
#include "elastic/slot_set.h"

namespace ravenstore::elastic {

using core::Bytes;
using core::ToInt;

namespace {

constexpr uint32_t kNone = ~uint32_t{0};
// Records of events for each call that is remembered.
constexpr size_t kRecordsPerCall = 2;
constexpr size_t kFewestCalls = 256;
constexpr size_t kFewestRecords = 4 * RingPeak::kMargin;
// After a jump so much of what is to come is looked through with each call.
constexpr size_t kScannedPerCall = 64;
// A twin that moves ahead by more calls is a jump.
constexpr uint64_t kFewCalls = 64;
// So many candidates are looked at before the answer is that there is none.
constexpr int kCandidates = 64;
constexpr int kRecentCandidates = 8;
// A move must save so many seconds of use in place for each second of the link that it takes: large
// ranges that are used once more pass, small ones must be used more often.
constexpr double kLeastGain = 0.6;
// What is freed within this part of the period lives shortly.
constexpr uint64_t kShortLife = 64;
// More uses are not counted.
constexpr int kUsesCounted = 8;

uint64_t Mix(uint64_t hash, uint64_t more) {
  // The finalizer of MurmurHash3 (Appleby).
  hash = (hash ^ more) * 0xff51afd7ed558ccd;
  return (hash ^ hash >> 33) * 0xc4ceb9fe1a85ec53;
}

}  // namespace

// What happened is a ring of records: uses, allocations and frees. The record that corresponds to
// now, `now_`, lies one step of the program back; those from there to the end are what comes. Each
// of them is linked into the list of the range that it is expected to name. A range's key is the
// first in its list that needs its memory: so ranges in the order of their next use are keys in the
// order of the ring, and sets of them are sets of bits.
class Plan::State {
 public:
  explicit State(const PlanOptions& options)
      : follower_(options.most_calls),
        mask_(std::max(kFewestRecords, std::bit_ceil(options.most_calls * kRecordsPerCall)) - 1),
        records_(std::make_unique_for_overwrite<Record[]>(mask_ + 1)),
        live_then_(mask_ + 1),
        call_mask_(std::bit_ceil(std::max(options.most_calls, kFewestCalls)) - 1),
        call_ends_(std::make_unique_for_overwrite<uint64_t[]>(call_mask_ + 1)),
        call_times_(std::make_unique_for_overwrite<core::Tick[]>(call_mask_ + 1)),
        in_{RingSet(mask_ + 1), RingSet(mask_ + 1)},
        by_record_{RingSet(mask_ + 1), RingSet(mask_ + 1), RingSet(mask_ + 1)},
        device_(Signed(options.device)),
        part_(Signed(options.part)),
        bytes_per_second_(options.bytes_per_second),
        seconds_per_part_(options.seconds_per_part) {}

  void Allocated(RangeId range, Bytes size);
  void Freed(RangeId range);
  void Used(uint64_t identity, std::span<const RangeId> ranges, core::Tick now);
  void SetAway(RangeId range, Bytes away);
  void SetDevice(Bytes device) { device_ = Signed(device); }

  std::optional<Wanted> NextIn(const std::function<bool(RangeId)>& skip) const;
  std::optional<RangeId> NextOut(const std::function<bool(RangeId)>& skip) const;
  std::optional<RangeId> Surplus(const std::function<bool(RangeId)>& skip) const;
  std::optional<RangeId> Victim(const std::optional<Wanted>& for_whom,
                                const std::function<bool(RangeId)>& skip) const;
  int64_t position() const { return static_cast<int64_t>(follower_.calls()); }
  std::optional<int64_t> NextUse(RangeId range) const;
  bool IsLearned() const { return now_ && follower_.IsTrusted(); }

 private:
  using Skip = std::function<bool(RangeId)>;
  enum class Kind : uint8_t { kUse, kAllocate, kFree };
  struct Record {
    uint32_t range;
    uint32_t next;  // in the range's list, a slot
    uint32_t call;  // that it belongs to, or comes before
    Kind kind;
    bool is_linked;
  };
  // Those to bring, and those to take out. A range is in one of each at most.
  enum class In : uint8_t { kNone, kKnown, kRecent };
  enum class Out : uint8_t {
    kNone,
    // By record: the next use, the next allocation, the last event.
    kLiveKnown,
    kDeadKnown,
    kLiveUnknown,
    // By range: dead and not expected again; not heard of for longer than is remembered; expected
    // to be freed before it is used.
    kDeadUnknown,
    kLiveForgotten,
    kEnding,
  };
  struct Range {
    int64_t size = 0;
    int64_t away = 0;
    uint32_t head = kNone;  // what is expected of it, by slots
    uint32_t tail = kNone;
    bool is_live = false;
    bool is_remembered = false;  // `last` is
    In in = In::kNone;
    Out out = Out::kNone;
    uint64_t in_key = 0;
    uint64_t out_key = 0;
    uint64_t last = 0;     // record that named it
    int64_t last_use = 0;  // a call
    int64_t gap = 0;       // calls between its last two uses; 0: not known
    int64_t resident() const { return size - away; }
  };

  static int64_t Signed(Bytes bytes) { return static_cast<int64_t>(bytes.count()); }
  Record& At(uint64_t number) { return records_[number & mask_]; }
  const Record& At(uint64_t number) const { return records_[number & mask_]; }
  // Of what is linked.
  uint64_t Number(uint32_t slot) const { return *now_ + ((slot - *now_) & mask_); }
  Range& RangeOf(RangeId range);
  const Range* Find(RangeId range) const {
    return ToInt(range) < ranges_.size() ? &ranges_[ToInt(range)] : nullptr;
  }

  // ---- What happened.
  void Append(Kind kind, uint32_t range);
  void Account(Range& range, int64_t size, int64_t away, bool is_live);

  // ---- What is expected.
  void Follow(std::span<const RangeId> ranges, std::optional<uint64_t> twin_before);
  void HasCome(const Range& range, Kind kind);
  bool Advance(uint64_t call, std::span<const RangeId> ranges);
  void Forget();
  void Scan(size_t most);
  void Link(uint64_t number);
  void Unlink(uint64_t number);
  // The first use or allocation in the range's list.
  std::optional<uint64_t> KeyOf(const Range& range) const;
  void Rekey(uint32_t range);
  void Enter(uint32_t id, In in, uint64_t key);
  void Enter(uint32_t id, Out out, uint64_t key);
  RingSet* ByRecord(Out out);
  SlotSet* ByRange(Out out);

  // ---- What should be done.
  int64_t Headroom(uint64_t key) const;
  int64_t CallOf(uint64_t key) const;
  int64_t ExpectedWithout(const Range& range) const;
  bool HasRoomFor(const Range& range) const {
    return device_ - resident_ >= std::min(part_, range.away);
  }
  bool IsWorth(const Range& range, uint64_t key) const;
  double SecondsUntil(uint64_t key) const;
  int UsesOf(const Range& range, double from) const;
  double Gain(const Range& range) const;
  bool IsShortLived(const Range& range) const;
  bool PaysToWait(const Range& victim) const;
  double SecondsToMove(double bytes) const { return seconds_per_part_ + bytes / bytes_per_second_; }
  std::optional<Wanted> NextKnown(const Skip& skip) const;
  std::optional<Wanted> NextRecent(const Skip& skip) const;
  std::optional<RangeId> DeadVictim(std::optional<uint64_t> after, const Skip& skip) const;
  std::optional<RangeId> LastKnown(Out out, uint64_t after, const Skip& skip) const;
  std::optional<RangeId> UnknownVictim(std::optional<int64_t> after, const Skip& skip) const;
  std::optional<RangeId> AnyOf(Out out, const Skip& skip) const;
  const RingSet& Known(Out out) const { return by_record_[ToIndex(out)]; }
  static size_t ToIndex(Out out) {
    return static_cast<size_t>(out) - static_cast<size_t>(Out::kLiveKnown);
  }

  Follower follower_;
  const uint64_t mask_;
  std::unique_ptr<Record[]> records_;
  RingPeak live_then_;  // bytes, after each record
  const uint64_t call_mask_;
  std::unique_ptr<uint64_t[]> call_ends_;  // the record after each call's
  std::unique_ptr<core::Tick[]> call_times_;
  uint64_t end_ = 0;             // the next record
  std::optional<uint64_t> now_;  // the first record that is expected; none: nothing is
  uint64_t scanned_ = 0;         // the first that is not linked yet
  uint64_t expected_call_ = 0;   // that `now_` belongs to
  int64_t live_more_ = 0;        // than at that time

  std::vector<Range> ranges_;
  std::optional<uint32_t> allocated_;  // last
  std::array<RingSet, 2> in_;
  std::array<RingSet, 3> by_record_;
  std::array<SlotSet, 3> by_range_;

  int64_t device_;
  const int64_t part_;
  const double bytes_per_second_;
  const double seconds_per_part_;
  int64_t live_ = 0;
  int64_t live_away_ = 0;
  int64_t resident_ = 0;  // dead ones' too
};

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
  record = {range, kNone, static_cast<uint32_t>(follower_.calls()), kind, false};
  live_then_.Append(number, static_cast<uint64_t>(live_));
  ranges_[range].last = number;
  ranges_[range].is_remembered = true;
}

void Plan::State::Allocated(RangeId id, Bytes bytes) {
  const uint32_t number = ToInt(id);
  Range& range = RangeOf(id);
  const int64_t size = Signed(bytes);
  // What lies on the device of a range that is dead stays there for the next that has its size.
  Account(range, size, range.size == size ? range.away : size, true);
  range.last_use = position();
  range.gap = 0;
  HasCome(range, Kind::kAllocate);
  Append(Kind::kAllocate, number);
  allocated_ = number;
  Rekey(number);
}

// What is expected of it next, if it is of that kind, is what has just happened.
void Plan::State::HasCome(const Range& range, Kind kind) {
  if (range.head != kNone && records_[range.head].kind == kind) Unlink(Number(range.head));
}

void Plan::State::Freed(RangeId id) {
  Range& range = RangeOf(id);
  Account(range, range.size, range.away, false);
  HasCome(range, Kind::kFree);
  Append(Kind::kFree, ToInt(id));
  Rekey(ToInt(id));
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
  call_ends_[static_cast<uint64_t>(call) & call_mask_] = end_;
  call_times_[static_cast<uint64_t>(call) & call_mask_] = now;
  Scan(kScannedPerCall);
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
    const uint64_t from = call_ends_[*twin & call_mask_];
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
    if (is_this && use < ranges.size() && record.is_linked && ToInt(ranges[use]) != record.range)
      right = false;
    if (is_this) ++use;
    if (record.is_linked) Rekey(record.range);
  }
  return right;
}

void Plan::State::Forget() {
  if (!now_) return;
  for (Range& range : ranges_) range.head = range.tail = kNone;
  now_.reset();
  for (uint32_t id = 0; id < ranges_.size(); ++id) Rekey(id);
}

void Plan::State::Scan(size_t most) {
  if (!now_) return;
  for (; most > 0 && scanned_ < end_; --most) Link(scanned_++);
}

void Plan::State::Link(uint64_t number) {
  Record& record = At(number);
  record.next = kNone;
  record.is_linked = true;
  Range& range = ranges_[record.range];
  const auto slot = static_cast<uint32_t>(number & mask_);
  (range.tail != kNone ? records_[range.tail].next : range.head) = slot;
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
  uint32_t before = kNone;
  uint32_t* link = &range.head;
  while (*link != slot) {
    RAVEN_CHECK(*link != kNone);
    before = *link;
    link = &records_[before].next;
  }
  *link = record.next;
  if (range.tail == slot) range.tail = before;
  record.is_linked = false;
}

std::optional<uint64_t> Plan::State::KeyOf(const Range& range) const {
  uint32_t slot = range.head;
  while (slot != kNone && records_[slot].kind == Kind::kFree) slot = records_[slot].next;
  return slot != kNone ? std::optional(Number(slot)) : std::nullopt;
}

void Plan::State::Rekey(uint32_t id) {
  const Range& range = ranges_[id];
  const auto key = KeyOf(range);
  const bool is_ending =
      range.is_live && range.head != kNone && records_[range.head].kind != Kind::kUse;
  In in = In::kNone;
  if (range.away > 0 && !is_ending) {
    if (key) in = In::kKnown;
    if (!key && range.is_live && range.is_remembered) in = In::kRecent;
  }
  Enter(id, in, key ? *key : range.last);
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
  const core::Tick then = call_times_[(expected_call_ - 1) & call_mask_];
  const uint64_t call = expected_call_ + (At(key).call - static_cast<uint32_t>(expected_call_));
  // The present call's time is what the next period begins with.
  return core::Seconds(call_times_[std::min(call, follower_.calls() - 1) & call_mask_] - then);
}

// How often it is used until it is freed, from so many seconds on.
int Plan::State::UsesOf(const Range& range, double from) const {
  int uses = 0;
  bool has_begun = range.is_live;
  for (uint32_t slot = range.head; slot != kNone && uses < kUsesCounted;
       slot = records_[slot].next) {
    if (records_[slot].kind == Kind::kFree && has_begun) break;
    if (records_[slot].kind == Kind::kAllocate) has_begun = true;
    if (records_[slot].kind == Kind::kUse && (from == 0 || SecondsUntil(Number(slot)) >= from))
      ++uses;
  }
  return uses;
}

// What is saved a second of the link by bringing it.
double Plan::State::Gain(const Range& range) const {
  const auto bytes = static_cast<double>(std::min(part_, range.away));
  const double cost = SecondsToMove(range.is_live ? bytes : 0);
  return UsesOf(range, cost) * bytes / bytes_per_second_ / cost;
}

// Whether it is freed within a small part of the program's period.
bool Plan::State::IsShortLived(const Range& range) const {
  for (uint32_t slot = range.head; slot != kNone; slot = records_[slot].next) {
    if (records_[slot].kind != Kind::kFree) continue;
    return (Number(slot) - *now_) * kShortLife < end_ - *now_;
  }
  return false;
}

// An allocation that waits until `victim` is out takes longer by that, and by the victim's use in
// place; one that does not, by all of its own uses. What is freed soon leaves its room to the next
// such allocation, so that the victim's use counts little.
bool Plan::State::PaysToWait(const Range& victim) const {
  if (!allocated_ || !now_) return false;
  const Range& range = ranges_[*allocated_];
  const auto bytes = static_cast<double>(std::min(part_, range.size));
  const double use = bytes / bytes_per_second_;
  const double later = victim.head != kNone && !IsShortLived(range) ? use : 0;
  return UsesOf(range, 0) * use > SecondsToMove(bytes) + later;
}

// There is room for it, or will be by taking out what is needed later.
bool Plan::State::IsWorth(const Range& range, uint64_t key) const {
  const bool has_room =
      HasRoomFor(range) || !by_range_[0].empty() || Known(Out::kDeadKnown).Last(key + 1, scanned_);
  if (!range.is_live) return has_room;
  if (Headroom(key) >= range.away) return has_room;
  return Known(Out::kLiveKnown).Last(key + 1, scanned_).has_value() ||
         !Known(Out::kLiveUnknown).empty() || !by_range_[1].empty();
}

std::optional<Plan::Wanted> Plan::State::NextKnown(const Skip& skip) const {
  if (!now_) return std::nullopt;
  auto key = in_[0].First(*now_, scanned_);
  for (int tried = 0; key && tried < kCandidates; ++tried) {
    const RangeId id{At(*key).range};
    const Range& range = ranges_[ToInt(id)];
    if (Gain(range) >= kLeastGain && IsWorth(range, *key) && !skip(id))
      return Wanted{id, CallOf(*key), range.is_live};
    key = in_[0].First(*key + 1, scanned_);
  }
  return std::nullopt;
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
  const auto after = is_known ? std::optional(range->in_key) : std::nullopt;
  if (const auto dead = DeadVictim(after, skip)) return dead;
  if (!for_whom) {
    const auto live = Surplus(skip);
    return live && PaysToWait(*Find(*live)) ? live : std::nullopt;
  }
  if (is_known && Headroom(*after) >= (range->is_live ? range->away : 0)) return std::nullopt;
  const auto unknown = UnknownVictim(for_whom->at, skip);
  if (unknown || !now_ || !is_known) return unknown;
  return LastKnown(Out::kLiveKnown, *after + 1, skip);
}

std::optional<RangeId> Plan::State::Surplus(const Skip& skip) const {
  if (const auto dead = DeadVictim(std::nullopt, skip)) return dead;
  if (const auto unknown = UnknownVictim(std::nullopt, skip)) return unknown;
  const auto known = now_ ? LastKnown(Out::kLiveKnown, *now_, skip) : std::nullopt;
  return known ? known : AnyOf(Out::kEnding, skip);
}

std::optional<RangeId> Plan::State::NextOut(const Skip& skip) const {
  if (!now_) return std::nullopt;
  auto key = Known(Out::kLiveKnown).Last(*now_, scanned_);
  for (int tried = 0; key && tried < kCandidates; ++tried) {
    if (Headroom(*key) >= 0) return std::nullopt;
    const RangeId range{At(*key).range};
    if (!skip(range)) return range;
    key = Known(Out::kLiveKnown).Last(*now_, *key);
  }
  return std::nullopt;
}

std::optional<int64_t> Plan::State::NextUse(RangeId id) const {
  const Range* const range = Find(id);
  if (range == nullptr) return std::nullopt;
  uint32_t slot = range->head;
  while (slot != kNone && records_[slot].kind != Kind::kUse) slot = records_[slot].next;
  return slot != kNone ? std::optional(CallOf(Number(slot))) : std::nullopt;
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
bool Plan::IsLearned() const {
  return state_->IsLearned();
}

}  // namespace ravenstore::elastic
