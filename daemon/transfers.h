// The copies between one device and one other pool in one direction, in the order of a
// core::CopyQueue. A job is cut into chunks. Completion is a word that the channel writes and the
// planner loop reads; nothing here blocks.
//
// Owns: the channel and the queued jobs. Threads: the planner loop.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "core/copy_queue.h"
#include "core/pacer.h"
#include "core/result.h"
#include "core/types.h"
#include "device/device.h"
#include "proto/layout.h"

namespace ravenstore::daemon {

class TransferLane {
 public:
  using Options = core::CopyQueue::Options;
  using Urgency = core::CopyQueue::Urgency;
  struct Chunk {
    device::Target to;
    device::Source from;
    core::Bytes bytes;
  };
  // Called by Pump when a job is done, in order of completion. An error is the channel's, or of one
  // of the job's copies: then the target's bytes are undefined.
  using Done = std::function<void(const core::Status&)>;
  // Opens a channel for the lane's copies; may take long.
  using OpenChannel = std::function<core::Result<std::unique_ptr<device::Channel>>()>;

  // The log calls it `name`.
  TransferLane(std::string name, OpenChannel open, Options options);

  // Its copies count to the pacer's rate, and wait for their turn of it. It outlives the lane.
  // REQUIRES: nothing was submitted yet.
  void PaceBy(core::Pacer* pacer);

  // Opens the channel, which may take long. Without it the first job does; so it is also after a
  // failure.
  core::Status Open();

  // Queues a job: one that `owner` waits for, or one for it in the background. REQUIRES: there is a
  // chunk.
  void Submit(std::vector<Chunk> chunks, core::TurnOwner owner, Urgency urgency, Done done);
  // Looks for completions, calls Done, and enqueues what fits. True when anything happened.
  bool Pump(core::Tick now);
  // When it is to be pumped next: at `poll`; if all that it does is to wait for its turn, then; and
  // kNever without jobs.
  core::Tick NextPump(core::Tick poll) const;
  // Fails every job, as if the channel had failed with `why`.
  void Abort(const core::Error& why);

  bool idle() const { return jobs_.empty(); }
  core::Bytes in_flight() const { return queue_.in_flight(); }

 private:
  using JobId = core::CopyQueue::Job;
  struct Job {
    std::vector<Chunk> chunks;
    size_t next = 0;                    // the first chunk not enqueued
    size_t pending = 0;                 // chunks enqueued and not seen complete
    core::Status outcome = core::Ok();  // of the chunks seen complete
    Done ended{};
    core::Tick submitted{};  // for the trace log
    core::Tick begun{};
  };

  bool Collect();
  bool Enqueue(core::Tick now);
  void Finish(JobId id, const core::Status& outcome);
  void FailAll(const core::Error& why);

  const std::string name_;
  const OpenChannel open_;
  device::Word word_{0};  // chunks that are copied; the channel writes it
  std::unique_ptr<device::Channel> channel_;

  JobId next_job_ = 1;
  std::unordered_map<JobId, Job> jobs_;
  core::CopyQueue queue_;
  core::Pacer* pacer_ = nullptr;
  core::Pacer::Sender sender_{};
  bool held_ = false;         // by the pacer
  uint64_t last_signal_ = 0;  // one for each chunk
};

// The chunks of an arena or of a pool: in each [offset, offset + bytes) one copy reaches all.
class SlabMap {
 public:
  SlabMap() = default;
  // One chunk.
  explicit SlabMap(core::Bytes whole) { Add(core::Bytes{}, whole); }
  void Add(core::Bytes offset, core::Bytes bytes);
  void Remove(core::Bytes offset);
  // Bytes from `offset` to the end of its chunk. REQUIRES: `offset` is in a chunk.
  core::Bytes Contiguous(core::Bytes offset) const;
  // Every chunk as {offset, bytes}.
  const std::vector<std::pair<core::Bytes, core::Bytes>>& all() const { return slabs_; }

 private:
  std::vector<std::pair<core::Bytes, core::Bytes>> slabs_;  // by offset
};

// Cuts [to, to + bytes) <- [from, from + bytes) so that no chunk exceeds `chunk` or straddles a
// slab. Places count from the bases.
std::vector<TransferLane::Chunk> Cut(device::Target to_base, core::Bytes to, const SlabMap& to_map,
                                     device::Source from_base, core::Bytes from,
                                     const SlabMap& from_map, core::Bytes bytes, core::Bytes chunk);

}  // namespace ravenstore::daemon
