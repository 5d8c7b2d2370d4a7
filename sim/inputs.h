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
};

inline constexpr std::string_view kHintChoices[] = {"keep", "none", "time", "order", "dropped"};
inline constexpr std::string_view kDisturbances[] = {"none", "times", "reorder", "period"};

// Errors: kInvalidArgument for an unknown name, kNotFound for a file that is not there, and
// whatever is wrong in it.
core::Result<Trace> Load(const TraceChoice& choice);

core::Result<Hardware> HardwareOf(const TraceChoice& choice);

// "60%" of the trace's footprint, "800MiB", "4GiB", or bytes. Errors: kInvalidArgument.
core::Result<core::Bytes> ParseBudget(const std::string& text, const Trace& trace);

}  // namespace ravenstore::sim
