#include "elastic/reachability.h"

#include <utility>

#include "ipc/clock.h"

namespace ravenstore::elastic {

using core::Status;
using core::plan::Unit;
using core::plan::UnitSpan;

Reachability::Reachability(const EngineOptions& options, const Uses& uses)
    : options_(options),
      driver_(*uses.driver),
      parts_(*uses.parts),
      memory_(*uses.memory),
      segments_(*uses.segments),
      ranges_(*uses.ranges),
      residency_(*uses.residency),
      mover_(*uses.mover),
      maps_away_(options.maps_away),
      all_mapped_(options.maps_away) {
  if (maps_away_) memory_.pages().mode().maps_away = true;
}

void Reachability::Check(const Status& reached) {
  if (!reached.ok()) residency_.Fail("memory on the host cannot be reached", reached.error());
}

Status Reachability::ReachUnit(Unit unit, Lock& lock) {
  JobPages& pages = memory_.pages();
  while (pages.IsChanging(unit)) {
    if (!pages.Report()) residency_.AwaitChange(Residency::kLookAgain, lock);
  }
  if (pages.CanReach(unit)) return core::Ok();
  JobPages::Reach reach = pages.BeginReach(unit);
  lock.unlock();
  Status status = core::Ok();
  {
    const Mover::Pause pause(&mover_);
    const RelaxedCapture relaxed(driver_);
    status = pages.FinishReach(&reach);
  }
  lock.lock();
  JobPages::EndReach(reach);
  residency_.NotifyChanged();
  return status;
}

Status Reachability::ReachRange(uint32_t number, Lock& lock) {
  const UnitSpan units = memory_.RowOf(number).units;
  for (uint32_t i = 0; i < units.count; ++i) RAVEN_RETURN_IF_ERROR(ReachUnit(units[i], lock));
  return core::Ok();
}

void Reachability::ReachPage(PageId id, Lock& lock) {
  SegmentTable::Page& page = segments_.At(id);
  if (page.reservation == nullptr || page.part == nullptr || page.is_mapped || page.moving) return;
  segments_.BeginMoving(&page);
  const Part& part = *page.part;
  lock.unlock();
  Status mapped = core::Ok();
  {
    const Mover::Pause pause(&mover_);
    const RelaxedCapture relaxed(driver_);
    mapped = parts_.Map(page.begin, part);
  }
  lock.lock();
  segments_.EndMoving(&page);
  page.is_mapped = mapped.ok();
  Check(mapped);
  residency_.NotifyChanged();
}

bool Reachability::ReachLive(Lock& lock) {
  bool any = false;
  const Residency::Reaching reaching(&residency_);
  for (Unit unit = 0; unit < memory_.books().view().units.size(); unit += 2) {
    if (memory_.StateOf(unit).live == 0 || memory_.pages().CanReach(unit)) continue;
    any = true;
    Check(ReachUnit(unit, lock));
  }
  return any;
}

core::Duration Reachability::ReachCall(std::span<const RangeId> ranges,
                                       std::span<const PageId> pages, bool is_unknown, Lock& lock) {
  const core::Tick began = ipc::Now();
  bool has_waited = false;
  if (is_unknown && maps_away_ && (!all_mapped_ || residency_.broken())) {
    all_mapped_ = all_mapped_ && !residency_.broken();
    has_waited = MapAll(lock);
  } else if (is_unknown && !all_mapped_) {
    has_waited = ReachLive(lock);
  }
  for (const RangeId id : ranges) {
    const uint32_t number = core::ToInt(id);
    if (ranges_[number].is_segment()) continue;
    const UnitSpan units = memory_.RowOf(number).units;
    for (uint32_t i = 0; i < units.count; ++i) {
      if (memory_.pages().CanReach(units[i])) continue;
      has_waited = true;
      Check(ReachUnit(units[i], lock));
    }
  }
  for (const PageId id : pages) {
    if (!segments_.At(id).is_mapped) ReachPage(id, lock);
  }
  return has_waited ? ipc::Now() - began : core::Duration{};
}

void Reachability::SetMapsAway() {
  if (std::exchange(maps_away_, true)) return;
  memory_.pages().mode().maps_away = true;
}

bool Reachability::MapAll(Lock& lock) {
  SetMapsAway();
  if (all_mapped_) return false;
  const bool any = ReachLive(lock);
  all_mapped_ = true;
  if (!std::exchange(logged_, true) && options_.log)
    options_.log("the job reaches memory that it does not name: what is away stays mapped");
  return any;
}

}  // namespace ravenstore::elastic
