// Which tensors should leave a device, so that a request finds contiguous room.
//
// What leaves first is the policy's to say, by what a tensor's leaving costs
// (core/eviction_policies.h): that of the least cost for its size. The order drifts with time, so
// one heap would be wrong. Tensors stand in heaps by kind of knowledge, size class (factors of 4)
// and dirtiness, each ordered by next use alone; a pick compares the heads at the exact time. Cost:
// O(log n) to insert and erase, O(heaps) to pick.
//
// Room must be contiguous: a run grows from each of the best few seeds over free and evictable
// neighbours, the cheapest run that suffices wins, and what it does not need is handed back.
//
// Owns: the heaps of one arena. Threads: one at a time.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <optional>
#include <vector>

#include "core/catalog.h"
#include "core/extents.h"
#include "core/heuristic.h"
#include "core/indexed_heap.h"
#include "core/link_model.h"
#include "core/types.h"

namespace ravenstore::core {

// What copies between a device and the pools take where its tensors may lie away from it.
struct AwayLinks {
  struct Pool {
    PoolId id{};
    LinkModel link;
    Bytes room;  // the largest tensor that it takes now
  };
  std::vector<Pool> pools;  // the nearest first; at least one

  // For the tensor's leaving and its way back: of the pool where it lies or, if it lies in none, is
  // expected to go. REQUIRES: that pool is among them.
  const LinkModel& Of(const Object& object) const;
  // Of the nearest pool that takes so much; of the last, where none does.
  const LinkModel& For(Bytes size) const;
};

class EvictionIndex {
 public:
  // `forecast` is the client's; null: nothing is learned. Both outlive the index.
  explicit EvictionIndex(Catalog* catalog, const Forecast* forecast = nullptr,
                         Heuristics heuristics = {})
      : catalog_(catalog), forecast_(forecast), heuristics_(heuristics) {}
  virtual ~EvictionIndex() = default;
  EvictionIndex(const EvictionIndex&) = delete;
  EvictionIndex& operator=(const EvictionIndex&) = delete;

  // What a tensor's leaving costs: seconds of copying for every second until its next use, and
  // kPriorityWeight times as many or as few by its priority.
  static constexpr double kPriorityWeight = 16;
  virtual double EvictionCost(const TensorRow& tensor, Tick now, const AwayLinks& links) const = 0;
  // The key of the use of a tensor that is put now, of which nothing is said or learned: in its
  // heap the smallest leaves last.
  virtual int64_t KeyAtPut(const TensorRow& tensor, Tick virtual_time,
                           const AwayLinks& links) const;
  // The tensor is evicted.
  virtual void Evicted(const Holding& holding);

  // REQUIRES for Insert: not in; its key does not change while it is in.
  void Insert(TensorRow& tensor);
  void Erase(TensorRow& tensor);
  static bool Contains(const Object& object) { return object.heap_position != kNotInHeap; }
  // It is in an index, or would be but for a copy that makes it clean.
  static bool CanLeave(const TensorRow& tensor) {
    return Contains(tensor) ||
           (tensor.state() == TensorState::kCleaning && tensor.stream_complete && !tensor.in_use &&
            !tensor.freed && !tensor.waiting);
  }
  // A copy makes the tensor clean: it can still leave, as soon as that is done.
  void BeginCleaning(const Object& object) { cleaning_.push_back(Catalog::RowOf(object.id)); }
  void EndCleaning(const Object& object) { std::erase(cleaning_, Catalog::RowOf(object.id)); }
  size_t size() const { return size_; }
  // Rises with every Insert and Erase.
  uint64_t changes() const { return changes_; }
  // Of some tensor in it its client said when, or in which order, it is needed.
  bool IsHinted() const;
  // Of the tensors in the index, those that can be dropped without a copy.
  Bytes clean_bytes() const { return clean_bytes_; }

  // The order that the client uses now: distances of ordered tensors count from it.
  void SetOrderCursor(int64_t order) { order_cursor_ = order; }
  // A put of something needed sooner than all before it.
  void LowerOrderCursor(int64_t order) { order_cursor_ = std::min(order_cursor_, order); }

  // The cost without the weight of the tensor's priority.
  double UnweightedCost(const TensorRow& tensor, Tick now, const AwayLinks& links) const {
    return EvictionCost(tensor, now, links) / WeightOf(tensor.priority);
  }
  // V of a tensor: bytes for that; larger leaves first.
  double Value(const TensorRow& tensor, Tick now, const AwayLinks& links) const;

  // Known to be needed later than `other` and of no higher priority, or never needed.
  bool IsLater(const Holding& holding, const Holding& other) const;

  // What was learned of it has turned out wrong.
  bool IsRefuted(const Holding& holding) const {
    return holding.use_kind == UseKind::kLearned && forecast_ != nullptr &&
           forecast_->Refutes(holding.logical, holding.use_key);
  }

  // Blocks that a run may span: bounds the work of a request much larger than the tensors that make
  // way for it.
  static constexpr size_t kRunBlocks = 4096;

