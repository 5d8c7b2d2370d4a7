// The constants of core/tuned.def. With RAVENSTORE_VARY, for measurements, they are variables that
// planner_bench halves and doubles; nothing else may write them.
//
// Threads: any, as constants; one, while they are varied.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>

#include "core/types.h"

namespace ravenstore::core {

#ifdef RAVENSTORE_VARY
#define TUNED(type, name, value, halved, doubled, source) inline type name{value};
#else
#define TUNED(type, name, value, halved, doubled, source) inline constexpr type name{value};
#endif
#define FIXED(why, ...)
#include "core/tuned.def"
#undef FIXED
#undef TUNED

}  // namespace ravenstore::core
