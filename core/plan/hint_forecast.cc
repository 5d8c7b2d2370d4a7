#include "core/plan/hint_forecast.h"

#include <algorithm>
#include <tuple>
#include <utility>

namespace ravenstore::core::plan {

namespace {
// Of a new sample in the average of what an order takes. Higher: one long call misleads. Lower: a
// phase that is slower is noticed late.
constexpr double kOrderSmoothing = 0.05;

// No next use is predicted for later. A hint may be as large as its type, and plans add to times.
constexpr Duration kFarthest = Duration::max() / 4;

// Both return at most kFarthest. REQUIRES: `begin` is in [0, kFarthest].
Duration SaturatingAdd(Duration begin, Duration by) {
  return by > kFarthest - begin ? kFarthest : begin + by;
}
Duration SaturatingTime(double seconds) {
  return seconds < Seconds(kFarthest) ? FromSeconds(seconds) : kFarthest;
}

// From `first` to `last`; 0 if `last` is not later. The difference may not fit an int64_t.
double OrdersBetween(int64_t first, int64_t last) {
  if (last <= first) return 0;
  return static_cast<double>(static_cast<uint64_t>(last) - static_cast<uint64_t>(first));
}
}  // namespace

void HintForecaster::Created(TensorIndex tensor, Duration now) {
  creates_.push_back({tensor, now});
  while (creates_.front().at + window_ < now) creates_.pop_front();
}

void HintForecaster::Got(TensorIndex tensor, Duration now) {
  const auto found = pending_.find(tensor);
  if (found == pending_.end()) return;
  const auto order = found->second.order;
  pending_.erase(found);
  if (!order) return;
  if (order_ && *order > *order_) {
    const double sample = Seconds(now - order_at_) / OrdersBetween(*order_, *order);
    seconds_per_order_ +=
        seconds_per_order_ == 0 ? sample : kOrderSmoothing * (sample - seconds_per_order_);
  }
  order_ = order;
  order_at_ = now;
}

void HintForecaster::Put(TensorIndex tensor, const NextUse& next_use, Duration now) {
  pending_.erase(tensor);
  Pending pending;
  if (next_use.kind == NextUse::Kind::kAt) {
    pending.at = SaturatingAdd(now, next_use.at.time_since_epoch());
  } else if (next_use.kind == NextUse::Kind::kOrder) {
    pending.order = next_use.order;
  } else {
    return;
  }
  pending_[tensor] = pending;
}

std::optional<Duration> HintForecaster::NextUseOf(TensorIndex tensor, Duration now) const {
  const auto found = pending_.find(tensor);
  return found == pending_.end() ? std::nullopt : std::optional(TimeOf(found->second, now));
}

Duration HintForecaster::TimeOf(const Pending& pending, Duration now) const {
  if (!pending.order) return std::max(pending.at, now);
  if (!order_) return now;
  const double orders = OrdersBetween(*order_, *pending.order);
  return std::max(now, SaturatingAdd(order_at_, SaturatingTime(orders * seconds_per_order_)));
}

std::vector<HintForecaster::Expected> HintForecaster::InOrder(std::span<const PlacedTensor> tensors,
                                                              Duration now) const {
  std::vector<Expected> expected;
  for (const auto& [tensor, pending] : pending_) {
    if (!tensors[tensor].lives || tensors[tensor].in_use) continue;
    const Duration at = TimeOf(pending, now);
    expected.push_back({at, pending.order.value_or(0), tensor, false});
  }
  for (const Create& create : creates_) {
    if (tensors[create.tensor].lives && create.at + window_ > now)
      expected.push_back({create.at + window_, 0, create.tensor, true});
  }
  std::sort(expected.begin(), expected.end());
  return expected;
}

HintForecaster::Forecast HintForecaster::Make(Places places, std::span<const PlacedTensor> tensors,
                                              Duration now) const {
  Forecast forecast;
  std::deque<std::pair<UnitSpan, Duration>> in_use;  // by time
  const auto put_all_before = [&](Duration at) {
    for (; !in_use.empty() && in_use.front().second < at; in_use.pop_front())
      forecast.calls.push_back(
          {.kind = CallKind::kPut, .unpins = true, .units = in_use.front().first, .at = at - now});
  };
  for (const Expected& next : InOrder(tensors, now)) {
    const PlacedTensor& tensor = tensors[next.tensor];
    put_all_before(next.at);
    PlannedCall call{.kind = CallKind::kGet, .at = next.at - now};
    if (next.creates) {
      call.kind = CallKind::kCreate;
      call.units = places.UnitsOf(places.Allocate(tensor.size), tensor.size);
    } else {
      call.units = places.UnitsOf(tensor.place, tensor.size);
      forecast.gets.try_emplace(next.tensor, static_cast<Position>(forecast.calls.size()));
      in_use.emplace_back(call.units, next.at);
    }
    forecast.calls.push_back(call);
  }
  return forecast;
}

}  // namespace ravenstore::core::plan
