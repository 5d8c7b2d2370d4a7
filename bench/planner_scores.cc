#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>
#include <string>
#include <vector>

#include "bench/planner_figures.h"
#include "sim/generators.h"
#include "sim/oracle.h"
#include "sim/score.h"
#include "sim/simulator.h"

namespace ravenstore::bench {

namespace {

using core::Duration;
using core::Milliseconds;
using core::Seconds;
using sim::Hints;
using sim::Outcome;
using sim::Trace;

constexpr const char* kMachines[] = {"h200-pcie5", "a100-pcie4"};
constexpr int kIterations = 6;
// The first iteration after the set-up that counts for what is learned: the third.
constexpr size_t kLearnedFrom = 2;
constexpr uint64_t kSeed = 7;
constexpr double kHintsKept = 0.7;
// Whose peaks meet or do not: a single run says little, so there are several, disturbed, and their
// mean is judged (docs/decisions/0018).
constexpr const char* kTwoClients = "two-tenants";
constexpr uint64_t kRuns = 8;
constexpr double kDisturbedBy = 0.1;

using Runs = std::vector<Trace>;

// What is replayed to judge one case.
Runs RunsOf(const std::string& name, const sim::Hardware& hardware) {
  Runs runs = {sim::Generate(name, hardware, kIterations)};
  if (name != kTwoClients) return runs;
  for (uint64_t run = 1; run < kRuns; ++run)
    runs.push_back(sim::WithTimesPerturbed(runs.front(), kDisturbedBy, run));
  return runs;
}

template <typename Function>
auto Each(const Runs& runs, const Function& function) {
  std::vector<decltype(function(runs.front()))> results;
  for (const Trace& run : runs) results.push_back(function(run));
  return results;
}

Runs WithHints(const Runs& runs, Hints hints) {
  return Each(runs, [hints](const Trace& run) { return sim::WithHints(run, hints); });
}

// Each of several runs in another way.
template <typename Disturb>
Runs Disturbed(const Runs& runs, const Disturb& disturb) {
  uint64_t seed = kSeed;
  return Each(runs, [&](const Trace& run) { return disturb(run, seed++); });
}

// The largest value so far, and whose it is.
struct Worst {
  double value = 0;
  std::string detail;

  void Take(double candidate, const std::string& whose) {
    if (!detail.empty() && candidate <= value) return;
    value = candidate;
    detail = whose;
  }
};

// The worst of many ratios, and what there is to say of the others.
class Ratios {
 public:
  explicit Ratios(double target) : target_(target) {}

  void Take(double ratio, const std::string& whose) {
    ++cases_;
    if (ratio > target_) ++above_;
    all_.Take(ratio, whose);
    if (!whose.starts_with(kTwoClients)) one_client_.Take(ratio, whose);
  }
  // Of two clients, of which the mean is judged.
  void TakeOneRun(double ratio, const std::string& whose) { one_run_.Take(ratio, whose); }
  Figure AsFigure(const char* name) const {
    char rest[240];
    std::snprintf(rest, sizeof(rest),
                  "; %d of %d above target; of one client's traces %.4g (%s); two clients in one "
                  "run %.4g (%s)",
                  above_, cases_, one_client_.value, one_client_.detail.c_str(), one_run_.value,
                  one_run_.detail.c_str());
    return {.name = name,
            .unit = "x",
            .value = all_.value,
            .bound = 1.0,
            .target = target_,
            .detail = all_.detail + rest};
  }

 private:
  double target_;
  int cases_ = 0;
  int above_ = 0;
  Worst all_;
  Worst one_client_;
  Worst one_run_;
};

// A replay that failed is counted apart.
double RatioOf(const Outcome& outcome, size_t from, const sim::Reference& reference,
               const sim::Allowance& allowed) {
  if (!outcome.failure.empty()) return 0;
  return sim::Ratio(sim::StallFrom(outcome, from), reference, allowed);
}

double TimeRatio(const Outcome& other, const Outcome& store) {
  if (!store.failure.empty() || !other.failure.empty())
    return std::numeric_limits<double>::quiet_NaN();
  return Seconds(other.time) / Seconds(store.time);
}

class Scores {
 public:
  explicit Scores(bool table) : table_(table) {
    if (!table_) return;
    std::printf(
        "| machine | trace | budget | compute | bound | oracle | hints: time | hints: order | "
        "learned | LRU | GDSF | demand LRU |\n|---|---|---|---|---|---|---|---|---|---|---|---|\n");
  }

  void AddTrace(const std::string& name, const sim::Hardware& hardware) {
    const Runs runs = RunsOf(name, hardware);
    for (const sim::Budget& budget : sim::FeasibleBudgets(runs.front())) {
      where_ =
          name + " at " + std::to_string(budget.percent) + "% on " + std::string(hardware.name);
      Add(name, runs, hardware, budget);
      one_run_ = runs.size() > 1;
      if (one_run_ && !table_) Add(name, {runs.front()}, hardware, budget);
      one_run_ = false;
    }
  }

