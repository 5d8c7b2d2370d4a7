#include "daemon/transfers.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <utility>

#include "core/check.h"
#include "ipc/clock.h"

namespace ravenstore::daemon {

using core::Bytes;

TransferLane::TransferLane(std::string name, OpenChannel open, Options options)
    : name_(std::move(name)), open_(std::move(open)), queue_(options) {}

void TransferLane::PaceBy(core::Pacer* pacer) {
  RAVEN_CHECK(jobs_.empty());
  pacer_ = pacer;
  sender_ = pacer->Join();
}

core::Status TransferLane::Open() {
  RAVEN_ASSIGN_OR_RETURN(channel_, open_());
  return core::Ok();
}

void TransferLane::Submit(std::vector<Chunk> chunks, core::TurnOwner owner, Urgency urgency,
                          Done done) {
  RAVEN_CHECK(!chunks.empty());
  const JobId id = next_job_++;
  jobs_[id] = {.chunks = std::move(chunks), .ended = std::move(done), .submitted = ipc::Now()};
  queue_.Submit(id, owner, urgency);
}

bool TransferLane::Pump(core::Tick now) {
  if (jobs_.empty()) return false;
  const bool collected = Collect();
  const bool enqueued = Enqueue(now);
  return collected || enqueued;
}

core::Tick TransferLane::NextPump(core::Tick poll) const {
  if (idle()) return core::kNever;
  return held_ && queue_.pieces() == 0 ? pacer_->NextTurn() : poll;
}

bool TransferLane::Collect() {
  if (channel_) channel_->Poll();
  const uint64_t reached = word_.load(std::memory_order_acquire);
  bool any = false;
  while (queue_.pieces() > 0 && last_signal_ - queue_.pieces() < reached) {
    const core::CopyQueue::Piece done = queue_.End();
    any = true;
    Job& job = jobs_.at(done.job);
    const uint64_t signal = last_signal_ - queue_.pieces();
    if (core::Status copied = channel_->OutcomeOf(signal); job.outcome.ok())
      job.outcome = std::move(copied);
    if (--job.pending == 0 && job.next == job.chunks.size())
      Finish(done.job, core::Status(job.outcome));
  }
  if (!any && queue_.pieces() > 0 && channel_) {
    if (auto health = channel_->Health(); !health.ok()) {
      FailAll(health.error());
      return true;
    }
  }
  return any;
}

bool TransferLane::Enqueue(core::Tick now) {
  bool any = false;
  if (!channel_ && queue_.Next()) {
    if (auto opened = Open(); !opened.ok()) {
      FailAll(opened.error());
      return true;
    }
  }
  while (const auto id = queue_.Next()) {
    Job& job = jobs_.at(*id);
    const Chunk& chunk = job.chunks[job.next];
    if (!queue_.MayBegin(chunk.bytes)) break;
    held_ = pacer_ != nullptr && !pacer_->MaySend(sender_, chunk.bytes, now);
    if (held_) break;
    // What failed in part need not be copied further.
    const bool last = job.next + 1 == job.chunks.size() || !job.outcome.ok();
    RAVEN_CHECK(queue_.Begin(chunk.bytes, last));
    any = true;
    if (job.next++ == 0) job.begun = ipc::Now();
    if (last) job.next = job.chunks.size();
    ++job.pending;
    core::Status enqueued = channel_->Copy(chunk.to, chunk.from, chunk.bytes);
    ++last_signal_;
    if (enqueued.ok()) enqueued = channel_->Signal(&word_, last_signal_);
    if (!enqueued.ok()) {
      FailAll(enqueued.error());
      return true;
    }
  }
  return any;
}

void TransferLane::Finish(JobId id, const core::Status& outcome) {
  const Job job = std::move(jobs_.at(id));
  jobs_.erase(id);
  if (spdlog::should_log(spdlog::level::trace)) {
    auto us = [](core::Duration time) { return time.count() / 1000; };
    spdlog::trace("{} job {}: {} chunk(s), queued {} us, copied in {} us{}", name_, id,
                  job.chunks.size(), us(job.begun - job.submitted), us(ipc::Now() - job.begun),
                  outcome.ok() ? "" : ", failed");
  }
  job.ended(outcome);
}

void TransferLane::Abort(const core::Error& why) {
  if (!jobs_.empty()) FailAll(why);
}

void TransferLane::FailAll(const core::Error& why) {
  spdlog::error("{}: copies failed: {}", name_, core::Describe(why));
  // Waits for what still runs, so that no copy writes after its job is reported.
  channel_.reset();
  word_.store(last_signal_, std::memory_order_release);
  // Another job may be submitted as these are reported.
  queue_.Clear();
  if (std::exchange(held_, false)) pacer_->Leave(sender_);
  std::vector<JobId> failed;
  for (const auto& [id, job] : jobs_) failed.push_back(id);
  std::sort(failed.begin(), failed.end());
  for (JobId id : failed) Finish(id, why);
}

void SlabMap::Add(Bytes offset, Bytes bytes) {
  const std::pair chunk{offset, bytes};
  slabs_.insert(std::lower_bound(slabs_.begin(), slabs_.end(), chunk), chunk);
}

void SlabMap::Remove(Bytes offset) {
  std::erase_if(slabs_, [offset](const auto& chunk) { return chunk.first == offset; });
}

Bytes SlabMap::Contiguous(Bytes offset) const {
  auto after = std::upper_bound(slabs_.begin(), slabs_.end(), offset,
                                [](Bytes value, const auto& chunk) { return value < chunk.first; });
  RAVEN_CHECK(after != slabs_.begin());
  const auto& [begin, bytes] = *std::prev(after);
  RAVEN_CHECK(offset < begin + bytes);
  return begin + bytes - offset;
}

std::vector<TransferLane::Chunk> Cut(device::Target to_base, Bytes to, const SlabMap& to_map,
                                     device::Source from_base, Bytes from, const SlabMap& from_map,
                                     Bytes bytes, Bytes chunk) {
  std::vector<TransferLane::Chunk> chunks;
  while (bytes > Bytes{0}) {
    const Bytes n = std::min({bytes, chunk, to_map.Contiguous(to), from_map.Contiguous(from)});
    chunks.push_back({to_base + to, from_base + from, n});
    to += n;
    from += n;
    bytes -= n;
  }
  return chunks;
}

}  // namespace ravenstore::daemon
