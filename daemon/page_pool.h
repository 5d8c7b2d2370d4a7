// A pool where copies of clients' pages are, and the links between it and the devices.
//
// Its memory comes chunk by chunk, ahead of need, until the pool has its capacity.
//
// Owns: the free memory, the links' copies. Units: bytes. Threads: the planner loop; `mailbox` is
// the loop's.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "core/result.h"
#include "core/types.h"
#include "daemon/away_memory.h"
#include "daemon/copy_pieces.h"
#include "daemon/mailbox.h"
#include "daemon/threads.h"
#include "daemon/transfers.h"
#include "device/device.h"

namespace ravenstore::daemon {

class PagePool {
 public:
  struct Options {
    std::string name;
    core::Bytes capacity;
    core::Bytes step;   // of a chunk; 0: all of the memory is there
    core::Bytes ahead;  // that stays free
    TransferLane::Options transfers;
  };
  using Piece = CopyPieces::Piece;
  // Bytes of a page and where they are in the pool.
  struct Range {
    core::Bytes in_page;
    core::Bytes in_pool;
    core::Bytes bytes;
  };
  using Done = std::function<void(const core::Status&)>;

  // All that is pointed to outlives this, and no worker runs any more when it ends.
  PagePool(Options options, AwayMemory* memory, WorkerPool* workers, Mailbox* mailbox);

  // The link between the pool and a device. May take long. Errors: those of the device.
  core::Status AddDevice(core::DeviceId device, const std::string& name);

  // ---- Memory.
  // Calls `then` with a piece of that many bytes, at the latest when the pool has grown; with
  // nullopt if it cannot.
  void Allocate(core::Bytes bytes, std::function<void(std::optional<Piece>)> then);
  void Free(const Piece& piece) { pieces_.Free(piece); }
  core::Bytes used() const { return made_ - pieces_.free(); }
  core::Bytes made() const { return made_; }

  // ---- Copies between `page`, where a page of the device begins, and the pool.
  // `done` is called from Poll(), when it has ended.
  void Copy(device::Direction direction, core::DeviceId device, std::byte* page,
            const std::vector<Range>& ranges, core::TurnOwner owner, TransferLane::Urgency urgency,
            Done done);
  // True when anything has ended or begun.
  bool Poll(core::Tick now);
  bool IsCopying() const;
  core::Tick NextPump(core::Tick poll) const;

 private:
  struct Link {
    std::unique_ptr<TransferLane> in;
    std::unique_ptr<TransferLane> out;
    std::unordered_map<JobId, Done> in_jobs;
    std::unordered_map<JobId, Done> out_jobs;
  };
  struct Waiting {
    core::Bytes bytes;
    std::function<void(std::optional<Piece>)> then;
  };

  core::Result<std::unique_ptr<TransferLane>> MakeLane(core::DeviceId device,
                                                       const std::string& name,
                                                       device::Direction direction,
                                                       std::unordered_map<JobId, Done>* jobs);
  core::Bytes ChunkOf(TransferLane::Urgency urgency) const;
  // Begins to make the next chunk if less is free than should be.
  void Grow();
  void Grown(core::Bytes bytes, bool ok);
  void ServeWaiting();

  const Options options_;
  AwayMemory* const memory_;
  WorkerPool* const workers_;
  Mailbox* const mailbox_;
  CopyPieces pieces_;
  core::Bytes made_;
  core::Bytes capacity_;  // falls where no memory is to be had
  bool growing_ = false;
  std::deque<Waiting> waiting_;
  std::deque<device::Word> words_;  // of the lanes' channels, each its own
  std::map<core::DeviceId, Link> links_;
};

}  // namespace ravenstore::daemon
