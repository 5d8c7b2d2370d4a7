#include "cluster/home.h"

#include <xxhash.h>

#include <algorithm>

#include "cluster/footprint.h"
#include "cluster/planted.h"
#include "core/check.h"

namespace ravenstore::cluster {
namespace {

using core::Error;
using core::ErrorCode;
using core::Status;
using core::Tick;

constexpr uint32_t kAttemptsMax = 16;
constexpr core::Duration kRetryAfter = std::chrono::milliseconds(20);

uint64_t Hash(std::span<const std::byte> bytes) {
  return XXH3_64bits(bytes.data(), bytes.size());
}

}  // namespace

Home::Home(Options options, Listener* listener)
    : options_(std::move(options)), listener_(listener), loans_(options_.loans, this) {
  RAVEN_CHECK(options_.copies == 1 || options_.copies == 2);
  RAVEN_CHECK(options_.sizes.granule.count() > 0);
  RAVEN_CHECK(options_.sizes.piece.count() % options_.sizes.granule.count() == 0);
}

Home::~Home() = default;

void Home::Attach(transport::Transport* transport) {
  transport_ = transport;
  loans_.Attach(transport);
}

void Home::End() {
  loans_.End();
  while (!growths_.empty()) Shrink(growths_.begin()->first);
  while (!pieces_.empty()) Shrink(pieces_.begin()->first);
}

void Home::Close() {
  const Error why{ErrorCode::kUnavailable, "this node leaves the cluster"};
  End();
  for (const Growth& growth : std::exchange(given_back_, {})) growth.done(*growth.result);
  loans_.Close();
  for (auto& [id, operation] : std::exchange(operations_, {})) operation.done(why);
}

// ---- Reads and writes

void Home::Write(core::Bytes offset, std::span<const std::byte> bytes, Tick deadline,
                 DoneCallback done) {
  const uint64_t piece = offset.count() / options_.sizes.piece.count();
  Begin({.piece = PieceId{static_cast<uint32_t>(piece)},
         .writes = true,
         .offset = offset.count() % options_.sizes.piece.count(),
         .from = bytes,
         .deadline = deadline,
         .done = std::move(done)});
}

void Home::Read(core::Bytes offset, std::span<std::byte> bytes, Tick deadline, DoneCallback done) {
  const uint64_t piece = offset.count() / options_.sizes.piece.count();
  Begin({.piece = PieceId{static_cast<uint32_t>(piece)},
         .offset = offset.count() % options_.sizes.piece.count(),
         .to = bytes,
         .deadline = deadline,
         .done = std::move(done)});
}

core::Result<Home::Piece*> Home::Check(const Operation& operation) {
  if (operation.offset % options_.sizes.granule.count() != 0 || operation.size() == 0 ||
      operation.size() > options_.sizes.piece.count() - operation.offset) {
    return Error{ErrorCode::kInvalidArgument, "a range that is no granules of one piece"};
  }
  const auto found = pieces_.find(operation.piece);
  if (found == pieces_.end()) return Error{ErrorCode::kNotFound, "the piece is not held"};
  Piece& piece = found->second;
  if (operation.writes && piece.leaving) {
    return Error{ErrorCode::kUnavailable, "the piece is leaving"};
  }
  for (const uint64_t id : piece.operations) {
    const Operation& other = operations_.at(id);
    if ((operation.writes || other.writes) && operation.offset < other.offset + other.size() &&
        other.offset < operation.offset + operation.size()) {
      return Error{ErrorCode::kWrongState, "another transfer of these bytes is under way"};
    }
  }
  return &piece;
}

void Home::Begin(Operation operation) {
  const uint64_t id = ++last_operation_;
  const auto piece = Check(operation);
  const size_t granule = options_.sizes.granule.count();
  if (!piece.ok()) operation.ends = piece.error();
  for (size_t at = 0; piece.ok() && at < operation.size(); at += granule) {
    const size_t length = std::min(granule, operation.size() - at);
    const size_t index = (operation.offset + at) / granule;
    const GranuleSum sum = (*piece)->sums[index];
    if (operation.writes) {
      operation.sums.push_back({.hash = Hash(operation.from.subspan(at, length)),
                                .length = static_cast<uint32_t>(length)});
      (*piece)->sums.Set(index, {});
    } else if (sum.length == length) {
      operation.sums.push_back(sum);
    } else {
      operation.ends = Error{ErrorCode::kWrongState, "these bytes were not written"};
    }
  }
  operation.attempt_at = Now();
  const bool begins = !operation.ends;
  operations_.emplace(id, std::move(operation));
  if (!begins) return;  // Advance tells it
  (*piece)->operations.insert(id);
  Attempt(id);
}

void Home::Attempt(uint64_t id) {
  Operation& operation = operations_.at(id);
  Piece& piece = pieces_.at(operation.piece);
  operation.failed.reset();
  operation.attempt_at = core::kNever;
  if (operation.writes) {
    AttemptWrite(id, &operation, &piece);
  } else {
    AttemptRead(id, &operation, &piece);
  }
  if (operation.under_way == 0 && operation.failed) Retry(&operation);
}

void Home::AttemptWrite(uint64_t id, Operation* operation, Piece* piece) {
  const bool all_usable =
      std::ranges::all_of(piece->copies, [](const Copy& copy) { return copy.loan->usable(); });
  if (piece->repair || piece->copies.size() < options_.copies || !all_usable) return;
  ++operation->attempts;
  for (const Copy& copy : piece->copies) {
    Started(operation,
            copy.loan->Write(copy.slot, operation->offset, operation->from, operation->deadline,
                             [this, id, slot = copy.slot](const Status& status) {
                               OnWritten(id, slot, status);
                             }));
  }
}

void Home::AttemptRead(uint64_t id, Operation* operation, Piece* piece) {
  bool any_usable = false;
  for (const Copy& copy : piece->copies) {
    if (!copy.loan->usable()) continue;
    any_usable = true;
    if (!operation->tried.insert(copy.slot).second) continue;
    ++operation->attempts;
    return Started(operation,
                   copy.loan->Read(copy.slot, operation->offset, operation->to, operation->deadline,
                                   [this, id, slot = copy.slot](const Status& status) {
                                     OnRead(id, slot, status);
                                   }));
  }
  operation->tried.clear();
  if (any_usable) operation->attempt_at = Now() + kRetryAfter;
}

void Home::Started(Operation* operation, const Status& status) {
  if (status.ok()) {
    ++operation->under_way;
  } else {
    operation->failed = status.error();
  }
}

Home::Operation* Home::CallEnded(uint64_t id, SlotRef slot, const Status& status) {
  const auto find = [this, id] {
    const auto found = operations_.find(id);
    return found == operations_.end() ? nullptr : &found->second;
  };
  Operation* operation = find();
  if (operation == nullptr) return nullptr;
  --operation->under_way;
  if (!status.ok()) {
    operation->failed = status.error();
    if (status.error().code == ErrorCode::kNotFound) {
      Drop(operation->piece, slot, {ErrorCode::kLost, "its lender took it back"});
      operation = find();
    }
  }
  if (operation == nullptr || operation->under_way > 0) return nullptr;
  if (!operation->ends) return operation;
  Finish(id, *operation->ends);
  return nullptr;
}

void Home::OnWritten(uint64_t id, SlotRef slot, const Status& status) {
  Operation* const operation = CallEnded(id, slot, status);
  if (operation == nullptr) return;
  if (operation->failed) return Retry(operation);
  Commit(*operation);
  Finish(id, core::Ok());
}

void Home::OnRead(uint64_t id, SlotRef slot, const Status& status) {
  Operation* const operation = CallEnded(id, slot, status);
  if (operation == nullptr) return;
  if (operation->failed) return Retry(operation);
  if (Matches(operation->to, operation->sums)) return Finish(id, core::Ok());
  const PieceId piece = operation->piece;
  const Error corrupt{ErrorCode::kCorrupt,
                      "the lender's bytes are not those that were written there"};
  TellCorrupt(piece, slot);
  if (pieces_.at(piece).copies.size() == 1) return Finish(id, corrupt);
  operation->attempt_at = Now();
  Drop(piece, slot, corrupt);
}

// Where there are other copies they are tried at once.
void Home::Retry(Operation* operation) {
  const Error& why = *operation->failed;
  const bool may_pass = why.code == ErrorCode::kUnavailable || why.code == ErrorCode::kTimedOut ||
                        why.code == ErrorCode::kWrongState || why.code == ErrorCode::kNotFound ||
                        why.code == ErrorCode::kLimit;
  if (!may_pass || operation->attempts >= kAttemptsMax) {
    operation->ends = Error{may_pass ? ErrorCode::kUnavailable : why.code, why.message};
  }
  operation->attempt_at = Now() + (operation->writes ? kRetryAfter : core::Duration{});
}

void Home::Commit(const Operation& operation) {
  size_t index = operation.offset / options_.sizes.granule.count();
  GranuleSums& sums = pieces_.at(operation.piece).sums;
  for (const GranuleSum& sum : operation.sums) sums.Set(index++, sum);
}

void Home::Finish(uint64_t id, const Status& status) {
  auto operation = operations_.extract(id);
  const auto piece = pieces_.find(operation.mapped().piece);
  if (piece != pieces_.end()) {
    piece->second.operations.erase(id);
    // What copies the piece waits for writes to end.
    if (piece->second.repair && operation.mapped().writes) piece->second.repair->step_at = Now();
  }
  operation.mapped().done(status);
}

bool Home::Matches(std::span<const std::byte> bytes, std::span<const GranuleSum> sums) const {
  if (Has(Planted::kSumsNotCompared)) return true;
  for (const GranuleSum& sum : sums) {
    if (Hash(bytes.first(sum.length)) != sum.hash) return false;
    bytes = bytes.subspan(sum.length);
  }
  return true;
}

void Home::StepOperation(uint64_t id) {
  const auto found = operations_.find(id);
  if (found == operations_.end()) return;
  Operation& operation = found->second;
  if (Has(Planted::kCommitBeforeAnswer) && operation.writes && operation.under_way > 0 &&
      pieces_.contains(operation.piece)) {
    Commit(operation);
    pieces_.at(operation.piece).operations.erase(id);
    operation.ends = Error{ErrorCode::kUnavailable, "it was said to be done"};
    return std::exchange(operation.done, [](const Status&) {})(core::Ok());
  }
  if (operation.under_way > 0) return;
  if (operation.ends) return Finish(id, *operation.ends);
  if (Now() >= operation.deadline) {
    return Finish(id, Error{ErrorCode::kTimedOut, "the lenders did not answer in time"});
  }
  if (Now() >= operation.attempt_at) Attempt(id);
}

// ---- Pieces

void Home::Grow(PieceId piece, Tick deadline, DoneCallback done) {
  RAVEN_CHECK(!pieces_.contains(piece));
  const auto [growth, is_new] = growths_.emplace(
      piece, Growth{.number = ++last_number_, .deadline = deadline, .done = std::move(done)});
  RAVEN_CHECK(is_new);
}

void Home::ReleaseCopies(Growth& growth) {
  for (const Copy& copy : std::exchange(growth.copies, {})) copy.loan->Release(copy.slot);
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
    pieces_.emplace(id, Piece{.copies = std::exchange(growth.copies, {}),
                              .sums = GranuleSums(granules, options_.sizes.granule)});
    unsettled_.insert(id);  // one of the slots may be recalled already
    growth.result = core::Ok();
  }
  if (growth.result) {
    auto ended = growths_.extract(id);
    ReleaseCopies(ended.mapped());
    return ended.mapped().done(*ended.mapped().result);
  }
  Loans::Excluded excluded;
  for (const Copy& copy : growth.copies) {
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
    given_back_.push_back(std::move(growth.mapped()));  // Advance tells it
  } else {
    Remove(piece, why);
  }
}

