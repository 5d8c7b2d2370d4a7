#include "cluster/piece_transfers.h"

#include <xxhash.h>

#include <algorithm>
#include <utility>

#include "cluster/planted.h"

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

bool Matches(std::span<const std::byte> bytes, std::span<const GranuleSum> sums) {
  if (Has(Planted::kSumsNotCompared)) return true;
  for (const GranuleSum& sum : sums) {
    if (Hash(bytes.first(sum.length)) != sum.hash) return false;
    bytes = bytes.subspan(sum.length);
  }
  return true;
}

PieceTransfers::PieceTransfers(Sizes sizes, uint32_t copies, HeldPieces* pieces, Listener* listener)
    : sizes_(sizes), copies_(copies), pieces_(*pieces), listener_(listener) {}

void PieceTransfers::Write(core::Bytes offset, std::span<const std::byte> bytes, Tick deadline,
                           DoneCallback done) {
  Begin(offset, {.writes = true, .from = bytes, .deadline = deadline, .done = std::move(done)});
}

void PieceTransfers::Read(core::Bytes offset, std::span<std::byte> bytes, Tick deadline,
                          DoneCallback done) {
  Begin(offset, {.to = bytes, .deadline = deadline, .done = std::move(done)});
}

core::Result<HeldPiece*> PieceTransfers::Check(const Operation& operation) {
  if (operation.offset % sizes_.granule.count() != 0 || operation.size() == 0 ||
      operation.size() > sizes_.piece.count() - operation.offset) {
    return Error{ErrorCode::kInvalidArgument, "a range that is no granules of one piece"};
  }
  HeldPiece* const piece = pieces_.Find(operation.piece);
  if (piece == nullptr) return Error{ErrorCode::kNotFound, "the piece is not held"};
  if (operation.writes && piece->leaving) {
    return Error{ErrorCode::kUnavailable, "the piece is leaving"};
  }
  for (const uint64_t id : piece->operations) {
    const Operation& other = operations_.at(id);
    if ((operation.writes || other.writes) && operation.offset < other.offset + other.size() &&
        other.offset < operation.offset + operation.size()) {
      return Error{ErrorCode::kWrongState, "another transfer of these bytes is under way"};
    }
  }
  return piece;
}

void PieceTransfers::Begin(core::Bytes offset, Operation operation) {
  const uint64_t id = ++last_operation_;
  operation.piece = PieceId{static_cast<uint32_t>(offset.count() / sizes_.piece.count())};
  operation.offset = offset.count() % sizes_.piece.count();
  const auto piece = Check(operation);
  const size_t granule = sizes_.granule.count();
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
  if (!begins) return;  // Advance reports it
  (*piece)->operations.insert(id);
  Attempt(id);
}

void PieceTransfers::Attempt(uint64_t id) {
  Operation& operation = operations_.at(id);
  const HeldPiece& piece = pieces_.all.at(operation.piece);
  operation.failed.reset();
  operation.attempt_at = core::kNever;
  if (operation.writes) {
    AttemptWrite(id, &operation, piece);
  } else {
    AttemptRead(id, &operation, piece);
  }
  if (operation.under_way == 0 && operation.failed) Retry(&operation);
}

void PieceTransfers::AttemptWrite(uint64_t id, Operation* operation, const HeldPiece& piece) {
  const bool all_usable =
      std::ranges::all_of(piece.copies, [](const PieceCopy& copy) { return copy.loan->usable(); });
  if (piece.repair || piece.copies.size() < copies_ || !all_usable) return;
  ++operation->attempts;
  for (const PieceCopy& copy : piece.copies) {
    operation->Started(copy.loan->Write(
        copy.slot, operation->offset, operation->from, operation->deadline,
        [this, id, slot = copy.slot](const Status& status) { OnWritten(id, slot, status); }));
  }
}

void PieceTransfers::AttemptRead(uint64_t id, Operation* operation, const HeldPiece& piece) {
  bool any_usable = false;
  for (const PieceCopy& copy : piece.copies) {
    if (!copy.loan->usable()) continue;
    any_usable = true;
    if (!operation->tried.insert(copy.slot).second) continue;
    ++operation->attempts;
    return operation->Started(copy.loan->Read(
        copy.slot, operation->offset, operation->to, operation->deadline,
        [this, id, slot = copy.slot](const Status& status) { OnRead(id, slot, status); }));
  }
  operation->tried.clear();
  if (any_usable) operation->attempt_at = Now() + kRetryAfter;
}

void PieceTransfers::Operation::Started(const Status& status) {
  if (status.ok()) {
    ++under_way;
  } else {
    failed = status.error();
  }
}

