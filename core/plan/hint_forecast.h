// The calls that are expected, from the next uses that the client announces at its puts.
//
// Each idle tensor is got when, or in the order in which, its client said. Tensors that are got at
// the same time are put when the next ones are got. What follows a tensor's next use is not known.
// It then stays idle, as a tensor that is needed last.
// Creates are not announced: those of the last `window` whose tensors live still are expected once
// more, at the same rate, and to stay in use. Without them a plan would see no reason why anything
// should leave while a program fills its memory.
//
// An order is translated into time by the rate at which orders came true lately.
//
// Owns: the hints that are pending, the last creates. Units: the client's virtual time.
// Threads: one at a time. Cost: O(log tensors) a call; O(pending log pending) for a forecast.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <tuple>
#include <unordered_map>
#include <vector>

#include "core/events.h"
#include "core/plan/call_forecast.h"
#include "core/plan/call_history.h"
#include "core/plan/calls.h"
#include "core/plan/places.h"

namespace ravenstore::core::plan {

class HintForecaster {
 public:
  struct Forecast {
    std::vector<PlannedCall> calls;
    std::unordered_map<TensorIndex, Position> gets;  // where each tensor is got next
  };

  // `window`: how far back creates are looked at, and ahead they are expected.
  explicit HintForecaster(Duration window) : window_(window) {}

  void Created(TensorIndex tensor, Duration now);
  void Got(TensorIndex tensor, Duration now);
  void Put(TensorIndex tensor, const NextUse& next_use, Duration now);
  void Freed(TensorIndex tensor) { pending_.erase(tensor); }

  // When the idle tensor is expected to be got; nullopt: nothing was said.
  std::optional<Duration> NextUseOf(TensorIndex tensor, Duration now) const;
  // `places` is a copy: tensors to be created are placed in it.
  Forecast Make(Places places, std::span<const PlacedTensor> tensors, Duration now) const;

 private:
  struct Pending {
    Duration at{0};
    std::optional<int64_t> order;
  };
  struct Create {
    TensorIndex tensor;
    Duration at;
  };
  // A get or a create that is expected.
  struct Expected {
    Duration at{0};
    int64_t order = 0;
    TensorIndex tensor = 0;
    bool creates = false;

    bool operator<(const Expected& other) const {
      return std::tie(at, order, tensor) < std::tie(other.at, other.order, other.tensor);
    }
  };

  std::vector<Expected> InOrder(std::span<const PlacedTensor> tensors, Duration now) const;
  Duration TimeOf(const Pending& pending, Duration now) const;

  const Duration window_;
  std::unordered_map<TensorIndex, Pending> pending_;
  std::deque<Create> creates_;  // of the last window
  // The last order that came true, and the time that one order takes.
  std::optional<int64_t> order_;
  Duration order_at_{0};
  double seconds_per_order_ = 0;
};

}  // namespace ravenstore::core::plan
