// A program's calls on a machine that is described: what the engine would do with them, and how
// long they would take.
//
// One call runs after the other. A lane in each direction moves parts of ranges beside them: one
// part at a time, each for its bytes and for its remapping, none of a range that the running call
// names. A call whose ranges lie on the host in part runs in place: longer by those bytes over the
// link, and the lanes of those directions stand still meanwhile. If a part of its ranges is being
// moved, it waits for that part. What is allocated takes free memory at once, or what dead ranges
// have, and waits until what the plan names is out; that and the remapping delay the program.
//
// Threads: one at a time. The same input gives the same result.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/types.h"
#include "elastic/plan.h"

namespace ravenstore::elastic {

struct ProgramEvent {
  enum class Kind : uint8_t { kAllocate, kFree, kCall, kStep };
  // Of a call.
  struct Touch {
    uint32_t object;
    bool reads;
    bool writes;
  };
  Kind kind;
  uint32_t object = 0;    // allocate, free: a place, with something in it or not
  core::Bytes bytes{};    // allocate
  uint64_t identity = 0;  // call
  double seconds = 0;     // call: with all on the device
  std::vector<Touch> touches = {};
};

struct Machine {
  core::Bytes device;
  core::Bytes part = core::MiB(32);
  // As measured on an H100, each way while the other is busy as well.
  double bytes_per_second = 46e9;
  double remap_seconds = 1e-4;  // of a part that was moved, beside its copy
  double map_seconds = 7.5e-5;  // of a part for an allocation, taken from what is dead
};

enum class Rival : uint8_t {
  kLearned,    // the plan
  kOracle,     // the plan, which has seen this very run before
  kInPlace,    // nothing moves: what is used most lies on the device
  kDemandLru,  // what is used comes first; for it leaves what was not used for longest
};

struct Replayed {
  std::vector<double> steps;  // seconds
  double moved_in = 0;        // bytes; what is dead does not count
  double moved_out = 0;
  double in_place = 0;
  double waited = 0;     // seconds, for moves that had begun
  double allocated = 0;  // seconds, for room and remapping at allocations
};

// The most that lives at once.
core::Bytes PeakOf(const std::vector<ProgramEvent>& program);
// What the calls of each step take without waiting.
std::vector<double> ComputeOf(const std::vector<ProgramEvent>& program);
Replayed Replay(const std::vector<ProgramEvent>& program, const Machine& machine, Rival rival);

}  // namespace ravenstore::elastic
