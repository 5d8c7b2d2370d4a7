#include "elastic/open_ranges.h"

namespace ravenstore::elastic {

using core::Bytes;
using core::Duration;
using core::StreamId;
using core::TensorNumber;
using core::plan::UnitSpan;

OpenRanges::OpenRanges(const Options& options)
    : options_(options), places_(options.page, options.addresses) {
  const auto pages = static_cast<uint32_t>(options.addresses.count() / options.page.count());
  pages_.Grow(pages);
  live_.resize(pages);
}

bool OpenRanges::Place(TensorNumber range, Bytes size, uint32_t stream) {
  return places_
      .Allocate(range, size, pages_most_.load(std::memory_order_relaxed), StreamId{stream})
      .has_value();
}

void OpenRanges::Begin(TensorNumber range) {
  const UnitSpan units = places_.UnitsOf(range);
  for (uint32_t i = 0; i < units.count; ++i) live_pages_ += live_[units[i] / 2]++ == 0 ? 1 : 0;
}

void OpenRanges::End(TensorNumber range) {
  const UnitSpan units = places_.UnitsOf(range);
  for (uint32_t i = 0; i < units.count; ++i) live_pages_ -= --live_[units[i] / 2] == 0 ? 1 : 0;
}

bool OpenRanges::TryCreate(TensorNumber range, Duration at, int64_t call) {
  const UnitSpan units = places_.UnitsOf(range);
  for (uint32_t i = 0; i < units.count; ++i) {
    if (pages_.TryHold(units[i] / 2)) continue;
    for (uint32_t held = 0; held < i; ++held) pages_.EndHold(units[held] / 2);
    return false;
  }
  log_.Add({.kind = LoggedCall::Kind::kCreate,
            .range = range,
            .at = at,
            .call = call,
            .size = places_.SizeOf(range),
            .place = places_.PlaceOf(range),
            .stream = core::ToInt(places_.StreamOf(range))});
  ranges_.Hold(range);
  ranges_.Open(range);
  log_.Add({.kind = LoggedCall::Kind::kPut, .range = range, .at = at});
  return true;
}

bool OpenRanges::TryUse(TensorNumber range, Duration at, int64_t call) {
  if (!ranges_.TryHold(range)) return false;
  log_.Add({.kind = LoggedCall::Kind::kUse, .range = range, .at = at, .call = call});
  return true;
}

void OpenRanges::Put(TensorNumber range, Duration at, std::vector<Point>* points) {
  log_.Add({.kind = LoggedCall::Kind::kPut, .range = range, .at = at}, points);
}

void OpenRanges::Free(TensorNumber range, Duration at, uint32_t stream,
                      std::vector<Point>* points) {
  places_.Free(range, StreamId{stream});
  log_.Add({.kind = LoggedCall::Kind::kFree, .range = range, .at = at, .stream = stream}, points);
}

}  // namespace ravenstore::elastic
