// A pool where copies of clients' pages are, and the links between it and the devices.
//
// Its memory comes chunk by chunk (daemon/pool_memory.h): the owner makes and releases chunks, and
// says when that is done.
//
// Some pools are covered: all that is in them has room in the host pool as well, so that it can
// move there at any time.
//
// Owns: the free memory, the links' copies. Units: bytes. Threads: the planner loop.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/pacer.h"
#include "core/result.h"
#include "core/types.h"
#include "daemon/away_memory.h"
#include "daemon/copy_pieces.h"
#include "daemon/pool_memory.h"
#include "daemon/transfers.h"
#include "device/device.h"

namespace ravenstore::daemon {

class PagePool {
 public:
  struct Options {
    std::string name;
    PoolMemory::Options memory;
    TransferLane::Options transfers;
  };
  using Part = CopyPieces::Part;
  using Piece = CopyPieces::Piece;
  // Changes of the pool's memory; each ends with a call of the same name below.
  struct Hooks {
    std::function<void(const Part&)> grow;
    std::function<void(const Part&)> release;
  };
  // Bytes of a page and where they are in the pool.
  struct Range {
    core::Bytes in_page;
    core::Bytes in_pool;
    core::Bytes bytes;
  };
  // Bytes that go from this pool to the host's.
  struct Way {
    core::Bytes from;
    core::Bytes to;
    core::Bytes bytes;
  };
  using Done = TransferLane::Done;
  using Then = std::function<void(std::optional<Piece>)>;

  // It may have up to `limit` of its memory. `memory` outlives this.
  PagePool(Options options, AwayMemory* memory, Hooks hooks, core::Bytes limit);

  const std::string& name() const { return options_.name; }
  // The link between the pool and a device, whose copies count to the pacer's rate if there is one.
  // May take long. Errors: those of the device.
  core::Status AddDevice(core::DeviceId device, const std::string& name,
                         core::Pacer* pacer = nullptr);
  // Copies may move on to the host pool, which outlives this. If this is covered, the rest of the
  // host pool stays at least `exchange`. May take long. Errors: those of the device. REQUIRES:
  // AwayMemory::OpenToHost can be called.
  core::Status AddHost(PagePool* host, bool covered, core::Bytes exchange = {});

  // ---- Memory.
  const PoolMemory& memory() const { return pieces_; }
  // Bytes that a copy may have, with the memory that may still come.
  core::Bytes Room() const;
  // Of all: those that copies in covered pools may need here.
  core::Bytes reserved() const { return reserved_; }
  // Calls `then` with a piece of that many bytes as soon as there is one; with nullopt in a Poll()
  // if there is not enough memory and none comes.
  void Allocate(core::Bytes bytes, Then then);
  // The same for a copy that moves on: also where only the room of covered pools is left. All parts
  // but the last have a multiple of `unit` bytes.
  void AllocateReserved(core::Bytes bytes, core::Bytes unit, Then then);
  // The host pool has room for a copy of this pool that moves on.
  bool MayMoveOn(core::Bytes bytes) const {
    return host_ != nullptr && (covered_ || bytes <= host_->Room());
  }
  void Free(const Piece& piece);
  void Hold(const Piece& piece) { pieces_.Hold(piece); }
  void Unhold(const Piece& piece);
  // What copies that wait miss, and what no memory will come for.
  core::Bytes Lack() const;

  // ---- Its chunks, as in PoolMemory.
  void SetLimit(core::Bytes most);
  void SetTarget(core::Bytes most);
  void Grown(core::Tick now, bool ok);
  void Released(core::Bytes offset, bool ok);
  void Recall(core::Bytes offset);
  void Keep(core::Bytes offset);
  // The owner of this forgets the copies there.
  void Lose(core::Bytes offset);
  // All that is there is lost, and nothing comes there any more.
  void Fail();
  // Copies under way fail. The owner has forgotten them.
  void Abort(const core::Error& why);

  // ---- Copies between `page`, where a page of the device begins, and the pool.
  // `done` is called from Poll(), when it has ended.
  void Copy(device::Direction direction, core::DeviceId device, std::byte* page,
            const std::vector<Range>& ranges, core::TurnOwner owner, TransferLane::Urgency urgency,
            Done done);
  // The same, to the host pool.
  void MoveOn(const std::vector<Way>& ways, core::TurnOwner owner, Done done);
  // Of copies that have ended: the bytes are the same at both ends. True where the CPU does not
  // reach the pool. REQUIRES: it reaches the page.
  bool HasSame(const std::byte* page, const std::vector<Range>& ranges) const;
  bool HasSame(const std::vector<Way>& ways) const;
  // The links end, and with them the copies under way. Nothing else may be called after.
  void EndCopies();
  // True when anything has ended or begun.
  bool Poll(core::Tick now);
  bool IsCopying() const;
  core::Tick NextPump(core::Tick poll) const;
  core::Tick NextWake() const { return pieces_.NextWake(); }

 private:
  using Lane = std::unique_ptr<TransferLane>;
  struct Link {
    Lane in;
    Lane out;
  };
  struct Waiting {
    core::Bytes bytes;
    core::Bytes unit;
    bool reserved = false;
    Then then{};
  };

  core::Status OpenLane(const std::string& name, TransferLane::OpenChannel open, core::Pacer* pacer,
                        Lane* lane);
  void Submit(TransferLane* lane, std::vector<TransferLane::Chunk> chunks, core::TurnOwner owner,
              TransferLane::Urgency urgency, Done done);
  template <typename Visit>
  void ForEachLane(Visit visit) const;
  core::Bytes ChunkOf(TransferLane::Urgency urgency) const;
  bool Fits(const Waiting& waiting) const;
  void ServeWaiting();
  // Begins to make the next chunk if less is free than should be, and to release empty ones.
  void ChangeMemory();

  const Options options_;
  AwayMemory* const memory_;
  const Hooks hooks_;
  PoolMemory pieces_;
  PagePool* host_ = nullptr;  // where copies may move on to
  bool covered_ = false;
  core::Bytes exchange_;
  core::Bytes reserved_;
  std::deque<Waiting> waiting_;
  std::map<core::DeviceId, Link> links_;
  Lane to_host_;
  core::Tick now_{};
};

}  // namespace ravenstore::daemon
