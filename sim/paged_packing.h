// Places for tensors whose lives are known beforehand.
//
// The largest first, each at the lowest place that is free all its life.
// Source: first fit by decreasing size for dynamic storage allocation (Gergov, 1999).
//
// Owns: nothing. Units: bytes. Threads: one at a time.
// Cost: O(tensors x tensors that are live together).
#pragma once

#include <vector>

#include "core/plan/places.h"
#include "core/plan/small_tensors.h"
#include "sim/trace.h"

namespace ravenstore::sim {

// By tensor. Small tensors that have slots get the slots that Places gives them.
std::vector<core::plan::Place> PackPlaces(const Trace& trace,
                                          const core::plan::SmallTensorRule& rule);

}  // namespace ravenstore::sim
