// What a client's hints would say of a tensor of which it says nothing.
//
// A client may hint when some of its tensors are needed, by time or by an order of its own, and
// leave others out. Of those a position among its accesses is learned (core/forecast.h). To be
// compared with the hints it becomes one, counted from the last hinted tensor whose position was
// learned as well.
//
// Threads: one at a time. Cost: O(1).
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <optional>

#include "core/catalog.h"
#include "core/forecast.h"
#include "core/types.h"

namespace ravenstore::core {

class HintScale {
 public:
  // A hint (kAt, in ns, or kOrder; of at most 2^61), and the learned position of the same use, if
  // there is one.
  void Add(UseKind kind, int64_t key, std::optional<int64_t> position) {
    if (kind != kind_) *this = {};
    kind_ = kind;
    if (!position) return;
    if (known_) {
      positions_ += kKept * (static_cast<double>(std::abs(*position - position_)) - positions_);
      keys_ += kKept * (static_cast<double>(std::abs(key - key_)) - keys_);
    }
    known_ = true;
    position_ = *position;
    key_ = key;
  }
  // Of the last hint; kUnknown before the first.
  UseKind kind() const { return kind_; }
  // The key of a use at `position`; nullopt if nothing says what it would be.
  std::optional<int64_t> KeyAt(int64_t position, const Forecast& forecast, Tick own_time) const {
    if (kind_ == UseKind::kAt) {
      const auto until = [&](int64_t p) { return FromSeconds(forecast.SecondsUntil(p)).count(); };
      if (known_ && position_ > forecast.position())
        return key_ + until(position) - until(position_);
      return own_time.time_since_epoch().count() + until(position);
    }
    if (kind_ != UseKind::kOrder || positions_ == 0) return std::nullopt;
    const double away = static_cast<double>(position - position_) * keys_ / positions_;
    return key_ + std::llround(std::clamp(away, -kFarthest, kFarthest));
  }

 private:
  static constexpr double kKept = 0.05;  // of each new one in the averages
  // Keys are a stranger's numbers: what is computed from them stays where sums are safe.
  static constexpr double kFarthest = 0x1p60;

  UseKind kind_ = UseKind::kUnknown;
  bool known_ = false;  // what follows
  int64_t position_ = 0;
  int64_t key_ = 0;
  // From one tensor to the next, on average.
  double positions_ = 0;
  double keys_ = 0;
};

}  // namespace ravenstore::core
