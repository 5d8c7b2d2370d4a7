// Four pools: a device, half of what is away on the host, a peer's idle memory and a file.
#include <cmath>
#include <cstdio>
#include <iterator>
#include <string>

#include "bench/planner_figures.h"
#include "core/check.h"
#include "sim/generators.h"
#include "sim/inputs.h"
#include "sim/lower_bound.h"
#include "sim/score.h"
#include "sim/simulator.h"

namespace ravenstore::bench {

namespace {

constexpr const char* kJobs[] = {"gpt2-xl", "llama-7b-lora", "dlrm"};
constexpr int kIterations = 6;
constexpr const char* kPools[] = {"host:25%", "peer:25%:390:390", "file:1TiB:7:5"};

// The core that is replayed.
enum class Core { kSlabs, kPages };

sim::Outcome ReplayOn(const sim::Trace& trace, const sim::Setup& setup, Core core) {
  if (core == Core::kSlabs) return sim::Simulate(trace, setup);
  return ReplayOnPages(trace, setup, sim::Foresight::kHints);
}

// (compute + stall) / (compute + bound with these pools); with none of `pools` there are two.
double ScoreOf(const sim::Trace& trace, bool pools, Core core, Failures* failures) {
  const sim::Hardware& hardware = sim::kHardware[0];
  const core::Bytes budget = sim::ParseBudget("50%", trace).value().bytes;
  sim::Setup setup = *sim::SetupFor("value", hardware, budget);
  for (const char* pool : kPools) {
    if (pools) RAVEN_CHECK(sim::AddPool(pool, trace, &setup).ok());
  }
  const sim::Outcome outcome = ReplayOn(trace, setup, core);
  failures->Take(outcome, trace.name + (pools ? " in four pools" : " in two pools"));
  const sim::LowerBound bound = sim::LeastStall(trace, setup);
  return core::Seconds(outcome.compute + outcome.stall) /
         core::Seconds(outcome.compute + bound.stall);
}

sim::Trace HintedTrace(const char* job) {
  return sim::WithHints(sim::Generate(job, sim::kHardware[0], kIterations), sim::Hints::kTime);
}

std::string Rounded(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.2f", value);
  return text;
}

void Measure(const char* name, double target, Core core, Failures* failures, const Report& report) {
  double four = 0;  // logarithms
  double two = 0;
  std::string each;
  for (const char* job : kJobs) {
    const sim::Trace trace = HintedTrace(job);
    const double of_four = ScoreOf(trace, true, core, failures);
    four += std::log(of_four);
    two += std::log(ScoreOf(trace, false, core, failures));
    each += std::string(each.empty() ? "" : ", ") + job + " " + Rounded(of_four);
  }
  const double jobs = std::size(kJobs);
  report({.name = name,
          .unit = "x",
          .value = std::exp(four / jobs),
          .bound = 1.0,
          .target = target,
          .detail = each + "; with two pools " + Rounded(std::exp(two / jobs))});
}

}  // namespace

void MeasurePools(Failures* failures, const Report& report) {
  Measure("planner.four_pools_vs_two", 1.10, Core::kSlabs, failures, report);
}

void MeasurePoolsOnPages(Failures* failures, const Report& report) {
  Measure("planner.paged_four_pools_vs_two", 1.15, Core::kPages, failures, report);
  const sim::Trace rows = HintedTrace("dlrm");
  for (const bool pools : {false, true}) {
    report({.name = std::string("planner.paged_dlrm_over_today_") + (pools ? "four" : "two"),
            .unit = "x",
            .value = ScoreOf(rows, pools, Core::kPages, failures) /
                     ScoreOf(rows, pools, Core::kSlabs, failures),
            .target = 1.0,
            .detail = pools ? "in four pools" : "in two pools"});
  }
}

}  // namespace ravenstore::bench
