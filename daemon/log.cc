#include "daemon/log.h"

#include <poll.h>
#include <pthread.h>
#include <spdlog/pattern_formatter.h>
#include <spdlog/sinks/sink.h>
#include <spdlog/spdlog.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <string>
#include <system_error>
#include <thread>
#include <utility>

#include "ipc/clock.h"
#include "ipc/unique_fd.h"

namespace ravenstore::daemon {

namespace {

// How long a critical line waits for the lines before it, which tell how it came about.
constexpr core::Duration kFatalWaitsForQueue = std::chrono::milliseconds(50);

int MillisecondsUntil(core::Tick deadline) {
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - ipc::Now()).count();
  return static_cast<int>(std::clamp<int64_t>(left, 0, 1 << 30));
}

bool IsSocket(int descriptor) {
  struct stat status {};
  return ::fstat(descriptor, &status) == 0 && S_ISSOCK(status.st_mode);
}

const char* ColourOf(spdlog::level::level_enum level) {
  switch (level) {
    case spdlog::level::info: return "\033[32m";
    case spdlog::level::warn: return "\033[33m\033[1m";
    case spdlog::level::err: return "\033[31m\033[1m";
    case spdlog::level::critical: return "\033[1m\033[41m";
    default: return "\033[36m";
  }
}

}  // namespace

// Shared with the thread, which is left behind where a write never ends.
struct Log::State {
  explicit State(int to)
      : descriptor(to),
        is_socket(IsSocket(to)),
        is_terminal(::isatty(to) != 0),
        ending(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {}

  // Waits for room until `deadline`, and no longer than until `end_by` once the end was asked for.
  // A pipe that is writable takes PIPE_BUF bytes without blocking, unless another writer is faster:
  // then this waits for the reader.
  bool Write(const std::string& line, core::Tick deadline) {
    pollfd events[2] = {{descriptor, POLLOUT, 0}, {ending.get(), POLLIN, 0}};
    int watched = deadline == core::kNever ? 2 : 1;
    while (events[0].revents == 0) {
      const int timeout = deadline == core::kNever ? -1 : MillisecondsUntil(deadline);
      const int ready = ::poll(events, static_cast<nfds_t>(watched), timeout);
      if (ready == 0 || (ready < 0 && errno != EINTR)) return false;
      if (ready > 0 && events[0].revents == 0) {
        watched = 1;
        std::lock_guard lock(mutex);
        deadline = end_by;
      }
    }
    const ssize_t written =
        is_socket ? ::send(descriptor, line.data(), line.size(), MSG_DONTWAIT | MSG_NOSIGNAL)
                  : ::write(descriptor, line.data(), line.size());
    return written == static_cast<ssize_t>(line.size());
  }

  void Push(std::string line) {
    std::lock_guard lock(mutex);
    if (ended || lines.size() >= kQueueLines) {
      ++left_out;
      return;
    }
    lines.push_back(std::move(line));
    changed.notify_all();
  }

  void LeaveOut() {
    std::lock_guard lock(mutex);
    ++left_out;
  }

  // Writes what comes, until the end was asked for and nothing is left, or nothing goes out.
  void Run();
  // The words about the lines left out; empty when all of them were reported.
  std::string DropNotice(uint64_t* reported);

  const int descriptor;
  const bool is_socket;
  const bool is_terminal;
  const ipc::UniqueFd ending;  // readable once the end was asked for
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<std::string> lines;  // guarded by mutex
  bool writing = false;           // a line was taken out; guarded by mutex
  bool ended = false;             // guarded by mutex
  core::Tick end_by{};            // once ended; guarded by mutex
  bool finished = false;          // the thread; guarded by mutex
  uint64_t left_out = 0;          // guarded by mutex
  uint64_t reported = 0;          // of them; the thread's
  std::unique_ptr<spdlog::formatter> own_words = std::make_unique<spdlog::pattern_formatter>();
};

std::string Log::State::DropNotice(uint64_t* so_far) {
  {
    std::lock_guard lock(mutex);
    *so_far = left_out;
  }
  if (*so_far == reported) return "";
  const std::string words = std::to_string(*so_far - reported) +
                            " lines of this log were left out: it was not read in time";
  spdlog::memory_buf_t text;
  own_words->format({"", spdlog::level::warn, words}, text);
  return fmt::to_string(text);
}

void Log::State::Run() {
  std::unique_lock lock(mutex);
  for (;;) {
    writing = false;
    changed.notify_all();
    changed.wait(lock, [this] { return ended || !lines.empty(); });
    // Late lines are left out immediately: the caller of End may close the descriptor by now.
    if (ended && ipc::Now() >= end_by) left_out += std::exchange(lines, {}).size();
    if (lines.empty()) break;
    const core::Tick deadline = ended ? end_by : core::kNever;
    writing = true;
    std::string line = std::move(lines.front());
    lines.pop_front();
    lock.unlock();
    const bool written = Write(line, deadline);
    if (!written) LeaveOut();
    uint64_t so_far = 0;
    const std::string words = written ? DropNotice(&so_far) : "";
    if (!words.empty() && Write(words, deadline)) reported = so_far;
    lock.lock();
  }
  finished = true;
  changed.notify_all();
}

class Log::Sink : public spdlog::sinks::sink {
 public:
  explicit Sink(std::shared_ptr<State> state)
      : state_(std::move(state)), formatter_(std::make_unique<spdlog::pattern_formatter>()) {}

