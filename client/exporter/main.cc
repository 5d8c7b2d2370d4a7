// ravenstore-exporter: the daemon's figures for Prometheus, over HTTP on a local port.
//
// A process of its own, without rights: it is a client of the daemon's as ravenctl is, and what
// goes wrong in it is nobody else's. Ends on SIGINT and SIGTERM.
#include <google/protobuf/stubs/logging.h>
#include <prometheus/exposer.h>
#include <signal.h>

#include <CLI/CLI.hpp>
#include <exception>
#include <iostream>
#include <memory>
#include <string>

#include "client/ctl/by_user.h"
#include "client/ctl/session.h"
#include "client/exporter/collector.h"
#include "core/printable.h"
#include "core/usage.h"
#include "proto/version.h"

namespace ravenstore::client::exporter {
namespace {

constexpr int kFailed = 1;
constexpr int kUsage = 2;

struct Options {
  std::string socket;
  std::string listen = "127.0.0.1:9778";
  std::string users = "names";
  double timeout = 5;
};

std::string NumberOf(uid_t uid) {
  return std::to_string(uid);
}

void Log(const std::string& what) {
  std::cerr << "ravenstore-exporter: " << core::Printable(what) << std::endl;
}

int Serve(const Options& options) {
  // Before a thread of the server's begins, so that none of them gets the signal.
  sigset_t ends;
  sigemptyset(&ends);
  sigaddset(&ends, SIGINT);
  sigaddset(&ends, SIGTERM);
  pthread_sigmask(SIG_BLOCK, &ends, nullptr);

  const NameOfUser name_of = options.users == "names"     ? ctl::UserName
                             : options.users == "numbers" ? NumberOf
                                                          : NameOfUser();
  const auto timeout =
      std::chrono::duration_cast<core::Duration>(std::chrono::duration<double>(options.timeout));
  const auto collector =
      std::make_shared<Collector>(Collector::Options{options.socket, timeout, name_of, Log});
  try {
    prometheus::Exposer exposer(options.listen);
    exposer.RegisterCollectable(collector);
    Log("serves http://" + options.listen + "/metrics of " + options.socket);
    int signal = 0;
    sigwait(&ends, &signal);
    return 0;
  } catch (const std::exception& error) {
    Log("cannot listen on \"" + options.listen + "\": " + error.what() +
        "; --listen takes ADDRESS:PORT, of a port that nobody else has");
    return kFailed;
  }
}

int Main(int argc, char** argv) {
  google::protobuf::SetLogHandler(nullptr);
  CLI::App app(
      "Serves a running ravenstored's figures to Prometheus, at http://ADDRESS:PORT/metrics.\n"
      "Exit codes: 0 ended by a signal, 1 cannot listen, 2 wrong usage.",
      "ravenstore-exporter");
  app.set_version_flag("--version", proto::kVersion);
  app.failure_message(core::UsageMessage<CLI::App, CLI::Error>);
  Options options;
  options.socket = ctl::DefaultSocket();
  app.add_option("--socket", options.socket, "The daemon's socket [$RAVENSTORE_SOCKET]")
      ->capture_default_str();
  app.add_option("--listen", options.listen, "Where to serve; [::1]:9778 for IPv6")
      ->capture_default_str();
  app.add_option("--users", options.users,
                 "What users are called in labels; none leaves them out altogether")
      ->check(CLI::IsMember({"names", "numbers", "none"}))
      ->capture_default_str();
  app.add_option("--timeout", options.timeout, "Seconds to wait for each answer of the daemon")
      ->check(CLI::Range(0.001, 60.0))
      ->capture_default_str();
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : kUsage;
  }
  return Serve(options);
}

}  // namespace
}  // namespace ravenstore::client::exporter

int main(int argc, char** argv) {
  return ravenstore::client::exporter::Main(argc, argv);
}
