// planner_bench: the figures of the planner, one JSON object a line. bench/report runs it.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include "bench/figure.h"
#include "bench/planner_figures.h"
#include "bench/planner_score.h"

namespace ravenstore::bench {
namespace {

struct Options {
  std::string references = "bench/planner_references.txt";
  std::string write;
  bool validation = false;
  std::string recordings;
  std::string table;  // of what
  double scale = 1;
  bool vary = false;
  std::vector<std::string> constants;
  bool scores = true;
  bool cost = true;
  bool truth = true;
};

// `validation`: null: it is not looked at.
void MeasureScores(const TraceSet& tuning, const TraceSet* validation, const References& references,
                   const Report& report) {
  const PagedScore score = ScorePaged(tuning, references);
  ReportPagedScore(tuning, score, report);
  score.against_lru.ReportWorst("planner.paged_vs_lru_worst", 0.95, report);
  if (validation == nullptr) {
    SkipValidation(report);
  } else {
    const PagedScore judged = ScorePaged(*validation, references);
    ReportPagedScore(*validation, judged, report);
    judged.against_lru.ReportWorst("planner.paged_validation_vs_lru_worst", 0.95, report);
  }
  Failures failures;
  MeasureZipf(validation, &failures, report);
  MeasurePools(&failures, report);
  MeasureKernelLevel(false, &failures, report);
  ReplayTight(&failures);
  if (validation != nullptr) ReplayTight(*validation, &failures);
  MeasureTwoTenants(report);
  report({.name = "planner.replays_failed",
          .unit = "replays",
          .value = failures.failed,
          .target = 0.0,
          .detail = failures.where});
}

// The sets that --table knows.
struct TableSets {
  const TraceSet& tuning;
  const TraceSet& jobs;
  const TraceSet& kept;
};

void PrintTable(const std::string& what, const TableSets& sets, const References& references) {
  Failures failures;
  const Report print = PrintEach(Machine("no GPU"));
  const auto print_set = [&](const TraceSet& set) {
    if (!set.without.empty()) std::printf("Left out: %s\n\n", set.without.c_str());
    const PagedScore score = ScorePaged(set, references, true);
    ReportPagedScore(set, score, print);
    score.against_lru.ReportWorst("planner.paged_" + set.name + "_vs_lru_worst", 0.95, print);
  };
  if (what == "kernels") MeasureKernelLevel(true, &failures, print);
  if (what == "scores") print_set(sets.tuning);
  if (what == "tenants") MeasureTwoTenants(print);
  if (what == "pools") MeasurePools(&failures, print);
  if (what == "zipf") MeasureZipf(nullptr, &failures, print);
  if (what == "jobs") print_set(sets.jobs);
  // For the final table only: a set by which something was chosen does not judge any more.
  if (what == "kept") print_set(sets.kept);
}

// Returns the exit code.
int WriteReferences(const std::vector<const TraceSet*>& sets, References found,
                    const std::string& path) {
  FindReferences(sets, &found);
  if (const core::Status written = found.Write(path); !written.ok()) {
    std::fprintf(stderr, "planner_bench: %s\n", written.error().message.c_str());
    return 1;
  }
  std::printf("%zu references\n", found.size());
  return 0;
}

void AddOptions(Options* options, CLI::App* app) {
  app->add_option("--scale", options->scale, "shortens (below 1) the runs")
      ->check(CLI::Range(0.01, 10.0));
  app->add_option("--references", options->references, "what each case is judged against");
  app->add_flag("--validation", options->validation,
                "the validation set's scores, too: once for each tagged state "
                "(decision 0033)");
  CLI::Option* recordings = app->add_option("--recordings", options->recordings,
                                            "the folder with those of bench/recorded, unpacked");
  app->add_option("--write-references", options->write,
                  "adds those that are not there, into this file")
      ->needs(recordings);
  app->add_option("--table", options->table,
                  "only a table: of all the tuning set's cases, of recorded jobs, of those "
                  "kept back (for the final table only), or one figure's")
      ->check(CLI::IsMember({"scores", "jobs", "kept", "tenants", "pools", "zipf", "kernels"}));
  CLI::Option* vary =
      app->add_flag("--vary", options->vary,
                    "only what each tuned constant is worth, of a build with --config=vary");
  app->add_option("--constants", options->constants, "of these alone")->needs(vary);
  app->add_flag("--scores,!--no-scores", options->scores, "every trace in the simulator");
  app->add_flag("--cost,!--no-cost", options->cost, "time per event");
  app->add_flag("--truth,!--no-truth", options->truth, "the simulator against the host backend");
}

int Main(int argc, char** argv) {
  CLI::App app("Measures the planner's figures.", "planner_bench");
  Options options;
  AddOptions(&options, &app);
  CLI11_PARSE(app, argc, argv);
  const core::Result<TraceSet> tuning = TuningSet(options.recordings);
  const core::Result<TraceSet> validation = ValidationSet(options.recordings);
  const core::Result<TraceSet> jobs = JobsSet(options.recordings);
  const core::Result<TraceSet> kept = KeptJobsSet(options.recordings);
  for (const auto* set : {&tuning, &validation, &jobs, &kept}) {
    if (set->ok()) continue;
    std::fprintf(stderr, "planner_bench: %s\n", set->error().message.c_str());
    return 1;
  }
  core::Result<References> references = References::Read(options.references);
  if (!references.ok()) {
    std::fprintf(stderr, "planner_bench: %s\n", references.error().message.c_str());
    if (references.error().code != core::ErrorCode::kNotFound) return 1;
    references = References();  // the scores are skipped
  }
  if (!options.write.empty())
    return WriteReferences({&*tuning, &*validation, &*jobs, &*kept}, std::move(*references),
                           options.write);
  if (!options.table.empty()) {
    PrintTable(options.table, {*tuning, *jobs, *kept}, *references);
    return 0;
  }
  // What is simulated depends on no GPU.
  const Report report = PrintEach(Machine("no GPU"));
  if (options.vary) {
    MeasureConstants(*tuning, options.constants, report);
    return 0;
  }
  if (options.scores)
    MeasureScores(*tuning, options.validation ? &*validation : nullptr, *references, report);
  if (options.cost) {
    MeasurePlanCost(report);
    MeasurePagedEventCost(options.scale, report);
    CountConstants(report);
  }
  if (options.truth) MeasureSimulatorTruth(options.scale, report);
  return 0;
}

}  // namespace
}  // namespace ravenstore::bench

int main(int argc, char** argv) {
  return ravenstore::bench::Main(argc, argv);
}
