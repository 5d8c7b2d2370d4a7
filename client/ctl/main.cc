// ravenctl: looks at a running ravenstored and changes its limits.
#include <google/protobuf/stubs/logging.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <atomic>
#include <csignal>
#include <iostream>
#include <map>
#include <optional>
#include <string>

#include "client/ctl/commands.h"
#include "client/ctl/environment.h"
#include "client/ctl/jobs.h"
#include "client/ctl/session.h"
#include "core/command_line.h"
#include "core/usage.h"
#include "proto/version.h"

namespace ravenstore::client::ctl {
namespace {

// SIGINT or SIGTERM ends a recording, whose file is then written, and a live view.
std::atomic<bool> g_interrupted{false};
static_assert(std::atomic<bool>::is_always_lock_free);

// The terminal, where there is one: what goes elsewhere looks the same everywhere.
std::optional<winsize> Terminal() {
  winsize size{};
  const bool known = ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0;
  return known ? std::optional(size) : std::nullopt;
}

void EndOnInterrupt() {
  for (const int number : {SIGINT, SIGTERM}) {
    std::signal(number, [](int) { g_interrupted.store(true); });
  }
}

// The options that every command takes, before or after its name.
void AddCommon(CLI::App* app, Common* common, double* seconds) {
  app->add_option("--socket", common->socket, "The daemon's socket [$RAVENSTORE_SOCKET]")
      ->capture_default_str();
  app->add_flag("--json", common->json, "Print one JSON object");
  app->add_option("--timeout", *seconds, "Seconds to wait for each answer of the daemon")
      ->check(core::Finite)
      ->check(CLI::Range(0.001, 3600.0))
      ->capture_default_str();
}

void AddLimits(CLI::App* app, LimitsOptions* options) {
  CLI::App* limits = app->add_subcommand(
      "limits", "Show or change a client's or a user's budgets; \"default\" takes a change back");
  auto* client = limits->add_option("--client", options->client, "The client's number");
  client->check(CLI::Range(1u, ~0u));
  limits->add_option("--user", options->user, "The user's name or number")->excludes(client);
  limits->add_option("--device-budget", options->device_budget, "Bytes on each device, e.g. 12GiB");
  limits->add_option("--host-budget", options->host_budget, "Bytes in host memory, e.g. 64GiB");
  limits->add_option("--pool-budget", options->pool_budgets,
                     "Bytes in a further pool of ravenctl status, e.g. 'file 0=64GiB'; repeatable");
  limits->add_option("--device-guarantee", options->device_guarantee,
                     "Of each device, what other users leave this user, e.g. 8GiB; 0: nothing");
  limits->add_option("--weight", options->weight,
                     "A user's part of what devices have beyond guarantees, beside others'");
  limits->add_option("--priority", options->priority,
                     "Whose memory beyond guarantees makes way first: low, normal or high");
  limits->add_option("--visible-memory", options->visible_memory,
                     "The size that a device has for legacy jobs (ravenrun), e.g. 20GiB");
}

void AddTop(CLI::App* app, TopOptions* options, double* seconds) {
  CLI::App* top = app->add_subcommand(
      "top",
      "Memory, rates and users, live, with keys that h names; with --json an object of status for "
      "each look");
  top->add_option("--interval", *seconds, "Seconds from look to look")
      ->check(core::Finite)
      ->check(CLI::Range(0.05, 3600.0))
      ->capture_default_str();
  top->add_option("--count", options->count, "End after so many looks; 0: at an interrupt")
      ->check(core::NotNegative)
      ->capture_default_str();
}

void AddRecord(CLI::App* app, RecordOptions* record, double* seconds) {
  CLI::App* recorder = app->add_subcommand("record", "Write what clients do to a trace");
  recorder->add_option("file", record->file, "The trace to write")->required();
  recorder->add_option("--seconds", *seconds, "How long; an interrupt ends it before")
      ->check(core::Finite)
      ->check(CLI::Range(0.0, 86400.0))
      ->capture_default_str();
  recorder->add_option("--client", record->client, "Only this client")->check(core::NotNegative);
}

struct ExplainOptions {
  std::string what;
  bool tensor = false;
  bool job = false;
  bool client = false;

