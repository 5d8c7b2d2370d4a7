#include "core/plan/follower.h"

#include <gtest/gtest.h>

#include "tests/core/plan/passes.h"
#include "tests/core/plan/seeds.h"

namespace ravenstore::core::plan {
namespace {

class FollowerTest : public testing::Test {
 protected:
  Follower follower_;
  uint32_t lost_ = 0;
  Passes passes_{40, [this](const auto& call, Bytes size) {
                   lost_ += follower_.Observe(call, size).lost ? 1 : 0;
                 }};
};

TEST_F(FollowerTest, TheFirstPassHasNoCounterpart) {
  passes_.Run();
  EXPECT_EQ(follower_.counterpart(), Follower::kNone);
  EXPECT_FALSE(follower_.trusted());
}

TEST_F(FollowerTest, ASecondPassIsFollowedThoughItsIdsAreNew) {
  passes_.Run();
  passes_.Run();
  EXPECT_TRUE(follower_.matched());
  EXPECT_TRUE(follower_.trusted());
  EXPECT_EQ(follower_.counterpart(), passes_.pinning() - 1);
  EXPECT_EQ(follower_.jumps(), 1u);
}

TEST_F(FollowerTest, InsertionsAreSurvived) {
  passes_.Run();
  passes_.Run();
  const uint32_t jumps = follower_.jumps();
  passes_.Run(7);
  EXPECT_TRUE(follower_.matched());
  EXPECT_EQ(follower_.counterpart(), 2 * passes_.pinning() - 1);
  passes_.Run();
  EXPECT_TRUE(follower_.matched());
  EXPECT_EQ(follower_.jumps(), jumps);
  EXPECT_EQ(lost_, 0u);
}

TEST_F(FollowerTest, TheThirdMarkedStepIsTriedBeforeTheCallsShowIt) {
  follower_.Step();
  passes_.RunOther(300);
  follower_.Step();
  passes_.Run();
  EXPECT_EQ(follower_.counterpart(), Follower::kNone);
  follower_.Step();
  passes_.Run(1);
  EXPECT_TRUE(follower_.matched());
  EXPECT_EQ(follower_.jumps(), 1u);
}

TEST_F(FollowerTest, TheFirstMarkedStepIsNotImitated) {
  follower_.Step();
  passes_.Run();
  follower_.Step();
  passes_.Run(1);
  EXPECT_EQ(follower_.counterpart(), Follower::kNone);
}

TEST_F(FollowerTest, OnlyAPassThatCreatesExpectsCreates) {
  passes_.Run();
  passes_.Run();
  EXPECT_TRUE(follower_.ExpectsCreates());
  Follower reader;
  for (TensorIndex tensor = 0; tensor < 20; ++tensor)
    reader.Observe({CallKind::kCreate, false, tensor, {}}, MiB(1));
  for (int pass = 0; pass < 4; ++pass) {
    for (TensorIndex tensor = 0; tensor < 20; ++tensor)
      reader.Observe({CallKind::kGet, false, tensor, {}}, MiB(1));
  }
  EXPECT_NE(reader.counterpart(), Follower::kNone);
  EXPECT_FALSE(reader.ExpectsCreates());
}

TEST_F(FollowerTest, AnotherProgramLosesThePlace) {
  passes_.Run();
  passes_.Run();
  passes_.RunOther(200);
  EXPECT_EQ(lost_, 1u);
  EXPECT_EQ(follower_.counterpart(), Follower::kNone);
}

TEST_F(FollowerTest, APlaceThatTheHistoryDropsIsDiscarded) {
  passes_.Run();
  passes_.Run();
  // Tensors of the passes have small numbers.
  constexpr TensorIndex kTensor = 1 << 20;
  follower_.Observe({CallKind::kCreate, false, kTensor, {}}, GiB(2));
  for (CallNumber i = 0; i < CallHistory::kCallsMax; ++i)
    lost_ += follower_.Observe({CallKind::kPut, false, kTensor, {}}, GiB(2)).lost ? 1 : 0;
  EXPECT_EQ(lost_, 1u);
  EXPECT_EQ(follower_.counterpart(), Follower::kNone);
  EXPECT_FALSE(follower_.matched());
  for (int i = 0; i < 3; ++i) passes_.Run();
  EXPECT_TRUE(follower_.matched());
  EXPECT_EQ(follower_.counterpart(), 4 * passes_.pinning());
}

TEST(FollowerSearchTest, OfEqualSuffixesTheLastIsTaken) {
  Follower follower;
  // Passes are longer than the longest pause between searches.
  Passes passes(600, [&](const auto& call, Bytes size) { follower.Observe(call, size); });
  for (int i = 0; i < 4; ++i) {
    passes.RunOther(200);
    passes.Run();
  }
  EXPECT_GE(follower.jumps(), 2u);
  EXPECT_EQ(follower.counterpart(), 3 * (200 + passes.pinning()) - 1);
}

// Layers of the same shapes, whose tensors all live until the pass ends.
TEST(FollowerSearchTest, ASecondPassOfEqualLayersIsFollowedFromItsBegin) {
  constexpr uint32_t kLayers = 150;
  constexpr uint32_t kPass = 4 * kLayers + 200;
  Follower follower;
  for (TensorIndex tensor = 0; follower.counterpart() == Follower::kNone; ++tensor) {
    ASSERT_LT(tensor, 2 * kPass);
    const uint32_t n = tensor % kPass;
    const Bytes size = n < 4 * kLayers ? MiB(1 + n % 4) : GiB(1) + MiB(n);
    for (TensorIndex last = tensor - kPass; n == 0 && tensor > 0 && last < tensor; ++last)
      follower.Observe({CallKind::kFree, false, last, {}}, {});
    follower.Observe({CallKind::kCreate, false, tensor, {}}, size);
  }
  EXPECT_EQ(follower.history().pinning_calls() - 1 - follower.counterpart(), kPass);
}

}  // namespace
}  // namespace ravenstore::core::plan
