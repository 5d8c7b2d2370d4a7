// What a client's hints would be for a tensor that it gives none.
//
// A client may hint when some of its tensors are needed, by time or by an order of its own, and
// leave others out. For those a logical time is learned (core/forecast.h). To be compared with
// hints it is translated into one, counted from the last hinted tensor whose logical time was
// learned as well.
//
// Before that is learned: what is put one after the other is mostly needed one after the other, as
// layers' activations and weights are, forth or back. So a tensor without a hint gets that of its
// neighbour, the last hinted one, as long as hints that follow one another lie closer together than
// those that do not.
//
// Threads: one at a time. Cost: O(1).
#pragma once

#include <algorithm>
#include <array>
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
  // A hint (kAt, in ns, or kOrder; of at most 2^61), and the learned logical time of the same use,
  // if there is one.
  void Add(UseKind kind, int64_t key, std::optional<int64_t> logical_time) {
    if (kind != kind_) *this = {};
    kind_ = kind;
    AddToSpread(key);
    if (!logical_time) return;
    if (known_) {
      logical_steps_ +=
          kKept * (static_cast<double>(std::abs(*logical_time - logical_time_)) - logical_steps_);
      keys_ += kKept * (static_cast<double>(std::abs(key - key_)) - keys_);
    }
    known_ = true;
    logical_time_ = *logical_time;
    key_ = key;
  }
  // A tensor of which the client had said that it needs it at `key` is used.
  void Used(UseKind kind, int64_t key) {
    if (kind == kind_) now_ = key;
  }
  // Of the last hint; kUnknown before the first.
  UseKind kind() const { return kind_; }
  // The neighbour's key, for what is put now and of which nothing is known.
  std::optional<int64_t> NeighbourKey(Tick virtual_time) {
    const bool apart = hints_ > kStride && step_ * kCloser > stride_;
    if (kind_ == UseKind::kUnknown || apart || Now(virtual_time) >= last_) return std::nullopt;
    if (neighbours_ >= kMostNeighbours) return std::nullopt;
    ++neighbours_;
    return last_;
  }
  // Uses that were expected before this are overdue.
  int64_t Past(Tick virtual_time) const {
    return Now(virtual_time) - std::llround(std::min(step_, kFarthest));
  }
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
  static constexpr double kKept = 0.05;  // of each new one in the averages
  // Keys come from clients: what is computed from them stays where sums cannot overflow.
  static constexpr double kFarthest = 0x1p60;
  // Each hint is compared with the one before it and with the one kStride before it. Where they
  // rise or fall steadily the one is kStride times as near as the other, where they follow no order
  // as near; they lie in a row if it is kCloser times as near or more.
  static constexpr uint64_t kStride = 8;
  static constexpr double kCloser = 2;
  // At most this many for one hint: a client that hints a tensor now and then says nothing of all
  // the others.
  static constexpr uint64_t kMostNeighbours = 8;

  void AddToSpread(int64_t key) {
    int64_t& before = recent_[hints_ % kStride];
    if (hints_ >= kStride) {
      const auto distance = [key](int64_t from) {
        return static_cast<double>(std::abs(key - from));
      };
      step_ += kKept * (distance(last_) - step_);
      stride_ += kKept * (distance(before) - stride_);
    }
    before = last_ = key;
    neighbours_ = 0;
    ++hints_;
  }
  // In keys.
  int64_t Now(Tick virtual_time) const {
    return kind_ == UseKind::kAt ? virtual_time.time_since_epoch().count() : now_;
  }

  UseKind kind_ = UseKind::kUnknown;
  bool known_ = false;  // what follows
  int64_t logical_time_ = 0;
  int64_t key_ = 0;
  // From one tensor to the next, on average.
  double logical_steps_ = 0;
  double keys_ = 0;
  uint64_t hints_ = 0;
  int64_t last_ = 0;
  uint64_t neighbours_ = 0;            // tensors that got its key
  int64_t now_ = -(int64_t{1} << 61);  // of an order: the last used, less than any before that
  std::array<int64_t, kStride> recent_{};
  // From one hint to the next, and from one to the kStride-th after it, on average.
  double step_ = 0;
  double stride_ = 0;
};

}  // namespace ravenstore::core
