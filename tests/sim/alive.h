// What a generated trace holds when its set-up ends: parameters, their states, and data sets.
#pragma once

#include <cstdint>
#include <set>

#include "sim/trace.h"

namespace ravenstore::sim {

inline std::set<uint32_t> TensorsAfterSetUp(const Trace& trace) {
  std::set<uint32_t> alive;
  for (const Op& op : trace.ops) {
    if (op.kind == OpKind::kStep) break;
    if (op.kind == OpKind::kCreate) alive.insert(op.tensor);
    if (op.kind == OpKind::kFree) alive.erase(op.tensor);
  }
  return alive;
}

// Bytes.
inline double AliveAfterSetUp(const Trace& trace) {
  double bytes = 0;
  for (const uint32_t tensor : TensorsAfterSetUp(trace))
    bytes += static_cast<double>(trace.tensors[tensor].bytes.count());
  return bytes;
}

}  // namespace ravenstore::sim
