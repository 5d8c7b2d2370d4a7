// Four pools: a device, half of what is away on the host, a peer's idle memory and a file.
#include <cmath>
#include <cstdio>
#include <iterator>
#include <string>
#include <vector>

#include "bench/planner_figures.h"
#include "core/check.h"
#include "sim/generators.h"
#include "sim/inputs.h"
#include "sim/lower_bound.h"

namespace ravenstore::bench {

namespace {

constexpr const char* kJobs[] = {"gpt2-xl", "llama-7b-lora", "dlrm"};
constexpr int kIterations = 6;
constexpr const char* kPools[] = {"host:25%", "peer:25%:390:390", "file:1TiB:7:5"};

// (compute + stall) / (compute + bound with these pools); with none of `pools` there are two.
double ScoreOf(const sim::Trace& trace, bool pools, Failures* failures) {
  const sim::Hardware& hardware = sim::kHardware[0];
  const core::Bytes budget = sim::ParseBudget("50%", trace).value().bytes;
  sim::ReplaySetup setup{.hardware = hardware, .budget = budget};
  for (const char* pool : kPools) {
    if (pools) RAVEN_CHECK(sim::AddPool(pool, trace, &setup).ok());
  }
  const sim::Outcome outcome = ReplayOnPages(trace, setup, sim::Foresight::kHints);
  failures->Take(outcome, trace.name + (pools ? " in four pools" : " in two pools"));
  const sim::LowerBound bound = sim::LeastStall(trace, setup);
  return core::Seconds(outcome.compute + outcome.stall) /
         core::Seconds(outcome.compute + bound.stall);
}

std::string Rounded(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.2f", value);
  return text;
}

// Of each of kJobs.
struct Scores {
  std::vector<double> four;  // pools
  std::vector<double> two;
};

Scores ScoreJobs(Failures* failures) {
  Scores scores;
  for (const char* job : kJobs) {
    const sim::Trace trace =
        sim::WithHints(sim::Generate(job, sim::kHardware[0], kIterations), sim::Hints::kTime);
    scores.four.push_back(ScoreOf(trace, true, failures));
    scores.two.push_back(ScoreOf(trace, false, failures));
  }
  return scores;
}

double MeanOf(const std::vector<double>& scores) {
  double logarithms = 0;
  for (const double score : scores) logarithms += std::log(score);
  return std::exp(logarithms / static_cast<double>(scores.size()));
}

}  // namespace

void MeasurePools(Failures* failures, const Report& report) {
  const Scores scores = ScoreJobs(failures);
  std::string each;
  for (size_t i = 0; i < std::size(kJobs); ++i)
    each += std::string(i == 0 ? "" : ", ") + kJobs[i] + " " + Rounded(scores.four[i]);
  report({.name = "planner.paged_four_pools_vs_two",
          .unit = "x",
          .value = MeanOf(scores.four),
          .bound = 1.0,
          .target = 1.15,
          .detail = each + "; with two pools " + Rounded(MeanOf(scores.two))});
}

}  // namespace ravenstore::bench
