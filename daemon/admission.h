// Whether a device may take a job in addition to the jobs that are there: its memory fits, its
// user's limit holds, and all of them together are not slowed down too much.
//
// How much jobs slow each other down is computed with the simplest model that the measurements
// support. Each job uses a resource (the device's kernels, its link) for a part of the time. Where
// the parts sum to more than one, all jobs take that factor longer. A job whose use is not known
// counts as one that uses the resource all the time.
//
// Pure: knows no clock, and what is measured comes in.
#pragma once

#include <cstddef>
#include <optional>
#include <string>

#include "core/types.h"

namespace ravenstore::daemon {

// Parts of the time, 0 to 1, in which a resource is used; not set: not known.
struct ResourceUse {
  std::optional<double> compute{};
  std::optional<double> link{};
};

// A device as the next job finds it.
struct DeviceRoom {
  core::Bytes total{};
  core::Bytes committed{};        // reserved for jobs, and used by those that did not ask
  core::Bytes own{};              // of that, the user's who asks
  core::Bytes held{};             // by the store, which gives it back when a job allocates
  double return_bytes_per_s = 0;  // at most so fast: the link's rate; 0: not known
  ResourceUse measured{};         // of all that runs there
  // Jobs that were admitted and whose use is not in what is measured yet.
  size_t unmeasured = 0;
};

struct JobNeed {
  core::Bytes bytes{};
  core::Bytes limit{};  // of all jobs of its user together; 0: none
  ResourceUse use{};
};

enum class Verdict {
  kMayStart,
  kUserIsAtLimit,  // until another job of its user ends
  kNotItsTurn,     // others came before it
  kNoMemory,
  kTooSlow,
};

struct Judgement {
  Verdict verdict = Verdict::kMayStart;
  double slowdown = 1;       // expected of all jobs there, if it came
  bool is_measured = false;  // else by memory alone
  // Of what the job needs, what the store has until then, and the time that its way back takes.
  core::Bytes to_return{};
  double return_s = 0;
};

// `slowdown_most`: 0: by memory alone.
Judgement Judge(const DeviceRoom& room, const JobNeed& need, double slowdown_most);

// For people: what the job waits for, or what is worth knowing as it comes; may be empty.
std::string WordsOf(const Judgement& judgement, double slowdown_most);

}  // namespace ravenstore::daemon
