// ravensim: what the store would do on a machine that is not there.
#include <google/protobuf/stubs/logging.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <bit>
#include <fstream>
#include <iostream>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "core/check.h"
#include "core/command_line.h"
#include "core/printable.h"
#include "core/size_text.h"
#include "core/suggest.h"
#include "core/usage.h"
#include "proto/version.h"
#include "sim/answer.h"
#include "sim/generators.h"
#include "sim/inputs.h"
#include "sim/render.h"
#include "sim/score.h"

namespace ravenstore::sim {
namespace {

struct Options {
  TraceChoice choice;
  std::vector<std::string> traces;
  std::vector<std::string> policies;
  std::vector<std::string> budgets = {"60%"};
  std::vector<std::string> pools;
  std::string output;
  std::string page;
  std::string run_ahead = "none";
  std::string page_size;
  bool json = false;
  bool answers = false;  // in words, below the table
};

constexpr const char* kAbout =
    R"(Replays traces of the store's calls through its own plan, in simulated time.

  ravensim run gpt2-xl --budget 60%                 learned, no hints
  ravensim run gpt2-xl --budget 60% --hints time    every put says its next use
  ravensim run gpt2-xl --html timeline.html         what happened when, to look at
  ravensim compare moe zipf --budget 30% --budget 60%
  ravensim generate resnet50 -o resnet50.trace      the format: docs/TRACES.md
  ravensim bound gpt2-xl --budget 4GiB              what no policy can beat
  ravensim run gpt2-xl --pool peer:25%:390:390 --pool host:25% --pool file:1TiB:7:5
                                                    a peer's idle memory, little on the host, a file

TRACE is a file, or a built-in job: ravensim list. Of a job of your own, in one command:
  RAVENSTORE_RECORD=job.trace python3 train.py      one that uses the store
  ravenrun --record job.trace python3 train.py      any other; then: ravensim run job.trace

Exit codes: 0 all well, 1 a replay or a file failed, 2 wrong usage.)";

const std::map<std::string, RunAhead> kRunAhead = {
    {"none", RunAhead::kNone},
    {"creates-block", RunAhead::kCreatesBlock},
    {"stream-waits", RunAhead::kStreamWaits},
};

// What is being done, on a terminal alone: the next such line takes this one's place. Empty: what
// follows does.
void Say(const std::string& what) {
  if (isatty(STDERR_FILENO) != 0) std::cerr << "\r\x1b[K" << core::Printable(what) << std::flush;
}

int Complain(const core::Error& error) {
  Say("");
  std::cerr << "ravensim: " << core::Printable(core::Describe(error)) << "\n";
  return error.code == core::ErrorCode::kInvalidArgument ? 2 : 1;
}

int CannotWrite(const std::string& path) {
  return Complain({core::ErrorCode::kSystem, "cannot write \"" + path + "\""});
}

// REQUIRES: the pools are as AddPool takes them.
ReplaySetup SetupOf(const Trace& trace, const Hardware& hardware, const Options& options,
                    core::Bytes budget) {
  ReplaySetup setup{.hardware = hardware,
                    .budget = budget,
                    .run_ahead = kRunAhead.at(options.run_ahead),
                    .timeline = !options.page.empty()};
  if (!options.page_size.empty()) setup.page = *core::ParseBytes(options.page_size);
  for (const std::string& pool : options.pools) RAVEN_CHECK(AddPool(pool, trace, &setup).ok());
  return setup;
}

// REQUIRES: `policy` is one of PolicyNames(), the pools are as AddPool takes them.
RunReport RunOne(const Trace& trace, const Hardware& hardware, const Options& options,
                 const std::string& policy, const Budget& budget) {
  const ReplaySetup setup = SetupOf(trace, hardware, options, budget.bytes);
  RunReport report;
  report.trace = trace.name;
  report.hardware = hardware.name;
  report.policy = policy;
  report.budget = budget.bytes;
  if (trace.clients == 1) report.recorded = trace.TimesByStep(0);
  report.percent = budget.percent;
  report.bound = LeastStall(trace, setup);
  report.outcome = ReplayUnder(policy, trace, setup);
  return report;
}

// The run in words, and what some larger budgets would do, up to one that is as good as all.
std::string AnswerOf(const RunReport& report, const Trace& trace, const Hardware& hardware,
                     const Options& options) {
  std::vector<OtherBudget> larger;
  ReplaySetup setup = SetupOf(trace, hardware, options, report.budget);
  setup.timeline = false;
  if (CouldGainFromMore(report.outcome)) {
    for (const core::Bytes budget :
         LargerBudgets(report.budget, ParseBudget("100%", trace)->bytes)) {
      Say(report.trace + ", " + report.policy + ": trying " + core::SizeText(budget));
      setup.budget = budget;
      larger.push_back({budget, ReplayUnder(report.policy, trace, setup)});
      if (!CouldGainFromMore(larger.back().outcome)) break;
    }
  }
  return Answer(report, WithAllLinks(setup.hardware, setup.pools), larger);
}

bool WritePage(const std::string& path, const RunReport& report, const Trace& trace) {
  std::ofstream file(path, std::ios::binary);
  file << Page(report, trace);
  file.close();
  if (!file) CannotWrite(path);
  return !!file;
}

// What can be seen to be wrong before anything runs.
core::Status CheckRuns(const Options& options) {
  const size_t runs = options.traces.size() * options.budgets.size() * options.policies.size();
  if (!options.page.empty() && runs > 1) {
    return core::Error{core::ErrorCode::kInvalidArgument,
                       "--html takes one run, and these are " + std::to_string(runs)};
  }
  if (!options.page_size.empty()) {
    const auto page = core::ParseBytes(options.page_size);
    if (!page || *page < kBudgetUnit || *page > core::GiB(1) ||
        !std::has_single_bit(page->count())) {
      return core::Error{
          core::ErrorCode::kInvalidArgument,
          "the page \"" + options.page_size + "\" is no power of two from 2MiB to 1GiB"};
    }
  }
  const std::vector<std::string> known = PolicyNames();
  for (const std::string& policy : options.policies) {
    if (std::find(known.begin(), known.end(), policy) != known.end()) continue;
    return core::Error{core::ErrorCode::kInvalidArgument,
                       "no policy is called \"" + policy + "\"" + core::DidYouMean(policy, known)};
  }
  const bool plans = std::all_of(options.policies.begin(), options.policies.end(), IsPlan);
  if (!plans && (!options.page.empty() || options.run_ahead != "none")) {
    return core::Error{core::ErrorCode::kInvalidArgument,
                       "--html and --run-ahead need a policy of the plan: hints, learned or "
                       "foreseen"};
  }
  return core::Ok();
}

int RunAll(const Options& options) {
  if (const auto status = CheckRuns(options); !status.ok()) return Complain(status.error());
  const auto hardware = HardwareOf(options.choice);
  if (!hardware.ok()) return Complain(hardware.error());
  bool ok = true;
  std::vector<RunReport> reports;
  std::string answers;
  for (const std::string& name : options.traces) {
    TraceChoice choice = options.choice;
    choice.name = name;
    const auto trace = Load(choice);
    if (!trace.ok()) return Complain(trace.error());
    ReplaySetup pools{};
    for (const std::string& text : options.pools) {
      if (const auto status = AddPool(text, *trace, &pools); !status.ok())
        return Complain(status.error());
    }
    for (const std::string& text : options.budgets) {
      const auto budget = ParseBudget(text, *trace);
      if (!budget.ok()) return Complain(budget.error());
      for (const std::string& policy : options.policies) {
        Say(trace->name + " with " + core::SizeText(budget->bytes) + ", " + policy);
        RunReport report = RunOne(*trace, *hardware, options, policy, *budget);
        ok = ok && report.outcome.failure.empty();
        if (!options.page.empty()) ok = WritePage(options.page, report, *trace) && ok;
        report.outcome.spans.clear();
        Say("");
        if (options.json) std::cout << Json(report) << std::flush;
        if (options.answers) answers += AnswerOf(report, *trace, *hardware, options);
        reports.push_back(std::move(report));
      }
    }
  }
  Say("");
  if (!options.json) std::cout << Table(reports) << answers;
  return ok ? 0 : 1;
}

// Everything that can be named: jobs, hardware and policies.
int PrintLists() {
  std::vector<JobReport> jobs;
  for (const auto& names : {GeneratorNames(), ValidationNames()}) {
    for (const std::string& name : names)
      jobs.push_back({name, DescriptionOf(name), Generate(name, kHardware[0], 1).Footprint()});
  }
  std::cout << TableOfJobs(jobs) << "\n" << TableOfHardware() << "\npolicies:";
  for (const std::string& name : PolicyNames()) std::cout << " " << name;
  std::cout << "\n";
  return 0;
}

int GenerateFile(const Options& options) {
  const auto trace = Load(options.choice);
  if (!trace.ok()) return Complain(trace.error());
  std::ofstream file(options.output, std::ios::binary);
  Write(*trace, file);
  file.close();
  return file ? 0 : CannotWrite(options.output);
}

int PrintBounds(const Options& options) {
  const auto hardware = HardwareOf(options.choice);
  if (!hardware.ok()) return Complain(hardware.error());
  const auto trace = Load(options.choice);
  if (!trace.ok()) return Complain(trace.error());
  std::vector<BoundReport> reports;
  for (const std::string& text : options.budgets) {
    const auto budget = ParseBudget(text, *trace);
    if (!budget.ok()) return Complain(budget.error());
    Say(trace->name + ": the bound of " + core::SizeText(budget->bytes));
    reports.push_back({*budget, LeastStall(*trace, *hardware, budget->bytes),
                       LeastKnownStall({*trace}, *hardware, budget->bytes, 0)});
  }
  Say("");
  if (!options.json) std::cout << TableOfBounds(*trace, reports);
  for (const BoundReport& report : reports) {
    if (options.json) std::cout << JsonOfBound(*trace, report);
  }
  return 0;
}

void AddTraceOptions(CLI::App* app, TraceChoice* choice) {
  std::vector<std::string> hardware;
  for (const Hardware& one : kHardware) hardware.emplace_back(one.name);
  const auto one_of = [](const auto& names) {
    return CLI::IsMember(std::vector<std::string>(std::begin(names), std::end(names)));
  };
  app->add_option("--hardware", choice->hardware, "Generate for and replay on it")
      ->check(CLI::IsMember(hardware))
      ->capture_default_str();
  app->add_option("--up", choice->up, "GB/s from the host to the device, if not that hardware's")
      ->check(core::Finite)
      ->check(CLI::Range(1e-3, 1e6));
  app->add_option("--down", choice->down, "GB/s from the device to the host")
      ->check(core::Finite)
      ->check(CLI::Range(1e-3, 1e6));
  app->add_option("--iterations", choice->iterations, "Of a generator")
      ->check(CLI::Range(1, 10000))
      ->capture_default_str();
  app->add_option("--seed", choice->seed, "Of whatever is random")
      ->check(core::NotNegative)
      ->capture_default_str();
  app->add_option("--hints", choice->hints,
                  "At the puts: as in the file, none, exact (time or order), or 70% of them")
      ->check(one_of(kHintChoices))
      ->capture_default_str();
  app->add_option("--disturb", choice->disturb,
                  "Times by up to 25%, 5% of the gets out of order, 3/4 the size from half way on")
      ->check(one_of(kDisturbances))
      ->capture_default_str();
  app->add_option("--compute", choice->compute,
                  "Seconds to which the compute times are scaled in sum, as where a program ran "
                  "without waits")
      ->check(core::Finite)
      ->check(CLI::Range(1e-6, 5e5));
}

int Main(int argc, char** argv) {
  // What is wrong with a file is said in our own words.
  google::protobuf::SetLogHandler(nullptr);
  CLI::App app(kAbout, "ravensim");
  app.failure_message(core::UsageMessage<CLI::App, CLI::Error>);
  app.set_version_flag("--version", proto::kVersion);
  app.require_subcommand(1);
  Options options;

  CLI::App* run = app.add_subcommand("run", "Replay one trace under one policy");
  CLI::App* compare = app.add_subcommand("compare", "Replay traces under every policy");
  CLI::App* generate = app.add_subcommand("generate", "Write a trace file");
  CLI::App* bound = app.add_subcommand("bound", "Print the least stall possible");
  CLI::App* list = app.add_subcommand("list", "Print the built-in jobs, hardware and policies");
  for (CLI::App* one : {run, compare, generate, bound}) AddTraceOptions(one, &options.choice);
  for (CLI::App* one : {generate, bound})
    one->add_option("TRACE", options.choice.name, "A generator's name or a file")->required();
  for (CLI::App* one : {run, compare}) {
    one->add_option("TRACE", options.traces, "Generators' names or files")->required();
    one->add_option("--policy", options.policies, "Who decides what moves; may be repeated");
    one->add_option("--pool", options.pools,
                    "Where tensors go beside the device: host:SIZE, peer:SIZE:IN:OUT, "
                    "file:SIZE:IN:OUT or remote:SIZE:IN:OUT[:latency=MS], in GB/s; repeatable");
  }
  for (CLI::App* one : {run, compare, bound}) {
    one->add_option("--budget", options.budgets,
                    "Device memory: a share of what lives at once (60%) or a size; repeatable");
    one->add_flag("--json", options.json, "One JSON object a line");
  }
  run->add_option("--run-ahead", options.run_ahead,
                  "How far the CPU runs ahead of the stream, by the times of a client's own "
                  "recording")
      ->check(CLI::IsMember(kRunAhead))
      ->capture_default_str();
  run->add_option(
      "--page", options.page_size,
      "The size of a page; else of the budget. A daemon's: `devices.page`, or page_bytes of "
      "its statistics");
  run->add_option("--html", options.page, "Write the timeline of the one run there");
  generate->add_option("-o,--output", options.output, "The file")->required();
  if (const auto answer = core::AnswerToScripts(core::DescribeApp(app), proto::kVersion,
                                                {argv, static_cast<size_t>(argc)})) {
    std::cout << *answer;
    return 0;
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  if (*list) return PrintLists();
  if (*generate) return GenerateFile(options);
  if (*bound) return PrintBounds(options);
  if (options.policies.empty()) {
    options.policies = *run ? std::vector<std::string>{"hints"} : PolicyNames();
  }
  options.answers = *run && !options.json;
  return RunAll(options);
}

}  // namespace
}  // namespace ravenstore::sim

int main(int argc, char** argv) {
  const int code = ravenstore::sim::Main(argc, argv);
  if (std::cout.flush()) return code;
  std::cerr << "ravensim: the output cannot be written\n";
  return code == 0 ? 1 : code;
}
