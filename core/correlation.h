// Which tensors a client uses after those that it has just used.
//
// Programs that have no period, or whose period is not known yet, still use what belongs together
// in the same order: the parts of a cache, the experts of a layer, weights in the order in which
// they were made. So for the last one and the last two logical ids (core/forecast.h) that a client
// used it is counted what came next, at most kSuccessors of them, the older the less; and the most
// likely successor is followed, and its successor, as long as the product of the confidences is at
// least kLeastSure. That chain moves along with the client: a use that comes as expected, or a few
// uses too soon or too late, only lengthens it at its end, any other restarts it. Whether the next
// use was the one expected is counted, and while it is more often wrong than right nothing is
// predicted.
//
// Sources: DeepUM (Jung et al., ASPLOS 2023), whose execution tables and block tables correlate
// kernels and pages and are chained in the same way.
//
// Owns: at most kMostStates states of 32 bytes; made when there is something to learn.
// Threads: one at a time. Cost: O(1) amortised, and at most kStepsPerUse steps of the chain a use.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "core/tuned.h"
#include "core/types.h"

namespace ravenstore::core {

class Correlation {
 public:
  static constexpr size_t kSuccessors = 4;
  static constexpr size_t kMostStates = 1 << 12;
  static constexpr size_t kMostAhead = 32;
  static constexpr int kStepsPerUse = 8;

  // A use that is expected.
  struct Step {
    uint32_t logical = 0;
    int64_t logical_time = 0;     // which use of the client's it would be
    double confidence = 0;        // that it follows the one before it
    TensorId tensor = kNoTensor;  // the last that was used under this id
    // For the caller: whether it was looked at, whether it was acted upon, and what to go back to.
    bool seen = false;
    bool predicted = false;
    uint8_t kind_before = 0;
    int64_t key_before = 0;
  };

  // The client uses `tensor` now, as its use number `logical_time`. What was expected and is so no
  // more is appended to `missed`.
  void Used(uint32_t logical, TensorId tensor, int64_t logical_time, std::vector<Step>* missed);

  // What is expected, soonest first; nothing while it is not trusted.
  std::vector<Step>& Ahead() { return ahead_; }
  // The first step that names `logical`, if one does.
  Step* Find(uint32_t logical);
  // That everything comes as expected up to the first step that names `logical`; 0: none does.
  double ConfidenceOf(uint32_t logical) const;

  bool IsTrusted() const { return trust_ >= kTrustMost / 2; }
  size_t states() const { return states_; }

 private:
  static constexpr size_t kProbes = 16;  // places where a state may stand
  static constexpr uint32_t kSeen = 31;  // what one observation counts

  struct State {
    uint32_t key = 0;  // 0: none
    std::array<uint8_t, kSuccessors> counts{};
    std::array<uint32_t, kSuccessors> next{};
    TensorId tensor = kNoTensor;  // of one id's state: the last that was used under it
  };
  struct Guess {
    uint32_t logical;
    double confidence;
  };

  static uint32_t KeyOf(uint32_t last, uint32_t before);
  // The place where the state may stand, the most likely first. REQUIRES: there is a table.
  State& At(uint32_t key, size_t i) { return table_[(key + i) & (table_.size() - 1)]; }
  const State& At(uint32_t key, size_t i) const { return table_[(key + i) & (table_.size() - 1)]; }
  const State* FindState(uint32_t key) const;
  State* MakeState(uint32_t key);
  void Grow();
  static bool IsFork(const State& state);
  static void Count(State* state, uint32_t next);
  std::optional<Guess> Next(uint32_t last, uint32_t before) const;
  void Extend(int64_t logical_time);

  std::vector<State> table_;  // a power of two of them
  size_t states_ = 0;
  uint32_t last_ = 0;              // what was used last, and
  uint32_t before_ = 0;            // before that; 0: nothing
  std::optional<Guess> expected_;  // after those
  std::vector<Step> ahead_;
  // What the chain goes on from: its last step and the one before, also if they came too soon.
  uint32_t end_ = 0;
  uint32_t before_end_ = 0;
  int trust_ = kTrustMost / 2;
};

}  // namespace ravenstore::core
