// The moves of parts: a thread that copies them, a stream for each direction, and then maps what
// was copied in the place of what was there.
//
// It is one thread for both directions, since the driver lets one call at a time map, and lets the
// others wait for up to a quarter of a second. A call that maps waits for the copies that are
// enqueued, as long as these take: so pages are copied in pieces, of which few are in flight, and
// no piece follows while anybody maps (Pause).
//
// Each move that has begun ends with one call of `ended`, on the mover's thread. From Begin until
// then only the mover may touch its parts and what is mapped at its address.
//
// Threads: any. The lock is held for nanoseconds, not around any call of the driver's nor when
// `ended` is called, which may take locks of its own that are held around Begin. Nothing but the
// destructor waits for the GPU.
#pragma once

#include <cuda.h>

#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "core/result.h"
#include "elastic/driver.h"
#include "elastic/events.h"
#include "elastic/parts.h"
#include "elastic/range_id.h"

namespace ravenstore::elastic {

class Mover {
 public:
  struct Move {
    RangeId page;
    CUdeviceptr at;      // of the page
    Parts::There there;  // before
    Part* to;
    bool maps;    // `to` at `at`; else nothing is there then
    bool copies;  // else what was there is not worth it
    // If set, it is called instead of mapping and of `ended`, and all parts stay the caller's.
    // `is_written`: the copy has failed, and may write to `to` at any time.
    std::function<void(const core::Status& copied, bool is_written)> then = nullptr;
  };
  // With an error what was there still is, though it may not be mapped any more. The part that is
  // not there has gone back to the parts, and is not to be looked at.
  using Ended = std::function<void(const Move& move, const Parts::Replaced& replaced)>;

  // All that is pointed to outlives the mover. Errors: kDevice.
  static core::Result<std::unique_ptr<Mover>> Create(const Driver* driver, Parts* parts,
                                                     CUcontext context, Ended ended);
  // Moves that have begun are completed. REQUIRES: no move begins, and no thread maps.
  ~Mover();
  Mover(const Mover&) = delete;
  Mover& operator=(const Mover&) = delete;

  // Copies to one place are made in the order in which they begin; what is not copied waits for
  // none of them.
  void Begin(const Move& move);
  // While any lives no copy is enqueued: its owner maps.
  class Pause {
   public:
    explicit Pause(Mover* mover) : mover_(mover) { ++mover_->pauses_; }
    ~Pause() { --mover_->pauses_; }
    Pause(const Pause&) = delete;
    Pause& operator=(const Pause&) = delete;

   private:
    Mover* const mover_;
  };
  // Of the copies to that place.
  CUstream stream(Place to) const { return lanes_[Index(to)].stream; }

 private:
  // A move whose copy has begun, or is next. Pieces end in their order.
  struct Copy {
    Move move;
    core::Bytes enqueued;
    size_t in_flight = 0;
    core::Status status;
    bool is_written = false;  // maybe, for who knows how long
  };
  struct Lane {
    CUstream stream = nullptr;
    std::deque<Copy> copies;
    std::deque<CUevent> in_flight;  // behind each piece; those of the first copy come first
  };

  Mover(const Driver* driver, Parts* parts, Ended ended);
  void Run();
  // Waits for what is to be done, while copies are in flight for a moment; false: there is nothing
  // left, and it shall stop.
  bool Await(std::vector<Copy>* done);
  void Reap(Lane& lane, std::vector<Copy>* done);
  void Fill(Lane& lane);
  void EnqueuePiece(Lane& lane, Copy& copy);
  void End(const Copy& copy);

  const Driver* const driver_;
  Parts* const parts_;
  const Ended ended_;
  std::atomic<int> pauses_{0};
  Lane lanes_[2];  // by the place to which they copy; the streams are made before the thread is
  Events events_;  // the thread's
  std::mutex mutex_;
  std::condition_variable wake_;
  std::vector<Move> begun_;  // guarded by mutex_
  bool stopping_ = false;    // guarded by mutex_
  std::thread thread_;
};

}  // namespace ravenstore::elastic
