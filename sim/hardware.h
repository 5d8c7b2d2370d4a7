// The machines that traces are generated for and replayed on.
//
// Sources: H200's copies as measured (docs/measurements.md and the decisions); the others from
// their data sheets, PCIe at the share of its nominal rate that large pinned copies reach.
#pragma once

#include <array>
#include <chrono>
#include <string_view>

#include "core/types.h"

namespace ravenstore::sim {

struct Hardware {
  std::string_view name;
  double up = 0;       // bytes per second, host to device (or from the peer), alone
  double down = 0;     // device to host
  double duplex = 1;   // share of its rate that each keeps while both are busy
  double flops = 0;    // per second, 16 bit, as training reaches it
  double flops32 = 0;  // 32 bit
  core::Bytes memory;
  double memory_rate = 0;  // bytes per second that kernels read and write
  // From a copy's end to its being known, and what every copy costs the link besides its bytes.
  core::Duration latency{std::chrono::microseconds(12)};
  core::Duration per_copy{std::chrono::nanoseconds(2500)};
};

inline constexpr std::array<Hardware, 6> kHardware = {{
    {.name = "h200-pcie5",
     .up = 55e9,
     .down = 55e9,
     .duplex = 0.91,
     .flops = 400e12,
     .flops32 = 40e12,
     .memory = core::GiB(139),
     .memory_rate = 4.8e12},
    {.name = "h200-nvlink",
     .up = 390e9,
     .down = 390e9,
     .duplex = 1.0,
     .flops = 400e12,
     .flops32 = 40e12,
     .memory = core::GiB(139),
     .memory_rate = 4.8e12},
    {.name = "a100-pcie4",
     .up = 25e9,
     .down = 25e9,
     .duplex = 0.9,
     .flops = 156e12,
     .flops32 = 15e12,
     .memory = core::GiB(80),
     .memory_rate = 2.0e12},
    {.name = "a100-pcie5",
     .up = 50e9,
     .down = 50e9,
     .duplex = 0.9,
     .flops = 156e12,
     .flops32 = 15e12,
     .memory = core::GiB(80),
     .memory_rate = 2.0e12},
    {.name = "a100-nvlink",
     .up = 250e9,
     .down = 250e9,
     .duplex = 1.0,
     .flops = 156e12,
     .flops32 = 15e12,
     .memory = core::GiB(80),
     .memory_rate = 2.0e12},
    {.name = "workstation-24g",
     .up = 24e9,
     .down = 22e9,
     .duplex = 0.85,
     .flops = 60e12,
     .flops32 = 20e12,
     .memory = core::GiB(24),
     .memory_rate = 1.0e12},
}};

// Null when there is none of that name.
constexpr const Hardware* FindHardware(std::string_view name) {
  for (const Hardware& hardware : kHardware) {
    if (hardware.name == name) return &hardware;
  }
  return nullptr;
}

}  // namespace ravenstore::sim
