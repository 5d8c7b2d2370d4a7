#include "core/pacer.h"

#include <algorithm>
#include <cmath>

#include "core/check.h"

namespace ravenstore::core {

void Pacer::SetRate(double bytes_per_second) {
  RAVEN_CHECK(bytes_per_second == 0 || bytes_per_second >= 1);
  bytes_per_second_ = bytes_per_second;
  if (bytes_per_second == 0) line_.clear();
}

bool Pacer::MaySend(Sender sender, Bytes bytes, Tick now) {
  if (bytes_per_second_ == 0) return true;
  const auto place = std::ranges::find(line_, sender, &Waiting::sender);
  const bool first = line_.empty() || place == line_.begin();
  if (!first || now < TurnOf(bytes)) {
    if (place == line_.end()) {
      line_.push_back({sender, bytes});
    } else {
      place->bytes = bytes;
    }
    return false;
  }
  if (!line_.empty()) line_.pop_front();
  sent_until_ = std::max(sent_until_, now) + TimeOf(bytes);
  return true;
}

void Pacer::Leave(Sender sender) {
  std::erase_if(line_, [sender](const Waiting& waiting) { return waiting.sender == sender; });
}

Tick Pacer::TurnOf(Bytes bytes) const {
  return sent_until_ - TimeOf(Minus(burst_, bytes));
}

// Rounded up: many small pieces are no faster than the rate.
Duration Pacer::TimeOf(Bytes bytes) const {
  return Duration(static_cast<int64_t>(
      std::ceil(static_cast<double>(bytes.count()) * 1e9 / bytes_per_second_)));
}

}  // namespace ravenstore::core
