// The planner's rules of thumb. Each can be left out alone, so that what it is worth can be
// measured (`bench/report --only planner --ablate`); one that is worth nothing goes.
#pragma once

#include <array>
#include <bitset>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace ravenstore::core {

// What decides which tensors leave. kLru and kGdsf are for comparison: they use no hints and learn
// nothing. All run in the same planner.
enum class Policy : uint8_t {
  kValue,  // by size, cost to bring back and next use, hinted or learned
  kLru,    // the least recently used
  kGdsf,   // greedy dual size frequency (Cherkasova 1998)
};

enum class Heuristic : uint8_t {
  kLastInFirstOut,       // before anything is known, what was put last is expected back first
  kCorrelation,          // what followed what is expected to do so again
  kExpiry,               // a prediction whose time has passed is believed no more
  kWaitForFrees,         // another's frees are waited for where that is shorter than copies
  kWaitForPeak,          // one of two in step lets the other go ahead
  kRingLayout,           // a full arena is filled in a ring
  kLastSlabBelow,        // the last slab lies beside what leaves first
  kGrowAhead,            // slabs are made before they are asked for
  kGrowForLargest,       // and for the cycle's largest create
  kSlabsOfOthers,        // whose eviction costs less, are taken for a large request
  kEvictAhead,           // while a create waits for copies, what leaves next begins to
  kCleanRuns,            // what leaves together is cleaned together
  kCleanWhenFetching,    // what is needed later than what is fetched is cleaned
  kCleanBeforePressure,  // a client that may outgrow its budget is cleaned for
  kCleanWhenIdle,        // not while create follows create
  kUsefulRoom,           // room that will be wanted next counts
  kSlivers,              // small neighbours leave with a run
  kBesideRoom,           // a run that makes a hole larger is better than one apart
  kWorthNoWait,          // a run that need not be copied is worth more
  kOutCostsMore,         // a copy out, which is waited for, costs more than one in
  kCopiesOfLarge,        // for a large create what must be copied counts, not when
  kStaysHigh,            // what will stay in use lies together, at the end of the arena
};
inline constexpr size_t kHeuristics = static_cast<size_t>(Heuristic::kStaysHigh) + 1;
inline constexpr std::array<std::string_view, kHeuristics> kHeuristicNames = {
    "last_in_first_out",
    "correlation",
    "expiry",
    "wait_for_frees",
    "wait_for_peak",
    "ring_layout",
    "last_slab_below",
    "grow_ahead",
    "grow_for_largest",
    "slabs_of_others",
    "evict_ahead",
    "clean_runs",
    "clean_when_fetching",
    "clean_before_pressure",
    "clean_when_idle",
    "useful_room",
    "slivers",
    "beside_room",
    "worth_no_wait",
    "out_costs_more",
    "copies_of_large",
    "stays_high",
};

// None of that name: nullopt.
constexpr std::optional<Heuristic> FindHeuristic(std::string_view name) {
  for (size_t i = 0; i < kHeuristics; ++i) {
    if (kHeuristicNames[i] == name) return static_cast<Heuristic>(i);
  }
  return std::nullopt;
}

class Heuristics {
 public:
  bool Uses(Heuristic heuristic) const { return !without_[static_cast<size_t>(heuristic)]; }
  void LeaveOut(Heuristic heuristic) { without_.set(static_cast<size_t>(heuristic)); }

 private:
  std::bitset<kHeuristics> without_;
};

}  // namespace ravenstore::core
