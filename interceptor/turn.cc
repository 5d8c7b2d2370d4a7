#include "interceptor/turn.h"

#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <atomic>

#include "interceptor/budgets.h"
#include "interceptor/devices.h"
#include "interceptor/link.h"
#include "interceptor/settings.h"

namespace ravenstore::interceptor::turn {
namespace {

enum class State : uint32_t { kNotAsked, kPassed, kRefused };

// How often it looks whether a signal has asked it to end.
constexpr int kLookMs = 100;
constexpr int kEnds[] = {SIGINT, SIGTERM};
constexpr size_t kEndsCount = 2;

constinit pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
constinit std::atomic<State> state{State::kNotAsked};
constinit std::atomic<bool> end_requested{false};
constinit struct sigaction handlers[kEndsCount] {};

// To the log that was asked for, or else to standard error.
void Say(const char* format, ...) __attribute__((format(printf, 1, 2)));
void Say(const char* format, ...) {
  char text[400];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(text, sizeof(text), format, arguments);
  va_end(arguments);
  if (Asked().log[0] != 0) return Log("%s", text);
  dprintf(STDERR_FILENO, "ravenstore[%d]: %s\n", getpid(), text);
}

void OnEnd(int number, siginfo_t* info, void* context) {
  end_requested.store(true);
  const struct sigaction& own = handlers[number == kEnds[0] ? 0 : 1];
  if ((own.sa_flags & SA_SIGINFO) != 0) {
    own.sa_sigaction(number, info, context);
  } else {
    own.sa_handler(number);
  }
}

// A program that handles the signals by itself, as Python does, learns of them once the call
// returns: so we have to know of them too. The others end as ever.
class Ends {
 public:
  Ends() {
    end_requested.store(false);
    for (size_t i = 0; i < kEndsCount; ++i) {
      struct sigaction& own = handlers[i];
      if (sigaction(kEnds[i], nullptr, &own) != 0) continue;
      if ((own.sa_flags & SA_SIGINFO) == 0 &&
          (own.sa_handler == SIG_DFL || own.sa_handler == SIG_IGN)) {
        continue;
      }
      struct sigaction ours = own;
      ours.sa_flags |= SA_SIGINFO;
      ours.sa_sigaction = OnEnd;
      taken_[i] = sigaction(kEnds[i], &ours, nullptr) == 0;
    }
  }
  ~Ends() {
    for (size_t i = 0; i < kEndsCount; ++i) {
      struct sigaction now {};
      const bool ours = taken_[i] && sigaction(kEnds[i], nullptr, &now) == 0 &&
                        (now.sa_flags & SA_SIGINFO) != 0 && now.sa_sigaction == OnEnd;
      if (ours) sigaction(kEnds[i], &handlers[i], nullptr);
    }
  }
  Ends(const Ends&) = delete;
  Ends& operator=(const Ends&) = delete;

 private:
  bool taken_[kEndsCount] = {};
};

int64_t Seconds() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec;
}

State WaitIn(const link::Place& place, int row) {
  const int64_t most = Asked().wait_seconds;
  const int64_t begun = Seconds();
  const Ends ends;
  while (!end_requested.load()) {
    if (most > 0 && Seconds() - begun >= most) {
      Say("no turn within %lld s: the job gets no memory", static_cast<long long>(most));
      return State::kRefused;
    }
    link::News news = link::AwaitNews(place, kLookMs);
    switch (news.kind) {
      case link::News::kNone: break;
      case link::News::kMoved:
        Say("waits for %.1f GiB of device %d as number %llu",
            static_cast<double>(news.bytes) / (1 << 30), DeviceOf(row),
            static_cast<unsigned long long>(news.position));
        break;
      case link::News::kTurn: return State::kPassed;
      case link::News::kOver:
        Say("%s: the job goes on without waiting", news.why);
        return State::kPassed;
    }
  }
  Say("was told to end while it waited: it gets no memory");
  return State::kRefused;
}

State AskFor(int row) {
  const link::Place place = link::TakePlace(row, VisibleOf(row));
  if (place.descriptor < 0) {
    Say("no daemon at %s: the job goes on without waiting", Asked().socket);
    return State::kPassed;
  }
  const State became = WaitIn(place, row);
  link::LeavePlace(place);
  return became;
}

}  // namespace

bool Await(int row) {
  if (Asked().wait_seconds < 0 || row < 0) return true;
  if (state.load(std::memory_order_acquire) == State::kNotAsked) {
    pthread_mutex_lock(&mutex);
    if (state.load() == State::kNotAsked) state.store(AskFor(row), std::memory_order_release);
    pthread_mutex_unlock(&mutex);
  }
  return state.load() == State::kPassed;
}

void ForgetInChild() {
  mutex = PTHREAD_MUTEX_INITIALIZER;
  state.store(State::kNotAsked);
}

}  // namespace ravenstore::interceptor::turn
