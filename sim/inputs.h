// What ravensim works on: traces by name or file, hints, disturbances, machines and budgets, as
// people write them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "core/result.h"
#include "core/types.h"
#include "sim/hardware.h"
#include "sim/score.h"
#include "sim/trace.h"

namespace ravenstore::sim {

struct TraceChoice {
  std::string name;  // a generator's, else a file's
  std::string hardware = "h200-pcie5";
  // GB/s of its link, host to device and back, if they are not what it has by name.
  std::optional<double> up = std::nullopt;
  std::optional<double> down = std::nullopt;
  int iterations = 6;
  uint64_t seed = 1;
  std::string hints = "keep";    // keep, none, time, order, dropped
  std::string disturb = "none";  // none, times, reorder, period
  // Seconds to which the compute times are scaled in sum: those of a recording may have waits of
  // the CPU in them.
  std::optional<double> compute = std::nullopt;
};

inline constexpr std::string_view kHintChoices[] = {"keep", "none", "time", "order", "dropped"};
inline constexpr std::string_view kDisturbances[] = {"none", "times", "reorder", "period"};

// Errors: kInvalidArgument for an unknown hardware, disturbance or choice of hints, and for compute
// times to be scaled where there are none, or more than a trace may have; kNotFound for
// what is neither a generator nor a file; kLimit for more than a replay takes; those of Read.
core::Result<Trace> Load(const TraceChoice& choice);

core::Result<Hardware> HardwareOf(const TraceChoice& choice);

// "60%" of what each client has at most, rounded up to whole kBudgetUnits, so that all of a small
// footprint fits in 100%; or "800MiB", "4GiB", or bytes. Errors: kInvalidArgument.
core::Result<Budget> ParseBudget(const std::string& text, const Trace& trace);

// Adds a pool to the setup: "host:SIZE", which says how large the host pool is, "peer:SIZE:IN:OUT"
// or "file:SIZE:IN:OUT", SIZE as a budget's, IN and OUT in GB/s towards the device and back; or
// "remote:SIZE:IN:OUT[:latency=MS]", which other nodes lend.
// Errors: kInvalidArgument.
core::Status AddPool(const std::string& text, const Trace& trace, ReplaySetup* setup);

}  // namespace ravenstore::sim
