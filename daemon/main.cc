// ravenstored: the command line of the daemon.
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <google/protobuf/stubs/logging.h>

#include <CLI/CLI.hpp>
#include <csignal>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include "core/command_line.h"
#include "core/printable.h"
#include "core/result.h"
#include "core/size_text.h"
#include "core/usage.h"
#include "daemon/config.h"
#include "daemon/log.h"
#include "daemon/notify.h"
#include "daemon/parent.h"
#include "daemon/server.h"
#include "daemon/signals.h"
#include "proto/version.h"

namespace {

using ravenstore::core::Bytes;
using ravenstore::daemon::Config;
using ravenstore::daemon::Server;
using ravenstore::daemon::Signals;

constexpr int kExitUsage = 2;
constexpr int kExitConfig = 78;  // EX_CONFIG of sysexits.h
constexpr int kExitUnavailable = 69;

// A flag that takes a size.
template <typename Target>  // Bytes, or an optional of them
void SizeFlag(CLI::App& app, const std::string& name, Target* target, const std::string& help) {
  app.add_option_function<std::string>(
      name,
      [target, name](const std::string& text) {
        const auto bytes = ravenstore::core::ParseBytes(text);
        if (!bytes) throw CLI::ValidationError(name, "\"" + text + "\" is no size such as 12GiB");
        *target = *bytes;
      },
      help);
}

// What the command line says that is no part of the configuration.
struct Asked {
  std::string config_path;
  std::string check;  // a file to look at instead of serving
  pid_t parent = 0;   // the process to end with
};

// The command line; what it says goes to `config` and `asked`.
std::unique_ptr<CLI::App> CommandLine(Config* config, Asked* asked) {
  auto app = std::make_unique<CLI::App>("Owns a node's idle memory and serves tensors from it.",
                                        "ravenstored");
  app->set_version_flag("--version", ravenstore::proto::kVersion);
  app->failure_message(ravenstore::core::UsageMessage<CLI::App, CLI::Error>);
  app->add_option("--config", asked->config_path,
                  "TOML file; every key is explained in deploy/ravenstored.toml");
  app->add_option("--check", asked->check,
                  "Say what is wrong with this configuration, with key and line, and start "
                  "nothing; exit code 0: it is right, 1: it is not");
  app->add_option("--socket", config->socket_path, "socket.path");
  app->add_option("--backend", config->backend, "devices.backend: auto, cuda or host")
      ->check(CLI::IsMember({"auto", "cuda", "host"}));
  app->add_option("--log-level", config->log_level, "log.level")
      ->check(CLI::IsMember({"trace", "debug", "info", "warn", "error"}));
  SizeFlag(*app, "--device-budget", &config->device_budget, "limits.device_budget");
  SizeFlag(*app, "--host-budget", &config->host_budget, "limits.host_budget");
  SizeFlag(*app, "--device-guarantee", &config->device_guarantee, "limits.device_guarantee");
  SizeFlag(*app, "--visible-memory", &config->visible_memory, "limits.visible_memory");
  SizeFlag(*app, "--pool-size", &config->pool_size, "host_pool.size");
  SizeFlag(*app, "--pool-ahead", &config->pool_ahead, "host_pool.ahead");
  SizeFlag(*app, "--page", &config->page, "devices.page");
  SizeFlag(*app, "--usual-budget", &config->usual_budget, "devices.usual_budget");
  SizeFlag(*app, "--device-total", &config->host_device_total, "host_backend.total");
  app->add_option("--devices", config->host_devices, "host_backend.devices")
      ->check(CLI::Range(1, 16));
  app->add_option("--link-bytes-per-second", config->host_bytes_per_second,
                  "host_backend.bytes_per_second; 0 for no limit")
      ->check(ravenstore::core::Finite)
      ->check(CLI::NonNegativeNumber);
  app->add_option("--clients-max", config->clients_max, "limits.clients_max")
      ->check(CLI::Range(1, 100000));
  app->add_flag("--single-user", config->single_user, "limits.single_user");
  SizeFlag(*app, "--kept-sets", &config->kept_sets, "limits.kept_sets");
  app->add_option("--parent", asked->parent,
                  "end, as on SIGTERM, with the process of this number, which started this one")
      ->check(CLI::PositiveNumber);
  ravenstore::core::RefuseEmptyValues(app.get());
  return app;
}

int Fail(int status, const ravenstore::core::Error& error) {
  spdlog::error("{}", ravenstore::core::Describe(error));
  return status;
}

std::string Joined(const std::vector<std::string>& words) {
  std::string joined;
  for (const auto& word : words) joined += (joined.empty() ? "" : ", ") + word;
  return joined;
}

// What the file and the command line say together; the flags override the file that one of them
// names.
ravenstore::core::Result<Config> Configuration(int argc, char** argv) {
  Config flags;
  Asked asked;
  CommandLine(&flags, &asked)->parse(argc, argv);
  Config config;
  if (!asked.config_path.empty())
    RAVEN_RETURN_IF_ERROR(ravenstore::daemon::LoadConfig(asked.config_path, &config));
  CommandLine(&config, &asked)->parse(argc, argv);
  RAVEN_RETURN_IF_ERROR(ravenstore::daemon::CheckConfig(config));
  return config;
}

// SIGHUP. A configuration that is refused changes nothing.
void Reload(int argc, char** argv, Server* server) {
  ravenstore::daemon::NotifyReloading();
  if (const auto config = Configuration(argc, argv); !config.ok()) {
    spdlog::error("SIGHUP: the configuration stays as it was: {}",
                  ravenstore::core::Describe(config.error()));
  } else {
    const ravenstore::daemon::ConfigChanges changes = server->Reload(*config);
    // The words about it are not to depend on what the level was or becomes.
    spdlog::set_level(spdlog::level::info);
    spdlog::info("SIGHUP: {}", changes.adopted.empty() ? "nothing to change while it runs"
                                                       : "changed: " + Joined(changes.adopted));
    if (!changes.need_restart.empty())
      spdlog::warn("SIGHUP: these take a restart: {}", Joined(changes.need_restart));
  }
  spdlog::set_level(spdlog::level::from_str(server->config().log_level));
  ravenstore::daemon::NotifyServiceManager("READY=1");
}

// --check.
int Check(const std::string& path) {
  const auto faults = ravenstore::daemon::FaultsOfFile(path);
  for (const auto& fault : faults) std::cerr << ravenstore::core::Printable(fault.message) << "\n";
  if (faults.empty()) std::cout << ravenstore::core::Printable(path) << ": nothing is wrong\n";
  return faults.empty() && std::cout.flush() ? 0 : 1;
}

int Serve(int argc, char** argv, pid_t parent, Signals* signals) {
  if (parent != 0) {
    const auto watched = ravenstore::daemon::EndWithAncestor(parent);
    if (!watched.ok()) return Fail(kExitUnavailable, watched.error());
  }
  const auto config = Configuration(argc, argv);
  if (!config.ok()) return Fail(kExitConfig, config.error());
  spdlog::set_level(spdlog::level::from_str(config->log_level));

  // From the first answer on, a signal asks for an orderly end.
  auto server = Server::Create(*config, [signals, &config] {
    signals->SetDrain(config->drain);
    signals->Serve();
  });
  if (!server.ok()) {
    const bool bad_config = server.error().code == ravenstore::core::ErrorCode::kInvalidArgument;
    return Fail(bad_config ? kExitConfig : kExitUnavailable, server.error());
  }
  ravenstore::daemon::NotifyServiceManager("READY=1");
  int signal = 0;
  while ((signal = signals->Next()) == SIGHUP) {
    Reload(argc, argv, server->get());
    signals->SetDrain((*server)->config().drain);
  }
  signals->At("draining");
  spdlog::info("{}: draining", Signals::NameOf(signal));
  ravenstore::daemon::NotifyServiceManager("STOPPING=1");
  const bool drained = (*server)->Drain();
  (*server)->End([signals](const char* stage) { signals->At(stage); });
  signals->At("giving everything back");
  server->reset();
  spdlog::info(drained ? "drained; nothing was lost" : "stopped");
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  Signals::Block();
  // To standard error: standard output stays the caller's. Both last as long as the process: a
  // thread of theirs may have the last word.
  static auto* const log = new ravenstore::daemon::Log(STDERR_FILENO);
  static auto* const signals = new Signals([] { log->End(); });
  // A client's malformed strings must not fill the log.
  google::protobuf::SetLogHandler(nullptr);

  Config flags;
  Asked asked;
  auto words = CommandLine(&flags, &asked);
  if (const auto answer = ravenstore::core::AnswerToScripts(ravenstore::core::DescribeApp(*words),
                                                            ravenstore::proto::kVersion,
                                                            {argv, static_cast<size_t>(argc)})) {
    std::cout << *answer;
    return 0;
  }
  try {
    words->parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    const int status = words->exit(error);
    return status == 0 ? 0 : kExitUsage;
  }
  const int status =
      asked.check.empty() ? Serve(argc, argv, asked.parent, signals) : Check(asked.check);
  log->End();
  return status;
}