std::map<PieceId, Home::Piece>::node_type Home::Take(PieceId id, const Error& why) {
  auto taken = pieces_.extract(id);
  if (taken.empty()) return taken;
  unsettled_.erase(id);
  offers_changed_ = true;
  for (const uint64_t operation : taken.mapped().operations) operations_.at(operation).ends = why;
  return taken;
}

void Home::GiveBack(Piece* piece, const Error& why) {
  if (piece->repair) {
    --repairs_;
    const Copy target = std::exchange(piece->repair, std::nullopt)->target;
    if (target.loan != nullptr) target.loan->Release(target.slot);
  }
  // Ends the calls, and so the operations that wait for them.
  for (const Copy& copy : piece->copies) copy.loan->Release(copy.slot);
  for (const uint64_t operation : piece->operations) {
    const auto found = operations_.find(operation);
    if (found != operations_.end() && found->second.under_way == 0) Finish(operation, why);
  }
}

void Home::Remove(PieceId id, const Error& why) {
  if (auto taken = Take(id, why); !taken.empty()) GiveBack(&taken.mapped(), why);
}

void Home::Lose(PieceId id, const Error& why) {
  const Error lost{ErrorCode::kLost, why.message};
  auto taken = Take(id, lost);
  // First: who is told how an operation ended may grow the piece again from there.
  listener_->OnPieceLost(id, why);
  GiveBack(&taken.mapped(), lost);
}

