// Random programs for the plan: calls that a client may make, and its units when they begin.
#pragma once

#include <algorithm>
#include <vector>

#include "core/plan/calls.h"
#include "core/plan/places.h"
#include "core/plan/residency_plan.h"
#include "tests/core/plan/seeds.h"

namespace ravenstore::core::plan {

class RandomProgram {
 public:
  // `slots`: small tensors have slots. Tensors take up to four pages of 2 MiB.
  RandomProgram(Random* random, size_t calls, bool slots)
      : random_(*random), places_({.page = MiB(2), .largest_slot = slots ? MiB(2) : Bytes{}}) {
    for (size_t i = 0; i < calls; ++i) {
      at_ += Duration(random_.Below(200'000));
      Add();
    }
  }

  const std::vector<PlannedCall>& calls() const { return calls_; }
  // Pages that a client may hold. Three of four budgets are smaller than the program's memory.
  uint32_t RandomBudget() const {
    const uint64_t range = places_.range_end().count() / places_.page().count();
    return static_cast<uint32_t>(2 + random_.Below(1 + range * 4 / 3));
  }

 private:
  struct Tensor {
    Place place;
    Bytes size;
    bool in_use = true;
  };

  void Add() {
    const uint64_t choice = random_.Below(16);
    if (tensors_.empty() || (choice < 3 && tensors_.size() < 40)) {
      const Bytes size = KiB(1 + random_.Below(random_.OneIn(2) ? 8192 : 256));
      tensors_.push_back({places_.Allocate(size), size});
      Record({.kind = CallKind::kCreate}, tensors_.back());
      return;
    }
    size_t which = random_.Below(tensors_.size());
    // Few tensors are in use at a time: most units are idle, and may leave.
    const auto in_use = std::count_if(tensors_.begin(), tensors_.end(), InUse);
    if (in_use > 3) {
      const auto first = std::find_if(tensors_.begin(), tensors_.end(), InUse);
      which = static_cast<size_t>(first - tensors_.begin());
    }
    Tensor& tensor = tensors_[which];
    if (!tensor.in_use && choice != 3) {
      tensor.in_use = true;
      Record({.kind = CallKind::kGet}, tensor);
    } else if (tensor.in_use && choice != 3) {
      tensor.in_use = false;
      Record({.kind = CallKind::kPut, .unpins = true, .modifies = random_.OneIn(2)}, tensor);
    } else {
      Record({.kind = CallKind::kFree, .unpins = tensor.in_use, .dies = true}, tensor);
      places_.Free(tensor.place, tensor.size);
      tensors_.erase(tensors_.begin() + static_cast<ptrdiff_t>(which));
    }
  }
  static bool InUse(const Tensor& tensor) { return tensor.in_use; }
  void Record(PlannedCall call, const Tensor& tensor) {
    call.units = places_.UnitsOf(tensor.place, tensor.size);
    call.at = at_;
    calls_.push_back(call);
  }

  Random& random_;
  Places places_;
  Duration at_{0};
  std::vector<Tensor> tensors_;
  std::vector<PlannedCall> calls_;
};

// The units after the first `begin` calls of a program that had room for all of them; some have
// left since, and of some the host has the bytes.
inline std::vector<UnitSnapshot> SnapshotAfter(const std::vector<PlannedCall>& calls, size_t begin,
                                               Random* random) {
  size_t count = 0;
  for (const PlannedCall& call : calls) count = std::max<size_t>(count, call.units.end());
  std::vector<UnitSnapshot> units(count);
  for (size_t i = 0; i < begin; ++i) {
    const PlannedCall& call = calls[i];
    for (uint32_t k = 0; k < call.units.count; ++k) {
      UnitSnapshot& unit = units[call.units[k]];
      unit.slots_per_page = call.units.slots_per_page;
      unit.pins += Pins(call.kind) ? 1 : 0;
      unit.pins -= call.unpins ? 1 : 0;
      unit.live += call.kind == CallKind::kCreate ? 1 : 0;
      unit.live -= call.dies ? 1 : 0;
    }
  }
  for (UnitSnapshot& unit : units) {
    unit.held = unit.live > 0 && (unit.pins > 0 || !random->OneIn(3));
    unit.dirty = unit.held && random->OneIn(2);
  }
  return units;
}

}  // namespace ravenstore::core::plan
