#include "core/iteration_profile.h"

#include <algorithm>
#include <utility>

#include "core/tuned.h"

namespace ravenstore::core {

namespace {
// So many iterations ahead nothing is said.
constexpr int64_t kFarthest = 1 << 20;
}  // namespace

void IterationProfile::Access(Tick virtual_time) {
  if (accesses_++ == 0) {
    if (accesses_last_ > 0) EndIteration(virtual_time);
    begin_ = virtual_time;
  }
  if (!listens_) return;
  current_.push_back(virtual_time - begin_);
  // An iteration of this length means that the client does not mark the next.
  if (current_.size() == kMostAccesses) *this = {};
}

void IterationProfile::BeginIteration() {
  listens_ = true;
  if (accesses_ == 0) return;
  accesses_last_ = std::exchange(accesses_, 0);
  last_.swap(current_);
  current_.clear();
}

// An iteration ends where the next one's first access is.
void IterationProfile::EndIteration(Tick virtual_time) {
  const Duration length = virtual_time - begin_;
  repeats_ = accesses_last_ == accesses_before_ && Seconds(std::chrono::abs(length - length_)) <=
                                                       kAlike * Seconds(std::max(length, length_));
  accesses_before_ = accesses_last_;
  length_ = length;
}

Duration IterationProfile::Offset(int64_t access) const {
  const auto count = static_cast<int64_t>(last_.size());
  const int64_t iterations = access / count;
  return iterations * length_ + last_[static_cast<size_t>(access % count)];
}

std::optional<Duration> IterationProfile::Until(int64_t distance) const {
  // Between a step and the access after it nothing is known of where it is.
  if (!repeats_ || current_.empty()) return std::nullopt;
  const auto now = static_cast<int64_t>(current_.size()) - 1;
  if (now + distance >= kFarthest * static_cast<int64_t>(last_.size())) return std::nullopt;
  return Offset(now + distance) - Offset(now);
}

}  // namespace ravenstore::core
