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

TEST_F(FollowerTest, MarkedStepsAreTriedBeforeTheCallsShowIt) {
  passes_.Run();
  follower_.Step();
  passes_.Run();
  follower_.Step();
  passes_.Run();
  EXPECT_TRUE(follower_.matched());
  EXPECT_EQ(follower_.counterpart(), 2 * passes_.pinning() - 1);
}

TEST_F(FollowerTest, AnotherProgramLosesThePlace) {
  passes_.Run();
  passes_.Run();
  TensorIndex tensor = passes_.tensors();
  Random random(1);
  for (int i = 0; i < 200; ++i, ++tensor) {
    const Bytes size = KiB(3 + 2 * random.Below(10'000));
    lost_ += follower_.Observe({CallKind::kCreate, false, tensor, {}}, size).lost ? 1 : 0;
  }
  EXPECT_EQ(lost_, 1u);
  EXPECT_EQ(follower_.counterpart(), Follower::kNone);
}

}  // namespace
}  // namespace ravenstore::core::plan
