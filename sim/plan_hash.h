// One number for all that a planner proposed: of each action when, what, for which client's tensor,
// where and how much. Two planners with the same number planned alike, however they did it.
#pragma once

#include <array>
#include <cstdint>
#include <type_traits>
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
    if (const auto* move = std::get_if<core::Move>(&action)) return AddMove(*move, row_of);
    hash_.Add(kVerbs[action.index()]);
    std::visit([&](const auto& one) { AddFields(one, row_of); }, action);
  }
  uint64_t value() const { return hash_.value(); }

 private:
  // What stands for each kind of action, so that a hash outlasts a new order of these.
  static constexpr std::array<uint64_t, std::variant_size_v<core::Action>> kVerbs = {
      0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 13, 15};
  // And for each kind of move: off a device, the same beside the source, and all others.
  static constexpr uint64_t kLeaves = 11;
  static constexpr uint64_t kIsCopied = 12;
  static constexpr uint64_t kArrives = 14;

  // The one device has the pool that follows the host's; of other pools the numbers count, too.
  template <typename RowOf>
  void AddMove(const core::Move& move, const RowOf& row_of) {
    const core::DeviceId device{0};
    const bool out = move.from.pool == core::PoolOf(device);
    const bool leaves = out && move.source != core::Move::Source::kStays;
    hash_.Add(leaves ? kLeaves : out ? kIsCopied : kArrives);
    hash_.Add(row_of(move.tensor));
    hash_.Add(core::ToInt(device));
    hash_.Add(move.from.offset.count());
    hash_.Add(move.to.offset.count());
    hash_.Add(move.size.count());
    if (leaves) hash_.Add(core::ToInt(move.behalf));
    if (!out) hash_.Add(move.demand);
    if (leaves) hash_.Add(move.source == core::Move::Source::kLeavesIrrevocably);
    for (const core::Place& place : {move.from, move.to}) {
      if (place.pool > core::PoolOf(device)) hash_.Add(core::ToInt(place.pool));
    }
  }
  template <typename One, typename RowOf>
  void AddFields(const One& one, const RowOf& row_of) {
    if constexpr (std::is_base_of_v<core::TensorOfClient, One>) {
      hash_.Add(row_of(one.tensor));
    } else if constexpr (requires { one.slot; }) {
      hash_.Add(core::ToInt(one.client));
      hash_.Add(core::ToInt(one.slot));
    } else if constexpr (requires { one.client; }) {
      hash_.Add(core::ToInt(one.client));
    }
    if constexpr (requires { one.device; }) hash_.Add(core::ToInt(one.device));
    if constexpr (requires { one.offset; }) hash_.Add(one.offset.count());
    if constexpr (requires { one.size; }) hash_.Add(one.size.count());
    if constexpr (requires { one.behalf; }) hash_.Add(core::ToInt(one.behalf));
    if constexpr (requires { one.arriving; }) hash_.Add(one.arriving);
    if constexpr (requires { one.recompute; }) hash_.Add(one.recompute);
    if constexpr (requires { one.irrevocable; }) hash_.Add(one.irrevocable);
  }

  Hash hash_;
};

}  // namespace ravenstore::sim
