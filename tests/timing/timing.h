// How long a test waits: on a machine that is busy with other work, longer.
//
// A limit is counted in seconds that the test had the machine for: while three programs want each
// core, a second counts as a third. Only a broken program reaches it.
#pragma once

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <string>

namespace ravenstore {

// For what must come.
inline constexpr std::chrono::nanoseconds kTestPatience = std::chrono::seconds(60);

// By how many times a machine of `cores` with this /proc/loadavg is slower than an idle one: the
// threads that want a core now, or that did in the last minute, by core. From 1 to 32.
inline double StretchOf(const std::string& loadavg, double cores) {
  double minute = 0;
  double now = 0;
  std::sscanf(loadavg.c_str(), "%lf %*f %*f %lf/", &minute, &now);
  return std::clamp(std::max(minute, now) / std::max(cores, 1.0), 1.0, 32.0);
}

inline double Stretch() {
  std::ifstream file("/proc/loadavg");
  std::string line;
  std::getline(file, line);
  return StretchOf(line, static_cast<double>(::sysconf(_SC_NPROCESSORS_ONLN)));
}

// For a deadline that a test hands on.
inline std::chrono::nanoseconds Stretched(std::chrono::nanoseconds limit) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(limit * Stretch());
}

// Begins when it is made. The load is read again while it runs.
class TimeLimit {
 public:
  using Clock = std::chrono::steady_clock;

  explicit TimeLimit(std::chrono::nanoseconds limit) : left_(limit) {}

  bool IsOver() {
    const Clock::time_point now = Clock::now();
    if (now - counted_ >= std::min<std::chrono::nanoseconds>(left_, kLookEvery)) {
      left_ -= std::chrono::duration_cast<std::chrono::nanoseconds>((now - counted_) / Stretch());
      counted_ = now;
    }
    return left_ <= std::chrono::nanoseconds(0);
  }

 private:
  static constexpr std::chrono::nanoseconds kLookEvery = std::chrono::milliseconds(100);

  std::chrono::nanoseconds left_;
  Clock::time_point counted_ = Clock::now();  // what came before is taken from left_
};

// Whether `condition` comes true within `limit`; `between` runs after each look that it is not.
template <typename Condition, typename Between>
bool EventuallyWith(Condition condition, Between between, std::chrono::nanoseconds limit) {
  TimeLimit time(limit);
  while (!condition()) {
    if (time.IsOver()) return condition();
    between();
  }
  return true;
}

template <typename Condition>
bool Eventually(Condition condition, std::chrono::nanoseconds limit = kTestPatience) {
  return EventuallyWith(
      condition, [] { sched_yield(); }, limit);
}

}  // namespace ravenstore
