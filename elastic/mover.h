// The moves of one direction: a stream of their copies, and a thread that waits for these and then
// maps what was copied in the place of what was there.
//
// To map memory of the host takes as long as to copy it. So several moves are under way: the GPU
// copies some while the thread maps others, and the two directions, a mover each, do not wait for
// each other.
//
// Each move that has begun ends with one call of `ended`, on the mover's thread. From Begin until
// then its parts and what is mapped at its address are the mover's, and nobody else may touch them.
//
// Threads: any. A lock is held while a copy is enqueued or asked for, never while memory is mapped,
// nor when `ended` is called, which may take locks of its own that are held around Begin. Nothing
// but the destructor waits for the GPU.
#pragma once

#include <cuda.h>

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>

#include "core/result.h"
#include "elastic/driver.h"
#include "elastic/events.h"
#include "elastic/parts.h"
#include "elastic/plan.h"

namespace ravenstore::elastic {

class Mover {
 public:
  struct Move {
    RangeId page;
    CUdeviceptr at;  // of the page
    Part* from;      // mapped there; null: nothing is
    Part* to;
    bool copies;  // else what was there is not worth it
  };
  // `there`: what is mapped now: `to` with Ok; else `from`, or null if that was lost. What is not
  // has gone back to the parts, and is not to be looked at.
  using Ended = std::function<void(const Move& move, Part* there, const core::Status& status)>;

  // `name`: the thread's. All that is pointed to outlives the mover. Errors: kDevice.
  static core::Result<std::unique_ptr<Mover>> Create(const char* name, const Driver* driver,
                                                     Parts* parts, CUcontext context, Ended ended);
  // What has begun is done. REQUIRES: the context is current, and nothing begins.
  ~Mover();
  Mover(const Mover&) = delete;
  Mover& operator=(const Mover&) = delete;

  // Copies are made in the order in which they begin; what is not copied waits for none of them.
  // Errors: kDevice: nothing is told, what was there is, and `to` must not be used again, since it
  // may be written.
  core::Status Begin(const Move& move);
  CUstream stream() const { return stream_; }

 private:
  struct UnderWay {
    Move move;
    CUevent copied;  // null: nothing is
  };

  Mover(const Driver* driver, Parts* parts, CUstream stream, Ended ended);
  void Run();
  // The next whose copy is over, if there is one.
  std::deque<UnderWay>::iterator NextCopied(bool* succeeded);

  const Driver* const driver_;
  Parts* const parts_;
  const CUstream stream_;
  const Ended ended_;
  std::mutex mutex_;
  std::condition_variable wake_;
  // All below: guarded by mutex_.
  std::deque<UnderWay> moves_;
  Events events_;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace ravenstore::elastic
