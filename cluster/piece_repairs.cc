#include "cluster/piece_repairs.h"

#include <algorithm>
#include <utility>

namespace ravenstore::cluster {
namespace {

using core::Status;

constexpr uint32_t kRepairsMax = 3;  // of one piece, that fail before it leaves
constexpr core::Duration kRepairAfter = std::chrono::milliseconds(50);

// When the first of its slots is taken.
core::Tick Deadline(const HeldPiece& piece) {
  core::Tick deadline = core::kNever;
  for (const PieceCopy& copy : piece.copies) deadline = std::min(deadline, copy.recalled_until);
  return deadline;
}

}  // namespace

PieceRepair* PieceRepairs::Find(PieceId id, uint64_t number) {
  HeldPiece* const piece = pieces_.Find(id);
  const bool has = piece != nullptr && piece->repair && piece->repair->number == number;
  return has ? &*piece->repair : nullptr;
}

void PieceRepairs::Advance() {
  std::erase_if(pieces_.unsettled, [this](PieceId id) {
    const HeldPiece& piece = pieces_.all.at(id);
    return !piece.repair && !IsNeeded(piece);
  });
  for (const PieceId id : std::set(pieces_.unsettled)) {
    if (pieces_.unsettled.contains(id) && pieces_.all.at(id).repair) Step(id);
  }
  Begin();
}

core::Tick PieceRepairs::Next() const {
  core::Tick next = core::kNever;
  for (const PieceId id : pieces_.unsettled) {
    const HeldPiece& piece = pieces_.all.at(id);
    if (piece.repair && !piece.repair->calls) {
      next = std::min({next, piece.repair->step_at, piece.repair->deadline});
    } else if (!piece.repair && IsNeeded(piece) && under_way_ < options_.most) {
      next = std::min(next, piece.repair_at);
    }
  }
  return next;
}

void PieceRepairs::Wake() {
  for (auto& [id, piece] : pieces_.all) {
    if (piece.repair && !piece.repair->calls) piece.repair->step_at = Now();
  }
}

void PieceRepairs::Cancel(HeldPiece* piece) {
  if (!piece->repair) return;
  --under_way_;
  const PieceCopy target = std::exchange(piece->repair, std::nullopt)->target;
  if (target.loan != nullptr) target.loan->Release(target.slot);
}

void PieceRepairs::Begin() {
  if (under_way_ >= options_.most) return;
  std::vector<std::pair<core::Tick, PieceId>> waiting;
  for (const PieceId id : pieces_.unsettled) {
    const HeldPiece& piece = pieces_.all.at(id);
    const bool waits = !piece.repair && IsNeeded(piece) && Now() >= piece.repair_at;
    if (waits) waiting.emplace_back(Deadline(piece), id);
  }
  std::ranges::sort(waiting);
  for (const auto& [deadline, id] : waiting) {
    if (under_way_ >= options_.most) return;
    if (!pieces_.unsettled.contains(id)) continue;  // lost as another repair failed
    ++under_way_;
    pieces_.all.at(id).repair.emplace(PieceRepair{
        .number = ++last_number_, .deadline = Now() + options_.timeout, .step_at = Now()});
    Step(id);
  }
}

void PieceRepairs::Step(PieceId id) {
  HeldPiece& piece = pieces_.all.at(id);
  if (piece.repair->calls) return;
  if (Now() >= piece.repair->deadline) return Fail(id);
  if (Now() < piece.repair->step_at) return;
  if (transfers_.IsWriting(piece)) {
    piece.repair->step_at = core::kNever;  // until the write's end
  } else if (piece.repair->target.loan == nullptr) {
    AcquireTarget(id);
  } else {
    CopyNext(id);
  }
}

void PieceRepairs::AcquireTarget(PieceId id) {
  HeldPiece& piece = pieces_.all.at(id);
  Loans::Excluded excluded;
  for (const PieceCopy& copy : piece.copies) {
    excluded.lenders.insert(copy.loan->lender());
    if (!copy.IsRecalled()) excluded.machines.insert(*copy.loan->machine());
  }
  piece.repair->calls = true;
  loans_.Acquire(std::move(excluded), piece.repair->deadline,
                 [this, id, number = piece.repair->number](const core::Result<Loans::Lent>& lent) {
                   PieceRepair* const repair = Find(id, number);
                   if (repair == nullptr) {
                     if (lent.ok()) lent->loan->Release(lent->slot);
                     return;
                   }
                   repair->calls = false;
                   repair->step_at = Now();
                   if (lent.ok()) {
                     repair->target = {.loan = lent->loan, .slot = lent->slot};
                     return;
                   }
                   // No node lends: the piece is to be emptied; new offers start the next repair.
                   pieces_.all.at(id).repairs_failed = kRepairsMax;
                   Fail(id, core::kNever);
                 });
}

// Copies the next run of granules that were written.
void PieceRepairs::CopyNext(PieceId id) {
  HeldPiece& piece = pieces_.all.at(id);
  PieceRepair& repair = *piece.repair;
  const GranuleSums& sums = piece.sums;
  const size_t granule = options_.granule.count();
  while (repair.granule < sums.size() && sums[repair.granule].length == 0) ++repair.granule;
  if (repair.granule == sums.size()) return Finish(id);
  size_t bytes = 0;
  repair.end = repair.granule;
  do {
    bytes += sums[repair.end++].length;
  } while (sums[repair.end - 1].length == granule && repair.end < sums.size() &&
           sums[repair.end].length > 0 && bytes + granule <= options_.step.count());
  repair.buffer = std::make_shared<std::vector<std::byte>>(bytes);
  for (size_t i = 0; i < piece.copies.size(); ++i) {
    const PieceCopy copy = piece.copies[(repair.source + i) % piece.copies.size()];
    if (!copy.loan->usable()) continue;
    const Status status =
        copy.loan->Read(copy.slot, repair.granule * granule, *repair.buffer, repair.deadline,
                        [this, id, slot = copy.slot, number = repair.number,
                         buffer = repair.buffer](const Status& read) {
                          if (Find(id, number) != nullptr) OnRead(id, slot, read);
                        });
    repair.calls = status.ok();
    repair.step_at = Now() + kRepairAfter;
    return;
  }
  repair.step_at = core::kNever;
}

void PieceRepairs::OnRead(PieceId id, SlotRef slot, const Status& status) {
  HeldPiece& piece = pieces_.all.at(id);
  PieceRepair& repair = *piece.repair;
  repair.calls = false;
  repair.step_at = Now() + kRepairAfter;
  if (!status.ok()) {
    ++repair.source;
    if (status.error().code == core::ErrorCode::kNotFound)
      listener_->OnCopyUnusable(id, slot, status.error());
    return;
  }
  const auto sums = piece.sums.Range(repair.granule, repair.end);
  if (!Matches(*repair.buffer, sums)) {
    listener_->OnCopyCorrupt(id, slot);
    // Wrong bytes in the only copy are copied too; readers detect them by the checksum.
    if (piece.copies.size() > 1) {
      return listener_->OnCopyUnusable(id, slot,
                                       {core::ErrorCode::kCorrupt, "the lender's bytes are wrong"});
    }
  }
  if (!repair.target.loan->usable()) return Fail(id);
  const Status sent = repair.target.loan->Write(
      repair.target.slot, repair.granule * options_.granule.count(), *repair.buffer,
      repair.deadline,
      [this, id, number = repair.number, buffer = repair.buffer](const Status& written) {
        PieceRepair* const writes = Find(id, number);
        if (writes == nullptr) return;
        writes->calls = false;
        writes->step_at = Now();
        if (!written.ok()) return Fail(id);
        writes->granule = writes->end;
      });
  if (!sent.ok()) return Fail(id);
  repair.calls = true;
}

void PieceRepairs::Finish(PieceId id) {
  HeldPiece& piece = pieces_.all.at(id);
  const PieceCopy target = piece.repair->target;
  piece.repair.reset();
  piece.repairs_failed = 0;
  --under_way_;
  piece.copies.push_back(target);
  std::vector<PieceCopy> released;
  for (auto copy = piece.copies.begin();
       copy != piece.copies.end() && piece.copies.size() > options_.copies;) {
    if (copy->IsRecalled()) {
      released.push_back(*copy);
      copy = piece.copies.erase(copy);
    } else {
      ++copy;
    }
  }
  const bool kept = piece.leaving && !IsNeeded(piece);
  if (kept) piece.leaving = false;
  // Reads of these continue with the other copies.
  for (const PieceCopy& copy : released) copy.loan->Release(copy.slot);
  listener_->OnRepaired(id, target.loan->lender(), kept);
}

void PieceRepairs::Fail(PieceId id) {
  Fail(id, Now() + kRepairAfter);
}

void PieceRepairs::Fail(PieceId id, core::Tick again_at) {
  HeldPiece& piece = pieces_.all.at(id);
  const PieceCopy target = std::exchange(piece.repair, std::nullopt)->target;
  --under_way_;
  piece.repair_at = again_at;
  const bool leaves = ++piece.repairs_failed >= kRepairsMax;
  if (target.loan != nullptr) target.loan->Release(target.slot);
  listener_->OnRepairFailed(id, leaves);
}

}  // namespace ravenstore::cluster
