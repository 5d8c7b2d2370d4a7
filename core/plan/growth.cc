#include "core/plan/growth.h"

#include <utility>

namespace ravenstore::core::plan {

void Growth::Created(TensorIndex tensor, Bytes size, Duration now) {
  RemoveExpired(now);
  creates_.emplace_back(tensor, now);
  live_.GrowTo(tensor + 1);
  live_[tensor] = {size, now};
  bytes_ += size;
}

Bytes Growth::At(Duration now) {
  RemoveExpired(now);
  return bytes_;
}

void Growth::RemoveExpired(Duration now) {
  for (; !creates_.empty() && creates_.front().second + window_ < now; creates_.pop_front()) {
    const auto& [tensor, created] = creates_.front();
    // Another tensor may have the index since.
    if (live_[tensor].created == created) Remove(tensor);
  }
}

void Growth::Remove(TensorIndex tensor) {
  if (tensor < live_.size()) bytes_ -= std::exchange(live_[tensor].size, {});
}

}  // namespace ravenstore::core::plan
