#include "core/schedule/device_plans.h"

#include <gtest/gtest.h>

#include <vector>

#include "tests/core/schedule/schedule_world.h"

namespace ravenstore::core {
namespace {

using Plans = ScheduleWorld::Plans;

constexpr ClientId kFirst{1};
constexpr ClientId kSecond{2};
constexpr ClientId kThird{3};
constexpr TensorNumber kTensors = 20;

// A client that creates and puts tensors in order, and then gets and frees them in reverse order.
// Two of them have room for 24 of their 40 pages.
class Passes {
 public:
  Passes(ScheduleWorld* world, ClientId id) : world_(*world), id_(id) {}

  // One tensor's two calls.
  void Step() {
    const TensorNumber n = next_++;
    next_ %= 2 * kTensors;
    if (n < kTensors) {
      world_.Create(id_, n, MiB(2));
      world_.Settle();
      ASSERT_FALSE(world_.Waits(id_, n));
      world_.Put(id_, n);
    } else {
      const TensorNumber tensor = 2 * kTensors - 1 - n;
      world_.Get(id_, tensor);
      world_.Settle();
      ASSERT_FALSE(world_.Waits(id_, tensor));
      world_.Free(id_, tensor);
    }
    world_.Settle();
  }
  void Run(uint32_t steps) {
    for (uint32_t i = 0; i < steps && !testing::Test::HasFatalFailure(); ++i) Step();
  }
  const plan::ResidencyPlan& plan() const {
    return world_.scheduler().client(id_).executor().books().view().plan;
  }
  uint64_t plans() const { return world_.scheduler().client(id_).foresight().stats().plans; }
  // Steps until a plan begins.
  void RunUntilPlan() {
    for (uint32_t i = 0; i < 4 * kTensors && world_.plans_under_way() == 0; ++i) Step();
    ASSERT_EQ(world_.plans_under_way(), 1u);
  }

 private:
  ScheduleWorld& world_;
  const ClientId id_;
  uint32_t next_ = 0;  // of a pass
};

class DevicePlansTest : public testing::Test {
 protected:
  explicit DevicePlansTest(uint32_t pages = 12) : world_(pages) {
    world_.Join(kFirst);
    world_.Settle();
  }
  uint32_t ShareOf(ClientId id) const {
    return world_.scheduler().client(id).executor().books().view().limits.pages;
  }
  void CompletePlan() {
    ASSERT_EQ(world_.plans_under_way(), 1u);
    world_.CompletePlan(0);
    world_.Settle();
    EXPECT_EQ(world_.Fault(), "");
  }

