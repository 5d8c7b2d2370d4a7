#include <algorithm>
#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include "bench/planner_figures.h"
#include "bench/planner_sets.h"
#include "sim/generators.h"
#include "sim/score.h"

namespace ravenstore::bench {

namespace {

using core::Bytes;
using core::Seconds;
using sim::Hints;
using sim::Outcome;
using sim::Trace;

constexpr uint64_t kShares[] = {50, 70, 90};  // of the footprint, in percent
// Of the largest step, in percent: what gets through at all. Short, as that is decided early.
constexpr uint64_t kTight[] = {115, 130, 150, 170};
constexpr int kTightIterations = 2;

// What the client computes and stalls once it is learned.
double LateSeconds(const Trace& trace, const Outcome& outcome) {
  const size_t from = kScoreLearnedFrom + sim::SetUpIterations(trace);
  return Seconds(sim::ComputeFrom(trace, from) + sim::StallFrom(outcome, from));
}

class Kernels {
 public:
  Kernels(Replay replay, bool table, Failures* failures)
      : replay_(std::move(replay)), table_(table), failures_(*failures) {
    if (!table_) return;
    std::printf(
        "\n| machine | kernels of | budget | hints: time | hints: order | learned | ratio |\n"
        "|---|---|---|---|---|---|---|\n");
  }

  void AddTraces() {
    for (const char* machine : kScoreMachines) {
      for (const std::string& name : sim::GeneratorNames()) {
        if (sim::IsKernelLevel(name)) AddTrace(name, *sim::FindHardware(machine));
      }
    }
  }

  void ReportWorst(const std::string& name, const Report& report) const {
    report({.name = name,
            .unit = "x",
            .value = learned_,
            .bound = 1.0,
            .target = 1.05,
            .detail = learned_where_});
  }

 private:
  void AddTrace(const std::string& name, const sim::Hardware& hardware) {
    const Trace trace = sim::Generate(name, hardware, kScoreIterations);
    for (const uint64_t share : kShares) {
      where_ = name + " at " + std::to_string(share) + "% on " + std::string(hardware.name);
      AddCase(trace, hardware, Bytes(trace.Footprint().count() / 100 * share));
    }
  }

  Outcome Run(const Trace& trace, const sim::Hardware& hardware, Bytes budget, bool hinted) {
    Outcome outcome = replay_(trace, hardware, budget, hinted);
    failures_.Take(outcome, where_);
    if (table_ && !outcome.failure.empty())
      std::printf("%s: %s\n", where_.c_str(), outcome.failure.c_str());
    return outcome;
  }

  void AddCase(const Trace& trace, const sim::Hardware& hardware, Bytes budget) {
    const Outcome learned = Run(trace, hardware, budget, false);
    const Outcome by_time = Run(sim::WithHints(trace, Hints::kTime), hardware, budget, true);
    const Outcome by_order = Run(sim::WithHints(trace, Hints::kOrder), hardware, budget, true);
    if (!learned.failure.empty() || !by_time.failure.empty() || !by_order.failure.empty()) return;
    const double hinted = std::min(LateSeconds(trace, by_time), LateSeconds(trace, by_order));
    const double ratio = LateSeconds(trace, learned) / hinted;
    if (table_) {
      std::printf("| %s | %.1f | %.1f | %.1f | %.3f |\n", where_.c_str(),
                  LateSeconds(trace, by_time) * 1e3, LateSeconds(trace, by_order) * 1e3,
                  LateSeconds(trace, learned) * 1e3, ratio);
      std::fflush(stdout);
    }
    if (ratio <= learned_) return;
    learned_ = ratio;
    learned_where_ = where_;
  }

  const Replay replay_;
  const bool table_;
  Failures& failures_;
  std::string where_;
  double learned_ = 0;
  std::string learned_where_;
};

// `named`: a failure is reported with its budget and machine; otherwise only with `case_name`.
void ReplayTightly(const Trace& trace, const sim::Hardware& hardware, const std::string& case_name,
                   bool named, Failures* failures) {
  const Replay replay = ReplayOnPagesByHints();
  for (const uint64_t share : kTight) {
    const Bytes budget = Bytes(trace.LargestStep().count() / 100 * share).RoundUp(core::MiB(2));
    const std::string where = named ? case_name + " at " + std::to_string(share) +
                                          "% of its largest step on " + std::string(hardware.name)
                                    : case_name;
    for (const Hints hints : {Hints::kNone, Hints::kTime, Hints::kOrder})
      failures->Take(replay(sim::WithHints(trace, hints), hardware, budget, hints != Hints::kNone),
                     where);
  }
}

}  // namespace

void ReplayTight(Failures* failures) {
  for (const char* machine : kScoreMachines) {
    const sim::Hardware& hardware = *sim::FindHardware(machine);
    for (const std::string& name : sim::GeneratorNames())
      ReplayTightly(sim::Generate(name, hardware, kTightIterations), hardware, name, true,
                    failures);
  }
}

void ReplayTight(const TraceSet& judge, Failures* failures) {
  for (const char* machine : kScoreMachines) {
    const sim::Hardware& hardware = *sim::FindHardware(machine);
    for (const TraceSet::Entry& entry : judge.traces)
      ReplayTightly(judge.generate(entry.name, hardware), hardware, judge.CaseName(), false,
                    failures);
  }
}

void MeasureKernelLevel(bool table, Failures* failures, const Report& report) {
  Kernels kernels(ReplayOnPagesByHints(), table, failures);
  kernels.AddTraces();
  if (!table) kernels.ReportWorst("planner.paged_kernel_level_learned", report);
}

}  // namespace ravenstore::bench
