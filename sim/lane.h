// One direction of the link: chunk by chunk, demands first and those of each client in turn, as the
// daemon's TransferLane.
#pragma once

#include <algorithm>
#include <deque>
#include <optional>

#include "core/round_robin_queue.h"
#include "core/types.h"
#include "sim/hardware.h"

namespace ravenstore::sim {

class Lane {
 public:
  enum class Kind : uint8_t { kIn, kOut, kClean };
  struct Job {
    Kind kind;
    core::TensorId tensor;
    uint32_t row;  // of the executor
    core::Bytes left;
    uint64_t use = 0;         // the row's count of uses when it began
    uint32_t writes = 0;      // and of writes
    core::ClientId behalf{};  // of a demand: the client that waits for it
  };

  Lane(double bytes_per_second, const Hardware& hardware)
      : rate_(bytes_per_second), duplex_(hardware.duplex), per_copy_(hardware.per_copy) {}

  void Submit(const Job& job, bool demand) {
    if (demand) {
      demands_.Push(OwnerOf(job.behalf), job);
    } else {
      background_.push_back(job);
    }
  }
  // Moves the tensor's job among the demands, as far as it is not in flight.
  void Promote(core::TensorId tensor, core::ClientId behalf) {
    for (auto job = background_.begin(); job != background_.end(); ++job) {
      if (job->tensor != tensor) continue;
      job->behalf = behalf;
      demands_.Push(OwnerOf(behalf), *job);
      background_.erase(job);
      return;
    }
  }
  bool busy() const { return busy_; }

  // Begins the next chunk, if there is one and the lane is idle: how long it takes.
  std::optional<core::Duration> Begin(bool other_busy) {
    Enqueue();
    if (busy_ || flight_.empty()) return std::nullopt;
    busy_ = true;
    const core::Bytes chunk = flight_.front().bytes;
    bytes_ += chunk;
    const double seconds =
        static_cast<double>(chunk.count()) / (rate_ * (other_busy ? duplex_ : 1.0));
    return per_copy_ + core::FromSeconds(seconds);
  }
  // The chunk is done: the job, if that was its last.
  std::optional<Job> End() {
    const Chunk chunk = flight_.front();
    flight_.pop_front();
    flight_bytes_ -= chunk.bytes;
    busy_ = false;
    if (chunk.job.left == core::Bytes{0}) return chunk.job;
    return std::nullopt;
  }
  // Of the chunk under way, with what is left after it. REQUIRES: busy().
  const Job& current() const { return flight_.front().job; }
  core::Bytes bytes() const { return bytes_; }

 private:
  static constexpr core::Bytes kChunk = core::MiB(16);
  static constexpr core::Bytes kInFlight = core::MiB(32);
  static constexpr core::Bytes kBackgroundChunk = core::MiB(8);
  static constexpr core::Bytes kBackgroundInFlight = core::MiB(16);
  static constexpr size_t kCopiesInFlight = 64;
  struct Chunk {
    Job job;  // with what is left after it
    core::Bytes bytes;
  };

  // Each client is a user of its own.
  static core::TurnOwner OwnerOf(core::ClientId client) {
    return {core::TenantId{core::ToInt(client)}, client};
  }

  // What is in flight goes over the link in order: a demand waits for it.
  void Enqueue() {
    while (!demands_.empty() || !background_.empty()) {
      const bool demand = !demands_.empty();
      Job& job = demand ? demands_.Front() : background_.front();
      const core::Bytes chunk = std::min(job.left, demand ? kChunk : kBackgroundChunk);
      if (flight_.size() >= kCopiesInFlight) return;
      if (!flight_.empty() && flight_bytes_ + chunk > (demand ? kInFlight : kBackgroundInFlight))
        return;
      job.left -= chunk;
      flight_.push_back({job, chunk});
      flight_bytes_ += chunk;
      const bool whole = job.left == core::Bytes{0};
      if (demand) {
        demands_.Advance(chunk, whole);
      } else if (whole) {
        background_.pop_front();
      }
    }
  }

  double rate_;
  double duplex_;
  core::Duration per_copy_;
  core::RoundRobinQueue<Job> demands_;
  std::deque<Job> background_;
  std::deque<Chunk> flight_;
  core::Bytes flight_bytes_;
  bool busy_ = false;
  core::Bytes bytes_;
};

}  // namespace ravenstore::sim