void Home::Drop(PieceId id, SlotRef slot, const Error& why) {
  const auto found = pieces_.find(id);
  if (found == pieces_.end()) return;
  Piece& piece = found->second;
  const auto copy = std::ranges::find(piece.copies, slot, &Copy::slot);
  if (copy == piece.copies.end()) return;
  const Copy dropped = *copy;
  piece.copies.erase(copy);
  unsettled_.insert(id);
  piece.repair_at = Now();
  if (dropped.loan->slots().contains(slot)) dropped.loan->Release(slot);
  if (const auto still = pieces_.find(id); still != pieces_.end() && still->second.copies.empty()) {
    Lose(id, why);
  }
}

void Home::TellCorrupt(PieceId id, SlotRef slot) {
  Piece& piece = pieces_.at(id);
  const auto copy = std::ranges::find(piece.copies, slot, &Copy::slot);
  if (copy == piece.copies.end() || std::exchange(piece.corrupt, true)) return;
  listener_->OnPieceCorrupt(id, copy->loan->lender());
}

void Home::Leave(PieceId id) {
  Piece& piece = pieces_.at(id);
  if (std::exchange(piece.leaving, true)) return;
  offers_changed_ = true;
  const Error why{ErrorCode::kUnavailable, "the piece is leaving"};
  Tick deadline = Tick::min();
  for (const Copy& copy : piece.copies) deadline = std::max(deadline, copy.recalled_until);
  for (const uint64_t id : piece.operations) {
    Operation& operation = operations_.at(id);
    if (operation.writes) operation.ends = why;  // Advance tells it
  }
  listener_->OnPieceRecalled(id, deadline);
}

