// A client's past and expected calls, as the plan uses them.
//
// Owns: plain data. Units: positions count calls; times are the client's virtual time, which does
// not advance while the client waits for the store.
#pragma once

#include <cstdint>
#include <limits>

#include "core/plan/units.h"
#include "core/types.h"

namespace ravenstore::core::plan {

enum class CallKind : uint8_t { kCreate, kGet, kPut, kFree };

// Returns true for a call that pins its units: a create or a get.
constexpr bool Pins(CallKind kind) {
  return kind == CallKind::kCreate || kind == CallKind::kGet;
}

// The number of a call in a plan; without a plan a point of the order in which units are needed.
using Position = int64_t;
// Of a unit that no call of the plan needs; later than all positions.
inline constexpr Position kNoPosition = std::numeric_limits<Position>::max();

// A call that is expected.
struct PlannedCall {
  CallKind kind = CallKind::kGet;
  bool unpins = false;    // put, free: the tensor is in use until then
  bool dies = false;      // the tensor's bytes are not used afterwards
  bool modifies = false;  // put: the device's bytes are newer than any copy
  UnitSpan units = {};
  Duration at{0};  // from the plan's first call
};

}  // namespace ravenstore::core::plan
