// One client's memory on one device, as the planner sees it.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "core/eviction_policies.h"
#include "core/pool_space.h"
#include "core/recent_range.h"
#include "core/recent_rate.h"
#include "core/request_queue.h"
#include "core/types.h"
#include "core/usage_cycle.h"

namespace ravenstore::core {

// Tensors by their next use, soonest first: by time, by order, and as learned.
struct DueTensors {
  using Use = std::pair<int64_t, TensorId>;
  using List = std::set<Use>;

  List& Of(UseKind kind) {
    if (kind == UseKind::kAt) return at;
    return kind == UseKind::kOrder ? order : learned;
  }
  size_t size() const { return at.size() + order.size() + learned.size(); }

  List at;
  List order;
  List learned;
};

// The soonest of the tensors of several pools. Only uses of one kind can be compared.
class SoonestUses {
 public:
  void Add(const DueTensors& due) {
    Take(due.at, &at_);
    Take(due.order, &order_);
    Take(due.learned, &learned_);
  }
  // Of the kind that says the most: what is only assumed comes after what a client said. Null where
  // there is none.
  const DueTensors::Use* Best() const {
    if (order_ != nullptr) return order_;
    const bool known = learned_ != nullptr && !Forecast::IsAssumed(learned_->first);
    return known || at_ == nullptr ? learned_ : at_;
  }

 private:
  static void Take(const DueTensors::List& list, const DueTensors::Use** soonest) {
    if (list.empty()) return;
    if (*soonest == nullptr || *list.begin() < **soonest) *soonest = &*list.begin();
  }

  const DueTensors::Use* at_ = nullptr;
  const DueTensors::Use* order_ = nullptr;
  const DueTensors::Use* learned_ = nullptr;
};

struct ClientArena : ArenaId {
  ClientArena(const ArenaId& id, Bytes range, size_t pools, Catalog* catalog,
              const Forecast* forecast, Policy policy, Heuristics heuristics)
      : ArenaId(id),
        space(range),
        index(MakeEvictionIndex(policy, catalog, forecast, heuristics)),
        due(pools) {}

  PoolId pool() const { return PoolOf(device); }

  PoolSpace space;
  const std::unique_ptr<EvictionIndex> index;
  std::string limit;           // why the last was not made, where that was not for memory
  uint32_t leaving = 0;        // tensors on their way off the device
  uint32_t copying_out = 0;    // those of them that need a copy first
  uint32_t leaving_slabs = 0;  // those of them that leave so that a slab can be given back
  // Of the slabs that the first request needs not all are being emptied yet: the link is busy.
  bool taking = false;
  // How often others were asked beside those that are late, and when these are late, too.
  uint32_t asked_more = 0;
  Tick late_at{};
  RecentRate freed;  // by its client
  // The request that waits for what others free, its wait budget in seconds, and when that ends.
  uint64_t budgeted_request = 0;
  double wait_budget = 0;
  Tick wait_budget_until{};
  // Its first request waits until others are past their peaks, and until when at most.
  bool waits_for_peak = false;
  Tick peak_until{};
  bool relocating =
      false;  // slabs are given back so that others can be added elsewhere in the arena
  // The state (a count of changes) and the size for which a search found no victims.
  std::pair<uint64_t, Bytes> no_run{};
  Tick search_after{};  // a search that found nothing was expensive
  // Looking for slabs to empty, here or at others, was in vain: when to look again.
  Tick reclaim_after{};
  Duration reclaim_wait{};
  // The last request for which all slabs were to be emptied, what of them could not be, since
  // something in use lies there, and whether there is hope: with all that can leave gone there
  // would be room, or some of the rest will be out of use by itself.
  struct LastResort {
    uint64_t request = 0;
    Tick since{};  // it was tried in vain
    Bytes kept;
    bool hope = false;
  } last_resort;
  // A request was refused since what is in use left pieces only: if the client has put some of that
  // when it asks again, all that can leaves first, so that it does not come to lie as it did.
  bool refused_in_pieces = false;
  Tick shrink_after{};
  bool trimming = false;  // slabs go back as soon as they hold nothing
  bool touched = false;   // stands in the planner's list of arenas to serve
  // Away tensors whose next use is known, by the pool where they lie.
  std::vector<DueTensors> due;
  // True from a get to the next create that had to evict: the client brings tensors back, and
  // prefetching pays. While tensors are only created, whatever is brought back pushes out something
  // else.
  bool fetch_phase = false;
  // The last that the client wanted was a new tensor. While it only takes tensors back, what is
  // dirty need not leave, and copying it out would slow the others' return.
  bool allocation_phase = false;
  Tick short_until{};
  Tick wanted_until{};  // the last create is so recent that the next may follow at once
  Bytes live;           // of tensors that belong to this device, wherever they are
  RecentRange lived;    // `live` after each create
  RecentRange used;     // the same of what is used of the map
  UsageCycle cycle;     // of `live`
  // The client fills its empty arena again: where the last new tensor ends. The next one follows,
  // so that they lie in the order of their creation, and leave as one run.
  std::optional<Bytes> next_place;
  // The largest create lately: so long are the runs that are copied out ahead.
  Bytes ready;
  Tick pressure_until{};  // an eviction was needed lately: copy dirty tensors out ahead of the next
  Tick backoff_until{};   // a slab or a copy failed: do not try again before
};

}  // namespace ravenstore::core
