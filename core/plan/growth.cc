#include "core/plan/growth.h"

namespace ravenstore::core::plan {

void Growth::Created(TensorIndex tensor, Bytes size, Duration now) {
  RemoveExpired(now);
  creates_.emplace_back(tensor, now);
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
    const auto found = live_.find(tensor);
    // Another tensor may have the index since.
    if (found != live_.end() && found->second.created == created) Remove(tensor);
  }
}

void Growth::Remove(TensorIndex tensor) {
  const auto found = live_.find(tensor);
  if (found == live_.end()) return;
  bytes_ -= found->second.size;
  live_.erase(found);
}

}  // namespace ravenstore::core::plan
