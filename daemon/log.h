// The daemon's log: spdlog's default logger, written by a thread of its own, so that a reader that
// does not read it blocks no other thread.
//
// A line that cannot be written (the pipe is not read, the disk does not answer) waits in a queue.
// A line that finds the queue full is left out and counted; the count is logged once writing works
// again. Critical lines are the last words of a process: the thread that logs one writes it itself,
// before the lines that still wait, and takes at most kFatalTimeout.
//
// Owns: the thread. Not the descriptor, whose flags stay as they are: others may share it.
// Threads: spdlog's calls from any; the rest by the owner.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "core/types.h"

namespace ravenstore::daemon {

class Log {
 public:
  // Lines that wait at most.
  static constexpr size_t kQueueLines = 4096;
  // A line's bytes at most; longer ones are cut. A pipe takes a line of this size as one piece.
  static constexpr size_t kLineBytes = 4096;
  static constexpr core::Duration kFatalTimeout{std::chrono::milliseconds(300)};
  static constexpr core::Duration kEndTimeout{std::chrono::milliseconds(500)};

  // From here on spdlog's default logger writes to `descriptor`, which outlives this. In colours
  // where it is a terminal. REQUIRES: SIGPIPE is ignored, where the descriptor may be a pipe.
  explicit Log(int descriptor);
  Log(const Log&) = delete;
  Log& operator=(const Log&) = delete;
  // As End.
  ~Log();

  // Writes what waits, for at most kEndPatience. From then on the default logger says critical
  // words only. Twice is as good as once; from any thread.
  void End();

  // Lines left out so far.
  uint64_t left_out() const;

 private:
  struct State;
  class Sink;

  std::shared_ptr<State> state_;
};

}  // namespace ravenstore::daemon
