// A program's calls of the store, and what it computed between them: what the simulator replays.
//
// Owns: plain data. Files: docs/TRACES.md. Errors: Read names the first thing that is wrong.
#pragma once

#include <cstdint>
#include <iosfwd>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/events.h"
#include "core/result.h"
#include "core/types.h"

namespace ravenstore::sim {

enum class OpKind : uint8_t { kCreate, kGet, kPut, kFree, kCompute, kStep };

struct Op {
  OpKind kind = OpKind::kCompute;
  uint32_t client = 0;          // people are shown it counted from 1, as the daemon counts
  uint32_t tensor = 0;          // an index into Trace::tensors
  bool read_only = false;       // get
  bool modified = false;        // put
  core::Duration time{0};       // compute
  uint32_t call = 0;            // compute: an index into Trace::calls
  bool unknown = false;         // compute: it may use other tensors than those in use
  core::NextUse next_use = {};  // put
  core::Duration recompute{0};  // put; zero: cannot be recomputed
  core::Priority priority = core::Priority::kNormal;  // put
  // What the call took where it was recorded: the stream was idle for it; the CPU from the return
  // of the call before; the CPU in the call.
  core::Duration waited{0};
  core::Duration program{0};
  core::Duration blocked{0};
};

struct TraceTensor {
  uint32_t client = 0;
  core::Bytes bytes;
  std::string name;  // empty: none
};

// What one client did between two of its steps; the first is before any.
struct StepTimes {
  core::Duration compute{0};
  // As recorded (Op::waited and so on).
  core::Duration waited_for_creates{0};
  core::Duration waited_for_gets{0};
  core::Duration program{0};
  core::Duration blocked{0};
};

struct Trace {
  std::string name;
  uint32_t clients = 1;
  std::vector<TraceTensor> tensors;
  std::vector<Op> ops;
  // What computed, by name; the first stands for work without a name.
  std::vector<std::string> calls = {""};

  // The sum over all tensors that live at the same time, at its most: each client's, and all
  // clients' together, which is 100% of a budget.
  std::vector<core::Bytes> FootprintByClient() const;
  core::Bytes Footprint() const;
  // The least budget under which every step (memory in use at the same time) fits.
  core::Bytes LargestStep() const;
  // A number that changes with any call or size; not with times, which are what a machine's
  // arithmetic makes of them, hints or names.
  uint64_t Fingerprint() const;
  // What one of its clients does, as a trace of that client alone.
  Trace Only(uint32_t client) const;
  std::vector<StepTimes> TimesByStep(uint32_t client) const;
  // How often each kind of call computed that may use what it does not name, the most frequent
  // first.
  std::vector<std::pair<std::string, uint64_t>> UnknownCalls() const;
};

inline constexpr uint32_t kTraceVersion = 1;
// What one client's compute times may sum to, so that sums over all of them fit 63 bits: 6 days.
inline constexpr core::Duration kComputeMax{int64_t{1} << 49};

// Errors: kCorrupt, with the message's place in the file, the header being message 0; what was read
// is valid: tensors are created before they are used, got before they are put, and not used after
// they are freed.
core::Result<Trace> Read(std::istream& from);
void Write(const Trace& trace, std::ostream& to);
// Whether the calls are such as the store allows; the first that is not is named by its index.
// Errors: kCorrupt.
core::Status Validate(const Trace& trace);

}  // namespace ravenstore::sim
