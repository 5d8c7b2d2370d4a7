#include "elastic/mover.h"

#include <sys/prctl.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "elastic/own_thread.h"

namespace ravenstore::elastic {

using core::Bytes;
using core::Result;
using core::Status;

namespace {

// A call that maps waits for what is in flight: of each direction at most 16 MiB, 0.35 ms, in which
// the link is not idle. With two pieces it has the next one while the thread sees that one has
// ended; smaller ones end before a thread on a busy machine has seen it.
constexpr Bytes kPiece = core::MiB(8);
constexpr size_t kInFlight = 2;
// A quarter of what a piece takes.
constexpr std::chrono::microseconds kPoll{50};
constexpr unsigned long kSlackNanoseconds = 1000;

}  // namespace

Mover::Mover(const Driver* driver, Parts* parts, Ended ended)
    : driver_(driver),
      parts_(parts),
      ended_(std::move(ended)),
      events_(driver, CU_EVENT_DISABLE_TIMING) {}

Result<std::unique_ptr<Mover>> Mover::Create(const Driver* driver, Parts* parts, CUcontext context,
                                             Ended ended) {
  std::unique_ptr<Mover> mover(new Mover(driver, parts, std::move(ended)));
  for (Lane& lane : mover->lanes_) {
    const CUresult result = driver->stream_create(&lane.stream, CU_STREAM_NON_BLOCKING);
    if (result != CUDA_SUCCESS) return DriverError("cuStreamCreate", result);
  }
  mover->thread_ = OwnThread("raven-move", driver, context, [raw = mover.get()] { raw->Run(); });
  return mover;
}

Mover::~Mover() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    wake_.notify_one();
  }
  if (thread_.joinable()) thread_.join();
}

void Mover::Begin(const Move& move) {
  const std::lock_guard lock(mutex_);
  begun_.push_back(move);
  wake_.notify_one();
}

void Mover::Run() {
  ::prctl(PR_SET_TIMERSLACK, kSlackNanoseconds);
  std::vector<Copy> done;
  while (Await(&done)) {
    for (Lane& lane : lanes_) Reap(lane, &done);
    // In one go: the next pieces have to wait.
    for (const Copy& copy : done) End(copy);
    done.clear();
    for (Lane& lane : lanes_) {
      if (pauses_ == 0) Fill(lane);
    }
  }
}

bool Mover::Await(std::vector<Copy>* done) {
  const bool is_idle = lanes_[0].copies.empty() && lanes_[1].copies.empty();
  std::unique_lock lock(mutex_);
  const auto has_news = [this] { return stopping_ || !begun_.empty(); };
  if (is_idle) {
    wake_.wait(lock, has_news);
    if (begun_.empty()) return false;
  } else if (begun_.empty()) {
    wake_.wait_for(lock, kPoll);
  }
  for (const Move& move : std::exchange(begun_, {})) {
    if (move.copies) {
      lanes_[Index(move.to->place)].copies.push_back({move, Bytes{0}, 0, core::Ok(), false});
    } else {
      done->push_back({move, Bytes{0}, 0, core::Ok(), false});
    }
  }
  return true;
}

void Mover::Reap(Lane& lane, std::vector<Copy>* done) {
  while (!lane.in_flight.empty()) {
    const CUresult result = driver_->event_query(lane.in_flight.front());
    if (result == CUDA_ERROR_NOT_READY) break;
    events_.Give(lane.in_flight.front());
    lane.in_flight.pop_front();
    Copy& copy = lane.copies.front();
    --copy.in_flight;
    if (result != CUDA_SUCCESS) copy.status = DriverError("a copy", result);
    const auto has_ended = [](const Copy& each) {
      return each.in_flight == 0 && (each.enqueued == each.move.to->size || !each.status.ok());
    };
    while (!lane.copies.empty() && has_ended(lane.copies.front())) {
      done->push_back(std::move(lane.copies.front()));
      lane.copies.pop_front();
    }
  }
}

void Mover::Fill(Lane& lane) {
  for (Copy& copy : lane.copies) {
    while (copy.status.ok() && copy.enqueued < copy.move.to->size) {
      if (lane.in_flight.size() >= kInFlight) return;
      EnqueuePiece(lane, copy);
    }
  }
  // What could not even begin.
  while (!lane.copies.empty() && !lane.copies.front().status.ok() &&
         lane.copies.front().in_flight == 0) {
    End(lane.copies.front());
    lane.copies.pop_front();
  }
}

void Mover::EnqueuePiece(Lane& lane, Copy& copy) {
  const Move& move = copy.move;
  const Bytes size = std::min(kPiece, move.to->size - copy.enqueued);
  const CUdeviceptr to = move.to->copy + copy.enqueued.count();
  const CUdeviceptr from = move.there.part->copy + copy.enqueued.count();
  const CUresult result = driver_->copy_async(to, from, size.count(), lane.stream);
  if (result != CUDA_SUCCESS) {
    copy.status = DriverError("cuMemcpyAsync", result);
    return;
  }
  CUevent copied = events_.Record(lane.stream);
  if (copied == nullptr) {
    copy.status = DriverError("cuEventRecord", CUDA_ERROR_UNKNOWN);
    copy.is_written = true;
    return;
  }
  copy.enqueued += size;
  ++copy.in_flight;
  lane.in_flight.push_back(copied);
}

void Mover::End(const Copy& copy) {
  const Move& move = copy.move;
  if (move.then) return move.then(copy.status, copy.is_written);
  if (copy.status.ok()) {
    ended_(move, parts_->Replace(move.at, move.there, move.to, move.maps));
    return;
  }
  // A part that the failed copy may still write to is not returned.
  if (!copy.is_written) parts_->Give(move.to);
  ended_(move, {move.there, copy.status});
}

}  // namespace ravenstore::elastic
