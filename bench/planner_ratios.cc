// Stall over what no policy can beat, or the best that is known. Of a case that hardly stalls it
// says little, so it stands beside the scores and judges nothing.
#include <cstdio>
#include <string>

#include "bench/planner_figures.h"
#include "bench/planner_sets.h"
#include "sim/generators.h"
#include "sim/score.h"
#include "sim/simulator.h"

namespace ravenstore::bench {

namespace {

using core::Milliseconds;
using sim::Hints;
using sim::Outcome;
using sim::Trace;

constexpr uint64_t kSeed = 7;
constexpr double kHintsKept = 0.7;

// The largest ratio, and how many are above what would be good.
class Ratios {
 public:
  explicit Ratios(double good) : good_(good) {}

  void Take(double ratio, const std::string& whose) {
    ++cases_;
    if (ratio > good_) ++above_;
    if (ratio <= worst_) return;
    worst_ = ratio;
    where_ = whose;
  }
  Figure AsFigure(const char* name) const {
    char words[80];
    std::snprintf(words, sizeof(words), "; %d of %d above %.2f; judges nothing", above_, cases_,
                  good_);
    return {.name = name, .unit = "x", .value = worst_, .bound = 1.0, .detail = where_ + words};
  }

 private:
  double good_;
  int cases_ = 0;
  int above_ = 0;
  double worst_ = 0;
  std::string where_;
};

class StallRatios {
 public:
  StallRatios(bool table, Failures* failures) : table_(table), failures_(*failures) {
    if (!table_) return;
    std::printf(
        "| machine | trace | budget | compute | bound | best known | hints: time | hints: order | "
        "learned | LRU | GDSF | demand LRU |\n|---|---|---|---|---|---|---|---|---|---|---|---|\n");
  }

  void AddTrace(const std::string& name, const sim::Hardware& hardware) {
    const Trace trace = sim::Generate(name, hardware, kScoreIterations);
    for (const sim::Budget& budget : sim::FeasibleBudgets(trace)) {
      where_ =
          name + " at " + std::to_string(budget.percent) + "% on " + std::string(hardware.name);
      AddCase(name, trace, hardware, budget);
      if (!table_ && sim::IsPeriodic(name)) AddPerturbed(trace, hardware, budget.bytes);
    }
  }

  void ReportWorst(const Report& report) const {
    if (table_) return;
    report(hinted_.AsFigure("planner.stall_hinted_worst"));
    report(learned_.AsFigure("planner.stall_learned_worst"));
    report(perturbed_.AsFigure("planner.stall_perturbed_worst"));
  }

 private:
  Outcome Run(const Trace& trace, const char* policy, const sim::Hardware& hardware,
              core::Bytes budget) {
    Outcome outcome = sim::Simulate(trace, *sim::SetupFor(policy, hardware, budget));
    if (std::string_view(policy) == "value") failures_.Take(outcome, where_);
    return outcome;
  }

  // A replay that failed is counted apart.
  static void Take(Ratios* ratios, const Outcome& outcome, size_t from,
                   const sim::Reference& reference, const sim::Allowance& allowed,
                   const std::string& whose) {
    if (outcome.failure.empty())
      ratios->Take(sim::Ratio(sim::StallFrom(outcome, from), reference, allowed), whose);
  }

  void AddCase(const std::string& name, const Trace& trace, const sim::Hardware& hardware,
               const sim::Budget& budget) {
    const sim::Reference whole = sim::FindReference({trace}, hardware, budget.bytes, 0);
    const Outcome by_time =
        Run(sim::WithHints(trace, Hints::kTime), "value", hardware, budget.bytes);
    const Outcome by_order =
        Run(sim::WithHints(trace, Hints::kOrder), "value", hardware, budget.bytes);
    const Outcome learned = Run(trace, "value", hardware, budget.bytes);
    if (table_) {
      const Outcome rivals[] = {Run(trace, "lru", hardware, budget.bytes),
                                Run(trace, "gdsf", hardware, budget.bytes),
                                Run(trace, "demand-lru", hardware, budget.bytes)};
      PrintRow(name, hardware, budget, whole,
               {&by_time, &by_order, &learned, &rivals[0], &rivals[1], &rivals[2]});
      return;
    }
    Take(&hinted_, by_time, 0, whole, sim::kHinted, where_ + ", times");
    Take(&hinted_, by_order, 0, whole, sim::kHinted, where_ + ", order");
    if (!sim::IsPeriodic(name)) return;
    const size_t from = kScoreLearnedFrom + sim::SetUpIterations(trace);
    Take(&learned_, learned, from, sim::FindReference({trace}, hardware, budget.bytes, from),
         sim::kLearned, where_);
  }

  static void PrintRow(const std::string& name, const sim::Hardware& hardware,
                       const sim::Budget& budget, const sim::Reference& whole,
                       std::initializer_list<const Outcome*> outcomes) {
    std::printf("| %s | %s | %d%% | %.1f | %.1f |", std::string(hardware.name).c_str(),
                name.c_str(), budget.percent, Milliseconds(whole.bound.compute),
                Milliseconds(whole.bound.stall));
    if (whole.oracle) {
      std::printf(" %.1f |", Milliseconds(*whole.oracle));
    } else {
      std::printf(" - |");
    }
    for (const Outcome* one : outcomes) {
      if (one->failure.empty()) {
        std::printf(" %.1f |", Milliseconds(one->stall));
      } else {
        std::printf(" failed |");
      }
    }
    std::printf("\n");
  }

  void AddPerturbed(const Trace& trace, const sim::Hardware& hardware, core::Bytes budget) {
    const size_t from = kScoreLearnedFrom + sim::SetUpIterations(trace);
    const auto add = [&](const Trace& disturbed, const Trace& replayed, const char* how) {
      const sim::Reference reference = sim::FindReference({disturbed}, hardware, budget, from);
      Take(&perturbed_, Run(replayed, "value", hardware, budget), from, reference, sim::kPerturbed,
           where_ + ", " + how);
    };
    const auto replay = [&](const char* how, const Trace& disturbed) {
      add(disturbed, disturbed, how);
    };
    replay("times by up to 25%", sim::WithTimesPerturbed(trace, 0.25, kSeed));
    replay("5% out of order", sim::WithReorder(trace, 0.05, kSeed));
    replay("another period", sim::WithPeriodChanged(trace, kScoreIterations / 2, 0.75));
    add(trace, sim::WithHints(trace, Hints::kTime, kHintsKept, kSeed), "30% of the times dropped");
    add(trace, sim::WithHints(trace, Hints::kOrder, kHintsKept, kSeed), "30% of the order dropped");
  }

  const bool table_;
  Failures& failures_;
  std::string where_;
  Ratios hinted_{sim::kHinted.of_bound};
  Ratios learned_{sim::kLearned.of_bound};
  Ratios perturbed_{sim::kPerturbed.of_bound};
};

}  // namespace

void MeasureStallRatios(bool table, Failures* failures, const Report& report) {
  StallRatios ratios(table, failures);
  for (const char* machine : kScoreMachines) {
    for (const std::string& name : sim::GeneratorNames()) {
      if (!sim::IsKernelLevel(name) && name != sim::kTwoTenants)
        ratios.AddTrace(name, *sim::FindHardware(machine));
    }
  }
  ratios.ReportWorst(report);
}

}  // namespace ravenstore::bench
