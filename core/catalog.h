// Every tensor the store knows: dense rows, addressed by id in O(1).
//
// A row has two sides: the object, which is the bytes, their name and their replicas, and who holds
// it. Each object has one holder, so they share a row; what needs one side alone takes that one.
//
// A TensorId is the row's index and a serial that is new each time the row is used, so an old id
// never matches a new tensor. A tensor's state changes by Catalog::Commit alone.
//
// Threads: one at a time.
#pragma once

#include <cstdint>
#include <deque>

#include "core/check.h"
#include "core/chunked.h"
#include "core/events.h"
#include "core/extents.h"
#include "core/forecast.h"
#include "core/indexed_heap.h"
#include "core/types.h"

namespace ravenstore::core {

// How a tensor's next use is known; each kind is ordered among itself only.
enum class UseKind : uint8_t { kUnknown, kAt, kOrder, kLearned };

// What is known of a tensor's next use.
struct ExpectedUse {
  UseKind kind = UseKind::kUnknown;
  // The larger, the later: kAt the time in ns, kOrder the order, kLearned the logical time
  // (core/forecast.h), kUnknown minus the time of its last use.
  int64_t key = 0;
  bool never = false;       // it will not be read again
  bool dies = false;        // learned: it is freed then, not read
  bool predicted = false;   // this is no hint, though of a hint's kind
  bool correlated = false;  // predicted from what was used before it (core/correlation.h)
};

// What happens to a tensor, as far as its bytes go. Which states follow which: MayBecome.
enum class TensorState : uint8_t {
  kResident,         // on its device, and nothing is under way
  kChosen,           // the same: it leaves at once if room on the host is found for all that must
  kCleaning,         // on its device, and a copy makes it clean
  kCleaningToLeave,  // the same, and it leaves as soon as that is done
  kDropping,         // leaves without a copy
  kDiscarding,       // the same, though it is dirty: it is to be recomputed
  kCopyingOut,       // leaves with a copy
  kRescued,          // on its device: a use has kept it there, and the end of one of these three is
                     // still to come
  kLeavingIrrevocably,  // with a copy; part of its room may belong to another tensor
  kAway,
  kMovingOn,   // away, and on its way from a pool that comes and goes to the host pool
  kDiscarded,  // away without its bytes
  kArriving,
  kLost
};
// A copy or a drop of it is under way, or about to be.
constexpr bool IsUnderWay(TensorState state) {
  return state != TensorState::kResident && state != TensorState::kAway &&
         state != TensorState::kDiscarded && state != TensorState::kLost;
}
constexpr Residency ResidencyOf(TensorState state) {
  using enum TensorState;
  switch (state) {
    case kResident:
    case kChosen:
    case kCleaning:
    case kCleaningToLeave:
    case kRescued: return Residency::kOnDevice;
    case kDropping:
    case kDiscarding:
    case kCopyingOut: return Residency::kLeaving;
    case kLeavingIrrevocably: return Residency::kLeavingIrrevocably;
    case kAway:
    case kMovingOn:
    case kDiscarded: return Residency::kAway;
    case kArriving: return Residency::kArriving;
    case kLost: return Residency::kLost;
  }
  return Residency::kLost;
}
// On its way off its device.
constexpr bool IsLeaving(TensorState state) {
  const Residency residency = ResidencyOf(state);
  return residency == Residency::kLeaving || residency == Residency::kLeavingIrrevocably ||
         state == TensorState::kCleaningToLeave;
}
constexpr bool MayBecome(TensorState from, TensorState to) {
  using enum TensorState;
  switch (from) {
    // To kCopyingOut and kAway for a get on another device, which waits until it has left.
    case kResident: return to == kChosen || to == kCleaning || to == kCopyingOut || to == kAway;
    case kChosen:
      return to == kResident || to == kDropping || to == kDiscarding || to == kCopyingOut;
    case kCleaning: return to == kResident || to == kCleaningToLeave;
    case kCleaningToLeave: return to == kResident || to == kLeavingIrrevocably;
    // Back to kResident: it was used, or written, before the drop.
    case kDropping: return to == kRescued || to == kResident || to == kAway || to == kLost;
    case kDiscarding: return to == kRescued || to == kResident || to == kDiscarded;
    case kCopyingOut:
      return to == kRescued || to == kResident || to == kLeavingIrrevocably || to == kAway;
    // What rescued it may be an old entry of the client's log.
    case kRescued:
      return to == kResident || to == kLeavingIrrevocably || to == kAway || to == kLost;
    case kLeavingIrrevocably: return to == kAway || to == kResident || to == kLost;
    case kAway: return to == kArriving || to == kMovingOn || to == kLost;
    case kMovingOn: return to == kAway || to == kLost;
    case kDiscarded: return to == kResident;
    case kArriving: return to == kResident || to == kAway || to == kLost;
    case kLost: return false;
  }
  return false;
}

// A tensor's bytes in one pool, or the place there that waits for them.
struct Replica {
  enum class State : uint8_t {
    kEmpty,    // not all bytes are there
    kStale,    // they are, of an older version
    kCurrent,  // of the newest
  };
  ExtentMap::Block block = ExtentMap::kNone;  // kNone: the pool holds nothing of it
  PoolId pool{};
  State state = State::kEmpty;