// ---- What loans tell

void Home::OnRecalled(Loan* loan, SlotRef slot, Tick deadline) {
  const auto marks = [&](Copy* copy) {
    if (copy->loan != loan || copy->slot != slot || copy->IsRecalled()) return false;
    copy->recalled_until = deadline;
    return true;
  };
  for (auto& [id, growth] : growths_) {
    for (Copy& copy : growth.copies) marks(&copy);
  }
  for (auto& [id, piece] : pieces_) {
    if (piece.repair && marks(&piece.repair->target)) return RepairFailed(id);
    for (Copy& copy : piece.copies) {
      if (!marks(&copy)) continue;
      unsettled_.insert(id);
      piece.repair_at = Now();
      if (piece.leaving) listener_->OnPieceRecalled(id, deadline);
      return;
    }
  }
}

void Home::OnSlotsLost(Loan* loan, const std::vector<SlotRef>& slots, const Error& why) {
  std::vector<PieceId> fewer;
  std::vector<PieceId> failed;
  const auto is_lost = [&](const Copy& copy) {
    return copy.loan == loan && std::ranges::find(slots, copy.slot) != slots.end();
  };
  // All are forgotten before anybody is told, who may go on with other pieces at once.
  for (auto& [id, growth] : growths_) {
    if (std::erase_if(growth.copies, is_lost) > 0) growth.result = why;
  }
  for (auto& [id, piece] : pieces_) {
    if (piece.repair && is_lost(piece.repair->target)) {
      piece.repair->target = {};
      failed.push_back(id);
    }
    if (std::erase_if(piece.copies, is_lost) == 0) continue;
    unsettled_.insert(id);
    piece.repair_at = Now();
    fewer.push_back(id);
  }
  offers_changed_ = true;
  listener_->OnLenderLost(loan->lender(), static_cast<uint32_t>(slots.size()), why);
  for (const PieceId id : fewer) {
    const auto piece = pieces_.find(id);
    if (piece != pieces_.end() && piece->second.copies.empty()) Lose(id, why);
  }
  for (const PieceId id : failed) {
    const auto piece = pieces_.find(id);
    if (piece != pieces_.end() && piece->second.repair) RepairFailed(id);
  }
}

