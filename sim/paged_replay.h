// Replays a trace of clients whose memory is in pages of one device, in virtual time.
//
// The scheduler of the device (core/schedule/page_scheduler.h) decides what moves and which call
// waits. The replay models the clients' CPUs and streams, the links, and the mappers.
//
// A client's CPU makes its calls in order, and its stream executes them in that order. A create
// or a get holds the units of its tensor from the call on. The stream waits until all of them are
// resident. A put or a free releases the units when the stream reaches it. PagedSetup::foresight
// says which calls the plan knows. Links are those of sim/simulator.h. Mapping has the cost that
// was measured on an H100. The first mapping of each page is free, as are the slabs in
// sim/simulator.h that first fill the device.
//
// PagedSetup::run_ahead limits how far the CPU runs ahead of the stream. Between two calls the CPU
// takes the recorded time (Op::program). It waits if the units in use would exceed the budget.
//
// Owns: nothing. Units: simulated time, bytes. Threads: one at a time; the same input gives the
// same result. Errors: in the outcome: more in use than the budget.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "core/execution/page_executor.h"
#include "core/schedule/client_foresight.h"
#include "core/types.h"
#include "sim/hardware.h"
#include "sim/paged_device.h"
#include "sim/simulator.h"
#include "sim/trace.h"

namespace ravenstore::sim {

// What the plan knows.
enum class Foresight : uint8_t {
  kLives,    // all calls from the beginning, and places are packed by known lives
  kCalls,    // all calls from the beginning; places follow from the order of the calls
  kHints,    // the hints of each put, and what is learned
  kLearned,  // what is learned
};

// How far the CPU runs ahead of its stream.
enum class RunAhead : uint8_t {
  kNone,          // each call is made when the stream has come there
  kCreatesBlock,  // a create returns when its units are resident
  kStreamWaits,   // a create returns immediately, and the stream waits
};

struct PagedSetup {
  Hardware hardware = kHardware[0];
  core::Bytes budget;     // device memory; rounded down to pages
  core::Bytes page = {};  // 0: of the budget (core/plan/page_size.h)
  Foresight foresight = Foresight::kLearned;
  MappingCosts mapping;
  RunAhead run_ahead = RunAhead::kNone;
  // The host pool's size; not set: room for all. Pools next to the host's, of fixed size.
  std::optional<core::Bytes> host = std::nullopt;
  std::vector<ExtraPool> pools = {};
  bool check = false;  // invariants of the pages; takes time
};

struct PagedStats : core::ForesightStats {
  core::PageExecutor::Stats moves;
  core::Duration mapping{0};  // that the mapper was busy
  uint64_t handed_over = 0;   // pages that went to another client

  // Sums, but of the device's: mapping, handed_over.
  void Add(const PagedStats& other);
};

struct PagedOutcome {
  Outcome outcome;  // failure, times and stalls; up and down are bytes that moved
  PagedStats stats;
};

PagedOutcome ReplayPaged(const Trace& trace, const PagedSetup& setup);

}  // namespace ravenstore::sim
