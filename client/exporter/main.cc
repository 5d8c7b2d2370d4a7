// ravenstore-exporter: the daemon's figures for Prometheus, over HTTP on a local port.
//
// A process of its own, without rights. It is a client of the daemon as ravenctl is, and its faults
// end no other process. Ends on SIGINT and SIGTERM.
#include <google/protobuf/stubs/logging.h>
#include <signal.h>
#include <sys/signalfd.h>

#include <CLI/CLI.hpp>
#include <iostream>
#include <optional>
#include <string>

#include "client/ctl/by_user.h"
#include "client/ctl/session.h"
#include "client/exporter/collector.h"
#include "client/exporter/http_server.h"
#include "client/exporter/pages.h"
#include "client/exporter/token.h"
#include "core/command_line.h"
#include "core/printable.h"
#include "core/result.h"
#include "core/types.h"
#include "core/usage.h"
#include "ipc/unique_fd.h"
#include "proto/version.h"

namespace ravenstore::client::exporter {
namespace {

constexpr int kFailed = 1;
constexpr int kUsage = 2;

struct Options {
  std::string socket;
  std::string listen = "127.0.0.1:9778";
  std::string users = "names";
  std::string token_file;
  double timeout = 5;
};

std::string NumberOf(uid_t uid) {
  return std::to_string(uid);
}

void Log(const std::string& what) {
  std::cerr << "ravenstore-exporter: " << core::Printable(what) << std::endl;
}

// Readable once the process was asked to end.
ipc::UniqueFd EndSignals() {
  sigset_t ends;
  sigemptyset(&ends);
  sigaddset(&ends, SIGINT);
  sigaddset(&ends, SIGTERM);
  sigprocmask(SIG_BLOCK, &ends, nullptr);
  return ipc::UniqueFd(::signalfd(-1, &ends, SFD_CLOEXEC));
}

int Serve(const Options& options) {
  const ipc::UniqueFd ends = EndSignals();
  std::optional<Token> token;
  if (!options.token_file.empty()) {
    core::Result<Token> read = Token::Read(options.token_file);
    if (!read.ok()) {
      Log(read.error().message);
      return kFailed;
    }
    token = std::move(*read);
  }
  const NameOfUser name_of = options.users == "names"     ? ctl::UserName
                             : options.users == "numbers" ? NumberOf
                                                          : NameOfUser();
  Collector collector({options.socket, core::FromSeconds(options.timeout), Log});
  Pages pages({[&] { return collector.Look(); }, name_of, std::move(token)});
  core::Result<HttpServer> server = HttpServer::Listen(
      options.listen, {},
      [&](const auto& requests, core::Tick now) { return pages.Answer(requests, now); });
  if (!server.ok()) {
    Log("cannot listen on \"" + options.listen + "\": " + server.error().message +
        "; --listen takes ADDRESS:PORT, of a port that no other program has");
    return kFailed;
  }
  Log("serves http://" + options.listen + "/metrics of " + options.socket +
      (options.token_file.empty() ? ": sums only, since there is no --token-file"
                                  : ": single users to requests with the token, sums to others"));
  const core::Status served = server->Run(ends.get());
  if (served.ok()) return 0;
  Log(core::Describe(served.error()));
  return kFailed;
}

int Main(int argc, char** argv) {
  google::protobuf::SetLogHandler(nullptr);
  CLI::App app(
      "Serves a running ravenstored's figures to Prometheus, at http://ADDRESS:PORT/metrics.\n"
      "Exit codes: 0 ended by a signal, 1 cannot listen or read the token, 2 wrong usage.",
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
  app.add_option("--token-file", options.token_file,
                 "Figures of single users are served to requests with the bearer token in this "
                 "file, which only its owner may be able to read; without it to none");
  app.add_option("--timeout", options.timeout, "Seconds to wait for each answer of the daemon")
      ->check(core::Finite)
      ->check(CLI::Range(0.001, 60.0))
      ->capture_default_str();
  core::RefuseEmptyValues(&app);
  if (const auto answer = core::AnswerToScripts(core::DescribeApp(app), proto::kVersion,
                                                {argv, static_cast<size_t>(argc)})) {
    std::cout << *answer;
    return 0;
  }
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
