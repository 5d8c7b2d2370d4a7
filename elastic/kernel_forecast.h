// A copy of a job's last step, from which the plan of the next one is made.
//
// The records repeat: those of a step come again in the same order, with the same times. Each
// kernel gets all pages that it uses when it begins, and puts them when the next one begins.
//
// Owns: the copy. Units: pages, calls and records by number. Threads: any; one at a time.
// Cost: O(records log pages).
#pragma once

#include <cstdint>
#include <vector>

#include "core/plan/calls.h"
#include "core/plan/deadlines.h"
#include "core/plan/residency_plan.h"
#include "core/plan/units.h"
#include "core/types.h"

namespace ravenstore::elastic {

// A page came to life, died, or was used by a call.
struct PageRecord {
  enum class Kind : uint8_t { kUse, kAllocate, kFree };
  uint32_t page;  // by its unit
  uint32_t call;  // that it belongs to, or comes before
  Kind kind;
};

struct KernelForecast {
  // ---- The copy.
  uint64_t version = 0;  // of the sequence that it was copied from
  uint64_t first = 0;    // the number of the first record
  std::vector<PageRecord> records;
  // From the last call to each call of the records, from the call of the first record on.
  std::vector<core::Duration> times;
  core::Duration step{0};  // how long a step takes
  std::vector<core::plan::UnitSnapshot> units;
  core::plan::PlanLimits limits;

  // ---- Made of it.
  core::plan::ResidencyPlan plan;
  core::plan::Deadlines deadlines;  // of its calls; no page has one yet
  // Of the records that are expected: the position in the plan before each, and behind the last.
  std::vector<core::plan::Position> positions;

  // Makes all of these.
  void Make();
};

}  // namespace ravenstore::elastic