  ScheduleWorld world_;
  Passes first_{&world_, kFirst};
};

TEST_F(DevicePlansTest, APlanThatComesLateBeginsWhereItsClientIs) {
  first_.Run(4 * 2 * kTensors);
  world_.SetPlans(Plans::kHeld);
  first_.RunUntilPlan();
  const uint64_t before = first_.plans();
  first_.Run(3);
  EXPECT_EQ(first_.plans(), before);
  EXPECT_EQ(world_.plans_under_way(), 1u);
  const plan::Position position = first_.plan().position();
  CompletePlan();
  EXPECT_EQ(first_.plans(), before + 1);
  EXPECT_LT(first_.plan().position(), position) << "it is another plan";
  // It began with the last step before the three.
  EXPECT_EQ(first_.plan().position(), 4 * 2);
}

TEST_F(DevicePlansTest, ThePlanBeforeFollowsTheCallsUntilTheNextOneComes) {
  first_.Run(4 * 2 * kTensors);
  world_.SetPlans(Plans::kHeld);
  first_.RunUntilPlan();
  const plan::Position position = first_.plan().position();
  ASSERT_GT(position, 0);
  first_.Run(3);
  EXPECT_EQ(first_.plan().position(), position + 3 * 2);
}

TEST_F(DevicePlansTest, HintsStayInForceUntilTheFirstPlanComes) {
  world_.SetPlans(Plans::kHeld);
  first_.RunUntilPlan();
  first_.Run(2 * kTensors);
  EXPECT_TRUE(first_.plan().empty());
  EXPECT_TRUE(world_.scheduler().client(kFirst).foresight().has_plan());
  CompletePlan();
  EXPECT_FALSE(first_.plan().empty());
}

TEST_F(DevicePlansTest, APlanOfCallsThatDoNotComeIsDropped) {
  first_.Run(4 * 2 * kTensors);
  world_.SetPlans(Plans::kHeld);
  first_.RunUntilPlan();
  const uint64_t before = first_.plans();
  // Calls that it has never made.
  for (TensorNumber tensor = 100; tensor < 200; ++tensor) {
    world_.Create(kFirst, tensor, KiB(100 + tensor));
    world_.Settle();
    world_.Free(kFirst, tensor);
    world_.Settle();
  }
  ASSERT_FALSE(world_.scheduler().client(kFirst).foresight().has_plan());
  CompletePlan();
  EXPECT_EQ(first_.plans(), before);
  EXPECT_TRUE(first_.plan().empty());
}

TEST_F(DevicePlansTest, APlanOfAClientThatHasLeftIsDropped) {
  first_.Run(4 * 2 * kTensors);
  world_.SetPlans(Plans::kHeld);
  first_.RunUntilPlan();
  world_.Leave(kFirst);
  world_.Settle();
  CompletePlan();
  EXPECT_FALSE(world_.scheduler().HasClient(kFirst));
  EXPECT_EQ(world_.physical_pages(), 0u);
}

TEST_F(DevicePlansTest, WhatChangesMeanwhileIsPlannedWhenThePlanHasCome) {
  first_.Run(4 * 2 * kTensors);
  world_.SetPlans(Plans::kHeld);
  first_.RunUntilPlan();
  const uint64_t before = first_.plans();
  // Its calls are forecast again, at least twice.
  first_.Run(3 * 2 * kTensors);
  EXPECT_EQ(world_.plans_under_way(), 1u);
  CompletePlan();
  CompletePlan();
  EXPECT_EQ(world_.plans_under_way(), 0u);
  EXPECT_EQ(first_.plans(), before + 2);
}

class CommonPlansTest : public DevicePlansTest {
 protected:
  CommonPlansTest() : DevicePlansTest(24) {
    world_.Join(kSecond);
    world_.Settle();
  }
  void RunBoth(uint32_t steps) {
    for (uint32_t i = 0; i < steps; ++i) {
      first_.Step();
      second_.Step();
    }
  }
  // Their first common plan is under way.
  void BeginCommonPlan() {
    world_.SetPlans(Plans::kHeld);
    while (world_.plans_under_way() == 0) RunBoth(1);
    while (!world_.scheduler().client(kSecond).foresight().has_plan() ||
           !world_.scheduler().client(kFirst).foresight().has_plan())
      RunBoth(1);
    // Plans of one client that are under way.
    while (world_.plans_under_way() > 1) world_.CompletePlan(0);
    ASSERT_EQ(world_.plans_under_way(), 1u);
    ASSERT_EQ(ShareOf(kFirst) + ShareOf(kSecond), 24u);
  }

  Passes second_{&world_, kSecond};
};

TEST_F(CommonPlansTest, ClientsHaveSharesUntilTheCommonPlanComes) {
  BeginCommonPlan();
  RunBoth(2);
  EXPECT_EQ(ShareOf(kFirst) + ShareOf(kSecond), 24u);
  world_.CompletePlan(0);
  EXPECT_EQ(ShareOf(kFirst) + ShareOf(kSecond), 2 * 24u);
  EXPECT_FALSE(first_.plan().empty());
  EXPECT_FALSE(second_.plan().empty());
  world_.SetPlans(Plans::kLate);
  RunBoth(4 * kTensors);
  EXPECT_EQ(world_.Fault(), "");
}

TEST_F(CommonPlansTest, ACommonPlanWithoutAClientThatHasJoinedIsDropped) {
  BeginCommonPlan();
  world_.Join(kThird);
  world_.CompletePlan(0);
  world_.Settle();
  EXPECT_LE(ShareOf(kFirst) + ShareOf(kSecond) + ShareOf(kThird), 24u);
  // Each has one of its own instead.
  EXPECT_EQ(world_.plans_under_way(), 2u);
  world_.CompletePlan(1);
  world_.CompletePlan(0);
  EXPECT_FALSE(first_.plan().empty());
  EXPECT_FALSE(second_.plan().empty());
}

TEST_F(CommonPlansTest, ACommonPlanOfAClientThatHasLeftIsDropped) {
  BeginCommonPlan();
  world_.Leave(kSecond);
  world_.CompletePlan(0);
  world_.SetPlans(Plans::kLate);
  world_.Settle();
  EXPECT_EQ(ShareOf(kFirst), 24u);
  EXPECT_EQ(world_.Fault(), "");
  first_.Run(4 * kTensors);
}

}  // namespace
}  // namespace ravenstore::core
