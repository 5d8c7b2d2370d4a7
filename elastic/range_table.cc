#include "elastic/range_table.h"

#include <algorithm>
#include <utility>

#include "ipc/clock.h"

namespace ravenstore::elastic {

using core::Bytes;

namespace {

// Ranges that may be created before the scheduler has seen the end of any.
constexpr uint32_t kRangesAhead = 256;

}  // namespace

uint32_t RangeTable::New(const Request& request) {
  if (unused_.empty()) {
    const uint32_t end = size() + kRangesAhead;
    memory_.Grow(end);
    ranges_.resize(end);
    for (uint32_t number = end; number-- > end - kRangesAhead;) unused_.push_back(number);
  }
  const uint32_t number = unused_.back();
  unused_.pop_back();
  ranges_[number] = {};
  ranges_[number].size = request.size;
  ranges_[number].asked = request.asked;
  ranges_[number].created_on = request.on;
  return number;
}

void RangeTable::Recycle(std::vector<uint32_t>* numbers) {
  unused_.insert(unused_.end(), numbers->begin(), numbers->end());
  numbers->clear();
}

void RangeTable::Begin(uint32_t number) {
  Range& range = ranges_[number];
  range.live = true;
  range.used = range.allocated = ipc::Now();
  if (!range.is_segment()) {
    open_.Begin(number);
    range.begin = open_.AddressOf(number);
    addresses_.SetOwner(range.begin, range.size, number);
  }
  stats_.live += range.size;
  stats_.peak = std::max(stats_.peak, stats_.live);
  if (LiveBytes() > stats_.most) {
    stats_.most = LiveBytes();
    grew_(stats_.most);
  }
  if (options_.recorder) options_.recorder->Allocated(RangeId{number}, range.asked);
}

void RangeTable::End(uint32_t number) {
  Range& range = ranges_[number];
  if (!range.is_segment()) {
    addresses_.SetOwner(range.begin, range.size, Addresses::kNoOwner);
    open_.End(number);
  }
  if (range.pinned) stats_.pinned -= range.size;
  stats_.live -= range.size;
  range.live = false;
  if (options_.recorder) options_.recorder->Freed(RangeId{number});
}

Bytes RangeTable::LiveBytes() const {
  return options_.part * open_.live_pages() + segments_.live();
}

Bytes RangeTable::AwayOf(uint32_t number) const {
  const Range& range = ranges_[number];
  return range.is_segment() ? segments_.AwayOf(range.pages) : memory_.AwayOf(number);
}

void RangeTable::Hold(uint32_t number) {
  Range& range = ranges_[number];
  if (range.holders++ == 0 && !range.is_segment()) open_.Hold(number);
}

void RangeTable::EndHold(uint32_t number) {
  Range& range = ranges_[number];
  if (range.is_freed) {
    open_.Free(number, clock_.at(), range.free_stream, &range.uses);
  } else {
    open_.Put(number, clock_.at(), &range.uses);
  }
}

void RangeTable::Pin(uint32_t number) {
  Range& range = ranges_[number];
  if (std::exchange(range.pinned, true)) return;
  stats_.pinned += range.size;
  if (!range.is_segment()) Hold(number);
  segments_.Pin(range.pages);
}

}  // namespace ravenstore::elastic
