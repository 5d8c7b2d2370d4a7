// How a piece comes to another lender: where its slot is recalled, or one of two copies was lost.
#include <algorithm>

#include "cluster/home.h"

namespace ravenstore::cluster {
namespace {

using core::Status;

constexpr uint32_t kRepairsMax = 3;  // of one piece, that fail before it leaves
constexpr core::Duration kRepairAfter = std::chrono::milliseconds(50);

}  // namespace

bool Home::NeedsRepair(const Piece& piece) const {
  const auto stay =
      std::ranges::count_if(piece.copies, [](const Copy& copy) { return !copy.IsRecalled(); });
  return static_cast<uint32_t>(stay) < options_.copies;
}

core::Tick Home::Deadline(const Piece& piece) {
  core::Tick deadline = core::kNever;
  for (const Copy& copy : piece.copies) deadline = std::min(deadline, copy.recalled_until);
  return deadline;
}

Home::Repair* Home::FindRepair(PieceId id, uint64_t number) {
  const auto found = pieces_.find(id);
  if (found == pieces_.end() || !found->second.repair || found->second.repair->number != number) {
    return nullptr;
  }
  return &*found->second.repair;
}

// Those first whose slots are taken first.
void Home::BeginRepairs() {
  if (repairs_ >= options_.repairs_max) return;
  std::vector<std::pair<core::Tick, PieceId>> waiting;
  for (const PieceId id : unsettled_) {
    const Piece& piece = pieces_.at(id);
    const bool waits = !piece.repair && NeedsRepair(piece) && Now() >= piece.repair_at;
    if (waits) waiting.emplace_back(Deadline(piece), id);
  }
  std::ranges::sort(waiting);
  for (const auto& [deadline, id] : waiting) {
    if (repairs_ >= options_.repairs_max) return;
    if (!unsettled_.contains(id)) continue;  // it went with what another's failure led to
    ++repairs_;
    pieces_.at(id).repair.emplace(Repair{
        .number = ++last_number_, .deadline = Now() + options_.repair_timeout, .step_at = Now()});
    StepRepair(id);
  }
}

void Home::StepRepair(PieceId id) {
  Piece& piece = pieces_.at(id);
  if (piece.repair->calls) return;
  if (Now() >= piece.repair->deadline) return RepairFailed(id);
  if (Now() < piece.repair->step_at) return;
  const bool is_written = std::ranges::any_of(piece.operations, [this](uint64_t operation) {
    return operations_.at(operation).writes && operations_.at(operation).under_way > 0;
  });
  if (is_written) {
    piece.repair->step_at = core::kNever;  // until the write's end
  } else if (piece.repair->target.loan == nullptr) {
    AcquireTarget(id);
  } else {
    CopyNext(id);
  }
}

void Home::AcquireTarget(PieceId id) {
  Piece& piece = pieces_.at(id);
  Loans::Excluded excluded;
  for (const Copy& copy : piece.copies) {
    excluded.lenders.insert(copy.loan->lender());
    if (!copy.IsRecalled()) excluded.machines.insert(*copy.loan->machine());
  }
  piece.repair->calls = true;
  loans_.Acquire(std::move(excluded), piece.repair->deadline,
                 [this, id, number = piece.repair->number](const core::Result<Loans::Lent>& lent) {
                   Repair* const repair = FindRepair(id, number);
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
                   // Nobody lends: it is to be emptied meanwhile, and tried again with new offers.
                   pieces_.at(id).repairs_failed = kRepairsMax;
                   RepairFailed(id, core::kNever);
                 });
}

// Copies the next run of granules that were written.
void Home::CopyNext(PieceId id) {
  Piece& piece = pieces_.at(id);
  Repair& repair = *piece.repair;
  const GranuleSums& sums = piece.sums;
  const size_t granule = options_.sizes.granule.count();
  while (repair.granule < sums.size() && sums[repair.granule].length == 0) ++repair.granule;
  if (repair.granule == sums.size()) return RepairDone(id);
  size_t bytes = 0;
  repair.end = repair.granule;
  do {
    bytes += sums[repair.end++].length;
  } while (sums[repair.end - 1].length == granule && repair.end < sums.size() &&
           sums[repair.end].length > 0 && bytes + granule <= options_.repair_step.count());
  repair.buffer = std::make_shared<std::vector<std::byte>>(bytes);
  for (size_t i = 0; i < piece.copies.size(); ++i) {
    const Copy copy = piece.copies[(repair.source + i) % piece.copies.size()];
    if (!copy.loan->usable()) continue;
    const Status status =
        copy.loan->Read(copy.slot, repair.granule * granule, *repair.buffer, repair.deadline,
                        [this, id, slot = copy.slot, number = repair.number,
                         buffer = repair.buffer](const Status& read) {
                          if (FindRepair(id, number) != nullptr) OnRepairRead(id, slot, read);
                        });
    repair.calls = status.ok();
    repair.step_at = Now() + kRepairAfter;
    return;
  }
  repair.step_at = core::kNever;
}

void Home::OnRepairRead(PieceId id, SlotRef slot, const Status& status) {
  Piece& piece = pieces_.at(id);
  Repair& repair = *piece.repair;
  repair.calls = false;
  repair.step_at = Now() + kRepairAfter;
  if (!status.ok()) {
    ++repair.source;
    if (status.error().code == core::ErrorCode::kNotFound) Drop(id, slot, status.error());
    return;
  }
  const auto sums = piece.sums.Range(repair.granule, repair.end);
  if (!Matches(*repair.buffer, sums)) {
    TellCorrupt(id, slot);
    // What is wrong in the only copy stays wrong, and its checksum says so to readers.
    if (piece.copies.size() > 1) {
      return Drop(id, slot, {core::ErrorCode::kCorrupt, "the lender's bytes are wrong"});
    }
  }
  if (!repair.target.loan->usable()) return RepairFailed(id);
  const Status sent = repair.target.loan->Write(
      repair.target.slot, repair.granule * options_.sizes.granule.count(), *repair.buffer,
      repair.deadline,
      [this, id, number = repair.number, buffer = repair.buffer](const Status& written) {
        Repair* const writes = FindRepair(id, number);
        if (writes == nullptr) return;
        writes->calls = false;
        writes->step_at = Now();
        if (!written.ok()) return RepairFailed(id);
        writes->granule = writes->end;
      });
  if (!sent.ok()) return RepairFailed(id);
  repair.calls = true;
}

void Home::RepairDone(PieceId id) {
  Piece& piece = pieces_.at(id);
  const Copy target = piece.repair->target;
  piece.repair.reset();
  piece.repairs_failed = 0;
  --repairs_;
  piece.copies.push_back(target);
  std::vector<Copy> released;
  for (auto copy = piece.copies.begin();
       copy != piece.copies.end() && piece.copies.size() > options_.copies;) {
    if (copy->IsRecalled()) {
      released.push_back(*copy);
      copy = piece.copies.erase(copy);
    } else {
      ++copy;
    }
  }
  const bool kept = piece.leaving && !NeedsRepair(piece);
  if (kept) piece.leaving = false;
  // Readers of those go on with the others.
  for (const Copy& copy : released) copy.loan->Release(copy.slot);
  Wake();
  listener_->OnPieceMoved(id, target.loan->lender());
  if (kept) listener_->OnPieceKept(id);
}

void Home::RepairFailed(PieceId id) {
  RepairFailed(id, Now() + kRepairAfter);
}

void Home::RepairFailed(PieceId id, core::Tick again_at) {
  Piece& piece = pieces_.at(id);
  const Copy target = std::exchange(piece.repair, std::nullopt)->target;
  --repairs_;
  piece.repair_at = again_at;
  const bool leaves = ++piece.repairs_failed >= kRepairsMax;
  if (target.loan != nullptr) target.loan->Release(target.slot);
  Wake();
  if (leaves) Leave(id);
}

}  // namespace ravenstore::cluster
