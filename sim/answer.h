// What a replay answers: would the job run with that memory, and how much longer would it take?
//
// Threads: any.
#pragma once

#include <string>
#include <vector>

#include "core/types.h"
#include "sim/hardware.h"
#include "sim/outcome.h"
#include "sim/render.h"

namespace ravenstore::sim {

// The same replay with another budget.
struct OtherBudget {
  core::Bytes budget;
  Outcome outcome;
};

// How many times as long as without stalls the outcome's clients take.
// REQUIRES: it did not fail.
double Slowdown(const Outcome& outcome);

// Whether a larger budget could matter.
bool CouldGainFromMore(const Outcome& outcome);

// Between `budget` and `all`, with which nothing need move: at most three, the smallest first,
// `all` the last; of whole GiB where they are large. None, if `budget` is no less than `all`.
std::vector<core::Bytes> LargerBudgets(core::Bytes budget, core::Bytes all);

// One line, such as "gpt2-xl with 12.4 GiB (60%), hints: 1.24 times as long (260 ms instead of
// 210); the link is busy 38% to the device and 96% from it; 1.08 with 18.0 GiB". `hardware` has all
// links of the replay.
std::string Answer(const RunReport& report, const Hardware& hardware,
                   const std::vector<OtherBudget>& larger);

}  // namespace ravenstore::sim
