#include "core/execution/in_place_use.h"

#include "core/check.h"

namespace ravenstore::core {

using plan::PoolNumber;
using plan::Unit;
using plan::UnitSpan;

namespace {

bool IsCreated(const PageTensors::Row& row) {
  return row.life == PageTensors::Life::kPlaced;
}

// For the copies of the created tensor's away units; kNoPool: none has room for it.
PoolNumber PoolFor(const PageBooks& books, const PageTensors::Row& row) {
  const plan::CopyPools& pools = books.copies().pools();
  for (PoolNumber pool = 0; pool < pools.size(); ++pool) {
    bool fits = pools.CanCopyOut(pool, row.size);
    for (uint32_t i = 0; i < row.units.count; ++i) {
      const plan::UnitState& unit = books[row.units[i]];
      fits &= unit.IsResident() || unit.live == 0 || unit.pool == pool;
    }
    if (fits) return pool;
  }
  return plan::kNoPool;
}

}  // namespace

bool CanUseInPlace(const PageBooks& books, const PageTensors& tensors, TensorNumber tensor) {
  const PageTensors::Row& row = tensors[tensor];
  if (!IsCreated(row) && !row.lives()) return false;
  for (uint32_t i = 0; i < row.units.count; ++i) {
    const plan::UnitState& unit = books[row.units[i]];
    const bool waits = unit.life == PageState::kAway || unit.life == PageState::kQueued;
    if (!unit.IsResident() && (!waits || unit.InUse())) return false;
  }
  return !IsCreated(row) || PoolFor(books, row) != plan::kNoPool;
}

bool IsUsedInPlace(const PageBooks& books, const UnitSpan& units) {
  for (uint32_t i = 0; i < units.count; ++i) {
    if (books[units[i]].in_place > 0) return true;
  }
  return false;
}

void InPlaceUse::Begin(TensorNumber tensor) {
  RAVEN_CHECK(CanUseInPlace(books_, tensors_, tensor));
  PageTensors::Row& row = tensors_[tensor];
  const bool creates = IsCreated(row);
  const PoolNumber pool = creates ? PoolFor(books_, row) : plan::kNoPool;
  if (creates) {
    RAVEN_CHECK(moves_.MakeRoomForCopy(row.size, pool));
    moves_.FreeCopies();
  }
  tensors_.Hold(tensor);
  if (creates) tensors_.Begin(tensor);
  row.in_place = true;
  for (uint32_t i = 0; i < row.units.count; ++i) {
    const Unit unit = row.units[i];
    const bool is_away = !books_[unit].IsResident();
    if (books_[unit].life == PageState::kQueued) books_.FinishIn(unit, false);
    books_.Pin(unit, is_away);
    row.away |= is_away;
    if (creates) Create(tensor, i, pool);
  }
  if (creates) moves_.UpdatePriorities(row.units);
}

void InPlaceUse::Create(TensorNumber tensor, uint32_t i, PoolNumber pool) {
  const Unit unit = tensors_[tensor].units[i];
  const Bytes bytes = tensors_.BytesIn(tensor, i);
  if (books_[unit].IsResident()) return books_.AddTensor(unit, bytes);
  if (books_[unit].live == 0) backend_->MakeCopy(unit, pool);
  books_.AddAwayTensor(unit, pool, bytes);
}

// A unit that was resident when the use began is so still, and one that was away is away.
void InPlaceUse::End(TensorNumber tensor, bool modifies) {
  const UnitSpan& units = tensors_[tensor].units;
  for (uint32_t i = 0; i < units.count; ++i) {
    const bool is_away = !books_[units[i]].IsResident();
    if (modifies && !is_away) books_.Modify(units[i]);
    books_.Reach(units[i], is_away);
  }
}

}  // namespace ravenstore::core
