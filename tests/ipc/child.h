// A forked process of a test.
#pragma once

#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <exception>
#include <functional>

#include "core/check.h"

namespace ravenstore::ipc {

// Runs `body` in a fork, which exits with what it returns. Wait() gives that status, or -signal. A
// body that throws ends its process: the test's own objects must not be destroyed there.
class Child {
 public:
  explicit Child(const std::function<int()>& body) : pid_(fork()) {
    RAVEN_CHECK(pid_ >= 0);
    if (pid_ == 0) _exit(StatusOf(body));
  }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;
  ~Child() {
    if (pid_ > 0) Wait();
  }

  pid_t pid() const { return pid_; }
  int Wait() {
    int status = 0;
    while (waitpid(pid_, &status, 0) < 0) {
    }
    pid_ = -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
  }

 private:
  static constexpr int kThrew = 99;

  static int StatusOf(const std::function<int()>& body) noexcept {
    try {
      return body();
    } catch (const std::exception& error) {
      std::fprintf(stderr, "the child threw: %s\n", error.what());
      return kThrew;
    }
  }

  pid_t pid_;
};

}  // namespace ravenstore::ipc
