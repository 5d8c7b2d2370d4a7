// What a plan remembers and expects. plan_state.cc keeps it, plan.cc chooses by it.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "core/types.h"
#include "elastic/follower.h"
#include "elastic/plan.h"
#include "elastic/ring_peak.h"
#include "elastic/slot_set.h"

namespace ravenstore::elastic {

// What happened is a ring of records: uses, allocations and frees. The record that corresponds to
// now, `now_`, lies one step of the program back; those from there to the end are what comes. Each
// of them is linked into the list of the range that it is expected to name. A range's key is the
// first in its list that needs its memory: so ranges in the order of their next use are keys in the
// order of the ring, and sets of them are sets of bits.
class Plan::State {
 public:
  explicit State(const PlanOptions& options);

  void Allocated(RangeId range, core::Bytes size);
  void Freed(RangeId range);
  void Used(uint64_t identity, std::span<const RangeId> ranges, core::Tick now);
  void Took(int64_t from, int64_t to, core::Duration all);
  void SetPassed(int64_t call) { passed_ = call; }
  bool EndsStretch();
  core::Duration TimeSince(int64_t call) const;
  void SetAway(RangeId range, core::Bytes away);
  void SetDevice(core::Bytes device) { device_ = Signed(device); }

  std::optional<Wanted> NextIn(const std::function<bool(RangeId)>& skip) const;
  std::optional<RangeId> Surplus(const std::function<bool(RangeId)>& skip) const;
  std::optional<RangeId> Victim(const std::optional<Wanted>& for_whom,
                                const std::function<bool(RangeId)>& skip) const;
  std::optional<RangeId> NextOut(const std::function<bool(RangeId)>& skip) const;
  int64_t position() const { return static_cast<int64_t>(follower_.calls()); }
  std::optional<int64_t> NextUse(RangeId range) const;
  bool IsLearned() const { return now_ && follower_.IsTrusted(); }
  bool IsShort() const { return now_ && MostLive() > device_; }

 private:
  // Instead of a slot: there is none.
  static constexpr uint32_t kNoSlot = ~uint32_t{0};
  using Skip = std::function<bool(RangeId)>;
  enum class Kind : uint8_t { kUse, kAllocate, kFree };
  struct Record {
    uint32_t range;
    uint32_t next;  // in the range's list of what is expected, a slot
    uint32_t call;  // that it belongs to, or comes before
    Kind kind;
    bool is_linked;
  };
  struct Call {
    uint64_t end;  // the record after its own
    core::Tick begins;
    uint64_t kind;  // its place in kinds_
  };
  // What a call has in common with those that it corresponds to.
  struct CallKind {
    core::Duration took;  // the least in any step; negative: not known
    bool ends_stretch;
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
    uint32_t head = kNoSlot;  // what is expected of it, by slots
    uint32_t tail = kNoSlot;
    bool is_live = false;
    bool is_remembered = false;  // `last` is
    In in = In::kNone;
    Out out = Out::kNone;
    uint64_t in_key = 0;
    uint64_t out_key = 0;
    std::optional<uint64_t> away_until;
    uint64_t last = 0;     // record that named it
    int64_t last_use = 0;  // a call
    int64_t gap = 0;       // calls between its last two uses; 0: not known
    int64_t resident() const { return size - away; }
  };

  static int64_t Signed(core::Bytes bytes) { return static_cast<int64_t>(bytes.count()); }
  Record& At(uint64_t number) { return records_[number & mask_]; }
  const Record& At(uint64_t number) const { return records_[number & mask_]; }
  // Of what is linked.
  uint64_t Number(uint32_t slot) const { return *now_ + ((slot - *now_) & mask_); }
  Range& RangeOf(RangeId range);
  const Range* Find(RangeId range) const {
    return core::ToInt(range) < ranges_.size() ? &ranges_[core::ToInt(range)] : nullptr;
  }

  // ---- What happened.
  void Happened(Kind kind, uint32_t range);
  void Append(Kind kind, uint32_t range);
  void Account(Range& range, int64_t size, int64_t away, bool is_live);

  // ---- What is expected.
  void Time(uint64_t call, core::Tick now);
  void Follow(std::span<const RangeId> ranges, std::optional<uint64_t> twin_before);
  bool Advance(uint64_t call, std::span<const RangeId> ranges);
  void Forget();
  void Scan(size_t most);
  void Link(uint64_t number);
  void Unlink(uint64_t number);
  // The first use or allocation in the range's list.
  std::optional<uint64_t> KeyOf(const Range& range) const;
  void Rekey(uint32_t range);
  void SetAwayUntil(uint32_t id);
  void Enter(uint32_t id, In in, uint64_t key);
  void Enter(uint32_t id, Out out, uint64_t key);
  RingSet* ByRecord(Out out);
  SlotSet* ByRange(Out out);

  // ---- What should be done.
  int64_t Headroom(uint64_t key) const;
  std::optional<uint64_t> BackFor(const Range& range) const;
  uint64_t FirstOver(uint64_t at, int64_t away) const;
  std::optional<uint64_t> Excess() const;
  int64_t CallOf(uint64_t key) const;
  int64_t ExpectedWithout(const Range& range) const;
  bool HasRoomFor(const Range& range) const {
    return device_ - resident_ >= std::min(part_, range.away);
  }
  std::optional<uint64_t> ComesFor(const Range& range, uint64_t key) const;
  Call& CallAt(uint64_t call) { return calls_[call & call_mask_]; }
  const Call& CallAt(uint64_t call) const { return calls_[call & call_mask_]; }
  CallKind& KindOf(uint64_t call) { return kinds_[CallAt(call).kind]; }
  core::Tick TimeOf(uint64_t call) const { return CallAt(call).begins; }
  // What lives at most, as far as is foreseen.
  int64_t MostLive() const {
    return static_cast<int64_t>(live_then_.Peak(*now_, scanned_)) + live_more_;
  }
  double SecondsUntil(uint64_t key) const;
  int UsesOf(const Range& range) const;
  bool PaysToWait() const;
  double SecondsInPlace() const { return static_cast<double>(part_) / bytes_per_second_; }
  double SecondsToMove() const { return seconds_per_part_ + SecondsInPlace(); }
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
  std::unique_ptr<Call[]> calls_;
  std::unique_ptr<CallKind[]> kinds_;  // each at the first call of it
  int64_t stretch_ = 0;                // calls since the last end of one
  core::Tick last_used_{};
  std::optional<int64_t> passed_;  // calls before this one; none: all
  uint64_t end_ = 0;               // the next record
  std::optional<uint64_t> now_;    // the first record that is expected; none: nothing is
  uint64_t scanned_ = 0;           // the first that is not linked yet
  uint64_t expected_call_ = 0;     // that `now_` belongs to
  int64_t live_more_ = 0;          // than at that time

  std::vector<Range> ranges_;
  std::optional<uint32_t> allocated_;  // last
  std::array<RingSet, 2> in_;
  std::array<RingSet, 3> by_record_;
  std::array<SlotSet, 3> by_range_;
  RingSet away_until_;  // the next record of those that are live and away

  int64_t device_;
  const int64_t part_;
  const double bytes_per_second_;
  const double seconds_per_part_;
  int64_t live_ = 0;
  int64_t live_away_ = 0;
  int64_t resident_ = 0;  // dead ones' too
};

}  // namespace ravenstore::elastic
