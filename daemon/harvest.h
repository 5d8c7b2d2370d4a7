// What the daemon harvests of one device's memory: how much it may be, and how it is given back.
//
// It may be what it is and what is idle beside it. Once less than the reserve is free, so much of
// it is given back; and what an operator asks for, which then stays given back for a while. A
// give-back begins when it may be less than it is, ends when so much is gone, and should do so
// within its deadline, which grows with its size. One that does not is counted, and the log says
// what it waits for.
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
    // The deadline of a give-back: so long for each GiB, and at least so long.
    core::Duration each_gib = std::chrono::milliseconds(50);
    core::Duration least = std::chrono::milliseconds(100);
    // So long what an operator had given back stays so once it is.
    core::Duration hold = std::chrono::seconds(10);
  };
  // What of the device is free, and idle, beside what is harvested.
  struct Beside {
    core::Bytes free;
    core::Bytes idle;
    // Chunks came or went since it was looked at, or do so: some of them may be counted twice.
    bool is_stale = false;
  };
  // How an operator's give-back went.
  struct GivenBack {
    core::Bytes bytes;  // so far
    core::Duration took{};
    std::string late{};  // what it waits for, at its deadline; empty: it is done
  };
  using Then = std::function<void(const GivenBack&)>;
  struct Counts {
    uint64_t give_backs = 0;
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

  // The device was looked at while `held` was harvested. Returns what may be from now on: after a
  // stale look no more than before.
  core::Bytes Look(core::Tick now, core::Bytes held, const Beside& beside);
  // An operator wants so much of it given back within that time, and `then` told how it went.
  // Returns what may be from now on. REQUIRES: `bytes` and `within` are not zero, and `bytes` is no
  // more than `held`.
  core::Bytes GiveBack(core::Tick now, core::Bytes held, core::Bytes bytes, core::Duration within,
                       Then then);
  // So much of what is harvested cannot be given back, and counts as harvested no more.
  void Lose(core::Bytes bytes);
  // So much is harvested now. `why` says what a give-back waits for, and is asked at a deadline.
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
  core::Bytes cap_;  // an operator's, while that is given back and until then
  core::Tick capped_until_{};
  std::optional<UnderWay> under_way_;
  Counts counts_;
};

}  // namespace ravenstore::daemon
