#include "cluster/home.h"

#include <algorithm>

#include "cluster/footprint.h"
#include "core/check.h"

namespace ravenstore::cluster {

using core::Error;
using core::ErrorCode;
using core::Status;
using core::Tick;

Home::Home(Options options, Listener* listener)
    : options_(std::move(options)),
      listener_(listener),
      loans_(options_.loans, this),
      transfers_(options_.sizes, options_.copies, &pieces_, this),
      repairs_({.granule = options_.sizes.granule,
                .copies = options_.copies,
                .step = options_.repair_step,
                .most = options_.repairs_max,
                .timeout = options_.repair_timeout},
               &pieces_, &loans_, transfers_, this) {
  RAVEN_CHECK(options_.copies == 1 || options_.copies == 2);
  RAVEN_CHECK(options_.sizes.granule.count() > 0);
  RAVEN_CHECK(options_.sizes.piece.count() % options_.sizes.granule.count() == 0);
}

Home::~Home() = default;

void Home::Attach(transport::Transport* transport) {
  transport_ = transport;
  loans_.Attach(transport);
  transfers_.Attach(transport);
  repairs_.Attach(transport);
}

void Home::End() {
  loans_.End();
  while (!growths_.empty()) Shrink(growths_.begin()->first);
  while (!pieces_.all.empty()) Shrink(pieces_.all.begin()->first);
}

void Home::Close() {
  const Error why{ErrorCode::kUnavailable, "this node leaves the cluster"};
  End();
  for (const Growth& growth : std::exchange(cancelled_growths_, {})) growth.done(*growth.result);
  loans_.Close();
  transfers_.Close(why);
}

// ---- Pieces

void Home::Grow(PieceId piece, Tick deadline, DoneCallback done) {
  RAVEN_CHECK(pieces_.Find(piece) == nullptr);
  const auto [growth, is_new] = growths_.emplace(
      piece, Growth{.number = ++last_growth_, .deadline = deadline, .done = std::move(done)});
  RAVEN_CHECK(is_new);
}

void Home::ReleaseCopies(Growth& growth) {
  for (const PieceCopy& copy : std::exchange(growth.copies, {})) copy.loan->Release(copy.slot);
  offers_changed_ = true;
}

Home::Growth* Home::FindGrowth(PieceId id, uint64_t number) {
  const auto found = growths_.find(id);
  return found == growths_.end() || found->second.number != number ? nullptr : &found->second;
}

void Home::StepGrowth(PieceId id) {
  Growth& growth = growths_.at(id);
  if (growth.asks) return;
  if (!growth.result && growth.copies.size() == options_.copies) {
    const size_t granules = options_.sizes.piece.count() / options_.sizes.granule.count();
    pieces_.all.emplace(id, HeldPiece{.copies = std::exchange(growth.copies, {}),
                                      .sums = GranuleSums(granules, options_.sizes.granule)});
    pieces_.unsettled.insert(id);  // one of the slots may be recalled already
    growth.result = core::Ok();
  }
  if (growth.result) {
    auto ended = growths_.extract(id);
    ReleaseCopies(ended.mapped());
    return ended.mapped().done(*ended.mapped().result);
  }
  Loans::Excluded excluded;
  for (const PieceCopy& copy : growth.copies) {
    excluded.lenders.insert(copy.loan->lender());
    excluded.machines.insert(*copy.loan->machine());
  }
  growth.asks = true;
  loans_.Acquire(std::move(excluded), growth.deadline,
                 [this, id, number = growth.number](const core::Result<Loans::Lent>& lent) {
                   Growth* const grows = FindGrowth(id, number);
                   if (grows == nullptr || grows->result) {
                     if (lent.ok()) lent->loan->Release(lent->slot);
                     if (grows != nullptr) grows->asks = false;
                     return;
                   }
                   grows->asks = false;
                   if (lent.ok()) {
                     grows->copies.push_back({.loan = lent->loan, .slot = lent->slot});
                   } else {
                     grows->result = lent.error();
                   }
                 });
}

void Home::Shrink(PieceId piece) {
  const Error why{ErrorCode::kUnavailable, "the piece was given back"};
  if (auto growth = growths_.extract(piece); !growth.empty()) {
    // A lender may still be asked; what it then lends goes back.
    ReleaseCopies(growth.mapped());
    growth.mapped().result = why;
    cancelled_growths_.push_back(std::move(growth.mapped()));  // Advance calls its `done`
  } else if (auto taken = Take(piece, why); !taken.empty()) {
    ReturnSlots(&taken.mapped(), why);
  }
}

std::map<PieceId, HeldPiece>::node_type Home::Take(PieceId id, const Error& why) {
  auto taken = pieces_.all.extract(id);
  if (taken.empty()) return taken;
  pieces_.unsettled.erase(id);
  offers_changed_ = true;
  transfers_.Stop(taken.mapped(), why);
  return taken;
}

void Home::ReturnSlots(HeldPiece* piece, const Error& why) {
  repairs_.Cancel(piece);
  // Ends the calls, and so the operations that wait for them.
  for (const PieceCopy& copy : piece->copies) copy.loan->Release(copy.slot);
  transfers_.FinishIdle(*piece, why);
}

void Home::LoseIfEmpty(PieceId id, const Error& why) {
  const HeldPiece* const piece = pieces_.Find(id);
  if (piece == nullptr || !piece->copies.empty()) return;
  const Error lost{ErrorCode::kLost, why.message};
  auto taken = Take(id, lost);
  // First: the `done` of an operation may grow the piece again.
  listener_->OnPieceLost(id, why);
  ReturnSlots(&taken.mapped(), lost);
}

void Home::OnCopyUnusable(PieceId id, SlotRef slot, const Error& why) {
  HeldPiece* const piece = pieces_.Find(id);
  if (piece == nullptr) return;
  const auto copy = std::ranges::find(piece->copies, slot, &PieceCopy::slot);
  if (copy == piece->copies.end()) return;
  const PieceCopy dropped = *copy;
  piece->copies.erase(copy);
  pieces_.unsettled.insert(id);
  piece->repair_at = Now();
  if (dropped.loan->slots().contains(slot)) dropped.loan->Release(slot);
  LoseIfEmpty(id, why);
}

void Home::OnCopyCorrupt(PieceId id, SlotRef slot) {
  HeldPiece& piece = pieces_.all.at(id);
  const auto copy = std::ranges::find(piece.copies, slot, &PieceCopy::slot);
  if (copy == piece.copies.end() || std::exchange(piece.corrupt, true)) return;
  listener_->OnPieceCorrupt(id, copy->loan->lender());
}

void Home::OnRepaired(PieceId id, std::string_view lender, bool kept) {
  Wake();
  listener_->OnPieceMoved(id, lender);
  if (kept) listener_->OnPieceKept(id);
}

void Home::OnRepairFailed(PieceId id, bool leaves) {
  Wake();
  if (leaves) Leave(id);
}

void Home::Leave(PieceId id) {
  HeldPiece& piece = pieces_.all.at(id);
  if (std::exchange(piece.leaving, true)) return;
  offers_changed_ = true;
  Tick deadline = Tick::min();
  for (const PieceCopy& copy : piece.copies) deadline = std::max(deadline, copy.recalled_until);
  transfers_.StopWrites(piece, {ErrorCode::kUnavailable, "the piece is leaving"});
  listener_->OnPieceRecalled(id, deadline);
}

// ---- What loans report

void Home::OnRecalled(Loan* loan, SlotRef slot, Tick deadline) {
  const auto marks = [&](PieceCopy* copy) {
    if (copy->loan != loan || copy->slot != slot || copy->IsRecalled()) return false;
    copy->recalled_until = deadline;
    return true;
  };
  for (auto& [id, growth] : growths_) {
    for (PieceCopy& copy : growth.copies) marks(&copy);
  }
  for (auto& [id, piece] : pieces_.all) {
    if (piece.repair && marks(&piece.repair->target)) return repairs_.Fail(id);
    for (PieceCopy& copy : piece.copies) {
      if (!marks(&copy)) continue;
      pieces_.unsettled.insert(id);
      piece.repair_at = Now();
      if (piece.leaving) listener_->OnPieceRecalled(id, deadline);
      return;
    }
  }
}

void Home::OnSlotsLost(Loan* loan, const std::vector<SlotRef>& slots, const Error& why) {
  std::vector<PieceId> fewer;
  std::vector<PieceId> failed;
  const auto is_lost = [&](const PieceCopy& copy) {
    return copy.loan == loan && std::ranges::find(slots, copy.slot) != slots.end();
  };
  // Removes all lost copies before the first callback: it may use other pieces immediately.
  for (auto& [id, growth] : growths_) {
    if (std::erase_if(growth.copies, is_lost) > 0) growth.result = why;
  }
  for (auto& [id, piece] : pieces_.all) {
    if (piece.repair && is_lost(piece.repair->target)) {
      piece.repair->target = {};
      failed.push_back(id);
    }
    if (std::erase_if(piece.copies, is_lost) == 0) continue;
    pieces_.unsettled.insert(id);
    piece.repair_at = Now();
    fewer.push_back(id);
  }
  offers_changed_ = true;
  listener_->OnLenderLost(loan->lender(), static_cast<uint32_t>(slots.size()), why);
  for (const PieceId id : fewer) LoseIfEmpty(id, why);
  for (const PieceId id : failed) {
    const HeldPiece* const piece = pieces_.Find(id);
    if (piece != nullptr && piece->repair) repairs_.Fail(id);
  }
}

void Home::Wake() {
  transfers_.Wake();
  repairs_.Wake();
}

void Home::OnUsable(Loan*) {
  Wake();
  for (const PieceId id : pieces_.unsettled) {
    HeldPiece& piece = pieces_.all.at(id);
    piece.repair_at = std::min(piece.repair_at, Now());
  }
}

void Home::ReportMost() {
  if (!std::exchange(offers_changed_, false)) return;
  const auto offers = loans_.OffersByMachine();
  uint64_t more = 0;
  uint64_t largest = 0;
  for (const uint32_t offer : offers) {
    more += offer;
    largest = std::max<uint64_t>(largest, offer);
  }
  // Pairs of slots on two machines.
  if (options_.copies == 2) more = std::min(more / 2, more - largest);
  // Those that leave are held until they are empty, and what empties them may need another.
  more += growths_.size() + pieces_.all.size();
  const auto most = static_cast<uint32_t>(std::min<uint64_t>(more, options_.pieces_max));
  if (std::exchange(most_, most) != most) listener_->OnPiecesMost(most);
}

// ---- Time

void Home::Advance() {
  loans_.Advance();
  transfers_.Advance();
  for (const Growth& growth : std::exchange(cancelled_growths_, {})) growth.done(*growth.result);
  std::vector<PieceId> growths;
  for (const auto& [id, growth] : growths_) growths.push_back(id);
  for (const PieceId id : growths) {
    if (growths_.contains(id)) StepGrowth(id);
  }
  repairs_.Advance();
  ReportMost();
}

Tick Home::Next() const {
  Tick next = std::min({loans_.Next(), transfers_.Next(), repairs_.Next()});
  if (offers_changed_ || !cancelled_growths_.empty()) next = std::min(next, Now());
  for (const auto& [id, growth] : growths_) {
    if (!growth.asks) next = std::min(next, Now());
  }
  return next;
}

Home::Footprint Home::footprint() const {
  Footprint all;
  for (const auto& [id, piece] : pieces_.all) {
    all.records += TreeEntry<std::pair<const PieceId, HeldPiece>>();
    all.records += Array(piece.copies) + TreeEntry<SlotRef>() * piece.copies.size();
    all.checksums += piece.sums.footprint();
  }
  return all;
}

std::vector<Home::PieceView> Home::Pieces() const {
  std::vector<PieceView> views;
  for (const auto& [id, piece] : pieces_.all) {
    PieceView& view = views.emplace_back(
        PieceView{.piece = id, .leaving = piece.leaving, .in_repair = piece.repair.has_value()});
    for (const PieceCopy& copy : piece.copies)
      view.copies.emplace_back(copy.loan->lender(), copy.slot);
  }
  return views;
}

}  // namespace ravenstore::cluster
