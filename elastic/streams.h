// How far each of the job's streams has come, counted in calls that the engine saw.
//
// A call is a point on its stream. An event shows whether a point has passed. It is recorded when
// a caller asks and not with each call: it follows all that was enqueued by then.
// An event is never recorded on a stream that is being captured.
//
// Threads: one at a time (the engine's lock). A current context is required where it says so.
#pragma once

#include <cuda.h>

#include <cstdint>
#include <deque>
#include <map>
#include <utility>
#include <vector>

#include "elastic/driver.h"
#include "elastic/events.h"
#include "elastic/point.h"

namespace ravenstore::elastic {

class Streams {
 public:
  explicit Streams(const Driver* driver)
      : driver_(driver), states_(1), events_(driver, CU_EVENT_DISABLE_TIMING) {}
  ~Streams();
  Streams(const Streams&) = delete;
  Streams& operator=(const Streams&) = delete;

  // The stream's last call so far.
  Point Now(CUstream stream);
  // A call was enqueued on the stream by this thread.
  // REQUIRES: a current context, for the thread's own default stream.
  Point Enqueued(CUstream stream);
  // The same on each stream that there is; of other threads' own ones their last.
  std::vector<Point> EnqueuedOnAll();
  // Passed() may ask the driver again: once for each stream until the next Look. Asking about many
  // points costs the job no more than asking about one.
  void Look() { ++looks_; }
  // Whether what was enqueued up to the point is done, as the driver last reported. If that is not
  // known, an event is recorded: a call after a later Look gets it. REQUIRES: a current context.
  bool Passed(const Point& point);
  // Removes those that have passed. Returns true if no point is left.
  bool HavePassed(std::vector<Point>* points);
  // Whether all that was enqueued on any stream is done, as the driver last reported.
  bool Idle();
  // Work on some stream ended with an illegal address, as the driver last reported.
  bool saw_illegal_address() const { return saw_illegal_; }
  // The stream is about to be destroyed; its handle may come again. REQUIRES: a current context.
  void Gone(CUstream stream);

 private:
  struct State {
    CUstream stream = nullptr;
    bool own = false;  // a thread's own default stream: only that thread can record on it
    bool gone = false;
    uint64_t enqueued = 0;
    uint64_t passed = 0;
    uint64_t looked = 0;                              // the last look at which the driver was asked
    std::deque<std::pair<CUevent, uint64_t>> events;  // and the last call before each
  };

  uint32_t IndexOf(CUstream stream);
  void Poll(State& state);
  void Record(State& state);

  const Driver* const driver_;
  uint64_t looks_ = 1;
  bool saw_illegal_ = false;
  std::vector<State> states_;
  std::map<std::pair<CUstream, uint64_t>, uint32_t> index_;  // by handle, and thread for its own
  std::vector<uint32_t> unused_;
  Events events_;
};

}  // namespace ravenstore::elastic
