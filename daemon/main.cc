// ravenstored: the command line of the daemon.
#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>
#include <sys/signalfd.h>

#include <google/protobuf/stubs/logging.h>

#include <CLI/CLI.hpp>
#include <csignal>
#include <memory>
#include <string>

#include "core/size_text.h"
#include "daemon/config.h"
#include "daemon/notify.h"
#include "daemon/server.h"
#include "proto/version.h"

namespace {

using ravenstore::core::Bytes;
using ravenstore::daemon::Config;

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

// The command line; what it says goes to `config`, and the file it names to `config_path`.
std::unique_ptr<CLI::App> CommandLine(Config* config, std::string* config_path) {
  auto app = std::make_unique<CLI::App>("Owns a node's idle memory and serves tensors from it.",
                                        "ravenstored");
  app->set_version_flag("--version", ravenstore::proto::kVersion);
  app->add_option("--config", *config_path,
                  "TOML file; every key is explained in deploy/ravenstored.toml");
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
  SizeFlag(*app, "--slab", &config->slab, "devices.slab");
  SizeFlag(*app, "--device-total", &config->host_device_total, "host_backend.total");
  app->add_option("--devices", config->host_devices, "host_backend.devices")
      ->check(CLI::Range(1, 16));
  app->add_option("--link-bytes-per-second", config->host_bytes_per_second,
                  "host_backend.bytes_per_second; 0 for no limit")
      ->check(CLI::NonNegativeNumber);
  app->add_option("--clients-max", config->clients_max, "limits.clients_max")
      ->check(CLI::Range(1, 100000));
  return app;
}

int Fail(int status, const ravenstore::core::Error& error) {
  spdlog::error("{}", ravenstore::core::Describe(error));
  return status;
}

}  // namespace

int main(int argc, char** argv) {
  // To standard error: standard output stays the caller's.
  spdlog::set_default_logger(spdlog::stderr_color_mt("ravenstored"));
  // A client's malformed strings must not fill the log.
  google::protobuf::SetLogHandler(nullptr);
  // Blocked before any thread starts, so that only this one takes them.
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);

  std::string config_path;
  Config flags;  // parsed twice: the flags must override the file that one of them names
  auto first = CommandLine(&flags, &config_path);
  try {
    first->parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    const int status = first->exit(error);
    return status == 0 ? 0 : kExitUsage;
  }
  Config config;
  if (!config_path.empty()) {
    if (auto status = ravenstore::daemon::LoadConfig(config_path, &config); !status.ok()) {
      return Fail(kExitConfig, status.error());
    }
  }
  CommandLine(&config, &config_path)->parse(argc, argv);
  spdlog::set_level(spdlog::level::from_str(config.log_level));

  auto server = ravenstore::daemon::Server::Create(config);
  if (!server.ok()) {
    const bool bad_config = server.error().code == ravenstore::core::ErrorCode::kInvalidArgument;
    return Fail(bad_config ? kExitConfig : kExitUnavailable, server.error());
  }
  ravenstore::daemon::NotifyServiceManager("READY=1");
  int signal = 0;
  sigwait(&signals, &signal);
  spdlog::info("{}: draining", signal == SIGTERM ? "SIGTERM" : "SIGINT");
  ravenstore::daemon::NotifyServiceManager("STOPPING=1");
  const bool drained = (*server)->Drain();
  server->reset();
  spdlog::info(drained ? "drained; nothing was lost" : "stopped");
  return 0;
}
