#include "sim/paged_mover.h"

#include <algorithm>
#include <utility>

#include "core/check.h"

namespace ravenstore::sim {

using core::Bytes;
using core::Duration;
using core::plan::MoveQueues;
using core::plan::Unit;
using Queue = MoveQueues::Queue;

namespace {
// Bytes that are mapped or queued to come ahead of their need: enough to keep the link busy while
// the next page is mapped. More would take memory earlier than it is needed.
constexpr Bytes kComingLeast = core::MiB(16);
constexpr uint64_t kComingPages = 2;

core::TensorId IdOf(Unit unit) {
  return core::TensorId{uint64_t{unit} + 1};
}
}  // namespace

PagedMover::PagedMover(const Hardware& hardware, const MappingCosts& costs,
                       const core::plan::PlanLimits& limits)
    : hardware_(hardware),
      costs_(costs),
      units_(limits, hardware.up, std::max(kComingLeast, limits.page * kComingPages)),
      in_(hardware.up, hardware.duplex, hardware.per_copy),
      out_(hardware.down, hardware.duplex, hardware.per_copy) {}

std::optional<Duration> PagedMover::NextEvent() const {
  return events_.empty() ? std::nullopt : std::optional(events_.top().at);
}

void PagedMover::Schedule(Duration after, Kind kind, Unit unit) {
  events_.push({now_ + after, ++sequence_, kind, unit});
}

bool PagedMover::Advance() {
  const Event event = events_.top();
  events_.pop();
  now_ = event.at;
  switch (event.kind) {
    case Kind::kUnmapped:
      mapping_ = false;
      units_.FinishUnmap();
      break;
    case Kind::kMapped:
      mapping_ = false;
      arrived_ |= units_.FinishMap(event.unit);
      break;
    case Kind::kPieceIn: EndPiece(&in_, Kind::kIn); break;
    case Kind::kIn: arrived_ |= units_.FinishIn(event.unit); break;
    case Kind::kPieceOut: EndPiece(&out_, Kind::kOut); break;
    case Kind::kOut: units_.FinishOut(event.unit); break;
  }
  return Start(now_);
}

bool PagedMover::Start(Duration now) {
  RAVEN_CHECK(now >= now_);
  now_ = now;
  DropClean();
  StartOut();
  StartMaps();
  StartIn();
  return std::exchange(arrived_, false);
}

void PagedMover::DropClean() {
  while (const auto next = units_.view().queues.First(Queue::kDrops)) units_.Drop(next->unit);
}

void PagedMover::StartPiece(Link* link, const Link& other, Kind kind) {
  if (const auto takes = link->Begin(other.busy())) Schedule(*takes, kind, 0);
}

void PagedMover::EndPiece(Link* link, Kind kind) {
  const auto [job, bytes] = link->End();
  if (job.left > Bytes{}) return;
  if (kind == Kind::kIn && units_[job.row].demanded) demand_in_ = false;
  Schedule(hardware_.latency, kind, job.row);
}

void PagedMover::StartOut() {
  if (!out_.HasWork()) {
    if (const auto unit = core::plan::NextOut(units_.view())) {
      units_.StartOut(*unit);
      const Bytes bytes = units_[*unit].bytes;
      stats_.out += bytes;
      out_.Submit({IdOf(*unit), *unit, bytes}, Link::Urgency::kBackground);
    }
  }
  StartPiece(&out_, in_, Kind::kPieceOut);
}

void PagedMover::StartIn() {
  if (const auto unit = core::plan::NextIn(units_.view())) {
    const bool demanded = units_[*unit].demanded;
    if (!in_.HasWork() || (demanded && !demand_in_)) {
      units_.StartIn(*unit);
      demand_in_ = demanded;
      // A tensor may have died since the page was mapped; what is copied is never nothing.
      const Bytes bytes = std::max(units_[*unit].bytes, core::kExtentAlignment);
      stats_.in += bytes;
      in_.Submit({IdOf(*unit), *unit, bytes},
                 demanded ? Link::Urgency::kDemand : Link::Urgency::kBackground);
    }
  }
  StartPiece(&in_, out_, Kind::kPieceIn);
}

void PagedMover::StartMaps() {
  while (!mapping_) {
    if (StartMap()) continue;
    if (const auto unit = core::plan::NextExchange(units_.view())) {
      ++stats_.exchanges;
      units_.Force(*unit);
      DropClean();
      StartOut();
      continue;
    }
    if (LeaveInEmergency()) continue;
    if (units_.view().supply.stale == 0) return;
    units_.StartUnmap();
    mapping_ = true;
    stats_.mapping += costs_.unmap;
    Schedule(costs_.unmap, Kind::kUnmapped, 0);
  }
}

bool PagedMover::StartMap() {
  const auto choice = core::plan::NextMap(units_.view());
  if (!choice) return false;
  const auto steps = units_.StartMap(*choice);
  const Duration takes = (steps.map ? costs_.map + costs_.access : Duration{0}) +
                         (steps.unmap ? costs_.unmap : Duration{0});
  if (takes == Duration{0}) {
    arrived_ |= units_.FinishMap(choice->unit);
    return true;
  }
  mapping_ = true;
  ++stats_.maps;
  stats_.mapping += takes;
  Schedule(takes, Kind::kMapped, choice->unit);
  return true;
}

Bytes PagedMover::Demanded() const {
  // At most the units of one call wait; those that are mapped already need no memory.
  Bytes bytes;
  const auto view = units_.view();
  for (Unit unit = 0; unit < units_.size(); ++unit) {
    const auto& state = view.units[unit];
    if (state.demanded && state.phase == core::plan::UnitState::Phase::kAway)
      bytes += units_.WeightOf(unit);
  }
  return bytes;
}

bool PagedMover::LeaveInEmergency() {
  const auto waits = [this](Queue queue) {
    const auto next = units_.view().queues.First(queue);
    return next && next->need == MoveQueues::kWaitedFor;
  };
  if (!waits(Queue::kComes) && !waits(Queue::kBorn)) return false;
  if (!units_.view().queues.IsEmpty(Queue::kLeaves) || units_.view().leaving > 0) return false;
  Bytes need = Demanded();
  bool any = false;
  while (need > Bytes{}) {
    const auto unit = core::plan::NextEmergency(units_.view());
    if (!unit) break;
    need = core::Minus(need, units_.WeightOf(*unit));
    units_.Force(*unit);
    any = true;
  }
  if (!any) return false;
  ++stats_.emergencies;
  DropClean();
  StartOut();
  return true;
}

PagedMover::Stats PagedMover::stats() const {
  return stats_;
}

}  // namespace ravenstore::sim
