#include "sim/paged_backend.h"

#include "core/check.h"

namespace ravenstore::sim {

using core::Duration;
using core::plan::Unit;

namespace {
core::TensorId IdOf(Unit unit) {
  return core::TensorId{uint64_t{unit} + 1};
}
}  // namespace

PagedBackend::PagedBackend(const Hardware& hardware, const MappingCosts& costs)
    : hardware_(hardware),
      costs_(costs),
      in_(hardware.up, hardware.duplex, hardware.per_copy),
      out_(hardware.down, hardware.duplex, hardware.per_copy) {}

std::optional<Duration> PagedBackend::NextEvent() const {
  return events_.empty() ? std::nullopt : std::optional(events_.top().at);
}

void PagedBackend::Schedule(Duration after, Kind kind, uint32_t number) {
  events_.push({now_ + after, ++sequence_, kind, number});
}

void PagedBackend::SetTime(Duration now) {
  RAVEN_CHECK(now >= now_);
  now_ = now;
}

void PagedBackend::Advance(core::PageExecutor* executor) {
  const Event event = events_.top();
  events_.pop();
  SetTime(event.at);
  switch (event.kind) {
    case Kind::kUnmapped: executor->Unmapped(event.number); break;
    case Kind::kMapped: executor->Mapped(event.number); break;
    case Kind::kPieceIn: EndPiece(&in_, Kind::kIn); break;
    case Kind::kIn: executor->CopiedIn(event.number, true); break;
    case Kind::kPieceOut: EndPiece(&out_, Kind::kOut); break;
    case Kind::kOut: executor->CopiedOut(event.number, true); break;
  }
}

void PagedBackend::EndPiece(Link* link, Kind kind) {
  const auto [job, bytes] = link->End();
  if (job.left > core::Bytes{}) return;
  if (kind == Kind::kIn && demanded_ == job.row) demanded_ = std::nullopt;
  Schedule(hardware_.latency, kind, job.row);
}

void PagedBackend::StartPieces() {
  if (const auto takes = out_.Begin(in_.busy())) Schedule(*takes, Kind::kPieceOut, 0);
  if (const auto takes = in_.Begin(out_.busy())) Schedule(*takes, Kind::kPieceIn, 0);
}

bool PagedBackend::Map(const MapOrder& order) {
  const Duration takes = (order.steps.map ? costs_.map + costs_.access : Duration{0}) +
                         (order.steps.unmap ? costs_.unmap : Duration{0});
  if (takes == Duration{0}) return true;
  mapping_ += takes;
  Schedule(takes, Kind::kMapped, order.unit);
  return false;
}

void PagedBackend::Unmap(core::plan::PhysicalPage page) {
  mapping_ += costs_.unmap;
  Schedule(costs_.unmap, Kind::kUnmapped, page);
}

void PagedBackend::CopyIn(const CopyOrder& order) {
  if (order.demanded) demanded_ = order.unit;
  in_.Submit({IdOf(order.unit), order.unit, order.bytes},
             order.demanded ? Link::Urgency::kDemand : Link::Urgency::kBackground);
}

void PagedBackend::CopyOut(const CopyOrder& order) {
  out_.Submit({IdOf(order.unit), order.unit, order.bytes}, Link::Urgency::kBackground);
}

}  // namespace ravenstore::sim
