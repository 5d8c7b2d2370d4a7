// When a job's calls begin on the GPU, by the least time that each took in any step.
//
// A call that corresponds to an earlier one shares its time. Where the GPU is measured, Took() says
// how long a stretch of calls took; the least of all steps counts, since more was waited for. Where
// nothing is measured, a call takes the least time between two calls.
//
// Owns: 24 bytes for each call that is remembered. Units: calls by number, from 0. Threads: one at
// a time. Cost: O(1); Took() O(calls of the stretch).
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "core/types.h"

namespace ravenstore::elastic {

class CallTimes {
 public:
  // Remembers at least `most_calls`.
  explicit CallTimes(size_t most_calls);

  // The next call is made at `now`. `twin`: the earlier call that it corresponds to.
  void Add(std::optional<uint64_t> twin, core::Tick now);
  // The calls from `from` to that before `to` took `all` together on the GPU, the first begun when
  // the one before was over.
  void Took(int64_t from, int64_t to, core::Duration all);
  // Whether a stretch is to end with the last call: at regular intervals, and where one ended in
  // earlier steps, so that stretches can be compared.
  bool EndsStretch();

  // REQUIRES: the call is remembered.
  core::Tick Begin(uint64_t call) const { return At(call).begins; }
  // From this call, or the oldest that is remembered, to the last.
  core::Duration Since(int64_t call) const;

 private:
  struct Call {
    core::Tick begins;
    uint64_t kind;  // its place in kinds_
  };
  // Of all calls that correspond to each other.
  struct Kind {
    core::Duration took;  // the least in any step; negative: not known
    bool ends_stretch;
  };
  Call& At(uint64_t call) { return calls_[call & mask_]; }
  const Call& At(uint64_t call) const { return calls_[call & mask_]; }
  Kind& KindOf(uint64_t call) { return kinds_[At(call).kind]; }

  const uint64_t mask_;
  std::unique_ptr<Call[]> calls_;
  std::unique_ptr<Kind[]> kinds_;  // each at the first call of it
  uint64_t end_ = 0;               // the number of the next call
  int64_t stretch_ = 0;            // calls since the last end of one
  core::Tick last_{};
};

}  // namespace ravenstore::elastic
