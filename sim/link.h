// One direction of the simulated link: core::CopyQueue says what is copied next, as it does to the
// daemon, and this how long that takes. The owner of a job is its client, each a user of its own.
#pragma once

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include "core/copy_queue.h"
#include "core/types.h"

namespace ravenstore::sim {

class Link {
 public:
  using Urgency = core::CopyQueue::Urgency;
  struct Job {
    core::TensorId tensor;
    uint32_t row;  // of the executor
    core::Bytes left;
    core::ClientId owner{};  // of a demand who waits for it, else whose it is
  };

  // `duplex` is the share of its rate that it keeps while the other direction is busy.
  Link(double bytes_per_second, double duplex, core::Duration per_copy)
      : rate_(bytes_per_second),
        duplex_(duplex),
        per_copy_(per_copy),
        queue_(core::CopyQueue::Options{}) {}

  void Submit(const Job& job, Urgency urgency) {
    queue_.Submit(next_, OwnerOf(job.owner), urgency);
    jobs_.emplace(next_++, UnderWay{job, job.left});
  }
  // Moves the parts of the tensor's job that are not in flight among the demands.
  void Promote(core::TensorId tensor, core::ClientId behalf) {
    for (const auto& [number, under_way] : jobs_) {
      if (under_way.job.tensor == tensor) queue_.Promote(number, OwnerOf(behalf));
    }
  }
  bool busy() const { return busy_; }
  bool HasWork() const { return !jobs_.empty(); }

  // Begins the next piece, if there is one and the link is idle: how long it takes.
  std::optional<core::Duration> Begin(bool other_busy) {
    Enqueue();
    if (busy_ || queue_.pieces() == 0) return std::nullopt;
    busy_ = true;
    const core::Bytes piece = queue_.oldest().bytes;
    bytes_ += piece;
    UnderWay& current = jobs_.at(queue_.oldest().job);
    current.job.left -= piece;
    const double seconds =
        static_cast<double>(piece.count()) / (rate_ * (other_busy ? duplex_ : 1.0));
    return per_copy_ + core::FromSeconds(seconds);
  }
  // The piece is done: of which job, with what is left of that, and how much it was.
  std::pair<Job, core::Bytes> End() {
    const core::CopyQueue::Piece piece = queue_.End();
    busy_ = false;
    const auto found = jobs_.find(piece.job);
    const Job job = found->second.job;
    if (job.left == core::Bytes{0}) jobs_.erase(found);
    return {job, piece.bytes};
  }
  core::Bytes bytes() const { return bytes_; }

 private:
  struct UnderWay {
    Job job;             // with what is left after the piece that is copied, or was last
    core::Bytes queued;  // not in flight yet
  };

  static core::TurnOwner OwnerOf(core::ClientId client) {
    return {core::TenantId{core::ToInt(client)}, client};
  }

  void Enqueue() {
    while (const auto next = queue_.Next()) {
      core::Bytes& queued = jobs_.at(*next).queued;
      const core::Bytes piece = std::min(queued, queue_.chunk());
      if (!queue_.Begin(piece, piece == queued)) return;
      queued -= piece;
    }
  }

  double rate_;
  double duplex_;
  core::Duration per_copy_;
  core::CopyQueue queue_;
  std::map<core::CopyQueue::Job, UnderWay> jobs_;
  core::CopyQueue::Job next_ = 0;
  bool busy_ = false;
  core::Bytes bytes_;
};

}  // namespace ravenstore::sim