  bool is_placed() const { return block != ExtentMap::kNone; }
};
static_assert(sizeof(Replica) == 8);

// A tensor's bytes, whoever holds them.
struct Object {
  TensorId id = kNoTensor;  // kNoTensor: the row is free
  Bytes size;
  // On the device that it belongs to, in its holder's arena. What the bytes there are is the
  // object's state.
  Replica home;
  Replica away;  // in the one other pool where it lies, or is copied to
  NameId name = kNoName;
  uint32_t version = 0;  // of the newest bytes: PutSeen::writes of the last put
  // In the index of its arena: where, and in which of its heaps, while that says it is in one.
  uint32_t heap_position = kNotInHeap;
  uint16_t heap : 9 = 0;
  bool drains : 1 = false;      // leaves so that its slab can be given back
  bool prefetched : 1 = false;  // brought unasked and not used yet

  DeviceId device() const { return DeviceOf(home.pool); }
  TensorState state() const { return state_; }
  Residency residency() const { return ResidencyOf(state_); }
  bool is_under_way() const { return IsUnderWay(state_); }
  bool is_being_cleaned() const {
    return state_ == TensorState::kCleaning || state_ == TensorState::kCleaningToLeave;
  }
  bool is_leaving() const { return IsLeaving(state_); }

  // The newest bytes are on its device alone.
  bool dirty() const { return away.state != Replica::State::kCurrent; }
  // Another pool has bytes of it, be they old.
  bool has_copy() const { return away.state != Replica::State::kEmpty; }

 private:
  friend class Catalog;
  TensorState state_ : 4 = TensorState::kResident;
};

// What one client has of an object: where it stands there, how it is used, and what is known of its
// next use.
struct Holding {
  int64_t use_key = 0;  // with use_kind and the bits of the same names its ExpectedUse
  ClientId client{};
  SlotId slot{};
  LogicalUse logical;
  // The bits of the nanoseconds that recomputing it takes; 0: it cannot be, or copying is cheaper.
  uint8_t recompute : 7 = 0;
  bool in_use : 1 = true;
  UseKind use_kind : 2 = UseKind::kUnknown;
  Priority priority : 2 = Priority::kNormal;
  bool stream_complete : 1 = false;  // no stream touches it
  bool freed : 1 = false;            // goes once what is under way is done
  bool never : 1 = false;            // may be dropped unread
  bool waiting : 1 = false;          // a fetch of it waits
  bool put_seen : 1 = false;         // since the last copy to the host began
  bool listed : 1 = false;           // among the prefetch candidates
  bool dies : 1 = false;
  bool predicted : 1 = false;
  bool correlated : 1 = false;
  bool redundant_copy : 1 = false;  // in its client's list of copies that can be given up
  bool pinned : 1 = false;  // on its device, and in use or not stream-complete: it cannot leave

