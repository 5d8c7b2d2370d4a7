// planner_bench: the figures of the planner, one JSON object a line. bench/report runs it.
#include <CLI/CLI.hpp>
#include <cstdio>

#include "bench/figure.h"
#include "bench/planner_figures.h"
#include "bench/planner_score.h"

namespace ravenstore::bench {
namespace {

struct Options {
  std::string references = "bench/planner_references.txt";
  std::string write;
  std::string table;  // of what
  double scale = 1;
  bool ablate = false;
  bool scores = true;
  bool cost = true;
  bool truth = true;
};

void MeasureScores(const References& references, const Report& report) {
  const SetScore tuning = ScoreSet(TuningSet(), references, {});
  TellSetScore(TuningSet(), tuning, report);
  tuning.against_lru.Tell(report);
  Failures failures = tuning.failures;
  MeasureZipf(&failures, report);
  MeasureKernelLevel(false, &failures, report);
  ReplayTight({}, &failures);
  MeasureTwoTenants(report);
  MeasureStallRatios(false, &failures, report);
  report({.name = "planner.replays_failed",
          .unit = "replays",
          .value = failures.failed,
          .target = 0.0,
          .detail = failures.where});
  report({.name = "planner.endless_waits",
          .unit = "replays",
          .value = failures.endless,
          .target = 0.0});
}

void PrintTable(const std::string& what, const References& references) {
  Failures failures;
  const Report nothing = [](const Figure&) {};
  if (what == "stalls") MeasureStallRatios(true, &failures, nothing);
  if (what == "kernels") MeasureKernelLevel(true, &failures, nothing);
  if (what == "scores") ScoreSet(TuningSet(), references, {.table = true});
}

int Main(int argc, char** argv) {
  CLI::App app("Measures the planner's figures.", "planner_bench");
  Options options;
  app.add_option("--scale", options.scale, "shortens (below 1) the runs")
      ->check(CLI::Range(0.01, 10.0));
  app.add_option("--references", options.references, "what each case is judged against");
  app.add_option("--write-references", options.write, "finds it anew, into this file");
  app.add_option("--table", options.table, "only a markdown table, of all cases")
      ->check(CLI::IsMember({"scores", "stalls", "kernels"}));
  app.add_flag("--ablate", options.ablate, "only what each heuristic is worth");
  app.add_flag("--scores,!--no-scores", options.scores, "every trace in the simulator");
  app.add_flag("--cost,!--no-cost", options.cost, "time per event");
  app.add_flag("--truth,!--no-truth", options.truth, "the simulator against the host backend");
  CLI11_PARSE(app, argc, argv);
  if (!options.write.empty()) {
    const References found = FindReferences();
    if (const core::Status written = found.Write(options.write); !written.ok()) {
      std::fprintf(stderr, "planner_bench: %s\n", written.error().message.c_str());
      return 1;
    }
    std::printf("%zu references\n", found.size());
    return 0;
  }
  core::Result<References> references = References::Read(options.references);
  if (!references.ok()) {
    std::fprintf(stderr, "planner_bench: %s\n", references.error().message.c_str());
    if (references.error().code != core::ErrorCode::kNotFound) return 1;
    references = References();  // the scores are skipped
  }
  if (!options.table.empty()) {
    PrintTable(options.table, *references);
    return 0;
  }
  // What is simulated depends on no GPU.
  const std::string machine = Machine("no GPU");
  const auto report = [&machine](const Figure& figure) {
    std::printf("%s\n", Json(figure, machine).c_str());
    std::fflush(stdout);
  };
  if (options.ablate) {
    MeasureAblation(*references, report);
    return 0;
  }
  if (options.scores) MeasureScores(*references, report);
  if (options.cost) MeasurePlannerCost(options.scale, report);
  if (options.truth) MeasureSimulatorTruth(options.scale, report);
  return 0;
}

}  // namespace
}  // namespace ravenstore::bench

int main(int argc, char** argv) {
  return ravenstore::bench::Main(argc, argv);
}