void Home::Wake() {
  for (auto& [id, operation] : operations_) {
    if (operation.under_way == 0) operation.attempt_at = std::min(operation.attempt_at, Now());
  }
  for (auto& [id, piece] : pieces_) {
    if (piece.repair && !piece.repair->calls) piece.repair->step_at = Now();
  }
}

void Home::OnUsable(Loan*) {
  Wake();
  for (const PieceId id : unsettled_) {
    Piece& piece = pieces_.at(id);
    piece.repair_at = std::min(piece.repair_at, Now());
  }
}

void Home::TellMost() {
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
  more += growths_.size() + pieces_.size();
  const auto most = static_cast<uint32_t>(std::min<uint64_t>(more, options_.pieces_max));
  if (std::exchange(most_, most) != most) listener_->OnPiecesMost(most);
}

// ---- Time

void Home::Advance() {
  loans_.Advance();
  std::vector<uint64_t> operations;
  for (const auto& [id, operation] : operations_) operations.push_back(id);
  for (const uint64_t id : operations) StepOperation(id);
  for (const Growth& growth : std::exchange(given_back_, {})) growth.done(*growth.result);
  std::vector<PieceId> growths;
  for (const auto& [id, growth] : growths_) growths.push_back(id);
  for (const PieceId id : growths) {
    if (growths_.contains(id)) StepGrowth(id);
  }
  std::erase_if(unsettled_, [this](PieceId id) {
    const Piece& piece = pieces_.at(id);
    return !piece.repair && !NeedsRepair(piece);
  });
  for (const PieceId id : std::set(unsettled_)) {
    if (unsettled_.contains(id) && pieces_.at(id).repair) StepRepair(id);
  }
  BeginRepairs();
  TellMost();
}

Tick Home::Next() const {
  Tick next = loans_.Next();
  if (offers_changed_ || !given_back_.empty()) next = std::min(next, Now());
  for (const auto& [id, operation] : operations_) {
    if (operation.under_way > 0) continue;
    next = std::min({next, operation.deadline, operation.ends ? Now() : operation.attempt_at});
  }
  for (const auto& [id, growth] : growths_) {
    if (!growth.asks) next = std::min(next, Now());
  }
  for (const PieceId id : unsettled_) {
    const Piece& piece = pieces_.at(id);
    if (piece.repair && !piece.repair->calls) {
      next = std::min({next, piece.repair->step_at, piece.repair->deadline});
    } else if (!piece.repair && NeedsRepair(piece) && repairs_ < options_.repairs_max) {
      next = std::min(next, piece.repair_at);
    }
  }
  return next;
}

Home::Footprint Home::footprint() const {
  Footprint all;
  for (const auto& [id, piece] : pieces_) {
    all.records += TreeEntry<std::pair<const PieceId, Piece>>();
    all.records += Array(piece.copies) + TreeEntry<SlotRef>() * piece.copies.size();
    all.checksums += piece.sums.footprint();
  }
  return all;
}

std::vector<Home::PieceView> Home::Pieces() const {
  std::vector<PieceView> views;
  for (const auto& [id, piece] : pieces_) {
    PieceView& view = views.emplace_back(
        PieceView{.piece = id, .leaving = piece.leaving, .in_repair = piece.repair.has_value()});
    for (const Copy& copy : piece.copies) view.copies.emplace_back(copy.loan->lender(), copy.slot);
  }
  return views;
}

}  // namespace ravenstore::cluster
