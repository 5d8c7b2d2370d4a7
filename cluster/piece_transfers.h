// Reads and writes of the pieces that a home holds, each attempted until it is done.
//
// A write goes to all copies and waits while one of them cannot be written. A read goes to one copy
// at a time, and is verified by the checksums; where that fails, other copies are read.
//
// Threads: one, the transport's. Owns: nothing of the callers'; buffers are used until `done`.
// `done` is never called from within Write or Read. Units: bytes. Errors: home.h's. Cost:
// O(operations of the piece) for a call, O(operations) for Advance, Next and Wake.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <vector>

#include "cluster/granule_sums.h"
#include "cluster/held_piece.h"
#include "cluster/ids.h"
#include "core/result.h"
#include "core/types.h"
#include "transport/transport.h"

namespace ravenstore::cluster {

// Returns true if `bytes` are the bytes of these granules, one after the other.
bool Matches(std::span<const std::byte> bytes, std::span<const GranuleSum> sums);

class PieceTransfers {
 public:
  using DoneCallback = std::function<void(const core::Status&)>;
  // Notified of copies that cannot be used. The piece may be lost within a call.
  class Listener {
   public:
    virtual ~Listener() = default;
    // The lender does not hold that slot any more, or another copy has the right bytes.
    virtual void OnCopyUnusable(PieceId piece, SlotRef slot, const core::Error& why) = 0;
    virtual void OnCopyCorrupt(PieceId piece, SlotRef slot) = 0;
  };

  // `copies`: that a piece must have to be written. All outlive this.
  PieceTransfers(Sizes sizes, uint32_t copies, HeldPieces* pieces, Listener* listener);
  void Attach(transport::Transport* transport) { transport_ = transport; }

  void Write(core::Bytes offset, std::span<const std::byte> bytes, core::Tick deadline,
             DoneCallback done);
  void Read(core::Bytes offset, std::span<std::byte> bytes, core::Tick deadline, DoneCallback done);

  // A write's calls are under way.
  bool IsWriting(const HeldPiece& piece) const;
  // Ends the piece's writes, or all that is under way in it, once their calls have ended.
  void StopWrites(const HeldPiece& piece, const core::Error& why);
  void Stop(const HeldPiece& piece, const core::Error& why);
  // Calls `done` of those in the piece that have no calls under way.
  void FinishIdle(const HeldPiece& piece, const core::Error& why);
  // Calls `done` of all.
  void Close(const core::Error& why);

  // Tries again immediately, as another loan can be used.
  void Wake();
  // Does what is due.
  void Advance();
  // When there is something, on the transport's clock.
  core::Tick Next() const;

 private:
  // A read or write. It is attempted until it is done, at most kAttemptsMax times.
  struct Operation {
    PieceId piece{};
    bool writes = false;
    size_t offset = 0;  // in its piece
    std::span<const std::byte> from = {};
    std::span<std::byte> to = {};
    core::Tick deadline{};
    DoneCallback done;
    std::vector<GranuleSum> sums = {};
    uint32_t attempts = 0;
    core::Tick attempt_at = core::kNever;  // kNever: under way, or waits for a lender
    uint32_t under_way = 0;                // calls
    std::set<SlotRef> tried = {};
    std::optional<core::Error> failed = {};  // this attempt
    std::optional<core::Error> ends = {};    // when nothing is under way any more

    size_t size() const { return writes ? from.size() : to.size(); }
    // A call began, or could not begin.
    void Started(const core::Status& status);
  };

  core::Tick Now() const { return transport_->Now(); }
  core::Result<HeldPiece*> Check(const Operation& operation);
  void Begin(core::Bytes offset, Operation operation);
  void Attempt(uint64_t id);
  void AttemptWrite(uint64_t id, Operation* operation, const HeldPiece& piece);
  void AttemptRead(uint64_t id, Operation* operation, const HeldPiece& piece);
  void OnWritten(uint64_t id, SlotRef slot, const core::Status& status);
  void OnRead(uint64_t id, SlotRef slot, const core::Status& status);
  // A call of an attempt ended. Returns the operation, if that was its last call.
  Operation* CallEnded(uint64_t id, SlotRef slot, const core::Status& status);
  void Retry(Operation* operation);
  void Commit(const Operation& operation);
  void Finish(uint64_t id, const core::Status& status);
  void Step(uint64_t id);

  const Sizes sizes_;
  const uint32_t copies_;
  HeldPieces& pieces_;
  Listener* const listener_;
  transport::Transport* transport_ = nullptr;
  uint64_t last_operation_ = 0;
  std::map<uint64_t, Operation> operations_;
};

}  // namespace ravenstore::cluster
