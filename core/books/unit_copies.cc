#include "core/books/unit_copies.h"

#include <utility>

#include "core/check.h"

namespace ravenstore::core {

using plan::PoolNumber;
using plan::Unit;

UnitCopies::UnitCopies(const std::vector<plan::CopyPool>& pools, Bytes page)
    : pools_(pools, page), redundant_(pools.size()) {}

void UnitCopies::Add(Unit unit, PoolNumber pool, Bytes bytes) {
  const Bytes more = Minus(bytes, units_[unit].bytes);
  pools_.Add(pool, more);
  units_[unit].bytes += more;
}

void UnitCopies::Shrink(Unit unit, PoolNumber pool, Bytes bytes) {
  RAVEN_CHECK(bytes <= units_[unit].bytes);
  RAVEN_CHECK(redundant_[pool].count(unit) == 0);
  pools_.Remove(pool, bytes);
  units_[unit].bytes -= bytes;
}

void UnitCopies::Remove(Unit unit, PoolNumber pool) {
  SetRedundant(unit, pool, false);
  pools_.Remove(pool, std::exchange(units_[unit].bytes, Bytes{}));
  removed_.push_back({unit, pool});
}

void UnitCopies::Move(Unit unit, PoolNumber from, PoolNumber to) {
  RAVEN_CHECK(redundant_[from].count(unit) == 0);
  pools_.Remove(from, units_[unit].bytes);
  pools_.Add(to, units_[unit].bytes);
  const Bytes coming = units_[unit].coming;
  EndComing(unit);
  if (coming > Bytes{}) BeginComing(unit, to, coming);
}

void UnitCopies::SetRedundant(Unit unit, PoolNumber pool, bool redundant) {
  if (redundant) {
    if (redundant_[pool].insert(unit).second) pools_.AddRedundant(pool, units_[unit].bytes);
  } else {
    if (redundant_[pool].erase(unit) > 0) pools_.RemoveRedundant(pool, units_[unit].bytes);
  }
}

void UnitCopies::BeginComing(Unit unit, PoolNumber pool, Bytes memory) {
  units_[unit].coming = memory;
  units_[unit].from = pool;
  pools_.AddComing(pool, memory);
}

void UnitCopies::EndComing(Unit unit) {
  const Bytes memory = std::exchange(units_[unit].coming, Bytes{});
  if (memory > Bytes{}) pools_.RemoveComing(units_[unit].from, memory);
}

void UnitCopies::Check(std::span<const plan::UnitState> units) const {
  std::vector<std::pair<Bytes, Bytes>> sums(pools_.size());  // all, and redundant ones
  for (Unit unit = 0; unit < units.size(); ++unit) {
    const PoolNumber pool = units[unit].pool;
    if (pool == plan::kNoPool) continue;
    sums[pool].first += units_[unit].bytes;
    const bool redundant = units[unit].life == PageState::kClean;
    RAVEN_CHECK(redundant == (redundant_[pool].count(unit) > 0));
    if (redundant) sums[pool].second += units_[unit].bytes;
  }
  for (PoolNumber pool = 0; pool < pools_.size(); ++pool) {
    RAVEN_CHECK(sums[pool].first == pools_.used(pool));
    RAVEN_CHECK(sums[pool].second == pools_.redundant(pool));
    RAVEN_CHECK(pools_.redundant(pool) <= pools_.used(pool));
  }
}

}  // namespace ravenstore::core
