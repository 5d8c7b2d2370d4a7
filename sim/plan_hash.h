// One number for all that a planner proposed: of each action when, what, for which client's tensor,
// where and how much. Two planners with the same number planned alike, however they did it.
#pragma once

#include <cstdint>
#include <variant>

#include "core/events.h"
#include "sim/hash.h"

namespace ravenstore::sim {

class PlanHash {
 public:
  // `row_of`: the executor's number of a tensor. A planner's own ids say nothing of its plans.
  template <typename RowOf>
  void Add(core::Tick now, const core::Action& action, const RowOf& row_of) {
    hash_.Add(static_cast<uint64_t>(now.time_since_epoch().count()));
    hash_.Add(action.index());
    std::visit([&](const auto& one) { AddFields(one, row_of); }, action);
  }
  uint64_t value() const { return hash_.value(); }

 private:
  template <typename One, typename RowOf>
  void AddFields(const One& one, const RowOf& row_of) {
    if constexpr (requires { one.slot; }) {
      hash_.Add(core::ToInt(one.client));
      hash_.Add(core::ToInt(one.slot));
    } else if constexpr (requires { one.tensor; }) {
      hash_.Add(row_of(one.tensor));
    } else if constexpr (requires { one.client; }) {
      hash_.Add(core::ToInt(one.client));
    }
    if constexpr (requires { one.device; }) hash_.Add(core::ToInt(one.device));
    if constexpr (requires { one.offset; }) hash_.Add(one.offset.count());
    if constexpr (requires { one.from; }) hash_.Add(one.from.count());
    if constexpr (requires { one.to; }) hash_.Add(one.to.count());
    if constexpr (requires { one.size; }) hash_.Add(one.size.count());
    if constexpr (requires { one.behalf; }) hash_.Add(core::ToInt(one.behalf));
    if constexpr (requires { one.demand; }) hash_.Add(one.demand);
    if constexpr (requires { one.arriving; }) hash_.Add(one.arriving);
    if constexpr (requires { one.recompute; }) hash_.Add(one.recompute);
    if constexpr (requires { one.irrevocable; }) hash_.Add(one.irrevocable);
  }

  Hash hash_;
};

}  // namespace ravenstore::sim
