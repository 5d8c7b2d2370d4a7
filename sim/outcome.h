// The result of a replay.
//
// Units: simulated time from the replay's beginning; bytes. Threads: values.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "core/execution/page_executor.h"
#include "core/schedule/client_foresight.h"
#include "core/types.h"

namespace ravenstore::sim {

// Something that took time, to look at.
struct Span {
  enum class Kind : uint8_t { kCompute, kStall, kUp, kDown };
  Kind kind;
  uint32_t client;
  core::Duration begin;
  core::Duration end;
  uint32_t tensor;  // none: ~0
};

// Where a client's iteration begins.
struct StepMark {
  uint32_t client;
  core::Duration at;
};

// The device's memory from then on: pages, and those of tensors that live. Tensors that live may
// have more pages than are on the device; these count up to what is held.
struct MemoryPoint {
  core::Duration at;
  core::Bytes held;
  core::Bytes used;
};

struct PagedStats : core::ForesightStats {
  core::PageExecutor::Stats moves;
  core::Duration mapping{0};  // that the mapper was busy
  uint64_t handed_over = 0;   // pages that went to another client

  // Sums, but of the device's: mapping, handed_over.
  void Add(const PagedStats& other) {
    ForesightStats::Add(other);
    moves.Add(other.moves);
  }
};

struct Outcome {
  std::string failure;  // empty: the trace ran to its end
  core::Duration time{0};
  core::Duration compute{0};                    // summed over clients
  core::Duration stall{0};                      // summed over clients
  core::Duration create_stall{0};               // of it, for creates
  std::vector<core::Duration> iteration_stall;  // by iteration, all clients' together
  std::vector<core::Duration> client_stall;     // by client, all iterations' together
  core::Bytes up;                               // bytes over the link
  core::Bytes down;
  core::Bytes in_place;  // that kernels used on the host, in both directions
  PagedStats stats;      // of a replay on pages
  // With ReplaySetup::timeline, by time:
  std::vector<Span> spans;
  std::vector<StepMark> steps;
  std::vector<MemoryPoint> memory;  // one for each change
};

// The largest footprint of a trace: sums of bytes fit.
inline constexpr core::Bytes kFootprintMax = core::GiB(1023);

// Device memory is given out in multiples of this.
inline constexpr core::Bytes kBudgetUnit = core::MiB(2);

// A replay that takes longer fails, so that sums of times fit 63 bits: 13 days, simulated.
inline constexpr core::Duration kReplayMax{int64_t{1} << 50};
inline constexpr const char* kTooLong = "the replay takes more than 2^50 ns (13 days)";

}  // namespace ravenstore::sim
