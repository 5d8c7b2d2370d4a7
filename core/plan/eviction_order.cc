#include "core/plan/eviction_order.h"

#include <algorithm>

#include "core/check.h"

namespace ravenstore::core::plan {

void EvictionOrder::AddClean(Unit unit, const EvictionRank& rank) {
  Of& of = units_[unit];
  RAVEN_CHECK(of.kind == Kind::kNone);
  of.kind = Kind::kClean;
  clean_.push({{rank, unit}, of.version});
}

void EvictionOrder::AddDirty(Unit unit, const EvictionRank& rank, Duration since, Duration copy) {
  Of& of = units_[unit];
  RAVEN_CHECK(of.kind == Kind::kNone);
  of.kind = Kind::kYoung;
  of.since = since;
  of.copy = copy;
  const Entry entry{{rank, unit}, of.version};
  young_.push(entry);
  aging_.push({since + copy, entry});
}

void EvictionOrder::Remove(Unit unit) {
  Of& of = units_[unit];
  of.kind = Kind::kNone;
  ++of.version;
}

const EvictionOrder::Candidate* EvictionOrder::First(Heap* heap, Kind kind) {
  while (!heap->empty() && !Holds(heap->top(), kind)) heap->pop();
  return heap->empty() ? nullptr : &heap->top().candidate;
}

std::optional<EvictionOrder::Candidate> EvictionOrder::Latest() {
  std::optional<Candidate> latest;
  for (const Candidate* first :
       {First(&clean_, Kind::kClean), First(&old_, Kind::kOld), First(&young_, Kind::kYoung)}) {
    if (first != nullptr && (!latest || *latest < *first)) latest = *first;
  }
  return latest;
}

std::optional<EvictionOrder::Candidate> EvictionOrder::LatestOut(Duration now, Duration link_free) {
  for (; !aging_.empty() && aging_.top().at <= now; aging_.pop()) {
    const Entry& entry = aging_.top().entry;
    if (!Holds(entry, Kind::kYoung)) continue;
    units_[entry.candidate.unit].kind = Kind::kOld;
    old_.push(entry);
  }
  std::optional<Candidate> latest;
  if (const Candidate* clean = First(&clean_, Kind::kClean)) latest = *clean;
  const Candidate* old = First(&old_, Kind::kOld);
  if (old != nullptr && link_free + units_[old->unit].copy <= now && (!latest || *latest < *old))
    latest = *old;
  return latest;
}

}  // namespace ravenstore::core::plan
