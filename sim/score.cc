#include "sim/score.h"

#include <algorithm>
#include <iterator>
#include <limits>
#include <numeric>

#include "core/check.h"
#include "sim/demand_paging.h"
#include "sim/oracle.h"
#include "sim/paged_replay.h"

namespace ravenstore::sim {

using core::Bytes;
using core::Duration;
using core::Seconds;

namespace {

// In addition to all that it knows, the oracle looks as far ahead as the link takes to bring such a
// part of the budget.
constexpr double kLookaheads[] = {2, 8};

// The plan with that foresight, or demand paging in that order; without both the oracle.
struct Policy {
  std::string_view name;
  std::optional<Foresight> foresight;
  std::optional<EvictionOrder> order;
};
constexpr Policy kPolicies[] = {
    {"hints", Foresight::kHints, {}},    {"learned", Foresight::kLearned, {}},
    {"foreseen", Foresight::kLives, {}}, {"lru", {}, EvictionOrder::kLru},
    {"gdsf", {}, EvictionOrder::kGdsf},  {"oracle", {}, {}},
};

const Policy& PolicyOf(std::string_view name) {
  const auto* const found = std::find_if(std::begin(kPolicies), std::end(kPolicies),
                                         [name](const Policy& one) { return one.name == name; });
  RAVEN_CHECK(found != std::end(kPolicies));
  return *found;
}

double Share(Duration part, Duration whole) {
  if (part <= Duration{0}) return 0;
  if (whole <= Duration{0}) return std::numeric_limits<double>::infinity();
  return Seconds(part) / Seconds(whole);
}

}  // namespace

std::vector<std::string> PolicyNames() {
  std::vector<std::string> names;
  for (const Policy& policy : kPolicies) names.emplace_back(policy.name);
  return names;
}

bool IsPlan(std::string_view policy) {
  return PolicyOf(policy).foresight.has_value();
}

Outcome ReplayUnder(std::string_view policy, const Trace& trace, ReplaySetup setup) {
  const Policy& of = PolicyOf(policy);
  if (of.foresight) {
    setup.foresight = *of.foresight;
    return ReplayPaged(trace, setup);
  }
  const Hardware joint = WithAllLinks(setup.hardware, setup.pools);
  if (of.order) return ReplayDemandPaging(trace, joint, setup.budget, {.order = *of.order});
  return SimulateOracle(trace, joint, setup.budget);
}

size_t SetUpIterations(const Trace& trace) {
  size_t steps = 0;
  for (const Op& op : trace.ops) {
    if (op.kind == OpKind::kGet) return steps;
    if (op.kind == OpKind::kStep) ++steps;
  }
  return 0;
}

Duration ComputeFrom(const Trace& trace, size_t from) {
  std::vector<size_t> iteration(trace.clients, 0);
  Duration compute{0};
  for (const Op& op : trace.ops) {
    if (op.kind == OpKind::kStep) ++iteration[op.client];
    if (iteration[op.client] >= from) compute += op.time;
  }
  return compute;
}

Duration StallFrom(const Outcome& outcome, size_t from) {
  const auto& stalls = outcome.iteration_stall;
  if (from >= stalls.size()) return Duration{0};
  return std::accumulate(stalls.begin() + static_cast<ptrdiff_t>(from), stalls.end(), Duration{0});
}

Outcome MeanOf(const std::vector<Outcome>& runs) {
  Outcome mean;
  const auto add = [count = static_cast<int64_t>(runs.size())](Duration* sum, Duration one) {
    *sum += one / count;
  };
  for (const Outcome& run : runs) {
    if (mean.failure.empty()) mean.failure = run.failure;
    add(&mean.time, run.time);
    add(&mean.compute, run.compute);
    add(&mean.stall, run.stall);
    mean.iteration_stall.resize(std::max(mean.iteration_stall.size(), run.iteration_stall.size()));
    for (size_t i = 0; i < run.iteration_stall.size(); ++i)
      add(&mean.iteration_stall[i], run.iteration_stall[i]);
    mean.client_stall.resize(std::max(mean.client_stall.size(), run.client_stall.size()));
    for (size_t i = 0; i < run.client_stall.size(); ++i)
      add(&mean.client_stall[i], run.client_stall[i]);
  }
  return mean;
}

std::optional<Duration> LeastKnownStall(const std::vector<Trace>& runs, const Hardware& hardware,
                                        Bytes budget, size_t from) {
  std::optional<Duration> least;
  const auto consider = [&](const auto& simulate) {
    std::vector<Outcome> outcomes;
    for (const Trace& run : runs) outcomes.push_back(simulate(run));
    const Outcome mean = MeanOf(outcomes);
    if (!mean.failure.empty()) return;
    const Duration stall = StallFrom(mean, from);
    least = std::min(stall, least.value_or(stall));
  };
  consider([&](const Trace& run) { return SimulateOracle(run, hardware, budget); });
  for (const double part : kLookaheads) {
    const double seconds = static_cast<double>(budget.count()) / part / hardware.up;
    consider([&](const Trace& run) {
      return SimulateOracle(run, hardware, budget, core::FromSeconds(seconds));
    });
  }
  // The plan may do better than the greedy oracle.
  consider([&](const Trace& run) {
    return ReplayUnder("foreseen", run, {.hardware = hardware, .budget = budget});
  });
  return least;
}

Reference FindReference(const std::vector<Trace>& runs, const Hardware& hardware, Bytes budget,
                        size_t from) {
  Reference reference;
  for (const Trace& run : runs) {
    const LowerBound bound = LeastStall(run, hardware, budget, from);
    reference.bound.stall += bound.stall / static_cast<int64_t>(runs.size());
    reference.bound.compute += bound.compute / static_cast<int64_t>(runs.size());
  }
  reference.oracle = LeastKnownStall(runs, hardware, budget, from);
  return reference;
}

double Ratio(Duration stall, const Reference& reference, const Allowance& allowed) {
  double least = Share(stall, reference.bound.stall);
  if (reference.oracle)
    least = std::min(least, Share(stall, *reference.oracle) * allowed.of_bound / allowed.of_oracle);
  return std::min(least, Share(stall, reference.bound.compute) * allowed.of_bound / 0.01);
}

double Efficiency(const Outcome& outcome, const LowerBound& bound) {
  // Of several clients each has its own time line; what they stall adds up.
  return Share(bound.compute + bound.stall, outcome.compute + outcome.stall);
}

std::vector<Budget> FeasibleBudgets(const Trace& trace) {
  std::vector<Budget> budgets;
  const Bytes footprint = trace.Footprint();
  // The store gives memory out in granules of 2 MiB.
  const Bytes step = trace.LargestStep().RoundUp(core::MiB(2));
  for (int percent = 30; percent <= 90; percent += 10) {
    const Bytes bytes(footprint.count() / 100 * static_cast<uint64_t>(percent));
    if (bytes >= step) budgets.push_back({percent, bytes});
  }
  return budgets;
}

}  // namespace ravenstore::sim
