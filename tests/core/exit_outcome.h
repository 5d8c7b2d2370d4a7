// How a story ends that may end its process: told in a child.
#pragma once

#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>

#include "core/check.h"

namespace ravenstore::core {

struct ExitOutcome {
  bool good = false;
  std::string cause;   // the broken invariant, or the signal or status that the child ended with
  std::string errors;  // what it wrote to standard error
};

namespace internal {

// Of a child that ended badly; the same for the same fault, whatever addresses it was at.
inline std::string CauseOf(int status, const std::string& errors) {
  const size_t begin = errors.find("broken invariant: ");
  if (begin != std::string::npos) return errors.substr(begin, errors.find('\n', begin) - begin);
  if (WIFSIGNALED(status)) return "signal " + std::to_string(WTERMSIG(status));
  return "exit status " + std::to_string(WEXITSTATUS(status));
}

}  // namespace internal

// Runs `story` in a child that ends with it: well when it returns, badly when it aborts, crashes,
// exits otherwise or takes longer than `seconds` (again from each alarm() that it calls).
// REQUIRES: one thread.
inline ExitOutcome ExitOutcomeOf(const std::function<void()>& story, unsigned seconds) {
  int ends[2];
  RAVEN_CHECK(pipe(ends) == 0);
  std::fflush(nullptr);
  const pid_t child = fork();
  RAVEN_CHECK(child >= 0);
  if (child == 0) {
    dup2(ends[1], STDERR_FILENO);
    close(ends[0]);
    close(ends[1]);
    const rlimit no_core{0, 0};
    setrlimit(RLIMIT_CORE, &no_core);
    std::signal(SIGALRM, SIG_DFL);
    alarm(seconds);
    story();
    std::fflush(nullptr);
    _exit(0);
  }
  close(ends[1]);
  ExitOutcome outcome;
  char buffer[4096];
  for (ssize_t got; (got = read(ends[0], buffer, sizeof(buffer))) > 0;) {
    outcome.errors.append(buffer, static_cast<size_t>(got));
  }
  close(ends[0]);
  int status = 0;
  RAVEN_CHECK(waitpid(child, &status, 0) == child);
  outcome.good = WIFEXITED(status) && WEXITSTATUS(status) == 0;
  if (!outcome.good) outcome.cause = internal::CauseOf(status, outcome.errors);
  return outcome;
}

}  // namespace ravenstore::core
