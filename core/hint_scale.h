// What a client's hints would be for a tensor that it gives none.
//
// A client may hint when some of its tensors are needed, by time or by an order of its own, and
// leave others out. For those a logical time is learned (core/forecast.h). To be compared with
// hints it is translated into one, counted from the last hinted tensor whose logical time was
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
#include "core/tuned.h"
#include "core/types.h"

namespace ravenstore::core {

class HintScale {
 public:
  // A hint (kAt, in ns, or kOrder; of at most 2^61), and the learned logical time of the same use,
  // if there is one.
  void Add(UseKind kind, int64_t key, std::optional<int64_t> logical_time) {
    if (kind != kind_) *this = {};
    kind_ = kind;
    if (!logical_time) return;
    if (known_) {
      logical_steps_ += kSmoothing * (static_cast<double>(std::abs(*logical_time - logical_time_)) -
                                      logical_steps_);
      keys_ += kSmoothing * (static_cast<double>(std::abs(key - key_)) - keys_);
    }
    known_ = true;
    logical_time_ = *logical_time;
    key_ = key;
  }
  // Of the last hint; kUnknown before the first.
  UseKind kind() const { return kind_; }
  // The key of a use at `logical_time`; nullopt if nothing says what it would be.
  std::optional<int64_t> KeyAt(int64_t logical_time, const Forecast& forecast,
                               Tick virtual_time) const {
    if (kind_ == UseKind::kAt) {
      const auto until = [&](int64_t p) { return forecast.Until(p).count(); };
      if (known_ && logical_time_ > forecast.logical_time())
        return key_ + until(logical_time) - until(logical_time_);
      return virtual_time.time_since_epoch().count() + until(logical_time);
    }
    if (kind_ != UseKind::kOrder || logical_steps_ == 0) return std::nullopt;
    const double away = static_cast<double>(logical_time - logical_time_) * keys_ / logical_steps_;
    return key_ + std::llround(std::clamp(away, -kFarthest, kFarthest));
  }

 private:
  // Keys come from clients: what is computed from them stays where sums cannot overflow.
  static constexpr double kFarthest = 0x1p60;

  UseKind kind_ = UseKind::kUnknown;
  bool known_ = false;  // what follows
  int64_t logical_time_ = 0;
  int64_t key_ = 0;
  // From one tensor to the next, on average.
  double logical_steps_ = 0;
  double keys_ = 0;
};

}  // namespace ravenstore::core
