// Keep, move or make anew: traces whose puts say what recomputing the bytes would take.
#include <gtest/gtest.h>

#include <functional>
#include <string>

#include "sim/score.h"
#include "sim/simulator.h"
#include "sim/trace.h"

namespace ravenstore::sim {
namespace {

using core::Bytes;
using core::Duration;
using std::chrono::milliseconds;

// A tensor takes 33.6 ms in each direction.
constexpr Bytes kSize = core::MiB(32);
constexpr int kLayers = 12;
constexpr Bytes kBudget = kSize * 5;

Hardware Simple() {
  Hardware hardware;
  hardware.name = "simple";
  hardware.up = hardware.down = 1e9;
  hardware.latency = Duration{0};
  hardware.per_copy = Duration{0};
  return hardware;
}

// Forwards and backwards through the layers, several times; `recompute` by layer, zero: cannot be.
Trace Training(Duration compute, const std::function<Duration(int)>& recompute) {
  Trace trace;
  trace.name = "training";
  for (int iteration = 0; iteration < 3; ++iteration) {
    const auto first = static_cast<uint32_t>(trace.tensors.size());
    for (int layer = 0; layer < kLayers; ++layer) {
      const uint32_t tensor = first + static_cast<uint32_t>(layer);
      trace.tensors.push_back({0, kSize, "layer " + std::to_string(layer)});
      trace.ops.push_back({.kind = OpKind::kCreate, .tensor = tensor});
      trace.ops.push_back({.kind = OpKind::kCompute, .time = compute});
      trace.ops.push_back({.kind = OpKind::kPut,
                           .tensor = tensor,
                           .modified = true,
                           .next_use = {core::NextUse::Kind::kOrder, {}, -layer},
                           .recompute = recompute(layer)});
    }
    for (int layer = kLayers; layer-- > 0;) {
      const uint32_t tensor = first + static_cast<uint32_t>(layer);
      trace.ops.push_back({.kind = OpKind::kGet, .tensor = tensor});
      trace.ops.push_back({.kind = OpKind::kCompute, .time = compute});
      trace.ops.push_back({.kind = OpKind::kPut, .tensor = tensor, .modified = true});
      trace.ops.push_back({.kind = OpKind::kFree, .tensor = tensor});
    }
    trace.ops.push_back({.kind = OpKind::kStep});
  }
  return trace;
}

Duration Never(int) {
  return Duration{0};
}

Outcome Replay(const Trace& trace) {
  EXPECT_TRUE(Validate(trace).ok());
  Outcome outcome = Simulate(trace, *SetupFor("value", Simple(), kBudget));
  EXPECT_EQ(outcome.failure, "");
  return outcome;
}

TEST(RecomputeTest, DroppingBeatsMovingWhereRecomputingIsShort) {
  const Outcome moved = Replay(Training(milliseconds(2), Never));
  const Outcome dropped = Replay(Training(milliseconds(2), [](int) { return milliseconds(3); }));
  EXPECT_EQ(moved.stats.discarded, 0u);
  EXPECT_GT(dropped.stats.discarded, 10u);
  EXPECT_EQ(dropped.stats.recomputes, dropped.stats.discarded);
  EXPECT_EQ(dropped.up, Bytes{0});
  EXPECT_EQ(dropped.down, Bytes{0});
  // All that it waits for is recomputing them.
  EXPECT_EQ(dropped.stall, milliseconds(3) * static_cast<int64_t>(dropped.stats.recomputes));
  EXPECT_LT(dropped.stall * 5, moved.stall);
}

TEST(RecomputeTest, MovingBeatsDroppingWhereRecomputingIsLong) {
  const Outcome moved = Replay(Training(milliseconds(2), Never));
  const Outcome offered = Replay(Training(milliseconds(2), [](int) { return milliseconds(500); }));
  EXPECT_EQ(offered.stats.discarded, 0u);
  EXPECT_EQ(offered.stall, moved.stall);
  EXPECT_EQ(offered.up, moved.up);
  EXPECT_EQ(offered.down, moved.down);
}

TEST(RecomputeTest, OfBothTheOneIsDroppedAndTheOtherMoved) {
  const auto odd_is_short = [](int layer) { return milliseconds(layer % 2 == 1 ? 3 : 500); };
  const Outcome moved = Replay(Training(milliseconds(2), Never));
  const Outcome mixed = Replay(Training(milliseconds(2), odd_is_short));
  EXPECT_GT(mixed.stats.discarded, 5u);
  EXPECT_EQ(mixed.stats.recomputes, mixed.stats.discarded);
  EXPECT_LT(mixed.stall, moved.stall);
  EXPECT_LT(mixed.up, moved.up);
  // Dropping one of the others even once would cost more than half a second.
  EXPECT_LT(mixed.stall, milliseconds(500) + moved.stall);
}

TEST(RecomputeTest, WhatFitsIsNeverRecomputed) {
  const Trace trace = Training(milliseconds(2), [](int) { return milliseconds(1); });
  const Outcome outcome = Simulate(trace, *SetupFor("value", Simple(), trace.Footprint() * 2));
  EXPECT_EQ(outcome.stats.discarded, 0u);
  EXPECT_EQ(outcome.stall, Duration{0});
}

}  // namespace
}  // namespace ravenstore::sim
