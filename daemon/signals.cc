#include "daemon/signals.h"

#include <pthread.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <condition_variable>
#include <csignal>
#include <cstring>
#include <ctime>
#include <deque>
#include <mutex>
#include <thread>
#include <utility>

#include "ipc/clock.h"

namespace ravenstore::daemon {

namespace {

sigset_t Taken() {
  sigset_t taken;
  sigemptyset(&taken);
  for (const int signal : {SIGTERM, SIGINT, SIGHUP, SIGXCPU}) sigaddset(&taken, signal);
  return taken;
}

// The next signal, or 0 when there was none until `deadline`.
int Wait(core::Tick deadline) {
  const sigset_t taken = Taken();
  for (;;) {
    const auto left = std::max(deadline - ipc::Now(), core::Duration(0));
    const auto whole = std::chrono::duration_cast<std::chrono::seconds>(left);
    const timespec bound{.tv_sec = whole.count(), .tv_nsec = (left - whole).count()};
    const int signal = sigtimedwait(&taken, nullptr, deadline == core::kNever ? nullptr : &bound);
    if (signal > 0) return signal;
    if (errno == EAGAIN) return 0;
  }
}

}  // namespace

struct Signals::State {
  void Run();
  [[noreturn]] void End(int status) {
    last_words();
    ::_exit(status);
  }

  std::function<void()> last_words;
  std::mutex mutex;
  std::condition_variable arrived;
  std::deque<int> passed_on;        // guarded by mutex
  bool serving = false;             // guarded by mutex
  core::Duration drain{0};          // guarded by mutex
  const char* stage = "beginning";  // guarded by mutex
};

void Signals::State::Run() {
  core::Tick end_by = core::kNever;
  for (;;) {
    const int signal = Wait(end_by);
    std::unique_lock lock(mutex);
    if (signal == 0) {
      spdlog::error("the daemon did not end in time and was stopped while {}", stage);
      lock.unlock();
      End(kExitCutShort);
    }
    if (signal != SIGHUP && !serving) {
      lock.unlock();
      spdlog::info("{} before anybody was served: ended", NameOf(signal));
      End(0);
    }
    // A further signal while the daemon ends asks for nothing new.
    if (end_by != core::kNever) continue;
    passed_on.push_back(signal);
    arrived.notify_all();
    if (signal != SIGHUP) end_by = ipc::Now() + drain + kGrace;
  }
}

const char* Signals::NameOf(int signal) {
  switch (signal) {
    case SIGTERM: return "SIGTERM";
    case SIGINT: return "SIGINT";
    case SIGXCPU: return "SIGXCPU (RLIMIT_CPU is reached)";
    default: return "SIGHUP";
  }
}

void Signals::Block() {
  for (const int signal : {SIGPIPE, SIGUSR1, SIGUSR2, SIGXFSZ}) ::signal(signal, SIG_IGN);
  const sigset_t taken = Taken();
  pthread_sigmask(SIG_BLOCK, &taken, nullptr);
}

Signals::Signals(std::function<void()> last_words) : state_(std::make_shared<State>()) {
  state_->last_words = std::move(last_words);
  std::thread([state = state_] {
    pthread_setname_np(pthread_self(), "raven-signals");
    state->Run();
  }).detach();
}

void Signals::Serve() {
  std::lock_guard lock(state_->mutex);
  state_->serving = true;
}

void Signals::SetDrain(core::Duration drain) {
  std::lock_guard lock(state_->mutex);
  state_->drain = drain;
}

int Signals::Next() {
  std::unique_lock lock(state_->mutex);
  state_->arrived.wait(lock, [this] { return !state_->passed_on.empty(); });
  const int signal = state_->passed_on.front();
  state_->passed_on.pop_front();
  return signal;
}

void Signals::At(const char* stage) {
  std::lock_guard lock(state_->mutex);
  state_->stage = stage;
}

}  // namespace ravenstore::daemon