  void Tell(const KernelLevel& kernels, const Report& report) const {
    if (table_) return;
    report(hinted_.AsFigure("planner.stall_hinted_worst"));
    report(learned_.AsFigure("planner.stall_learned_worst"));
    report(perturbed_.AsFigure("planner.stall_perturbed_worst"));
    report({.name = "planner.vs_lru_worst",
            .unit = "x",
            .value = 1 / slower_than_lru_.value,
            .target = 1.0,
            .at_least = true,
            .detail = slower_than_lru_.detail + "; two clients in one run " +
                      std::to_string(1 / slower_in_one_run_.value) + " (" +
                      slower_in_one_run_.detail + ")"});
    const auto mean = [&](const char* name, double logarithms) {
      report({.name = name,
              .unit = "x",
              .value = std::exp(logarithms / cases_),
              .target = 1.3,
              .at_least = true});
    };
    mean("planner.vs_lru_geomean", hinted_logarithms_);
    mean("planner.vs_lru_geomean_learned", learned_logarithms_);
    report({.name = "planner.zipf_vs_best",
            .unit = "x",
            .value = zipf_.value,
            .bound = 1.0,
            .target = 1.05,
            .detail = zipf_.detail});
    report({.name = "planner.kernel_level_learned",
            .unit = "x",
            .value = kernels.learned_over_hinted,
            .bound = 1.0,
            .target = 1.05,
            .detail = kernels.worst});
    const bool both = !failures_.empty() && !kernels.failures.empty();
    report({.name = "planner.replays_failed",
            .unit = "replays",
            .value = static_cast<double>(failed_ + kernels.failed),
            .target = 0.0,
            .detail = failures_ + (both ? "; " : "") + kernels.failures});
    report({.name = "planner.endless_waits",
            .unit = "replays",
            .value = static_cast<double>(endless_ + kernels.endless),
            .target = 0.0});
  }

 private:
  void Add(const std::string& name, const Runs& runs, const sim::Hardware& hardware,
           const sim::Budget& budget) {
    AddCase(name, runs, hardware, budget);
    if (!table_ && sim::IsPeriodic(name)) AddPerturbed(runs, hardware, budget);
  }

  void Take(Ratios* ratios, double ratio, const std::string& whose) const {
    one_run_ ? ratios->TakeOneRun(ratio, whose) : ratios->Take(ratio, whose);
  }

  Outcome Run(const Runs& runs, const char* policy, const sim::Hardware& hardware,
              core::Bytes budget) {
    const sim::Setup setup = *sim::SetupFor(policy, hardware, budget);
    Outcome outcome =
        sim::MeanOf(Each(runs, [&](const Trace& run) { return sim::Simulate(run, setup); }));
    // The one of several runs counts among them.
    if (!outcome.failure.empty() && std::string_view(policy) == "value" && !one_run_) {
      ++failed_;
      if (outcome.endless) ++endless_;
      // Once for all variants of a case.
      if (failures_.find(where_) == std::string::npos)
        failures_ += (failures_.empty() ? "" : "; ") + where_;
    }
    return outcome;
  }

  void AddCase(const std::string& name, const Runs& runs, const sim::Hardware& hardware,
               const sim::Budget& budget) {
    const sim::Reference whole = sim::FindReference(runs, hardware, budget.bytes, 0);
    const Outcome by_time = Run(WithHints(runs, Hints::kTime), "value", hardware, budget.bytes);
    const Outcome by_order = Run(WithHints(runs, Hints::kOrder), "value", hardware, budget.bytes);
    const Outcome learned = Run(runs, "value", hardware, budget.bytes);
    const Outcome lru = Run(runs, "lru", hardware, budget.bytes);
    const Outcome gdsf = Run(runs, "gdsf", hardware, budget.bytes);
    const Outcome demand = Run(runs, "demand-lru", hardware, budget.bytes);
    if (table_) {
      std::printf("| %s | %s | %d%% | %.1f | %.1f |", std::string(hardware.name).c_str(),
                  name.c_str(), budget.percent, Milliseconds(whole.bound.compute),
                  Milliseconds(whole.bound.stall));
      if (whole.oracle) {
        std::printf(" %.1f |", Milliseconds(*whole.oracle));
      } else {
        std::printf(" - |");
      }
      for (const Outcome* one : {&by_time, &by_order, &learned, &lru, &gdsf, &demand}) {
        if (one->failure.empty()) {
          std::printf(" %.1f |", Milliseconds(one->stall));
        } else {
          std::printf(" failed |");
        }
      }
      std::printf("\n");
      return;
    }
    Take(&hinted_, RatioOf(by_time, 0, whole, sim::kHinted), where_ + ", times");
    Take(&hinted_, RatioOf(by_order, 0, whole, sim::kHinted), where_ + ", order");
    if (sim::IsPeriodic(name)) {
      const size_t from = kLearnedFrom + sim::SetUpIterations(runs.front());
      const sim::Reference late = sim::FindReference(runs, hardware, budget.bytes, from);
      Take(&learned_, RatioOf(learned, from, late, sim::kLearned), where_);
    }
    if (name == "zipf") {
      const double best = std::min(Seconds(lru.stall), Seconds(gdsf.stall));
      if (learned.failure.empty()) zipf_.Take(Seconds(learned.stall) / best, where_);
    }
    AgainstLru(demand, by_time, learned);
  }