  ExpectedUse expected() const { return {use_kind, use_key, never, dies, predicted, correlated}; }
  // REQUIRES: it is in no heap and no list, or nothing of kind and key changes.
  void Expect(const ExpectedUse& use) {
    use_kind = use.kind;
    use_key = use.key;
    never = use.never;
    dies = use.dies;
    predicted = use.predicted;
    correlated = use.correlated;
  }

  // When it is used next was learned: neither hinted nor assumed.
  bool IsPredicted() const {
    return predicted || (use_kind == UseKind::kLearned && !Forecast::IsAssumed(use_key));
  }
};
// What recomputing the bytes takes, to within a factor of 1.5.
inline Duration RecomputeTime(const Holding& holding) {
  return Duration(int64_t{3} << holding.recompute >> 2);
}

// An object with its one holder.
struct TensorRow : Object, Holding {
  // What will be read again is on the device alone: to leave it takes a copy, or recomputing it.
  bool needs_copy() const { return dirty() && !never; }
};
static_assert(sizeof(TensorRow) <= 80, "the catalog's bytes per tensor are a published figure");

// Which tensor stands in each of a client's slots, by its row.
class TensorSlots {
 public:
  static constexpr uint32_t kNoRow = ~uint32_t{0};

  // Up to the last one that was ever used.
  size_t size() const { return rows_.size(); }
  uint64_t tensors() const { return tensors_; }
  // kNoRow: the slot is free.
  uint32_t operator[](size_t slot) const { return slot < rows_.size() ? rows_[slot] : kNoRow; }
  // REQUIRES for Set: the slot is free. For Clear: it is not.
  void Set(SlotId slot, uint32_t row) {
    while (rows_.size() <= ToInt(slot)) rows_.push_back(kNoRow);
    rows_[ToInt(slot)] = row;
    ++tensors_;
  }
  void Clear(SlotId slot) {
    rows_[ToInt(slot)] = kNoRow;
    --tensors_;
  }
  // Takes the last slot away. REQUIRES: there is one.
  uint32_t Pop() {
    const uint32_t row = rows_.back();
    rows_.pop_back();
    if (row != kNoRow) --tensors_;
    return row;
  }

 private:
  Chunked<uint32_t, 256> rows_;
  uint64_t tensors_ = 0;
};

class Catalog {
 public:
  // A fresh row with its id set.
  TensorRow& Add() {
    auto row = static_cast<uint32_t>(rows_.size());
    if (spare_.empty()) {
      rows_.push_back(TensorRow());
    } else {
      row = spare_.back();
      spare_.pop_back();
      rows_[row] = TensorRow();
    }
    TensorRow& tensor = rows_[row];
    if (++serial_ == 0) ++serial_;  // so that no id is kNoTensor
    tensor.id = TensorId{uint64_t{serial_} << 32 | row};
    return tensor;
  }
  void Remove(TensorId id) {
    rows_[RowOf(id)].id = kNoTensor;
    spare_.push_back(RowOf(id));
  }
  // REQUIRES: MayBecome(object.state(), state).
  static void Commit(Object& object, TensorState state) {
    RAVEN_CHECK(MayBecome(object.state_, state));
    object.state_ = state;
  }
  // Null when there is no such tensor.
  TensorRow* Find(TensorId id) {
    const uint32_t row = RowOf(id);
    if (id == kNoTensor || row >= rows_.size()) return nullptr;
    TensorRow& tensor = rows_[row];
    return tensor.id == id ? &tensor : nullptr;
  }
  const TensorRow* Find(TensorId id) const { return const_cast<Catalog*>(this)->Find(id); }

  static uint32_t RowOf(TensorId id) { return static_cast<uint32_t>(ToInt(id)); }
  TensorRow& operator[](uint32_t row) { return rows_[row]; }
  const TensorRow& operator[](uint32_t row) const { return rows_[row]; }
  size_t rows() const { return rows_.size(); }
  size_t count() const { return rows_.size() - spare_.size(); }

 private:
  Chunked<TensorRow, 4096> rows_;
  std::deque<uint32_t> spare_;
  uint32_t serial_ = 0;
};

}  // namespace ravenstore::core
