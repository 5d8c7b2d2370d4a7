#include "core/plan/next_uses.h"

#include <algorithm>

#include "core/tuned.h"

namespace ravenstore::core::plan {

namespace {

// The last position that a hint may have. A hint may be as large as its type.
constexpr Position kLast = kNoPosition - 1;

Position SaturatingAdd(Position position, int64_t by) {
  Position sum = 0;
  if (__builtin_add_overflow(position, by, &sum)) return by < 0 ? 0 : kLast;
  return std::clamp<Position>(sum, 0, kLast);
}
// The same for what may not fit an int64_t.
Position SaturatingAdd(Position position, double by) {
  return SaturatingAdd(position, static_cast<int64_t>(std::clamp(by, -9.2e18, 9.2e18)));
}
// From `first` to `last`.
double OrdersBetween(int64_t first, int64_t last) {
  return static_cast<double>(last) - static_cast<double>(first);
}
}  // namespace

void NextUses::Put(TensorIndex tensor, const UnitSpan& units, const NextUse& next_use,
                   Duration now) {
  Remove(tensor);
  if (next_use.kind == NextUse::Kind::kUnknown) SetUnknown(tensor, true);
  const bool is_order = next_use.kind == NextUse::Kind::kOrder;
  if (!is_order && next_use.kind != NextUse::Kind::kIn) return;
  if (!scale_) {
    scale_ = next_use.kind;
    first_order_ = is_order ? next_use.order : 0;
  }
  Announced announced{.units = units, .need = PositionOf(next_use, now)};
  if (is_order) announced.order = next_use.order;
  Add(tensor, announced);
}

void NextUses::Add(TensorIndex tensor, const Announced& announced) {
  announced_[tensor] = announced;
  for (uint32_t i = 0; i < announced.units.count; ++i)
    by_unit_.insert({announced.units[i], announced.need, tensor});
}

void NextUses::Got(TensorIndex tensor, Duration now) {
  const auto found = announced_.find(tensor);
  if (found != announced_.end() && found->second.order) CountOrder(*found->second.order, now);
  Remove(tensor);
}

void NextUses::Moved(TensorIndex tensor, const UnitSpan& units) {
  const auto found = announced_.find(tensor);
  if (found == announced_.end()) return;
  const Announced announced{units, found->second.need, found->second.order};
  Remove(tensor);
  Add(tensor, announced);
}

void NextUses::CountOrder(int64_t order, Duration now) {
  if (order_ && order > *order_) {
    orders_ = (1 - kOrderChange) * orders_ + OrdersBetween(*order_, order);
    seconds_ = (1 - kOrderChange) * seconds_ + Seconds(now - order_at_);
  }
  order_ = order;
  order_at_ = now;
}

Position NextUses::Of(Unit unit) const {
  const auto first = by_unit_.lower_bound({.unit = unit});
  return first == by_unit_.end() || first->unit != unit ? kNoPosition : first->need;
}

Position NextUses::At(Duration time) const {
  if (scale_ != NextUse::Kind::kOrder) return time.count();
  if (!order_) return PositionOfOrder(first_order_);
  const double passed = seconds_ > 0 ? Seconds(time - order_at_) / SecondsPerOrder() : 0;
  return SaturatingAdd(PositionOfOrder(*order_), passed);
}

Position NextUses::PositionOfOrder(int64_t order) const {
  // Orders may be negative; those before the first one are.
  constexpr Position kFirst = kLast / 2;
  int64_t since = 0;
  if (__builtin_sub_overflow(order, first_order_, &since)) return order < first_order_ ? 0 : kLast;
  return SaturatingAdd(kFirst, since);
}

Position NextUses::PositionOf(const NextUse& next_use, Duration now) const {
  if (scale_ == NextUse::Kind::kOrder) {
    if (next_use.kind == NextUse::Kind::kOrder) return PositionOfOrder(next_use.order);
    return At(Duration(SaturatingAdd(now.count(), next_use.in.count())));
  }
  if (next_use.kind == NextUse::Kind::kIn) return SaturatingAdd(now.count(), next_use.in.count());
  if (!order_) return now.count();
  return SaturatingAdd(order_at_.count(),
                       OrdersBetween(*order_, next_use.order) * SecondsPerOrder() * 1e9);
}

void NextUses::SetUnknown(TensorIndex tensor, bool unknown) {
  if (tensor >= unknown_.size()) unknown_.resize(tensor + 1);
  if (unknown_[tensor] == unknown) return;
  unknown_[tensor] = unknown;
  unknowns_ = unknown ? unknowns_ + 1 : unknowns_ - 1;
}

void NextUses::Remove(TensorIndex tensor) {
  SetUnknown(tensor, false);
  const auto found = announced_.find(tensor);
  if (found == announced_.end()) return;
  const Announced& announced = found->second;
  for (uint32_t i = 0; i < announced.units.count; ++i)
    by_unit_.erase({announced.units[i], announced.need, tensor});
  announced_.erase(found);
}

}  // namespace ravenstore::core::plan
