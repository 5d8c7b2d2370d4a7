#include "sim/harvest.h"

#include <algorithm>
#include <utility>

namespace ravenstore::sim {

using core::Bytes;
using core::Duration;
using core::Tick;

namespace {
constexpr Bytes kChunk = core::MiB(256);
}  // namespace

Tick HarvestedPool::NextChange() const {
  return next_ < limits_.size() ? begin_ + limits_[next_].at : core::kNever;
}

Bytes HarvestedPool::Change(Tick now) {
  Pass(now);
  const Bytes before = std::exchange(most_, limits_[next_++].most);
  if (most_ > before) {
    for (Pending& one : pending_) one.limit = std::max(one.limit, most_);
    EndGiveBacks(now, /*done=*/false);
  } else if (most_ < before && held_ > most_) {
    pending_.push_back({{.begin = now,
                         .bytes = held_ - most_,
                         .copied = moving_on_,
                         .in_flight = in_flight_,
                         .chunks = going_},
                        most_});
  }
  return most_;
}

Tick HarvestedPool::Grow(Bytes size, Tick now) {
  Pass(now);
  held_ += size;
  return Occupy(size, now);
}

Tick HarvestedPool::Shrink(Bytes size, Tick now) {
  going_ += TimeOf(size);
  for (Pending& one : pending_) one.give_back.chunks += TimeOf(size);
  return Occupy(size, now);
}

void HarvestedPool::Shrunk(Bytes size, Tick now) {
  Pass(now);
  held_ -= size;
  going_ -= TimeOf(size);
  EndGiveBacks(now, /*done=*/true);
}

void HarvestedPool::BeginMoveOn(Bytes bytes) {
  moving_on_ += bytes;
  for (Pending& one : pending_) one.give_back.copied += bytes;
}

void HarvestedPool::Read(Bytes bytes, Tick since, Tick now) {
  use_.useful += static_cast<double>(bytes.count()) * core::Seconds(now - since);
}

HarvestUse HarvestedPool::End(Tick now) {
  Pass(now);
  for (Pending& one : pending_) one.limit = std::max(one.limit, held_);
  EndGiveBacks(now, /*done=*/false);
  return std::move(use_);
}

void HarvestedPool::Pass(Tick now) {
  const double seconds = core::Seconds(now - std::exchange(now_, now));
  use_.idle += static_cast<double>(most_.count()) * seconds;
  use_.held += static_cast<double>(held_.count()) * seconds;
}

Duration HarvestedPool::TimeOf(Bytes chunk) const {
  return chunk_changed_ * static_cast<int64_t>(chunk.RoundUp(kChunk).count() / kChunk.count());
}

Tick HarvestedPool::Occupy(Bytes chunk, Tick now) {
  return driver_free_ = std::max(driver_free_, now) + TimeOf(chunk);
}

void HarvestedPool::EndGiveBacks(Tick now, bool done) {
  std::erase_if(pending_, [&](Pending& one) {
    if (held_ > one.limit) return false;
    one.give_back.took = now - one.give_back.begin;
    one.give_back.done = done;
    use_.give_backs.push_back(one.give_back);
    return true;
  });
}

}  // namespace ravenstore::sim
