// The machines that traces are generated for and replayed on.
//
// Sources: H200's copies as measured (docs/measurements.md and the decisions). The others are
// nominal: memory, its rate and the link's generation are their public data sheets'. PCIe is at the
// share of its nominal rate that large pinned copies reach (55 of 64 GB/s, 25 of 32, 12.5 of 16),
// and arithmetic at about two fifths to a half of the nominal dense rate with 32 bit sums.
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
  // From a copy's end to its being known, and what every copy costs the link in addition to its
  // bytes.
  core::Duration latency{std::chrono::microseconds(12)};
  core::Duration per_copy{std::chrono::nanoseconds(2500)};
  bool measured = false;  // the link; else by data sheets
};

inline constexpr std::array<Hardware, 13> kHardware = {{
    {.name = "h200-pcie5",
     .up = 55e9,
     .down = 55e9,
     .duplex = 0.91,
     .flops = 400e12,
     .flops32 = 40e12,
     .memory = core::GiB(139),
     .memory_rate = 4.8e12,
     .measured = true},
    {.name = "h200-nvlink",
     .up = 390e9,
     .down = 390e9,
     .duplex = 1.0,
     .flops = 400e12,
     .flops32 = 40e12,
     .memory = core::GiB(139),
     .memory_rate = 4.8e12,
     .measured = true},
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
    {.name = "h100-pcie5",
     .up = 55e9,
     .down = 55e9,
     .duplex = 0.9,
     .flops = 400e12,
     .flops32 = 40e12,
     .memory = core::GiB(80),
     .memory_rate = 3.35e12},
    {.name = "b200-pcie5",
     .up = 55e9,
     .down = 55e9,
     .duplex = 0.9,
     .flops = 900e12,
     .flops32 = 45e12,
     .memory = core::GiB(180),
     .memory_rate = 8.0e12},
    {.name = "a100-40g-pcie4",
     .up = 25e9,
     .down = 25e9,
     .duplex = 0.9,
     .flops = 156e12,
     .flops32 = 15e12,
     .memory = core::GiB(40),
     .memory_rate = 1.555e12},
    {.name = "l40s-pcie4",
     .up = 25e9,
     .down = 25e9,
     .duplex = 0.9,
     .flops = 150e12,
     .flops32 = 45e12,
     .memory = core::GiB(48),
     .memory_rate = 0.864e12},
    {.name = "rtx4090-pcie4",
     .up = 25e9,
     .down = 25e9,
     .duplex = 0.9,
     .flops = 80e12,
     .flops32 = 40e12,
     .memory = core::GiB(24),
     .memory_rate = 1.008e12},
    {.name = "rtx5090-pcie5",
     .up = 55e9,
     .down = 55e9,
     .duplex = 0.9,
     .flops = 100e12,
     .flops32 = 50e12,
     .memory = core::GiB(32),
     .memory_rate = 1.792e12},
    {.name = "t4-pcie3",
     .up = 12.5e9,
     .down = 12.5e9,
     .duplex = 0.9,
     .flops = 26e12,
     .flops32 = 4e12,
     .memory = core::GiB(16),
     .memory_rate = 0.32e12},
}};

// Null when there is none of that name.
constexpr const Hardware* FindHardware(std::string_view name) {
  for (const Hardware& hardware : kHardware) {
    if (hardware.name == name) return &hardware;
  }
  return nullptr;
}

}  // namespace ravenstore::sim
