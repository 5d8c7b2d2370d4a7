#include "elastic/mover.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "elastic/own_thread.h"

namespace ravenstore::elastic {

using core::Result;
using core::Status;

namespace {

// A copy takes seven times as long.
constexpr std::chrono::microseconds kPoll{100};

}  // namespace

Mover::Mover(const Driver* driver, Parts* parts, CUstream stream, Ended ended)
    : driver_(driver),
      parts_(parts),
      stream_(stream),
      ended_(std::move(ended)),
      events_(driver, CU_EVENT_DISABLE_TIMING) {}

Result<std::unique_ptr<Mover>> Mover::Create(const char* name, const Driver* driver, Parts* parts,
                                             CUcontext context, Ended ended) {
  CUstream stream = nullptr;
  const CUresult result = driver->stream_create(&stream, CU_STREAM_NON_BLOCKING);
  if (result != CUDA_SUCCESS) return DriverError("cuStreamCreate", result);
  std::unique_ptr<Mover> mover(new Mover(driver, parts, stream, std::move(ended)));
  mover->thread_ = OwnThread(name, driver, context, [raw = mover.get()] { raw->Run(); });
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

Status Mover::Begin(const Move& move) {
  const std::lock_guard lock(mutex_);
  CUevent copied = nullptr;
  if (move.copies) {
    const CUresult result =
        driver_->copy_async(move.to->copy, move.from->copy, move.to->size.count(), stream_);
    if (result != CUDA_SUCCESS) return DriverError("cuMemcpyAsync", result);
    copied = events_.Record(stream_);
    if (copied == nullptr) return DriverError("cuEventRecord", CUDA_ERROR_UNKNOWN);
  }
  moves_.push_back({move, copied});
  wake_.notify_one();
  return core::Ok();
}

std::deque<Mover::UnderWay>::iterator Mover::NextCopied(bool* succeeded) {
  *succeeded = true;
  const auto uncopied = std::find_if(moves_.begin(), moves_.end(),
                                     [](const UnderWay& each) { return !each.move.copies; });
  if (uncopied != moves_.end() || moves_.empty()) return uncopied;
  const CUresult result = driver_->event_query(moves_.front().copied);
  if (result == CUDA_ERROR_NOT_READY) return moves_.end();
  *succeeded = result == CUDA_SUCCESS;
  return moves_.begin();
}

void Mover::Run() {
  std::unique_lock lock(mutex_);
  while (!stopping_ || !moves_.empty()) {
    bool succeeded = true;
    const auto next = NextCopied(&succeeded);
    if (next == moves_.end()) {
      if (moves_.empty()) {
        wake_.wait(lock);
      } else {
        wake_.wait_for(lock, kPoll);
      }
      continue;
    }
    const auto [move, copied] = *next;
    moves_.erase(next);
    lock.unlock();
    if (succeeded) {
      const Parts::Replaced replaced = parts_->Replace(move.at, move.from, move.to);
      ended_(move, replaced.there, replaced.status);
    } else {
      parts_->Give(move.to);
      ended_(move, move.from, DriverError("a copy", CUDA_ERROR_UNKNOWN));
    }
    lock.lock();
    if (copied != nullptr) events_.Give(copied);
  }
}

}  // namespace ravenstore::elastic
