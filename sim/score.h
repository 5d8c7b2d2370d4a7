// How well a policy did: its stall against what no policy can beat, and against one that knows the
// future.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/types.h"
#include "sim/hardware.h"
#include "sim/lower_bound.h"
#include "sim/outcome.h"
#include "sim/setup.h"
#include "sim/trace.h"

namespace ravenstore::sim {

// Who decides, by name: the plan with "hints", with what is "learned" alone, or with all calls
// "foreseen"; "lru" and "gdsf" (sim/demand_paging.h); "oracle" (sim/oracle.h). Those that are not
// the plan's have one link, as fast as all together.
std::vector<std::string> PolicyNames();
// Whether the plan decides. REQUIRES: `policy` is one of PolicyNames().
bool IsPlan(std::string_view policy);
// REQUIRES: `policy` is one of PolicyNames(). Replaces ReplaySetup::foresight.
Outcome ReplayUnder(std::string_view policy, const Trace& trace, ReplaySetup setup);

// What several runs took, stalled and computed in the mean, and when one failed why.
// REQUIRES: there is one.
Outcome MeanOf(const std::vector<Outcome>& runs);

// What runs are judged against, from iteration `from` on.
struct Reference {
  LowerBound bound;
  // The best of those that know the whole future; none: none of them got through.
  std::optional<core::Duration> oracle;
};
// In the mean over `runs`; one, if the trace is of one client. Where several share a device, chance
// decides where each is when the other needs room, and one run says little.
Reference FindReference(const std::vector<Trace>& runs, const Hardware& hardware,
                        core::Bytes budget, size_t from);

// The least stall from iteration `from` on of those that know the whole future: the greedy oracle,
// however far it looks ahead, and the plan with all calls foreseen. None: none of them got through.
std::optional<core::Duration> LeastKnownStall(const std::vector<Trace>& runs,
                                              const Hardware& hardware, core::Bytes budget,
                                              size_t from);

// One number for "at most `of_bound` times the bound, or at most `of_oracle` times the oracle, or
// at most 1% of the compute time": the least of stall / bound, stall / oracle * of_bound /
// of_oracle, and stall / compute * of_bound / 1%. What is at most `of_bound` meets it.
struct Allowance {
  double of_bound;
  double of_oracle;
};
inline constexpr Allowance kHinted = {1.10, 1.03};
inline constexpr Allowance kLearned = {1.20, 1.20};
inline constexpr Allowance kPerturbed = {1.35, 1.35};
double Ratio(core::Duration stall, const Reference& reference, const Allowance& allowed);

// The iterations before the first get: what only makes tensors, as a set-up does, is no iteration
// of what can be learned.
size_t SetUpIterations(const Trace& trace);

// What the iterations from `from` on compute, all clients together.
core::Duration ComputeFrom(const Trace& trace, size_t from);

// The stall of the iterations from `from` on.
core::Duration StallFrom(const Outcome& outcome, size_t from);

// (compute + bound) / time: 1 is the best that can be.
double Efficiency(const Outcome& outcome, const LowerBound& bound);

// The budgets of 30, 40, ... 90% of the footprint under which every step fits; with the percentage.
struct Budget {
  int percent;
  core::Bytes bytes;
};
std::vector<Budget> FeasibleBudgets(const Trace& trace);

}  // namespace ravenstore::sim
