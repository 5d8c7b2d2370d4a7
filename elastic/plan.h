// Which ranges of a job's memory should lie on the device, learned from what the job does.
//
// The job's calls (launches, copies, memsets) come one by one with the ranges that each names.
// Steps of training, and passes of inference, repeat them. The plan learns the sequence, says which
// range is wanted next that is not there, and which of those that are there is needed last. It is
// never needed for correctness: a range that is on the host is used in place, slowly.
//
// A range is a page: all have the same size, and a program that repeats itself names the same ones
// in each step.
//
// A freed range is dead until it is allocated again: its bytes are worth nothing then, and its next
// use needs room on the device, but no copy.
//
// Threads: one at a time. Cost of Used(): under half a microsecond for two ranges, amortised;
// memory bounded by what Options say. No clock is read here: the caller says when.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>

#include "core/types.h"

namespace ravenstore::elastic {

// Small numbers.
enum class RangeId : uint32_t {};

struct PlanOptions {
  core::Bytes device;                   // what may lie on the device
  core::Bytes part = core::MiB(32);     // of a range
  double bytes_per_second = 50e9;       // of the link, each way
  double seconds_per_part = 1e-4;       // to map one, besides
  size_t most_calls = size_t{1} << 20;  // that are remembered
};

class Plan {
 public:
  explicit Plan(const PlanOptions& options);
  ~Plan();
  Plan(Plan&&) noexcept;
  Plan& operator=(Plan&&) noexcept;

  // ---- What the job does, in order.
  // The range has `size` bytes from now on, none of them worth a copy yet.
  void Allocated(RangeId range, core::Bytes size);
  void Freed(RangeId range);
  // A call that names `ranges`, each once. `identity` tells it from others and is the same in each
  // step.
  void Used(uint64_t identity, std::span<const RangeId> ranges, core::Tick now);

  // ---- How far the GPU has come with them. As long as nobody tells, each call begins when it is
  // used, and is over when the next is; else the calls that are used run later, one after the
  // other. Whether the time is to be taken when the call that was used last is over: every so
  // often, and where it was in earlier steps, so that they can be compared.
  bool EndsStretch();
  // From the call of number `from` to that before `to` they took so long together, the first begun
  // when the one before was over. The least of all steps counts: what is more was waited for.
  void Took(int64_t from, int64_t to, core::Duration all);
  // The calls before this one are over.
  void SetPassed(int64_t call);
  // How long those from this one to the last take, as far as is known.
  core::Duration TimeSince(int64_t call) const;

  // ---- What the engine did.
  // So many of the range's bytes are not on the device (live or dead).
  void SetAway(RangeId range, core::Bytes away);
  void SetDevice(core::Bytes device);

  // ---- What should be done.
  struct Wanted {
    RangeId range;
    int64_t at;       // the number of the call it comes for; the next call has position()
    bool needs_copy;  // false: what it holds is dead until then
  };
  // Of the ranges that are not on the device the one that is needed soonest, if there is room for
  // it until its use and it can be there by then. `skip(range)`: this one cannot be brought now.
  std::optional<Wanted> NextIn(const std::function<bool(RangeId)>& skip) const;
  // The range on the device to take out so that `for_whom` can come: one that is dead; without a
  // sequence also what is expected later than `for_whom`. nullopt, for an allocation that is made
  // now: a dead one, else what is needed last, if waiting for that costs less than what is
  // allocated would in place. `skip(range)`: it cannot be moved now.
  std::optional<RangeId> Victim(const std::optional<Wanted>& for_whom,
                                const std::function<bool(RangeId)>& skip) const;
  // The live range that should leave now though nobody waits for its room: if all that is away came
  // back for its next use, there would be more than the device holds before this one, which is
  // needed last, is used again, and so soon that moves must begin. `skip(range)`: it cannot be
  // moved now.
  std::optional<RangeId> NextOut(const std::function<bool(RangeId)>& skip) const;

  // Of the ranges with bytes on the device the one that leaves first where less may be held.
  std::optional<RangeId> Surplus(const std::function<bool(RangeId)>& skip) const;

  int64_t position() const;
  // The call that uses the range next, as far as that is foreseen.
  std::optional<int64_t> NextUse(RangeId range) const;
  // The sequence is known and holds: predictions come from it, not from how long ago things were
  // used.
  bool IsLearned() const;
  // More will live at once than the device holds, as far as is foreseen.
  bool IsShort() const;

 private:
  class State;
  std::unique_ptr<State> state_;
};

}  // namespace ravenstore::elastic
