// When in an iteration a client's accesses come.
//
// Positions count accesses; this says what they are in time: the n-th access of an iteration is
// expected as long after its beginning as the n-th of the last one was. Time is the client's own,
// which stands while it waits for the store, so that what the store does changes no expectation.
//
// Owns: two numbers for each access of an iteration, of at most kMostAccesses; nothing before the
// first iteration is marked. Threads: one at a time. Cost: O(1).
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "core/types.h"

namespace ravenstore::core {

class IterationProfile {
 public:
  // The client's next access, in its own time.
  void Access(Tick virtual_time);
  void BeginIteration();

  // From the last access until the `distance`-th after it; nullopt as long as no two iterations in
  // a row were alike.
  std::optional<Duration> Until(int64_t distance) const;

 private:
  static constexpr size_t kMostAccesses = 1 << 16;
  void EndIteration(Tick virtual_time);
  // Since an iteration's begin until its n-th access, if it and all after it are as the last.
  Duration Offset(int64_t access) const;

  bool listens_ = false;  // an iteration was marked; else accesses are only counted
  // Since the iteration's begin; to the nanosecond, or uses at the same instant would have an
  // order.
  std::vector<Duration> current_;
  std::vector<Duration> last_;
  Tick begin_{};
  Duration length_{0};          // of the last iteration
  size_t accesses_ = 0;         // in this iteration,
  size_t accesses_last_ = 0;    // in the last,
  size_t accesses_before_ = 0;  // and in the one before that
  bool repeats_ = false;        // the last was as the one before
};

}  // namespace ravenstore::core
