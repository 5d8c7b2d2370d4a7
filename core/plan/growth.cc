#include "core/plan/growth.h"

namespace ravenstore::core::plan {

void Growth::Created(TensorIndex tensor, Bytes size, Duration now) {
  creates_.emplace_back(tensor, now);
  live_[tensor] = size;
  bytes_ += size;
}

Bytes Growth::At(Duration now) {
  for (; !creates_.empty() && creates_.front().second + window_ < now; creates_.pop_front())
    Remove(creates_.front().first);
  return bytes_;
}

void Growth::Remove(TensorIndex tensor) {
  const auto found = live_.find(tensor);
  if (found == live_.end()) return;
  bytes_ -= found->second;
  live_.erase(found);
}

}  // namespace ravenstore::core::plan
