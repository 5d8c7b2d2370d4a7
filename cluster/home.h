// What this node keeps in other nodes' memory: pieces of one range of offsets, each backed by a
// slot of a lender, or by one on each of two machines.
//
// The home keeps the checksums (XXH3 of each granule, as it was acknowledged), so that bytes that
// are wrong for whatever reason are never served: a read fails with kCorrupt, or is served by the
// other copy. A granule has none while it is written, nor after a write that failed.
//
// A piece whose slot is recalled, or that lost one of two copies, is copied to a slot of another
// lender. Pieces whose slots are taken first are copied first. Writes to the piece wait during the
// copy. If no node lends, the listener is asked to empty the piece, and the search for lenders goes
// on.
//
// Threads: one, the transport's. Knows no clock but the one it is given.
// Owns: nothing of the callers'. A buffer is the home's from the call until its `done`. `done` is
// called once, and never from within the call that it was passed to. Errors: of a read or write
//   kInvalidArgument  no whole granules, or over the end of a piece
//   kWrongState       it overlaps another that is under way (of which one writes); or it reads
//                     bytes that were not written, or whose write was not acknowledged
//   kNotFound         the piece is not held
//   kLost             the piece was lost, for good
//   kCorrupt          the lender's bytes are not those that were written
//   kUnavailable      the piece is leaving, or was given back (writes); too many attempts failed
//   kTimedOut         the deadline passed
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cluster/held_piece.h"
#include "cluster/ids.h"
#include "cluster/loans.h"
#include "cluster/piece_repairs.h"
#include "cluster/piece_transfers.h"
#include "core/result.h"
#include "core/types.h"

namespace ravenstore::cluster {

class Home final : private Loans::Listener, private PieceRepairs::Listener {
 public:
  using DoneCallback = PieceTransfers::DoneCallback;

  struct Options {
    Loans::Options loans = {};
    Sizes sizes = {};
    uint32_t copies = 1;      // 1, or 2 on different machines
    uint32_t pieces_max = 0;  // that the range of offsets has
    // At most `repair_step` bytes are in flight in one piece's copy to another lender, and at most
    // `repairs_max` pieces are copied at the same time.
    core::Bytes repair_step = core::MiB(4);
    uint32_t repairs_max = 4;
    core::Duration repair_timeout = std::chrono::seconds(30);
  };
  // Called on the transport's thread; may call everything here.
  class Listener {
   public:
    virtual ~Listener() = default;
    // Empty this piece and Shrink it, by `deadline` (on the transport's clock; kNever: as soon as
    // may be, for it has one copy where two are wanted). Writes to it are refused from now on. What
    // is there at the deadline is lost, and OnPieceLost says so.
    virtual void OnPieceRecalled(PieceId piece, core::Tick deadline) = 0;
    // It stays after all, with as many copies as are wanted, and may be written to.
    virtual void OnPieceKept(PieceId piece) = 0;
    // The piece's bytes are gone. It is no longer held, and may be grown again. Called before the
    // calls in flight on it end.
    virtual void OnPieceLost(PieceId piece, const core::Error& why) = 0;
    // `lender` returned other bytes than were written there. Called once per piece.
    virtual void OnPieceCorrupt(PieceId piece, std::string_view lender) = 0;
    // It was copied to another lender, and goes on.
    virtual void OnPieceMoved(PieceId piece, std::string_view lender) = 0;
    // At most `pieces` pieces can be held now, by the offers known so far. Pieces that leave count.
    virtual void OnPiecesMost(uint32_t pieces) = 0;
    virtual void OnLenderJoined(std::string_view lender) = 0;
    virtual void OnLenderRefused(std::string_view lender, const core::Error& why) = 0;
    virtual void OnLenderLost(std::string_view lender, uint32_t slots, const core::Error& why) = 0;
  };
  struct PieceView {
    PieceId piece{};
    std::vector<std::pair<std::string, SlotRef>> copies = {};  // lender and slot
    bool leaving = false;
    bool in_repair = false;
  };

  // `listener` outlives this.
  Home(Options options, Listener* listener);
  ~Home() override;
  void Attach(transport::Transport* transport);
  // This node ends: it returns all that it borrowed, as Shrink does, and borrows no more.
  void End();
  // Whether a lender that can be notified does not know yet of all that was returned.
  bool HasPendingNotices() const { return loans_.HasUnreportedReleases(); }
  // Ends everything, with kUnavailable, and closes its connections. Nothing else is called after
  // it.
  void Close();

