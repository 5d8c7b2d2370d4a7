// planner_bench: the figures of the planner, one JSON object a line. bench/report runs it.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include "bench/figure.h"
#include "bench/planner_figures.h"
#include "bench/planner_score.h"
#include "core/heuristic.h"

namespace ravenstore::bench {
namespace {

struct Options {
  std::string references = "bench/planner_references.txt";
  std::string write;
  bool validation = false;
  std::string recordings;
  std::string table;  // of what
  double scale = 1;
  bool ablate = false;
  std::vector<std::string> without;
  bool vary = false;
  bool vary_paged = false;
  std::vector<std::string> constants;
  bool scores = true;
  bool cost = true;
  bool truth = true;
};

// The figures of the tuning set on pages.
void ReportTuningOnPages(const PagedScore& score, const TraceSet& tuning, Failures* failures,
                         const Report& report) {
  ReportPagedScore(tuning, score, report);
  score.against_lru.ReportWorst("planner.paged_vs_lru_worst", 0.95, report);
  MeasureKernelLevelOnPages(failures, report);
  MeasureZipfOnPages(failures, report);
}

// `validation`: null: it is not looked at.
void MeasureScores(const TraceSet& tuning, const TraceSet* validation, const References& references,
                   const Report& report) {
  LruRatios against_lru;
  Failures failures;
  ReportSetScore(tuning, ScoreSet(tuning, references, &against_lru, &failures), report);
  ReportTuningOnPages(ScorePaged(tuning, references), tuning, &failures, report);
  if (validation == nullptr) {
    SkipValidation(report);
  } else {
    ReportSetScore(*validation, ScoreSet(*validation, references, &against_lru, &failures), report);
    const PagedScore paged = ScorePaged(*validation, references);
    ReportPagedScore(*validation, paged, report);
    paged.against_lru.ReportWorst("planner.paged_validation_vs_lru_worst", 0.95, report);
  }
  against_lru.ReportAll(validation == nullptr ? "the tuning set" : "both sets", report);
  MeasureZipf(validation, &failures, report);
  MeasurePools(&failures, report);
  MeasureKernelLevel(false, &failures, report);
  ReplayTight(core::Heuristics{}, &failures);
  if (validation != nullptr) ReplayTight(*validation, &failures);
  MeasureTwoTenants(report);
  MeasureTwoTenantsOnPages(report);
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
  report({.name = "planner.replays_refused",
          .unit = "replays",
          .value = failures.refused,
          .detail = "that got through after a refusal for pieces"});
}

// A mixture of experts, whose sizes follow the data: on pages over today's core.
void ReportExperts(const SetScore& today, const PagedScore& paged, const Report& report) {
  const std::string experts = "recorded-job-experts";
  const auto ratio = [&](const char* name, const Score& of, const Score& than) {
    const auto value = of.OfTrace(experts);
    const auto other = than.OfTrace(experts);
    if (!value || !other) return;
    report({.name = name, .unit = "x", .value = *value / *other, .target = 1.0});
  };
  ratio("planner.paged_experts_over_today_hinted", paged.hinted, today.hinted);
  ratio("planner.paged_experts_over_today_learned", paged.learned, today.learned);
}

void PrintJobs(const TraceSet& jobs, const References& references, const Report& print) {
  if (!jobs.without.empty()) std::printf("Left out: %s\n\n", jobs.without.c_str());
  LruRatios against_lru;
  Failures failures;
  const SetScore today = ScoreSet(jobs, references, &against_lru, &failures, true);
  ReportSetScore(jobs, today, print);
  const PagedScore paged = ScorePaged(jobs, references, true);
  ReportPagedScore(jobs, paged, print);
  ReportExperts(today, paged, print);
}

// The sets that --table knows.
struct TableSets {
  const TraceSet& tuning;
  const TraceSet& jobs;
  const TraceSet& kept;
};

void PrintTable(const std::string& what, const TableSets& sets, const References& references) {
  Failures failures;
  const Report nothing = [](const Figure&) {};
  if (what == "stalls") MeasureStallRatios(true, &failures, nothing);
  if (what == "kernels") MeasureKernelLevel(true, &failures, nothing);
  LruRatios against_lru;
  if (what == "scores") ScoreSet(sets.tuning, references, &against_lru, &failures, true);
  const Report print = PrintEach(Machine("no GPU"));
  if (what == "paged")
    ReportTuningOnPages(ScorePaged(sets.tuning, references, true), sets.tuning, &failures, print);
  if (what == "tenants") MeasureTwoTenantsOnPages(print);
  if (what == "pools") MeasurePools(&failures, print);
  if (what == "jobs") PrintJobs(sets.jobs, references, print);
  // For the final table only: a set by which something was chosen does not judge any more.
  if (what == "kept") PrintJobs(sets.kept, references, print);
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
                "(docs/history/validation.md)");
  CLI::Option* recordings = app->add_option("--recordings", options->recordings,
                                            "the folder with those of bench/recorded, unpacked");
  app->add_option("--write-references", options->write,
                  "adds those that are not there, into this file")
      ->needs(recordings);
  app->add_option("--table", options->table,
                  "only a markdown table: of all the tuning set's cases, of recorded jobs, or "
                  "of those kept back (for the final table only)")
      ->check(CLI::IsMember(
          {"scores", "paged", "jobs", "kept", "tenants", "pools", "stalls", "kernels"}));
  app->add_flag("--ablate", options->ablate, "only what each heuristic is worth");
  const std::vector<std::string> names(core::kHeuristicNames.begin(), core::kHeuristicNames.end());
  app->add_option("--without", options->without, "only what these heuristics are worth together")
      ->check(CLI::IsMember(names));
  CLI::Option* vary =
      app->add_flag("--vary", options->vary,
                    "only what each tuned constant is worth, of a build with --config=vary");
  CLI::Option* vary_paged = app->add_flag("--vary-paged", options->vary_paged,
                                          "the same of the constants of the plan on pages");
  vary_paged->excludes(vary);
  app->add_option("--constants", options->constants, "of these alone");
  app->add_flag("--scores,!--no-scores", options->scores, "every trace in the simulator");
  app->add_flag("--cost,!--no-cost", options->cost, "time per event");
  app->add_flag("--truth,!--no-truth", options->truth, "the simulator against the host backend");
}

int Main(int argc, char** argv) {
  CLI::App app("Measures the planner's figures.", "planner_bench");
  Options options;
  AddOptions(&options, &app);
  CLI11_PARSE(app, argc, argv);
  if (!options.constants.empty() && !options.vary && !options.vary_paged) {
    std::fprintf(stderr, "planner_bench: --constants requires --vary or --vary-paged\n");
    return 1;
  }
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
  if (options.vary_paged) {
    MeasurePagedConstants(*tuning, options.constants, report);
    return 0;
  }
  if (options.vary) {
    MeasureConstants(*tuning, options.constants, report);
    return 0;
  }
  if (options.ablate || !options.without.empty()) {
    MeasureAblation(*tuning, options.without, report);
    return 0;
  }
  if (options.scores)
    MeasureScores(*tuning, options.validation ? &*validation : nullptr, *references, report);
  if (options.cost) {
    MeasurePlannerCost(options.scale, report);
    MeasurePlanCost(report);
    MeasurePagedEventCost(options.scale, report);
    CountPagedConstants(report);
  }
  if (options.truth) MeasureSimulatorTruth(options.scale, report);
  return 0;
}

}  // namespace
}  // namespace ravenstore::bench

int main(int argc, char** argv) {
  return ravenstore::bench::Main(argc, argv);
}