PieceTransfers::Operation* PieceTransfers::CallEnded(uint64_t id, SlotRef slot,
                                                     const Status& status) {
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
      listener_->OnCopyUnusable(operation->piece, slot,
                                {ErrorCode::kLost, "its lender took it back"});
      operation = find();
    }
  }
  if (operation == nullptr || operation->under_way > 0) return nullptr;
  if (!operation->ends) return operation;
  Finish(id, *operation->ends);
  return nullptr;
}

void PieceTransfers::OnWritten(uint64_t id, SlotRef slot, const Status& status) {
  Operation* const operation = CallEnded(id, slot, status);
  if (operation == nullptr) return;
  if (operation->failed) return Retry(operation);
  Commit(*operation);
  Finish(id, core::Ok());
}

void PieceTransfers::OnRead(uint64_t id, SlotRef slot, const Status& status) {
  Operation* const operation = CallEnded(id, slot, status);
  if (operation == nullptr) return;
  if (operation->failed) return Retry(operation);
  if (Matches(operation->to, operation->sums)) return Finish(id, core::Ok());
  const PieceId piece = operation->piece;
  const Error corrupt{ErrorCode::kCorrupt,
                      "the lender's bytes are not those that were written there"};
  listener_->OnCopyCorrupt(piece, slot);
  if (pieces_.all.at(piece).copies.size() == 1) return Finish(id, corrupt);
  operation->attempt_at = Now();
  listener_->OnCopyUnusable(piece, slot, corrupt);
}

// Other copies are read immediately.
void PieceTransfers::Retry(Operation* operation) {
  const Error& why = *operation->failed;
  const bool may_pass = why.code == ErrorCode::kUnavailable || why.code == ErrorCode::kTimedOut ||
                        why.code == ErrorCode::kWrongState || why.code == ErrorCode::kNotFound ||
                        why.code == ErrorCode::kLimit;
  if (!may_pass || operation->attempts >= kAttemptsMax) {
    operation->ends = Error{may_pass ? ErrorCode::kUnavailable : why.code, why.message};
  }
  operation->attempt_at = Now() + (operation->writes ? kRetryAfter : core::Duration{});
}

void PieceTransfers::Commit(const Operation& operation) {
  size_t index = operation.offset / sizes_.granule.count();
  GranuleSums& sums = pieces_.all.at(operation.piece).sums;
  for (const GranuleSum& sum : operation.sums) sums.Set(index++, sum);
}

void PieceTransfers::Finish(uint64_t id, const Status& status) {
  auto operation = operations_.extract(id);
  if (HeldPiece* const piece = pieces_.Find(operation.mapped().piece); piece != nullptr) {
    piece->operations.erase(id);
    // A repair waits for writes to end.
    if (piece->repair && operation.mapped().writes) piece->repair->step_at = Now();
  }
  operation.mapped().done(status);
}

void PieceTransfers::Step(uint64_t id) {
  const auto found = operations_.find(id);
  if (found == operations_.end()) return;
  Operation& operation = found->second;
  if (Has(Planted::kCommitBeforeAnswer) && operation.writes && operation.under_way > 0 &&
      pieces_.Find(operation.piece) != nullptr) {
    Commit(operation);
    pieces_.all.at(operation.piece).operations.erase(id);
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

bool PieceTransfers::IsWriting(const HeldPiece& piece) const {
  return std::ranges::any_of(piece.operations, [this](uint64_t id) {
    return operations_.at(id).writes && operations_.at(id).under_way > 0;
  });
}

void PieceTransfers::StopWrites(const HeldPiece& piece, const Error& why) {
  for (const uint64_t id : piece.operations) {
    Operation& operation = operations_.at(id);
    if (operation.writes) operation.ends = why;  // Advance reports it
  }
}

void PieceTransfers::Stop(const HeldPiece& piece, const Error& why) {
  for (const uint64_t id : piece.operations) operations_.at(id).ends = why;
}

void PieceTransfers::FinishIdle(const HeldPiece& piece, const Error& why) {
  for (const uint64_t id : piece.operations) {
    const auto found = operations_.find(id);
    if (found != operations_.end() && found->second.under_way == 0) Finish(id, why);
  }
}

void PieceTransfers::Close(const Error& why) {
  for (auto& [id, operation] : std::exchange(operations_, {})) operation.done(why);
}

void PieceTransfers::Wake() {
  for (auto& [id, operation] : operations_) {
    if (operation.under_way == 0) operation.attempt_at = std::min(operation.attempt_at, Now());
  }
}

void PieceTransfers::Advance() {
  std::vector<uint64_t> operations;
  for (const auto& [id, operation] : operations_) operations.push_back(id);
  for (const uint64_t id : operations) Step(id);
}

Tick PieceTransfers::Next() const {
  Tick next = core::kNever;
  for (const auto& [id, operation] : operations_) {
    if (operation.under_way > 0) continue;
    next = std::min({next, operation.deadline, operation.ends ? Now() : operation.attempt_at});
  }
  return next;
}

}  // namespace ravenstore::cluster