  void AgainstLru(const Outcome& demand, const Outcome& hinted, const Outcome& learned) {
    const double with_hints = TimeRatio(demand, hinted);
    const double without = TimeRatio(demand, learned);
    if (std::isnan(with_hints) || std::isnan(without)) return;
    Worst& slower = one_run_ ? slower_in_one_run_ : slower_than_lru_;
    slower.Take(1 / with_hints, where_ + ", hinted");
    slower.Take(1 / without, where_ + ", learned");
    if (one_run_) return;
    hinted_logarithms_ += std::log(with_hints);
    learned_logarithms_ += std::log(without);
    ++cases_;
  }

  void AddPerturbed(const Runs& runs, const sim::Hardware& hardware, const sim::Budget& budget) {
    const size_t from = kLearnedFrom + sim::SetUpIterations(runs.front());
    const auto add = [&](const Runs& disturbed, const Runs& replayed, const char* how) {
      const sim::Reference reference = sim::FindReference(disturbed, hardware, budget.bytes, from);
      const Outcome outcome = Run(replayed, "value", hardware, budget.bytes);
      Take(&perturbed_, RatioOf(outcome, from, reference, sim::kPerturbed), where_ + ", " + how);
    };
    const auto replay = [&](const char* how, const auto& disturb) {
      const Runs disturbed = Disturbed(runs, disturb);
      add(disturbed, disturbed, how);
    };
    replay("times by up to 25%", [](const Trace& run, uint64_t seed) {
      return sim::WithTimesPerturbed(run, 0.25, seed);
    });
    replay("5% out of order",
           [](const Trace& run, uint64_t seed) { return sim::WithReorder(run, 0.05, seed); });
    replay("another period", [](const Trace& run, uint64_t) {
      return sim::WithPeriodChanged(run, kIterations / 2, 0.75);
    });
    const auto drop = [&](Hints hints, const char* how) {
      add(runs,
          Disturbed(runs,
                    [&](const Trace& run, uint64_t seed) {
                      return sim::WithHints(run, hints, kHintsKept, seed);
                    }),
          how);
    };
    drop(Hints::kTime, "30% of the times dropped");
    drop(Hints::kOrder, "30% of the order dropped");
  }

  const bool table_;
  bool one_run_ = false;  // of several whose mean is judged
  std::string where_;
  Ratios hinted_{sim::kHinted.of_bound};
  Ratios learned_{sim::kLearned.of_bound};
  Ratios perturbed_{sim::kPerturbed.of_bound};
  Worst slower_than_lru_;
  Worst slower_in_one_run_;
  Worst zipf_;
  double hinted_logarithms_ = 0;
  double learned_logarithms_ = 0;
  int cases_ = 0;
  int failed_ = 0;
  int endless_ = 0;  // of those: somebody waited for ever
  std::string failures_;
};

// Two clients, all budgets, times disturbed: the stall in all against the oracle's, which counts
// bytes and knows no slabs.
Figure TwoClients() {
  double stalled = 0;
  double oracle = 0;
  std::string detail;
  for (const char* machine : kMachines) {
    const sim::Hardware& hardware = *sim::FindHardware(machine);
    const Runs runs = RunsOf(kTwoClients, hardware);
    const std::vector<sim::Budget> budgets = sim::FeasibleBudgets(runs.front());
    double here[3] = {};  // by time, learned, the oracle; seconds a run
    for (const Trace& trace : runs) {
      const Trace hinted = sim::WithHints(trace, Hints::kTime);
      for (const sim::Budget& budget : budgets) {
        const sim::Setup setup = *sim::SetupFor("value", hardware, budget.bytes);
        here[0] += Seconds(sim::Simulate(hinted, setup).stall) / kRuns;
        here[1] += Seconds(sim::Simulate(trace, setup).stall) / kRuns;
        here[2] += Seconds(sim::SimulateOracle(trace, hardware, budget.bytes).stall) / kRuns;
      }
    }
    stalled += here[0];
    oracle += here[2];
    char words[160];
    std::snprintf(words, sizeof(words), "%s%s: %.3g s hinted, %.3g s learned, oracle %.3g s",
                  detail.empty() ? "" : "; ", machine, here[0], here[1], here[2]);
    detail += words;
  }
  return {.name = "planner.two_tenants_vs_oracle",
          .unit = "x",
          .value = stalled / oracle,
          .bound = 1.0,
          .detail = detail};
}

}  // namespace

void MeasurePlannerScores(bool table, const Report& report) {
  Scores scores(table);
  for (const char* machine : kMachines) {
    for (const std::string& name : sim::GeneratorNames()) {
      if (!sim::IsKernelLevel(name)) scores.AddTrace(name, *sim::FindHardware(machine));
    }
  }
  scores.Tell(MeasureKernelLevel(table), report);
  if (!table) report(TwoClients());
}

}  // namespace ravenstore::bench
