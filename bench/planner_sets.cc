#include "bench/planner_sets.h"

#include <filesystem>
#include <map>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "bench/recording.h"
#include "sim/generators.h"
#include "sim/score.h"

namespace ravenstore::bench {

namespace {
constexpr int kPercents[] = {30, 50, 70, 90};
constexpr int kHintedPercents[] = {50, 75, 90, 100};
constexpr uint64_t kLeastOfStep = 115;  // percent

// The one of two clients is left out as kTwoTenants is: chance decides whose peaks meet.
constexpr const char* kTwoJobs = "efficientnet-t5";
// It makes eight batches of each iteration that is asked for.
constexpr const char* kOfManyBatches = "dlrm";
constexpr int kFewIterations = 2;
constexpr const char* kRecorded[] = {"gpt-large", "resnet50"};
constexpr const char* kRecordedPackage[] = {"pytorch-bert-compiled",     "pytorch-bert-eager",
                                            "pytorch-gpt2-compiled",     "pytorch-gpt2-eager",
                                            "pytorch-lora-compiled",     "pytorch-lora-eager",
                                            "pytorch-resnet50-compiled", "pytorch-resnet50-eager",
                                            "pytorch-whisper-compiled",  "pytorch-whisper-eager"};
constexpr const char* kRecordedForTuning[] = {"pytorch-gpt-50", "pytorch-gpt-75"};
constexpr const char* kRecordedJobs[] = {"job-convnext",      "job-experts",       "job-finetune",
                                         "job-finetune_kept", "job-finetune_long", "job-generate",
                                         "job-lengths",       "job-lora",          "job-unet"};
// A third of all jobs. Chosen before they were recorded, so before any score of theirs was known.
constexpr const char* kJobsKeptBack[] = {"job-accumulate", "job-gan", "job-lora_two", "job-speech"};
// What stands before a recording's first whole step.
constexpr size_t kCut = 1;
constexpr const char* kWithoutRecordings = "the recordings";

std::string PathOf(const std::string& folder, const char* program) {
  return folder + "/" + program + ".trace";
}

// Adds `programs`, whose traces are in `folder`, to `set`, each as `entry` but for its name.
core::Status AddRecordings(std::span<const char* const> programs, const std::string& folder,
                           TraceSet::Entry entry, TraceSet* set) {
  if (folder.empty()) {
    set->without = kWithoutRecordings;
    return core::Done{};
  }
  const auto recorded = std::make_shared<std::map<std::string, sim::Trace>>();
  for (const char* program : programs) {
    auto trace = ReadRecording(PathOf(folder, program));
    if (!trace.ok()) return trace.error();
    entry.name = std::string("recorded-") + program;
    recorded->emplace(entry.name, std::move(*trace));
    set->traces.push_back(entry);
  }
  set->generate = [recorded, others = set->generate](const std::string& name,
                                                     const sim::Hardware& hardware) {
    const auto found = recorded->find(name);
    return found != recorded->end() ? found->second : others(name, hardware);
  };
  return core::Done{};
}

// Of `jobs` those that have been recorded; the set names the others as left out.
core::Result<TraceSet> RecordedJobs(std::string name, std::span<const char* const> jobs,
                                    const std::string& recordings) {
  TraceSet set;
  set.name = std::move(name);
  std::vector<const char*> recorded;
  for (const char* job : jobs) {
    if (recordings.empty() || std::filesystem::exists(PathOf(recordings, job))) {
      recorded.push_back(job);
    } else {
      set.without += (set.without.empty() ? "" : ", ") + std::string(job);
    }
  }
  const core::Status added =
      AddRecordings(recorded, recordings, {.name = "", .periodic = true, .hinted = true}, &set);
  if (!added.ok()) return added.error();
  return set;
}
}  // namespace

const TraceSet& TuningSet() {
  static const TraceSet set = [] {
    TraceSet made;
    made.name = "tuning";
    made.generate = [](const std::string& name, const sim::Hardware& hardware) {
      return sim::Generate(name, hardware, kScoreIterations);
    };
    for (const std::string& name : sim::GeneratorNames()) {
      if (name != sim::kTwoTenants) made.traces.push_back({name, sim::IsPeriodic(name)});
    }
    return made;
  }();
  return set;
}

core::Result<TraceSet> TuningSet(const std::string& recordings) {
  TraceSet set = TuningSet();
  const core::Status added = AddRecordings(kRecordedForTuning, recordings,
                                           {.name = "", .periodic = true, .hinted = true}, &set);
  if (!added.ok()) return added.error();
  return set;
}

core::Result<TraceSet> ValidationSet(const std::string& recordings) {
  TraceSet set;
  set.name = kValidationName;
  set.judges_only = true;
  for (const std::string& name : sim::ValidationNames()) {
    if (name != kTwoJobs) set.traces.push_back({name, sim::IsPeriodic(name)});
  }
  set.generate = [](const std::string& name, const sim::Hardware& hardware) {
    return sim::Generate(name, hardware,
                         name == kOfManyBatches ? kFewIterations : kScoreIterations);
  };
  const core::Status added =
      AddRecordings(kRecorded, recordings, {.name = "", .periodic = true, .cut = kCut}, &set);
  if (!added.ok()) return added.error();
  const core::Status of_package = AddRecordings(
      kRecordedPackage, recordings, {.name = "", .periodic = true, .hinted = true}, &set);
  if (!of_package.ok()) return of_package.error();
  return set;
}

core::Result<TraceSet> JobsSet(const std::string& recordings) {
  return RecordedJobs("jobs", kRecordedJobs, recordings);
}

core::Result<TraceSet> KeptJobsSet(const std::string& recordings) {
  core::Result<TraceSet> set = RecordedJobs("kept", kJobsKeptBack, recordings);
  if (set.ok()) set->judges_only = true;
  return set;
}

size_t LearnedFrom(const TraceSet::Entry& entry, const sim::Trace& trace) {
  return entry.cut + kScoreLearnedFrom + sim::SetUpIterations(trace);
}

std::vector<ScoreBudget> ScoreBudgets(const sim::Trace& trace, bool hinted) {
  std::vector<ScoreBudget> budgets;
  const uint64_t footprint = trace.Footprint().count();
  const uint64_t least = trace.LargestStep().count() / 100 * kLeastOfStep;
  for (const int percent : hinted ? kHintedPercents : kPercents) {
    const core::Bytes bytes(footprint / 100 * static_cast<uint64_t>(percent));
    if (bytes.RoundDown(core::MiB(2)).count() >= least) budgets.push_back({percent, bytes});
  }
  return budgets;
}

void ForEachCase(const TraceSet& set, const std::function<void(const ScoreCase&)>& visit) {
  for (const char* machine : kScoreMachines) {
    const sim::Hardware& hardware = *sim::FindHardware(machine);
    for (const TraceSet::Entry& entry : set.traces) {
      const sim::Trace trace = set.generate(entry.name, hardware);
      const uint64_t fingerprint = trace.Fingerprint();
      for (const ScoreBudget& budget : ScoreBudgets(trace, entry.hinted))
        visit({entry, trace, fingerprint, hardware, budget});
    }
  }
}

}  // namespace ravenstore::bench
