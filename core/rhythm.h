// When in an iteration a client's accesses come.
//
// Positions count accesses; this says what they are in time: the n-th access of an iteration is
// expected as long after its beginning as the n-th of the last one was. Time is the client's own,
// which stands while it waits for the store, so that what the store does changes no expectation.
//
// Owns: two numbers for each access of an iteration, of at most kMostAccesses; before the first
// iteration is told of, one for each, of at most kMostAtFirst. Threads: one at a time. Cost: O(1).
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "core/types.h"

namespace ravenstore::core {

class Rhythm {
 public:
  // The client's next access, in its own time.
  void Access(Tick own_time);
  void BeginIteration();

  // From the last access until the `distance`-th after it; nullopt as long as no two iterations in
  // a row were alike.
  std::optional<double> SecondsUntil(int64_t distance) const;

 private:
  static constexpr size_t kMostAccesses = 1 << 16;
  static constexpr size_t kMostAtFirst = 256;
  void EndIteration(Tick own_time);
  // Since an iteration's begin until its n-th access, if it and all after it are as the last.
  double Offset(int64_t access) const;

  size_t most_ = kMostAtFirst;  // accesses of an iteration; 0: it is not listened to
  std::vector<float> last_;     // seconds since the iteration's begin
  std::vector<float> current_;
  Tick begin_{};
  double length_ = 0;           // of the last iteration, in seconds
  size_t accesses_before_ = 0;  // in the one before the last
  bool repeats_ = false;        // the last was as the one before
};

}  // namespace ravenstore::core
