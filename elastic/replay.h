// A program's calls on a machine that is described: what the engine would do with them, and how
// long they would take.
//
// The program's memory is pages of one size at fixed addresses, which live and die with what lies
// on them. One call runs after the other. Beside them a lane in each direction copies pages, one at
// a time, none that the running call names; what is mapped for that, one thread does. A call whose
// pages lie on the host runs in place: longer by the bytes that it touches over the link, of which
// a copy that is under way has half. If one of its pages is being moved, it waits for that. A page
// that comes to life takes free memory at once, or what dead pages have, waits until what the plan
// names is out, or takes the host; that and the mapping delay the program.
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
  // Of a call: what it touches of a page.
  struct Touch {
    uint32_t page;
    core::Bytes reads{};
    core::Bytes writes{};
  };
  Kind kind;
  uint32_t page = 0;      // allocate, free
  uint64_t identity = 0;  // call
  double seconds = 0;     // call: with all on the device
  std::vector<Touch> touches = {};
};

// As measured on an H100 (docs/decisions/0028-elastic-plan.md).
struct Machine {
  core::Bytes device;
  core::Bytes page = core::MiB(32);
  double one_way = 53e9;    // bytes a second of copies
  double both_ways = 46e9;  // of each while the other lane copies
  double in_place = 51e9;
  // Of a page.
  double map = 46e-6;
  double unmap = 27e-6;
  double map_host = 450e-6;
  double unmap_host = 106e-6;
  double pin = 5.7e-3;  // of host memory, once for each page that lies there at once
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
  double allocated = 0;  // seconds, for room and mapping at allocations
};

// The most pages that live at once.
uint64_t PeakOf(const std::vector<ProgramEvent>& program);
// What the calls of each step take without waiting.
std::vector<double> ComputeOf(const std::vector<ProgramEvent>& program);
Replayed Replay(const std::vector<ProgramEvent>& program, const Machine& machine, Rival rival);

}  // namespace ravenstore::elastic
