#include "core/plan/call_forecast.h"

#include <gtest/gtest.h>

#include <vector>

namespace ravenstore::core::plan {
namespace {

// A tensor that is created, put, got and freed, with twenty gets of a second one between.
class ForecastTest : public testing::Test {
 protected:
  void Call(CallKind kind, TensorIndex tensor) {
    at_ += std::chrono::microseconds(10);
    tensors_.GrowTo(tensor + 1);
    PlacedTensor& of = tensors_[tensor];
    follower_.Observe({kind, false, tensor, at_}, MiB(3));
    if (kind == CallKind::kCreate) of = {places_.Allocate(MiB(3)), MiB(3), true, true};
    of.in_use = Pins(kind);
    if (kind != CallKind::kFree) return;
    of.lives = false;
    places_.Free(of.place, MiB(3));
  }
  void Pass(TensorIndex tensor) {
    Call(CallKind::kCreate, tensor);
    Call(CallKind::kPut, tensor);
    for (int i = 0; i < 20; ++i) {
      Call(CallKind::kGet, 0);
      Call(CallKind::kPut, 0);
    }
    Call(CallKind::kGet, tensor);
    Call(CallKind::kFree, tensor);
  }

  Places places_{{.page = MiB(2)}};
  PlacedTensors tensors_;
  Follower follower_;
  Duration at_{0};
};

TEST_F(ForecastTest, AnUnneededTensorDiesNoSecondTime) {
  Call(CallKind::kCreate, 0);
  Call(CallKind::kPut, 0);
  for (TensorIndex tensor = 1; tensor < 4; ++tensor) Pass(tensor);
  Call(CallKind::kCreate, 4);
  Call(CallKind::kPut, 4);
  ASSERT_NE(follower_.counterpart(), Follower::kNone);
  const CallForecast needed = Forecaster(follower_, places_, tensors_).Make();
  tensors_[4].unneeded = true;
  const CallForecast unneeded = Forecaster(follower_, places_, tensors_).Make();
  ASSERT_EQ(needed.calls.size(), unneeded.calls.size());
  bool freed = false;
  for (size_t i = 0; i < needed.calls.size(); ++i) {
    EXPECT_EQ(needed.places[i], unneeded.places[i]);  // its place is free from then on
    EXPECT_EQ(unneeded.calls[i].dies, needed.calls[i].dies && freed);
    freed |= needed.calls[i].dies;
  }
  EXPECT_TRUE(freed);
}

TEST_F(ForecastTest, WhatFollowedTheCounterpartComes) {
  Call(CallKind::kCreate, 0);
  Call(CallKind::kPut, 0);
  for (TensorIndex tensor = 1; tensor < 4; ++tensor) Pass(tensor);
  ASSERT_NE(follower_.counterpart(), Follower::kNone);
  const CallForecast forecast = Forecaster(follower_, places_, tensors_).Make();
  // The last call that pinned was the get of tensor 3, which is freed by now.
  EXPECT_EQ(forecast.calls[0].units.count, 0u);
  const auto& create = forecast.calls[2];
  EXPECT_EQ(create.kind, CallKind::kCreate);
  EXPECT_EQ(forecast.places[2], tensors_[3].place);
  EXPECT_EQ(create.units.count, 2u);
  EXPECT_EQ(forecast.calls[3].kind, CallKind::kPut);
  EXPECT_TRUE(forecast.calls[3].unpins);
  EXPECT_EQ(forecast.calls[4].units.first, places_.UnitsOf(tensors_[0].place, MiB(3)).first);
  EXPECT_EQ(forecast.calls[4].at - forecast.calls[3].at, std::chrono::microseconds(10));
  EXPECT_EQ(forecast.PositionOf(forecast.base + 4), 4);
  EXPECT_FALSE(forecast.PositionOf(forecast.base + 100'000));
  // Each call finds its tensor in the state that it needs.
  uint32_t pins = 0;
  for (const PlannedCall& call : forecast.calls) {
    if (call.units.count == 0) continue;
    pins += Pins(call.kind) ? 1 : 0;
    pins -= call.unpins ? 1 : 0;
    EXPECT_LE(pins, 1u);
  }
}

}  // namespace
}  // namespace ravenstore::core::plan
