// How a piece is copied to another lender: where its slot is recalled, or one of two copies was
// lost. Pieces whose slots are taken first are copied first.
//
// Threads: one, the transport's. Owns: a buffer for each repair. Units: granules, and bytes for
// `step`. Errors: a failed repair is reported to the listener and tried again. Cost: O(unsettled
// pieces) for Advance and Next, O(pieces) for Wake.
#pragma once

#include <cstdint>
#include <string_view>

#include "cluster/held_piece.h"
#include "cluster/ids.h"
#include "cluster/loans.h"
#include "cluster/piece_transfers.h"
#include "core/result.h"
#include "core/types.h"
#include "transport/transport.h"

namespace ravenstore::cluster {

class PieceRepairs {
 public:
  struct Options {
    core::Bytes granule;
    uint32_t copies = 1;  // that a piece is to have
    core::Bytes step;     // of one piece, at most, under way at a time
    uint32_t most = 0;    // pieces that are copied at the same time
    core::Duration timeout{};
  };
  // The piece may be lost within a call.
  class Listener : public PieceTransfers::Listener {
   public:
    // The piece was copied to `lender`. `kept`: it was leaving, and has enough copies now.
    virtual void OnRepaired(PieceId piece, std::string_view lender, bool kept) = 0;
    // `leaves`: no lender was found, or too many repairs failed, and it is to be emptied.
    virtual void OnRepairFailed(PieceId piece, bool leaves) = 0;
  };

  // All outlive this.
  PieceRepairs(const Options& options, HeldPieces* pieces, Loans* loans,
               const PieceTransfers& transfers, Listener* listener)
      : options_(options),
        pieces_(*pieces),
        loans_(*loans),
        transfers_(transfers),
        listener_(listener) {}
  void Attach(transport::Transport* transport) { transport_ = transport; }

  // The repair of that piece ends, if there is one, and its target is returned to the lender.
  void Cancel(HeldPiece* piece);
  // The repair ends and will be tried again. REQUIRES: there is one.
  void Fail(PieceId id);
  // Tries again immediately, as another loan can be used.
  void Wake();
  // Does what is due.
  void Advance();
  // When there is something, on the transport's clock.
  core::Tick Next() const;

 private:
  core::Tick Now() const { return transport_->Now(); }
  bool IsNeeded(const HeldPiece& piece) const { return piece.Staying() < options_.copies; }
  // Null: that repair has ended.
  PieceRepair* Find(PieceId id, uint64_t number);
  void Begin();
  void Step(PieceId id);
  void AcquireTarget(PieceId id);
  void CopyNext(PieceId id);
  void OnRead(PieceId id, SlotRef slot, const core::Status& status);
  void Finish(PieceId id);
  void Fail(PieceId id, core::Tick again_at);

  const Options options_;
  HeldPieces& pieces_;
  Loans& loans_;
  const PieceTransfers& transfers_;
  Listener* const listener_;
  transport::Transport* transport_ = nullptr;
  uint64_t last_number_ = 0;
  uint32_t under_way_ = 0;
};

}  // namespace ravenstore::cluster