  // Who may be asked. Nodes that are not named any more keep their loans until these end.
  void SetPeers(std::map<std::string, Peer> peers) { loans_.SetPeers(std::move(peers)); }

  // Borrows what the piece needs. Its bytes are undefined until they are written. Errors, of
  // `done`: kOutOfMemory (no node lends enough, or only one machine does where two are wanted),
  // kTimedOut, kUnavailable (given back meanwhile). REQUIRES: the piece is neither held nor
  // growing.
  void Grow(PieceId piece, core::Tick deadline, DoneCallback done);
  // Gives it back. What is under way in it ends with kUnavailable, before this returns.
  void Shrink(PieceId piece);

  // `offset` is a multiple of the granule, and the range is within one piece. The last granule may
  // be written in part. It is then read in the same part.
  void Write(core::Bytes offset, std::span<const std::byte> bytes, core::Tick deadline,
             DoneCallback done) {
    transfers_.Write(offset, bytes, deadline, std::move(done));
  }
  void Read(core::Bytes offset, std::span<std::byte> bytes, core::Tick deadline,
            DoneCallback done) {
    transfers_.Read(offset, bytes, deadline, std::move(done));
  }

  // Handles the transport's callbacks. Returns whether this home made the connection.
  bool OnConnected(transport::ConnectionId connection) { return loans_.OnConnected(connection); }
  bool OnLost(transport::ConnectionId connection, const core::Error& why) {
    return loans_.OnLost(connection, why);
  }
  // A lender wants these back.
  core::Status OnRecall(transport::ConnectionId connection, const RecallRequest& request) {
    return loans_.OnRecall(connection, request);
  }

  // Does what is due. After each Poll of the transport.
  void Advance();
  // When there is something, on the transport's clock.
  core::Tick Next() const;

  std::vector<PieceView> Pieces() const;
  // What this home has in memory to know its pieces by: their records, with what loans keep of
  // their slots, and the checksums of their granules.
  struct Footprint {
    core::Bytes records;
    core::Bytes checksums;
  };
  Footprint footprint() const;
  std::vector<Loan::View> Lenders() const { return loans_.Views(); }

 private:
  struct Growth {
    uint64_t number = 0;
    std::vector<PieceCopy> copies = {};
    core::Tick deadline{};
    DoneCallback done;
    bool asks = false;
    std::optional<core::Status> result = {};
  };

  core::Tick Now() const { return transport_->Now(); }
  // The piece is not held any more, and what is under way in it will end with `why`. Returns an
  // empty node if it was not held.
  std::map<PieceId, HeldPiece>::node_type Take(PieceId id, const core::Error& why);
  // Of one that was taken: returns its slots, and ends what is under way in it.
  void ReturnSlots(HeldPiece* piece, const core::Error& why);
  // A piece without a copy is lost.
  void LoseIfEmpty(PieceId id, const core::Error& why);
  void Leave(PieceId id);
  void Wake();

  void StepGrowth(PieceId id);
  Growth* FindGrowth(PieceId id, uint64_t number);
  void ReleaseCopies(Growth& growth);
  void ReportMost();

  // PieceRepairs::Listener.
  void OnCopyUnusable(PieceId id, SlotRef slot, const core::Error& why) override;
  void OnCopyCorrupt(PieceId id, SlotRef slot) override;
  void OnRepaired(PieceId id, std::string_view lender, bool kept) override;
  void OnRepairFailed(PieceId id, bool leaves) override;
  // Loans::Listener.
  void OnJoined(Loan* loan) override { listener_->OnLenderJoined(loan->lender()); }
  void OnRefused(Loan* loan, const core::Error& why) override {
    listener_->OnLenderRefused(loan->lender(), why);
  }
  void OnUsable(Loan*) override;
  void OnOffers() override { offers_changed_ = true; }
  void OnRecalled(Loan* loan, SlotRef slot, core::Tick deadline) override;
  void OnSlotsLost(Loan* loan, const std::vector<SlotRef>& slots, const core::Error& why) override;

  const Options options_;
  Listener* const listener_;
  Loans loans_;
  transport::Transport* transport_ = nullptr;
  HeldPieces pieces_;
  PieceTransfers transfers_;
  PieceRepairs repairs_;
  uint64_t last_growth_ = 0;
  std::map<PieceId, Growth> growths_;
  std::vector<Growth> cancelled_growths_;  // were growing; `done` is not called yet
  bool offers_changed_ = false;
  uint32_t most_ = 0;  // as last reported
};

}  // namespace ravenstore::cluster
