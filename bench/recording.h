// A program that `ravenrun --record` or `ravenctl record` wrote down, with its steps.
#pragma once

#include <string>

#include "core/result.h"
#include "sim/trace.h"

namespace ravenstore::bench {

// A recording by `ravenrun` has no steps: where its last calls repeat, they end with the last call,
// a period before, and so on; where they do not, it has ten of as many calls.
// Errors: kNotFound; of sim::Read.
core::Result<sim::Trace> ReadRecording(const std::string& path);

}  // namespace ravenstore::bench