  Explained which() const {
    return client   ? Explained::kClient
           : job    ? Explained::kJob
           : tensor ? Explained::kTensor
                    : Explained::kAny;
  }
};

void AddExplain(CLI::App* app, ExplainOptions* options) {
  CLI::App* explain = app->add_subcommand("explain",
                                          "Why a tensor was moved or kept; where a client's or a "
                                          "legacy job's memory is, and what would "
                                          "help");
  explain
      ->add_option("what", options->what,
                   "A tensor's number (ravenctl ls) or name, or a client's or legacy job's number "
                   "(ravenctl clients)")
      ->required();
  auto* tensor = explain->add_flag("--tensor", options->tensor, "It is a tensor");
  auto* job = explain->add_flag("--job", options->job, "It is a legacy job")->excludes(tensor);
  explain->add_flag("--client", options->client, "It is a client")->excludes(tensor)->excludes(job);
}

// "sleep" and "wake".
CLI::App* AddOrder(CLI::App* app, const char* name, const char* what, SleepOptions* options) {
  CLI::App* order = app->add_subcommand(name, what);
  order->add_option("tag", options->tag,
                    "Of which memory; without it all of the job, which may be an elastic one");
  order
      ->add_option("--job", options->job,
                   "The job's name, its run (ravenctl jobs), or the number of one of its clients")
      ->required();
  order->add_option("--within", options->within, "Undo it where that takes longer, e.g. 500ms")
      ->capture_default_str();
  order->add_option("--user", options->user, "Whose job, if several users have one of that name");
  return order;
}

void AddSleep(CLI::App* app, SleepOptions* options) {
  AddOrder(app, "sleep", "All processes of a job put memory to sleep, or none does", options)
      ->add_option_function<std::string>(
          "--keep",
          [options](const std::string& what) { options->keeps_nothing = what == "nothing"; },
          "bytes, or nothing: the bytes are undefined after the wake")
      ->check(CLI::IsMember({"bytes", "nothing"}));
  AddOrder(app, "wake", "All processes of a job wake memory, or none does", options);
}

std::optional<SortBy> SortByName(const std::string& name) {
  static const std::map<std::string, SortBy> kNames = {{"id", SortBy::kId},
                                                       {"client", SortBy::kClient},
                                                       {"tier", SortBy::kTier},
                                                       {"size", SortBy::kSize},
                                                       {"name", SortBy::kName}};
  const auto found = kNames.find(name);
  return found == kNames.end() ? std::nullopt : std::optional(found->second);
}

core::Duration OfSeconds(double seconds) {
  return std::chrono::duration_cast<core::Duration>(std::chrono::duration<double>(seconds));
}

void AddHarvest(CLI::App* app, HarvestOptions* options) {
  CLI::App* harvest = app->add_subcommand(
      "harvest", "What of the devices' idle memory is harvested, or have some given back");
  harvest->add_option("--device", options->device, "The device's number")
      ->check(CLI::Range(0u, 65535u));
  harvest->add_option("--give-back", options->return_bytes, "Bytes to give back, e.g. 8GiB");
  harvest->add_option("--within", options->within, "Fail where that takes longer, e.g. 500ms")
      ->capture_default_str();
}

// A command of the user's, behind "--".
CLI::App* AddCommand(CLI::App* app, const char* name, const char* what,
                     std::vector<std::string>* command) {
  CLI::App* added = app->add_subcommand(name, what);
  added->add_option("command", *command, "The command, after --")->required();
  return added;
}

struct JobsAsked {
  std::vector<std::string> command;
  AdmitOptions admit;
  double wait = 0;  // seconds; 0: however long
  std::string html;
};

void AddJobs(CLI::App* app, JobsAsked* asked) {
  AddCommand(
      app, "estimate",
      "What a command will take of a device: of earlier runs, else reckoned from its script, "
      "which runs for that",
      &asked->command);
  AddCommand(app, "key", "The name under which the daemon remembers a command", &asked->command);
  CLI::App* admit = AddCommand(app, "admit",
                               "Wait until a command is admitted and run it; as "
                               "ravenrun --admit does",
                               &asked->command);
  admit->add_option("--size", asked->admit.size,
                    "What it takes; \"capture\": reckon where no earlier run is known");
  admit->add_option("--wait", asked->wait, "Seconds to wait at most; 0: however long")
      ->check(core::Finite)
      ->check(CLI::Range(0.0, 1e9));
  admit->add_option("--preload", asked->admit.preload, "The command's LD_PRELOAD");
  app->add_subcommand("jobs", "Jobs under ravenrun: what was expected of them, and what they took");
  app->add_subcommand("estimates",
                      "What commands took in earlier runs, and how right estimates were")
      ->add_option("--html", asked->html, "Write a page with a plot there");
}

// What the command line can say.
struct Asked {
  Common common;
  double timeout = 10;
  TopOptions top;
  double interval = 2;
  ListOptions list;
  std::string sort;
  LimitsOptions limits;
  HarvestOptions harvest;
  ExplainOptions explain;
  RecordOptions record;
  double record_seconds = 10;
  SleepOptions sleep;
  JobsAsked jobs;
};

void AddList(CLI::App* app, Asked* asked) {
  CLI::App* ls = app->add_subcommand("ls", "Tensors by client, tier and size");
  ls->add_option("--client", asked->list.client, "Only this client's")->check(core::NotNegative);
  ls->add_option("--tier", asked->list.tier, "Only those there: host, \"device 0\", ...");
  ls->add_flag(
      "--named", asked->list.named,
      "The sets of tensors that processes share by name, and which processes have them open");
  ls->add_option("--sort", asked->sort, "Order; size puts the largest first")
      ->check(CLI::IsMember({"id", "client", "tier", "size", "name"}));
  ls->add_option("--limit", asked->list.limit, "Show at most this many; 0 shows all")
      ->check(core::NotNegative)
      ->capture_default_str();
}

void AddCommands(CLI::App* app, Asked* asked) {
  AddCommon(app, &asked->common, &asked->timeout);
  app->add_subcommand("status", "Devices, tiers, budgets, hits, bytes moved, stalls");
  AddTop(app, &asked->top, &asked->interval);
  app->add_subcommand("clients", "Attached clients, their memory and budgets");
  AddList(app, asked);
  AddLimits(app, &asked->limits);
  AddHarvest(app, &asked->harvest);
  app->add_subcommand("nodes", "The other nodes of the cluster, and what they and this one lend");
  AddExplain(app, &asked->explain);
  AddRecord(app, &asked->record, &asked->record_seconds);
  AddSleep(app, &asked->sleep);
  core::RefuseEmptyValues(app);
  AddJobs(app, &asked->jobs);  // ravenrun passes on what it was given, and be it empty
  app->add_subcommand("doctor", "What stands in the store's way here, and what to do about it");
}

// Nullopt: it is none of these.
std::optional<int> RunOfJobs(const CLI::App& app, JobsAsked& asked, const Common& common,
                             const Streams& streams) {
  if (app.got_subcommand("estimate")) return RunEstimate(common, asked.command, streams);
  if (app.got_subcommand("key")) return RunKey(asked.command, streams);
  if (app.got_subcommand("jobs")) return RunJobs(common, streams);
  if (app.got_subcommand("estimates")) return RunEstimates(common, asked.html, streams);
  if (!app.got_subcommand("admit")) return std::nullopt;
  asked.admit.command = asked.command;
  if (asked.wait > 0) asked.admit.wait = OfSeconds(asked.wait);
  return RunAdmit(common, asked.admit, streams);
}

int Run(const CLI::App& app, Asked& asked) {
  const Streams streams{std::cout, std::cerr};
  Common& common = asked.common;
  common.timeout = OfSeconds(asked.timeout);
  if (app.got_subcommand("status")) return RunStatus(common, streams);
  if (app.got_subcommand("top")) {
    asked.top.interval = OfSeconds(asked.interval);
    EndOnInterrupt();
    return RunTop(common, asked.top, g_interrupted, streams);
  }
  if (app.got_subcommand("clients")) return RunClients(common, streams);
  if (app.got_subcommand("ls")) {
    asked.list.sort = SortByName(asked.sort);
    return RunList(common, asked.list, streams);
  }
  if (app.got_subcommand("limits")) return RunLimits(common, asked.limits, streams);
  if (app.got_subcommand("harvest")) return RunHarvest(common, asked.harvest, streams);
  if (app.got_subcommand("nodes")) return RunNodes(common, streams);
  asked.sleep.wakes = app.got_subcommand("wake");
  if (asked.sleep.wakes || app.got_subcommand("sleep"))
    return RunSleep(common, asked.sleep, streams);
  if (app.got_subcommand("explain"))
    return RunExplain(common, asked.explain.what, asked.explain.which(), streams);
  if (app.got_subcommand("record")) {
    asked.record.time = OfSeconds(asked.record_seconds);
    EndOnInterrupt();
    return RunRecord(common, asked.record, g_interrupted, streams);
  }
  if (const auto code = RunOfJobs(app, asked.jobs, common, streams)) return *code;
  SystemEnvironment environment(common.socket, common.timeout);
  return RunDoctor(common, environment, streams);
}

int Main(int argc, char** argv) {
  // A malformed answer is reported in our own words.
  google::protobuf::SetLogHandler(nullptr);
  CLI::App app(
      "Looks at a running ravenstored and changes its limits.\n"
      "Exit codes: 0 all well, 1 failed or found a problem, 2 wrong usage.",
      "ravenctl");
  app.set_version_flag("--version", proto::kVersion);
  app.failure_message(core::UsageMessage<CLI::App, CLI::Error>);
  app.require_subcommand(1);
  app.fallthrough();
  Asked asked;
  asked.common.socket = DefaultSocket();
  if (const std::optional<winsize> terminal = Terminal()) {
    asked.common.columns = terminal->ws_col;
    asked.top.in_place = true;
    asked.top.rows = terminal->ws_row;
    // A process in the background gets no keys, and setting the terminal stops it.
    if (isatty(STDIN_FILENO) && tcgetpgrp(STDIN_FILENO) == getpgrp()) asked.top.keys = STDIN_FILENO;
  }
  AddCommands(&app, &asked);
  if (const auto answer = core::AnswerToScripts(core::DescribeApp(app), proto::kVersion,
                                                {argv, static_cast<size_t>(argc)})) {
    std::cout << *answer;
    return kExitOk;
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? kExitOk : kExitUsage;
  }
  return Run(app, asked);
}

}  // namespace
}  // namespace ravenstore::client::ctl

int main(int argc, char** argv) {
  namespace ctl = ravenstore::client::ctl;
  const int code = ctl::Main(argc, argv);
  if (std::cout.flush()) return code;
  std::cerr << "ravenctl: the output cannot be written\n";
  return code == ctl::kExitOk ? ctl::kExitFailed : code;
}
