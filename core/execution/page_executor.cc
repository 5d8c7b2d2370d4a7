#include "core/execution/page_executor.h"

#include <utility>

#include "core/check.h"

namespace ravenstore::core {

using plan::PoolNumber;
using plan::Unit;
using plan::UnitSpan;

PageExecutor::PageExecutor(const PageBooks::Options& options, PageBackend* backend)
    : backend_(backend),
      books_(options),
      tensors_(options.limits.page),
      words_(backend, books_, &tensors_),
      moves_(backend, &books_, &tensors_, &words_),
      in_place_(backend, &books_, &tensors_, &moves_) {}

// ---- The client's calls.

void PageExecutor::Place(TensorNumber tensor, const UnitSpan& units, Bytes offset, Bytes size) {
  tensors_.Place(tensor, units, offset, size);
  books_.Ensure(units);
}

bool PageExecutor::MoveToSlot(TensorNumber tensor, const UnitSpan& slot) {
  const PageTensors::Row row = tensors_[tensor];
  RAVEN_CHECK(slot.is_slot());
  if (!row.lives() || row.pinned || row.units.is_slot()) return false;
  if (!CanMoveCopy(books_, row.units, slot)) return false;
  moves_.FreeCopies();
  const PoolNumber pool = books_[row.units.first].pool;
  Bytes moved;
  Bytes offset = row.offset;
  for (uint32_t i = 0; i < row.units.count; ++i) {
    const Bytes bytes = tensors_.BytesIn(tensor, i);
    if (!backend_->MoveCopy({row.units[i], offset, slot.first, moved, bytes, pool})) return false;
    moved += bytes;
    offset = Bytes{};
  }
  for (uint32_t i = 0; i < row.units.count; ++i)
    books_.RemoveTensor(row.units[i], tensors_.BytesIn(tensor, i), true);
  books_.Ensure(slot);
  books_.AddAwayTensor(slot.first, pool, row.size);
  tensors_.Move(tensor, slot);
  moves_.UpdatePriorities(row.units);
  moves_.UpdatePriorities(slot);
  moves_.CountMoveToSlot();
  return true;
}

void PageExecutor::Hold(TensorNumber tensor) {
  tensors_.Hold(tensor);
  const UnitSpan& units = tensors_[tensor].units;
  for (uint32_t i = 0; i < units.count; ++i) books_.Pin(units[i]);
}

bool PageExecutor::Pin(TensorNumber tensor) {
  Hold(tensor);
  if (IsResident(tensor)) return true;
  words_.Wait(tensor);
  return false;
}

void PageExecutor::Begin(TensorNumber tensor) {
  tensors_.Begin(tensor);
  tensors_[tensor].away = false;
  const UnitSpan& units = tensors_[tensor].units;
  for (uint32_t i = 0; i < units.count; ++i)
    books_.AddTensor(units[i], tensors_.BytesIn(tensor, i));
  moves_.UpdatePriorities(units);
}

void PageExecutor::Unpin(TensorNumber tensor, Priority priority) {
  const PageTensors::Row& row = tensors_[tensor];
  tensors_.SetPriority(tensor, priority);
  moves_.UpdatePriorities(row.units);
  const bool in_place = row.in_place;
  tensors_.EndHold(tensor);
  for (uint32_t i = 0; i < row.units.count; ++i) {
    if (!in_place || books_[row.units[i]].IsResident()) books_.Unpin(row.units[i]);
  }
}

void PageExecutor::Reach(TensorNumber tensor) {
  const UnitSpan& units = tensors_[tensor].units;
  for (uint32_t i = 0; i < units.count; ++i) books_.Reach(units[i]);
}

void PageExecutor::Modify(TensorNumber tensor) {
  const UnitSpan& units = tensors_[tensor].units;
  for (uint32_t i = 0; i < units.count; ++i) books_.Modify(units[i]);
}

void PageExecutor::Remove(TensorNumber tensor) {
  RAVEN_CHECK(!tensors_[tensor].lives());
  RAVEN_CHECK(!tensors_[tensor].pinned);
  RAVEN_CHECK(!words_.IsGrantedEarly(tensor));
  tensors_.Remove(tensor);
}

std::vector<plan::UnitSnapshot> PageExecutor::Snapshot() const {
  std::vector<plan::UnitSnapshot> snapshot = SnapshotOf(books_);
  for (const TensorNumber tensor : tensors_.beginning()) {
    const plan::UnitSpan& units = tensors_[tensor].units;
    for (uint32_t i = 0; i < units.count; ++i) {
      ++snapshot[units[i]].live;
      snapshot[units[i]].dirty = true;
    }
  }
  return snapshot;
}

void PageExecutor::KeepInPlace(const UnitSpan& units) {
  for (uint32_t i = 0; i < units.count; ++i) books_.Pin(units[i]);
}

void PageExecutor::EndKeepInPlace(const UnitSpan& units) {
  for (uint32_t i = 0; i < units.count; ++i) {
    books_.Unpin(units[i]);
    books_.Reach(units[i]);
  }
}

void PageExecutor::Retire() {
  words_.Clear();
  books_.SetPlan({});
  books_.EndUses();
  tensors_.Clear();
}

// ---- Pools for copies that change.

Bytes PageExecutor::DropCopies(PoolNumber pool, Bytes bytes) {
  const Bytes before = books_.copies().pools().used(pool);
  const auto dropped = [&] { return before - books_.copies().pools().used(pool); };
  while (dropped() < bytes) {
    const auto unit = CopyToDrop(books_, pool);
    if (!unit) break;
    books_.MoveCopy(*unit, plan::kNoPool);
  }
  moves_.FreeCopies();
  return dropped();
}

void PageExecutor::Lose(Unit unit, std::vector<TensorNumber>* lost) {
  const plan::UnitState& state = books_[unit];
  if (state.life == PageState::kClean && state.pool != plan::kNoPool)
    books_.MoveCopy(unit, plan::kNoPool);
  if (state.IsResident()) return;
  const auto living = tensors_.In(unit);
  const std::vector<TensorNumber> tensors(living.begin(), living.end());
  for (const TensorNumber tensor : tensors) {
    if (words_.IsGrantedEarly(tensor)) {
      Break(tensor);
      continue;
    }
    if (words_.Waits(tensor)) Refuse(tensor);
    End(tensor);
  }
  lost->insert(lost->end(), tensors.begin(), tensors.end());
}

// ---- The backend's reports.

void PageExecutor::Mapped(Unit unit, bool ok, std::vector<TensorNumber>* refused) {
  if (ok) return moves_.Mapped(unit, true);
  for (const TensorNumber tensor : words_.TakeWaiting(unit)) {
    Refuse(tensor);
    if (refused != nullptr) refused->push_back(tensor);
  }
  moves_.Mapped(unit, false);
}

void PageExecutor::CopiedIn(Unit unit, bool ok, std::vector<TensorNumber>* refused) {
  if (!ok) {
    for (const TensorNumber tensor : words_.TakeGrantedEarly(unit)) Break(tensor);
    for (const TensorNumber tensor : words_.TakeWaiting(unit)) {
      Refuse(tensor);
      if (refused != nullptr) refused->push_back(tensor);
    }
  }
  moves_.CopiedIn(unit, ok);
}

void PageExecutor::Break(TensorNumber tensor) {
  words_.EndEarlyGrant(tensor);
  words_.EndWait(tensor);
  End(tensor);
  if (!tensors_[tensor].pinned) Hold(tensor);
  backend_->Break(tensor);
}

void PageExecutor::Refuse(TensorNumber tensor) {
  words_.EndWait(tensor);
  Unpin(tensor);
  Reach(tensor);
  PageTensors::Row& row = tensors_[tensor];
  --row.uses;  // the client's word does not count this one
  if (row.life == PageTensors::Life::kBegins && row.uses > 0) tensors_.AbortBegin(tensor);
  backend_->Refuse(tensor);
}

}  // namespace ravenstore::core
