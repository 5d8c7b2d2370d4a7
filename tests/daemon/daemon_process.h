// A ravenstored of a test's own: its own process, socket and configuration.
#pragma once

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string>
#include <vector>

#include "core/check.h"
#include "ipc/clock.h"
#include "ipc/socket.h"
#include "ipc/unique_fd.h"
#include "tests/ipc/child.h"
#include "tests/ipc/short_directory.h"
#include "tests/timing/timing.h"

extern char** environ;

namespace ravenstore::daemon {

class DaemonProcess {
 public:
  // The daemon: $RAVENSTORE_DAEMON names it where it is not among the test's own files.
  static std::string Program() {
    const char* program = std::getenv("RAVENSTORE_DAEMON");
    return program != nullptr ? program : "daemon/ravenstored";
  }

  // Starts the daemon with `flags` in addition to the socket's and the backend's, and waits until
  // it serves. It writes its log to a file of its own, or to the descriptor `log`.
  explicit DaemonProcess(std::vector<std::string> flags = {}, const std::string& backend = "host",
                         int log = -1) {
    words_ = {Program(), "--backend", backend, "--socket", socket()};
    words_.insert(words_.end(), flags.begin(), flags.end());
    Start(log);
  }
  // Starts it again, at the same socket. REQUIRES: it was killed.
  void Start(int log = -1) {
    Spawn(words_, log);
    TimeLimit limit(kTestPatience);
    while (!ipc::Connect(socket(), ipc::Now() + std::chrono::seconds(30)).ok()) {
      RAVEN_CHECK(!limit.IsOver());
      if (Exited()) {
        std::fprintf(stderr, "%s", Log().c_str());
        RAVEN_CHECK(!"the daemon serves");
      }
      sched_yield();
    }
  }
  DaemonProcess(const DaemonProcess&) = delete;
  DaemonProcess& operator=(const DaemonProcess&) = delete;
  ~DaemonProcess() {
    if (pid_ > 0) Kill(SIGKILL);
  }

  std::string socket() const { return directory_ / "s"; }
  pid_t pid() const { return pid_; }
  // Sends `signal` and waits for the end: the exit status, or minus the signal that ended it.
  int Kill(int signal) {
    ::kill(pid_, signal);
    int status = 0;
    while (::waitpid(pid_, &status, 0) < 0) {
    }
    pid_ = -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
  }
  // Stands still when this returns: the signal alone leaves it some time.
  void Stop() {
    ::kill(pid_, SIGSTOP);
    RAVEN_CHECK(::waitpid(pid_, nullptr, WUNTRACED) == pid_);
  }
  void Continue() { ::kill(pid_, SIGCONT); }
  void Signal(int signal) { ::kill(pid_, signal); }
  bool Exited() { return ::waitpid(pid_, nullptr, WNOHANG) != 0; }
  std::string Log() const {
    std::ifstream file(directory_ / "log");
    std::stringstream text;
    text << file.rdbuf();
    return text.str();
  }

 private:
  void Spawn(const std::vector<std::string>& words, int log_descriptor) {
    std::vector<char*> arguments;
    for (const auto& word : words) arguments.push_back(const_cast<char*>(word.c_str()));
    arguments.push_back(nullptr);
    const std::string log = directory_ / "log";
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, 2, log.c_str(), O_CREAT | O_WRONLY | O_APPEND, 0600);
    if (log_descriptor >= 0) posix_spawn_file_actions_adddup2(&actions, log_descriptor, 2);
    const int error =
        ::posix_spawn(&pid_, words[0].c_str(), &actions, nullptr, arguments.data(), environ);
    if (error != 0) {
      std::fprintf(stderr, "cannot start %s: %s; RAVENSTORE_DAEMON=PATH names the daemon\n",
                   words[0].c_str(), std::strerror(error));
      std::exit(1);
    }
    posix_spawn_file_actions_destroy(&actions);
  }

  ipc::ShortDirectory directory_;
  std::vector<std::string> words_;
  pid_t pid_ = -1;
};

// What came of a start that ended before the daemon served.
struct FailedStart {
  int status;  // or minus the signal
  std::string words;
};

// Starts it with `flags`, and waits for its end: ten minutes at most.
inline FailedStart StartExpectingFailure(const std::vector<std::string>& flags) {
  const ipc::ShortDirectory directory;
  const std::string log = directory / "log";
  ipc::Child child([&] {
    std::vector<std::string> words = {DaemonProcess::Program(), "--backend", "host"};
    words.insert(words.end(), flags.begin(), flags.end());
    std::vector<char*> arguments;
    for (auto& word : words) arguments.push_back(word.data());
    arguments.push_back(nullptr);
    const int file = ::open(log.c_str(), O_CREAT | O_WRONLY | O_APPEND, 0600);
    ::dup2(file, STDERR_FILENO);
    ::alarm(600);
    ::execv(arguments[0], arguments.data());
    return 127;
  });
  const int status = child.Wait();
  std::ifstream file(log);
  std::stringstream text;
  text << file.rdbuf();
  return {status, text.str()};
}

}  // namespace ravenstore::daemon
