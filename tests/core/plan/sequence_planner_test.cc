#include "core/plan/sequence_planner.h"

#include <gtest/gtest.h>

#include <vector>

#include "tests/core/plan/passes.h"

namespace ravenstore::core::plan {
namespace {

// A client that places its tensors and keeps its plans.
class Client {
 public:
  explicit Client(uint32_t layers)
      : passes_(layers, [this](const auto& call, Bytes size) { Make(call, size); }) {}

  void Run(uint32_t inserted = 0) { passes_.Run(inserted); }
  const SequencePlanner& planner() const { return planner_; }
  // Pinning calls that the plan had at its position.
  uint32_t foreseen = 0;
  // Each tensor is placed elsewhere than the one before it.
  bool scatters = false;

 private:
  void Make(const CallHistory::Call& call, Bytes size) {
    tensors_.GrowTo(call.tensor + 1);
    PlacedTensor& tensor = tensors_[call.tensor];
    const auto guidance = planner_.Observe(call, size);
    if (guidance.remake) forecast_ = planner_.Remake(places_, tensors_);
    if (call.kind == CallKind::kCreate) {
      if (scatters) places_.Allocate(size);
      tensor = {places_.Allocate(size), size, true, true};
      planner_.Placed(tensor.place);
    }
    const auto at = static_cast<size_t>(planner_.position());
    if (Pins(call.kind) && planner_.has_plan() && at < forecast_.calls.size()) {
      const PlannedCall& planned = forecast_.calls[at];
      const UnitSpan units = places_.UnitsOf(tensor.place, size);
      foreseen += planned.kind == call.kind && planned.units.first == units.first &&
                          planned.units.count == units.count
                      ? 1
                      : 0;
    }
    tensor.in_use = Pins(call.kind);
    if (call.kind == CallKind::kFree) {
      tensor.lives = false;
      places_.Free(tensor.place, size);
    }
    planner_.Done(call);
  }

  Places places_{{.page = MiB(2)}};
  PlacedTensors tensors_;
  SequencePlanner planner_;
  CallForecast forecast_;
  Passes passes_;
};

TEST(SequencePlannerTest, NothingIsPlannedInTheFirstPass) {
  Client client(40);
  client.Run();
  EXPECT_FALSE(client.planner().has_plan());
}

TEST(SequencePlannerTest, ARepeatedPassIsForeseenCallByCall) {
  Client client(40);
  client.Run();
  client.Run();
  client.foreseen = 0;
  client.Run();
  EXPECT_EQ(client.foreseen, 80u);
  EXPECT_EQ(client.planner().stats().elsewhere, 0u);
}

TEST(SequencePlannerTest, PlansAreMadeAfterHalfAPeriod) {
  Client client(40);
  client.Run();
  client.Run();
  const uint64_t plans = client.planner().stats().plans;
  for (int i = 0; i < 10; ++i) client.Run();
  const uint64_t made = client.planner().stats().plans - plans;
  EXPECT_GE(made, 15u);
  EXPECT_LE(made, 25u);
}

TEST(SequencePlannerTest, AfterAnInsertionTheRestIsForeseenAgain) {
  Client client(40);
  for (int i = 0; i < 3; ++i) client.Run();
  client.foreseen = 0;
  client.Run(5);
  EXPECT_GE(client.foreseen, 75u);
}

TEST(SequencePlannerTest, APlanIsDiscardedWithTheCallsThatItRepeats) {
  SequencePlanner planner;
  const Places places{{.page = MiB(2)}};
  PlacedTensors tensors;
  Passes passes(40, [&](const auto& call, Bytes size) {
    tensors.GrowTo(call.tensor + 1);
    if (planner.Observe(call, size).remake) planner.Remake(places, tensors);
  });
  passes.Run();
  passes.Run();
  ASSERT_TRUE(planner.has_plan());
  const TensorIndex tensor = passes.tensors();
  planner.Observe({CallKind::kCreate, false, tensor, {}}, GiB(2));
  bool discarded = false;
  for (CallNumber i = 0; i < CallHistory::kCallsMax; ++i)
    discarded |= planner.Observe({CallKind::kPut, false, tensor, {}}, GiB(2)).discard;
  EXPECT_TRUE(discarded);
  EXPECT_FALSE(planner.has_plan());
}

TEST(SequencePlannerTest, WhereAllFitsNoPlaceIsSearchedForUntilItDoesNot) {
  SequencePlanner planner;
  const Places places{{.page = MiB(2)}};
  PlacedTensors tensors;
  bool fits = true;
  uint32_t calls = 0;
  Passes passes(40, [&](const auto& call, Bytes size) {
    tensors.GrowTo(call.tensor + 1);
    if (planner.Observe(call, size, false, fits).remake) planner.Remake(places, tensors);
    calls += planner.has_plan() ? 0 : 1;
  });
  for (int i = 0; i < 3; ++i) passes.Run();
  EXPECT_EQ(planner.follower().jumps(), 0u);
  EXPECT_FALSE(planner.has_plan());
  fits = false;
  calls = 0;
  passes.Run();
  EXPECT_TRUE(planner.has_plan());
  EXPECT_EQ(planner.follower().jumps(), 1u);
  EXPECT_LT(calls, 5u) << "until there is a plan";
}

TEST(SequencePlannerTest, APlanIsMadeAgainAfterATensorHasMoved) {
  SequencePlanner planner;
  const Places places{{.page = MiB(2)}};
  PlacedTensors tensors;
  bool moves = false;
  Passes passes(40, [&](const auto& call, Bytes size) {
    tensors.GrowTo(call.tensor + 1);
    if (planner.Observe(call, size).remake) planner.Remake(places, tensors);
    if (moves) planner.Moved();
  });
  for (int i = 0; i < 3; ++i) passes.Run();
  const uint64_t before = planner.stats().plans;
  passes.Run();
  const uint64_t usual = planner.stats().plans - before;
  moves = true;
  passes.Run();
  EXPECT_GT(planner.stats().plans - before - usual, usual + 4);
}

TEST(SequencePlannerTest, InsertedCreatesMakeNoPlans) {
  Client client(400);
  for (int i = 0; i < 3; ++i) client.Run();
  const uint64_t plans = client.planner().stats().plans;
  client.Run(40);
  EXPECT_LE(client.planner().stats().plans - plans, 8u);
}

TEST(SequencePlannerTest, ScatteredCreatesMakeFewerPlansThanThereAreCreates) {
  Client client(400);
  for (int i = 0; i < 3; ++i) client.Run();
  const uint64_t plans = client.planner().stats().plans;
  client.scatters = true;
  client.Run();
  EXPECT_GE(client.planner().stats().elsewhere, 300u);
  EXPECT_GE(client.planner().stats().plans - plans, 16u);
  EXPECT_LE(client.planner().stats().plans - plans, 160u);
}

}  // namespace
}  // namespace ravenstore::core::plan
