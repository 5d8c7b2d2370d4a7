#include "core/rhythm.h"

#include <algorithm>
#include <cmath>

namespace ravenstore::core {

namespace {
// Of two iterations that are the same but for noise, by so much of the longer.
constexpr double kAlike = 0.25;
}  // namespace

void Rhythm::Access(Tick own_time) {
  if (most_ == 0) return;
  if (current_.empty()) {
    if (!last_.empty()) EndIteration(own_time);
    begin_ = own_time;
  }
  current_.push_back(static_cast<float>(Seconds(own_time - begin_)));
  if (current_.size() < most_) return;
  // Who goes on for so long does not say when he begins anew.
  *this = {};
  most_ = 0;
}

void Rhythm::BeginIteration() {
  most_ = kMostAccesses;
  if (current_.empty()) return;
  last_.swap(current_);
  current_.clear();
}

// An iteration ends where the next one's first access is.
void Rhythm::EndIteration(Tick own_time) {
  const double length = Seconds(own_time - begin_);
  repeats_ = last_.size() == accesses_before_ &&
             std::abs(length - length_) <= kAlike * std::max(length, length_);
  accesses_before_ = last_.size();
  length_ = length;
}

double Rhythm::Offset(int64_t access) const {
  const auto count = static_cast<int64_t>(last_.size());
  const int64_t iterations = access / count;
  return static_cast<double>(iterations) * length_ +
         static_cast<double>(last_[static_cast<size_t>(access % count)]);
}

std::optional<double> Rhythm::SecondsUntil(int64_t distance) const {
  // Between a step and the access after it nothing is known of where it is.
  if (!repeats_ || current_.empty()) return std::nullopt;
  const auto now = static_cast<int64_t>(current_.size()) - 1;
  return Offset(now + distance) - Offset(now);
}

}  // namespace ravenstore::core
