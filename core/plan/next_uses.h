// Where each unit is needed next, from the next uses that the client announces at its puts.
//
// Positions are ordered as the uses are. The first hint decides what they count: nanoseconds of the
// client's virtual time, or the client's orders. A hint of the other kind is converted by the rate
// at which orders came true lately.
//
// A unit is needed at the first announced use of its idle tensors.
//
// Owns: the announced uses. Units: positions; the client's virtual time. Threads: one at a time.
// Cost: O(log uses) for each unit of a call's tensor.
#pragma once

#include <compare>
#include <cstdint>
#include <optional>
#include <set>
#include <unordered_map>
#include <vector>

#include "core/events.h"
#include "core/plan/call_history.h"
#include "core/plan/calls.h"
#include "core/plan/units.h"
#include "core/types.h"

namespace ravenstore::core::plan {

class NextUses {
 public:
  void Put(TensorIndex tensor, const UnitSpan& units, const NextUse& next_use, Duration now);
  void Got(TensorIndex tensor, Duration now);
  // The idle tensor has other units.
  void Moved(TensorIndex tensor, const UnitSpan& units);
  void Freed(TensorIndex tensor) { Remove(tensor); }

  // The last put of each idle tensor announced its next use, or that there is none.
  bool KnowsAll() const { return unknowns_ == 0; }
  // The unit's first announced use; kNoPosition: none is.
  Position Of(Unit unit) const;
  // The position at this time, which is not in the past.
  Position At(Duration time) const;

 private:
  struct Announced {
    UnitSpan units;
    Position need = 0;
    std::optional<int64_t> order = std::nullopt;
  };
  struct Use {
    Unit unit = 0;
    Position need = 0;
    TensorIndex tensor = 0;
    auto operator<=>(const Use&) const = default;
  };

  void Add(TensorIndex tensor, const Announced& announced);
  void Remove(TensorIndex tensor);
  void SetUnknown(TensorIndex tensor, bool unknown);
  double SecondsPerOrder() const { return orders_ > 0 ? seconds_ / orders_ : 0; }
  void CountOrder(int64_t order, Duration now);
  Position PositionOfOrder(int64_t order) const;
  Position PositionOf(const NextUse& next_use, Duration now) const;

  std::unordered_map<TensorIndex, Announced> announced_;  // by idle tensor
  std::set<Use> by_unit_;
  std::vector<bool> unknown_;           // by tensor: it is idle, and its last put announced nothing
  uint32_t unknowns_ = 0;               // tensors for which that is true
  std::optional<NextUse::Kind> scale_;  // of the first hint
  int64_t first_order_ = 0;
  // The last order that came true, and the orders that came lately with the time that they took.
  std::optional<int64_t> order_;
  Duration order_at_{0};
  double orders_ = 0;
  double seconds_ = 0;
};

}  // namespace ravenstore::core::plan
