// One direction of the link: chunk by chunk, demands first, as the daemon's TransferLane.
#pragma once

#include <deque>
#include <optional>

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
    uint64_t use = 0;     // the row's count of uses when it began
    uint32_t writes = 0;  // and of writes
    bool held = false;
  };

  Lane(double bytes_per_second, const Hardware& hardware)
      : rate_(bytes_per_second), duplex_(hardware.duplex), per_copy_(hardware.per_copy) {}

  void Submit(const Job& job, bool demand) { (demand ? demands_ : background_).push_back(job); }
  // Moves the tensor's job, if it still waits, among the demands.
  void Promote(core::TensorId tensor) {
    for (auto job = background_.begin(); job != background_.end(); ++job) {
      if (job->tensor != tensor) continue;
      demands_.push_back(*job);
      background_.erase(job);
      return;
    }
    if (current_ && current_->tensor == tensor) current_demand_ = true;
  }
  bool busy() const { return current_.has_value(); }

  // Begins the next chunk, if there is one and the lane is idle: how long it takes.
  std::optional<core::Duration> Begin(bool other_busy) {
    if (current_ || (demands_.empty() && background_.empty())) return std::nullopt;
    current_demand_ = !demands_.empty();
    auto& queue = current_demand_ ? demands_ : background_;
    current_ = queue.front();
    queue.pop_front();
    chunk_ = std::min(current_->left, kChunk);
    bytes_ += chunk_;
    const double seconds =
        static_cast<double>(chunk_.count()) / (rate_ * (other_busy ? duplex_ : 1.0));
    return per_copy_ +
           std::chrono::duration_cast<core::Duration>(std::chrono::duration<double>(seconds));
  }
  // The chunk is done: the job, if that was its last.
  std::optional<Job> End() {
    Job job = *current_;
    current_.reset();
    job.left -= chunk_;
    if (job.left == core::Bytes{0}) return job;
    (current_demand_ ? demands_ : background_).push_front(job);
    return std::nullopt;
  }
  core::TensorId current() const { return current_->tensor; }
  uint32_t current_row() const { return current_->row; }
  core::Bytes bytes() const { return bytes_; }

 private:
  static constexpr core::Bytes kChunk = core::MiB(16);

  double rate_;
  double duplex_;
  core::Duration per_copy_;
  std::deque<Job> demands_;
  std::deque<Job> background_;
  std::optional<Job> current_;
  bool current_demand_ = false;
  core::Bytes chunk_;
  core::Bytes bytes_;
};

}  // namespace ravenstore::sim