  struct Limits {
    bool clean_only = false;
    // Only tensors known to be needed later than this one (the next use of the same kind), or
    // never.
    const Holding* later_than = nullptr;
    // How much room has a use, if more than is needed: a client that takes tensor after tensor will
    // want it next.
    Bytes useful{};
    // For a large create many leave at once and all come back over the same link: what must be
    // copied counts, and when it is needed hardly (the eighth root of the time until then).
    bool large = false;
    // What a search may look at.
    size_t blocks = kRunBlocks;
  };
  // The rows to evict so that `need` contiguous bytes come free, in address order; empty when no
  // run suffices. They stay in the index.
  std::vector<uint32_t> FindRun(const ExtentMap& map, Bytes need, Tick now, const AwayLinks& links,
                                const Limits& limits) const;
  // Blocks and rows looked at in all searches so far.
  uint64_t searched() const { return searched_; }
  // The dirty tensor that should be copied out first, if any: the one that is needed last, whatever
  // its size, because what leaves with it should be clean as well.
  std::optional<uint32_t> FarthestDirty(Tick now, const AwayLinks& links) const;

  // The run that leaves with `row`: the cheapest around it of `need` bytes, or it alone.
  std::vector<uint32_t> RunAround(const ExtentMap& map, uint32_t row, Bytes need, Tick now,
                                  const AwayLinks& links, const Limits& limits) const;

 protected:
  // The cost where many leave for a large create (Limits::large).
  virtual double CostAmongMany(const TensorRow& tensor, Tick now, const AwayLinks& links) const;
  // By which the dirty tensor is chosen that is copied out first: the greatest.
  virtual double Lateness(const TensorRow& tensor, Tick now, const AwayLinks& links) const;
  // Seconds to the next use, as far as anything is known of it. What has a low priority counts as
  // further away, what has a high one as nearer.
  double Distance(const Holding& holding, Tick now) const;
  static constexpr double WeightOf(Priority priority) {
    return priority == Priority::kNormal ? 1
           : priority == Priority::kHigh ? kPriorityWeight
                                         : 1 / kPriorityWeight;
  }
  bool Uses(Heuristic heuristic) const { return heuristics_.Uses(heuristic); }

 private:
  static constexpr int kSizeClasses = 12;
  static constexpr int kKinds = 5;  // of UseKind, and what is learned but assumed
  static constexpr int kHeapsPerPriority = kKinds * kSizeClasses * 2;
  static constexpr int kMostHeaps = 1 << 9;  // as many as Object::heap can name
  static_assert(3 * kHeapsPerPriority <= kMostHeaps);
  struct Traits {
    Catalog* catalog;
    // Of those needed at the same time the one created first leaves first.
    std::pair<int64_t, uint32_t> Key(uint32_t row) const {
      const TensorRow& tensor = (*catalog)[row];
      return {tensor.use_key, ~static_cast<uint32_t>(ToInt(tensor.id) >> 32)};
    }
    uint32_t& Position(uint32_t row) const { return (*catalog)[row].heap_position; }
  };
  struct Run {
    ExtentMap::Block first = ExtentMap::kNone;
    ExtentMap::Block last = ExtentMap::kNone;
    double cost = 0;  // for every byte that has a use
  };

  static uint16_t HeapOf(const TensorRow& tensor);
  static bool IsDirtyHeap(size_t heap) { return heap % 2 == 1; }
  // Its cost as far as it matters to the search.
  double CostIn(const Limits& limits, const TensorRow& tensor, Tick now,
                const AwayLinks& links) const;
  bool Allowed(const TensorRow& tensor, const Limits& limits) const;
  uint32_t RowAt(uint16_t heap, const IndexedHeap& rows, size_t i) const;
  std::vector<uint32_t> Seeds(Bytes need, Tick now, const AwayLinks& links,
                              const Limits& limits) const;
  // All that may leave and all that is free would be enough, if it lay together.
  bool MaySuffice(const ExtentMap& map, Bytes need) const;
  // Free room, or what is on its way out, is at an end of it.
  bool IsBesideRoom(const ExtentMap& map, const Run& run) const;
  std::vector<uint32_t> RowsOf(const ExtentMap& map, const Run& run) const;
  // One of its tensors is.
  bool Any(const ExtentMap& map, const Run& run, bool (*is)(const TensorRow&)) const;
  // What is clean and small beside the run, and needed no sooner, would be left behind between
  // tensors that stay, and be in the way of every later run.
  void TakeSlivers(const ExtentMap& map, Bytes need, Tick now, const Limits& limits,
                   Run* run) const;
  // A block beside a seed, with what it and all from the seed on come to.
  struct Reach {
    ExtentMap::Block block;
    Bytes size;
    double cost;
  };
  // The seed and its neighbours on either side, until they alone suffice. Kept from search to
  // search for its memory.
  using Sides = std::pair<std::vector<Reach>, std::vector<Reach>>;
  // Of the runs of `need` bytes with the seed in them the one of the least eviction cost, by two
  // pointers.
  std::optional<Run> LeastRunWith(const ExtentMap& map, uint32_t seed, Bytes need, Tick now,
                                  const AwayLinks& links, const Limits& limits, Sides* sides) const;

  Catalog* catalog_;
  const Forecast* forecast_;
  const Heuristics heuristics_;
  std::map<uint16_t, IndexedHeap> heaps_;  // those that ever held anything, by HeapOf
  std::vector<uint32_t> cleaning_;         // rows; as many as there are copies in flight
  size_t size_ = 0;
  uint64_t changes_ = 0;
  Bytes room_;  // of the tensors in the index
  Bytes clean_bytes_;
  static constexpr int64_t kUnset = std::numeric_limits<int64_t>::max();
  int64_t order_cursor_ = kUnset;
  mutable uint64_t searched_ = 0;
};

}  // namespace ravenstore::core
