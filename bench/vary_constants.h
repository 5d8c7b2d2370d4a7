// Tuned constants (core/tuned.def) with half and twice their values, of a build with --config=vary.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "bench/figure.h"

namespace ravenstore::bench {

size_t TunedConstants();
// Returns false, and reports why, in a build whose constants do not vary.
bool ConstantsVary(const Report& report);
// Calls `measure` with a constant's name and "_halved" or "_doubled" while it has that value.
// `names`: these alone; empty: all. REQUIRES: ConstantsVary.
void VaryConstants(const std::vector<std::string>& names,
                   const std::function<void(const std::string& name)>& measure);

}  // namespace ravenstore::bench
