// The memory that the daemon harvests of one device: how much it may be, and how it is returned.
//
// Its limit is its current size plus the device's idle memory. When less than the reserve is free,
// the limit falls by the shortfall. It also falls by what an operator asks for, which then stays
// returned for a while. A give-back begins when the limit is below the current size, and ends
// when the excess is gone. It has a deadline, which grows with its size. One that misses its
// deadline is counted, and the log says what it waits for.
//
// Owns: what is under way and the counts. Threads: one at a time. Knows no clock.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>

#include "core/types.h"

namespace ravenstore::daemon {

class Harvest {
 public:
  struct Options {
    std::string name;  // of its pool, for the log
    core::Bytes reserve;
    // The deadline of a give-back: `each_gib` for each GiB, and at least `least`.
    core::Duration each_gib = std::chrono::milliseconds(50);
    core::Duration least = std::chrono::milliseconds(100);
    // How long memory stays returned once an operator's give-back is done.
    core::Duration hold = std::chrono::seconds(10);
  };
  // The free and the idle memory of the device, without the harvested memory.
  struct Unharvested {
    core::Bytes free;
    core::Bytes idle;
    // Chunks came or went since it was looked at, or do so: some of them may be counted twice.
    bool is_stale = false;
  };
  // How an operator's give-back went.
  struct Returned {
    core::Bytes bytes;  // so far
    core::Duration took{};
    std::string late{};  // what it waits for, at its deadline; empty: it is done
  };
  using Then = std::function<void(const Returned&)>;
  struct Counts {
    uint64_t returns = 0;
    uint64_t missed = 0;  // their deadline
    core::Bytes bytes;
    core::Duration last{};
    core::Duration longest{};
  };

  // As it is shown.
  struct View {
    core::Bytes most;
    core::Bytes used;  // of tensors
    Counts counts{};
  };

  explicit Harvest(Options options) : options_(std::move(options)) {}

  // The device was looked at while `held` was harvested. Returns the new limit: after a stale look
  // no more than before.
  core::Bytes Look(core::Tick now, core::Bytes held, const Unharvested& unharvested);
  // An operator wants `bytes` of it returned within `within`; `then` is called with the outcome.
  // Returns the new limit. REQUIRES: `bytes` and `within` are not zero, and `bytes` is no more than
  // `held`.
  core::Bytes Return(core::Tick now, core::Bytes held, core::Bytes bytes, core::Duration within,
                     Then then);
  // `bytes` of the harvested memory cannot be returned, and no longer count as harvested.
  void Lose(core::Bytes bytes);
  // `held` is harvested now. `why` says what a give-back waits for; it is called at a deadline.
  void Update(core::Tick now, core::Bytes held, const std::function<std::string()>& why);

  // When Update has something to say even if nothing changes; kNever: not yet.
  core::Tick deadline() const {
    return under_way_ && !under_way_->late ? under_way_->deadline : core::kNever;
  }
  core::Bytes most() const { return most_; }
  const Counts& counts() const { return counts_; }

 private:
  struct UnderWay {
    core::Tick began{};
    core::Tick deadline{};
    core::Bytes from;
    core::Bytes goal;
    bool late = false;
    bool by_operator = false;
    Then then{};
  };

  core::Bytes Begin(core::Tick now, core::Bytes held, core::Bytes most);
  core::Duration DeadlineFor(core::Bytes bytes) const;

  const Options options_;
  core::Bytes most_;
  core::Bytes cap_;  // an operator's, while that is returned and until then
  core::Tick capped_until_{};
  std::optional<UnderWay> under_way_;
  Counts counts_;
};

}  // namespace ravenstore::daemon