  void log(const spdlog::details::log_msg& message) override {
    std::string line = Format(message);
    if (message.level < spdlog::level::critical) return state_->Push(std::move(line));
    {
      std::unique_lock lock(state_->mutex);
      state_->changed.wait_for(lock, kFatalWaitsForQueue,
                               [this] { return state_->lines.empty() && !state_->writing; });
    }
    state_->Write(line, ipc::Now() + kFatalTimeout - kFatalWaitsForQueue);
  }
  void flush() override {}
  void set_pattern(const std::string& pattern) override {
    set_formatter(std::make_unique<spdlog::pattern_formatter>(pattern));
  }
  void set_formatter(std::unique_ptr<spdlog::formatter> formatter) override {
    std::lock_guard lock(mutex_);
    formatter_ = std::move(formatter);
  }

 private:
  std::string Format(const spdlog::details::log_msg& message) {
    spdlog::memory_buf_t text;
    std::lock_guard lock(mutex_);
    formatter_->format(message, text);
    std::string line = fmt::to_string(text);
    if (state_->is_terminal && message.color_range_end > message.color_range_start) {
      line.insert(message.color_range_end, "\033[m");
      line.insert(message.color_range_start, ColourOf(message.level));
    }
    if (line.size() > kLineBytes) {
      line.resize(kLineBytes - 4);
      line += "...\n";
    }
    return line;
  }

  const std::shared_ptr<State> state_;
  std::mutex mutex_;  // a formatter keeps the last second's text
  std::unique_ptr<spdlog::formatter> formatter_;
};

Log::Log(int descriptor) : state_(std::make_shared<State>(descriptor)) {
  std::thread([state = state_] {
    pthread_setname_np(pthread_self(), "raven-log");
    state->Run();
  }).detach();
  spdlog::set_default_logger(
      std::make_shared<spdlog::logger>("ravenstored", std::make_shared<Sink>(state_)));
}

Log::~Log() {
  End();
}

void Log::End() {
  std::unique_lock lock(state_->mutex);
  if (!std::exchange(state_->ended, true)) state_->end_by = ipc::Now() + kEndTimeout;
  state_->changed.notify_all();
  const uint64_t one = 1;
  // An eventfd takes a write of 1 unless 2^64 - 2 are pending.
  [[maybe_unused]] const ssize_t written = ::write(state_->ending.get(), &one, sizeof(one));
  // A write that never ends is left behind.
  state_->changed.wait_for(lock, kEndTimeout + std::chrono::milliseconds(50),
                           [this] { return state_->finished; });
}

uint64_t Log::left_out() const {
  std::lock_guard lock(state_->mutex);
  return state_->left_out;
}

}  // namespace ravenstore::daemon
