#include "daemon/closers.h"

#include <pthread.h>
#include <signal.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>

#include "ipc/clock.h"

namespace ravenstore::daemon {

namespace {

constexpr std::chrono::seconds kIdle(1);
constexpr long kInterruptNs = 200'000;
// Ignored by default, so that nothing happens should somebody else reset its handler.
constexpr int kSignal = SIGURG;

void HandleSignal(int) {}

// A signal that is pending ends the wait of a socket that lingers: the kernel looks for one before
// each. One signal reaches all that a single close closes.
class Interrupter {
 public:
  Interrupter() {
    sigevent event{};
    event.sigev_notify = SIGEV_THREAD_ID;
    event.sigev_signo = kSignal;
    event._sigev_un._tid = static_cast<pid_t>(::syscall(SYS_gettid));
    made_ = ::timer_create(CLOCK_MONOTONIC, &event, &timer_) == 0;
  }
  ~Interrupter() {
    if (made_) ::timer_delete(timer_);
  }
  Interrupter(const Interrupter&) = delete;
  Interrupter& operator=(const Interrupter&) = delete;

  // The calling thread is interrupted again and again from now on; or no more.
  void Arm(bool on) {
    if (!made_) return;
    itimerspec when{};
    if (on) when.it_value.tv_nsec = when.it_interval.tv_nsec = kInterruptNs;
    ::timer_settime(timer_, 0, &when, nullptr);
  }

 private:
  timer_t timer_{};
  bool made_ = false;
};

void InstallHandler() {
  struct sigaction action {};
  action.sa_handler = HandleSignal;
  ::sigaction(kSignal, &action, nullptr);
}

}  // namespace

struct Closers::State {
  struct Task {
    std::vector<ipc::UniqueFd> descriptors;
    std::function<void()> closed;
  };
  struct User {
    std::deque<Task> tasks;
    bool busy = false;   // a thread closes for it
    core::Tick begun{};  // when that close began
  };

  bool HasHung(const User& user, core::Tick now) const {
    return user.busy && now - user.begun >= kStuckAfter;
  }

  mutable std::mutex mutex;
  std::condition_variable wake;
  std::map<uid_t, User> users;  // those with tasks, or busy
  std::deque<uid_t> ready;      // with tasks and not busy, first come first served
  size_t threads = 0;
  size_t busy = 0;  // of the threads
  bool interrupts = true;
  bool ended = false;
};

Closers::Closers(bool interrupts) : state_(std::make_shared<State>()) {
  InstallHandler();
  state_->interrupts = interrupts;
  std::lock_guard lock(state_->mutex);
  BeginThread(state_);
}

Closers::~Closers() {
  std::lock_guard lock(state_->mutex);
  state_->ended = true;
  state_->wake.notify_all();
}

void Closers::Close(uid_t user, std::vector<ipc::UniqueFd> descriptors,
                    std::function<void()> closed) {
  std::unique_lock lock(state_->mutex);
  State::User& of_user = state_->users[user];
  of_user.tasks.push_back({std::move(descriptors), std::move(closed)});
  if (!of_user.busy && of_user.tasks.size() == 1) state_->ready.push_back(user);
  if (state_->threads - state_->busy >= state_->ready.size()) return state_->wake.notify_one();
  BeginThread(state_);
}

void Closers::BeginThread(const std::shared_ptr<State>& state) {
  if (state->threads >= kThreadsMax) return;
  const bool first = state->threads == 0;
  try {
    std::thread([state, first] {
      pthread_setname_np(pthread_self(), "raven-close");
      Work(state, first);
    }).detach();
    ++state->threads;
  } catch (const std::system_error&) {
  }
}

bool Closers::IsStuck(uid_t user) const {
  std::lock_guard lock(state_->mutex);
  const auto found = state_->users.find(user);
  return found != state_->users.end() && state_->HasHung(found->second, ipc::Now());
}

bool Closers::AllStuck() const {
  std::lock_guard lock(state_->mutex);
  if (state_->threads < kThreadsMax) return false;
  const core::Tick now = ipc::Now();
  return static_cast<size_t>(std::count_if(
             state_->users.begin(), state_->users.end(),
             [&](const auto& user) { return state_->HasHung(user.second, now); })) >= kThreadsMax;
}

size_t Closers::threads() const {
  std::lock_guard lock(state_->mutex);
  return state_->threads;
}

void Closers::Work(const std::shared_ptr<State>& state, bool stays) {
  Interrupter interrupter;
  std::unique_lock lock(state->mutex);
  for (;;) {
    state->wake.wait_for(lock, kIdle, [&] { return state->ended || !state->ready.empty(); });
    if (state->ready.empty() && stays && !state->ended) continue;
    if (state->ready.empty()) break;
    const uid_t user = state->ready.front();
    state->ready.pop_front();
    State::User& of_user = state->users.at(user);
    State::Task task = std::move(of_user.tasks.front());
    of_user.tasks.pop_front();
    of_user.busy = true;
    ++state->busy;
    of_user.begun = ipc::Now();
    lock.unlock();
    interrupter.Arm(state->interrupts);
    task.descriptors.clear();
    interrupter.Arm(false);
    lock.lock();
    if (!state->ended && task.closed) task.closed();
    of_user.busy = false;
    --state->busy;
    if (of_user.tasks.empty()) {
      state->users.erase(user);
    } else {
      state->ready.push_back(user);
    }
  }
  --state->threads;
}

}  // namespace ravenstore::daemon
