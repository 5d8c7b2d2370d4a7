// When in an iteration a client's accesses come, and how much it has alive then.
//
// Positions count accesses; this says what they are in time: the n-th access of an iteration is
// expected as long after its beginning as the n-th of the last one was, with as much alive. Time is
// the client's own, which stands while it waits for the store, so that what the store does changes
// no expectation.
//
// Owns: 8 bytes for each access of two iterations, of at most kMostAccesses; before the first
// iteration is told of, of at most kMostAtFirst. Threads: one at a time. Cost: O(1), and of
// UntilLive O(accesses of an iteration).
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "core/types.h"

namespace ravenstore::core {

class Rhythm {
 public:
  // The client's next access, in its own time, and the bytes that are alive with it.
  void Access(Tick own_time, Bytes live);
  void BeginIteration();

  // From the last access until the `distance`-th after it; nullopt as long as no two iterations in
  // a row were alike.
  std::optional<double> SecondsUntil(int64_t distance) const;

  // From the last access until no more than `live` bytes are alive, as it was in the last iteration
  // (which may have been another), and the most that are before; nullopt: they never are.
  struct Ebb {
    double seconds;
    Bytes most;
  };
  std::optional<Ebb> UntilLive(Bytes live) const;

 private:
  static constexpr size_t kMostAccesses = 1 << 16;
  static constexpr size_t kMostAtFirst = 512;
  struct Sample {
    float seconds;  // since the iteration's begin
    float live;     // bytes
  };
  void EndIteration(Tick own_time);
  // Since an iteration's begin until its n-th access, if it and all after it are as the last.
  double Offset(size_t access) const;

  size_t most_ = kMostAtFirst;  // accesses of an iteration; 0: it is not listened to
  std::vector<Sample> last_;
  std::vector<Sample> current_;
  Tick begin_{};
  double length_ = 0;           // of the last iteration, in seconds
  size_t accesses_before_ = 0;  // in the one before the last
  bool repeats_ = false;        // the last was as the one before
};

}  // namespace ravenstore::core
