#include "elastic/follower.h"

#include <gtest/gtest.h>

#include <random>

namespace ravenstore::elastic {
namespace {

constexpr uint64_t kStep = 100;

// The calls of a step, each another.
void Step(Follower* follower, uint64_t from = 0, uint64_t to = kStep, uint64_t places = 0) {
  for (uint64_t call = from; call < to; ++call) {
    follower->Add(call + 1, (call + 1) * 1000 + places);
    follower->Confirm(true);
  }
}

TEST(FollowerTest, KnowsNothingBeforeAnythingRepeats) {
  Follower follower(1 << 12);
  Step(&follower);
  EXPECT_FALSE(follower.twin());
}

TEST(FollowerTest, FollowsTheSecondStepFromItsFourthCallOn) {
  Follower follower(1 << 12);
  Step(&follower);
  Step(&follower, 0, 3);
  EXPECT_FALSE(follower.twin());
  Step(&follower, 3, 4);
  EXPECT_EQ(follower.twin(), 3u);
  Step(&follower, 4);
  EXPECT_EQ(follower.twin(), kStep - 1);
  EXPECT_TRUE(follower.IsTrusted());
}

TEST(FollowerTest, FollowsByKindWhereEveryAddressIsAnother) {
  Follower follower(1 << 12);
  Step(&follower);
  Step(&follower, 0, kStep, 1);
  EXPECT_EQ(follower.twin(), kStep - 1);
}

TEST(FollowerTest, WaitsOutWhatWasInserted) {
  Follower follower(1 << 12);
  Step(&follower);
  Step(&follower, 0, 50);
  follower.Add(777, 777);
  EXPECT_EQ(follower.twin(), 49u);
  EXPECT_FALSE(follower.Matches());
  Step(&follower, 50, 51);
  EXPECT_EQ(follower.twin(), 50u);
  EXPECT_TRUE(follower.Matches());
}

TEST(FollowerTest, PassesOverWhatWasLeftOut) {
  Follower follower(1 << 12);
  Step(&follower);
  Step(&follower, 0, 50);
  Step(&follower, 55, 56);
  EXPECT_EQ(follower.twin(), 55u);
}

TEST(FollowerTest, GoesWhereABranchLedBefore) {
  Follower follower(1 << 12);
  Step(&follower);           // 0: a step
  Step(&follower, 0, 50);    // 100: the first half of one, then
  Step(&follower, 80, 100);  // 150: its end
  Step(&follower, 0, 50);    // 170: again
  Step(&follower, 80, 100);
  EXPECT_EQ(follower.twin(), 169u);
}

TEST(FollowerTest, StopsFollowingWhatIsWrong) {
  Follower follower(1 << 12);
  Step(&follower);
  Step(&follower);
  for (uint64_t call = 0; call < 30; ++call) {
    follower.Add(call + 1, (call + 1) * 1000);
    follower.Confirm(false);
  }
  EXPECT_FALSE(follower.IsTrusted());
}

TEST(FollowerTest, RemembersOnlyTheLastCalls) {
  Follower follower(256);
  Step(&follower);
  for (uint64_t call = 0; call < 400; ++call) follower.Add(5000 + call, 5000 + call);
  Step(&follower);
  EXPECT_FALSE(follower.twin());
}

// Steps whose layers are alike in kind and differ in their addresses alone.
TEST(FollowerTest, TellsLayersApartByTheirAddresses) {
  Follower follower(1 << 12);
  const auto step = [&] {
    for (uint64_t layer = 0; layer < 20; ++layer) {
      for (uint64_t call = 0; call < 10; ++call) {
        follower.Add(call, layer * 10 + call);
        follower.Confirm(follower.twin() ? follower.calls() - *follower.twin() == 201 : true);
      }
    }
  };
  step();
  step();
  step();
  EXPECT_EQ(follower.calls() - *follower.twin(), 201u);
  EXPECT_TRUE(follower.IsTrusted());
}

TEST(FollowerTest, RandomCallsAreSeldomFollowed) {
  for (const uint64_t seed : {1, 2, 3}) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937_64 random(seed);
    Follower follower(1 << 12);
    int trusted = 0;
    for (int i = 0; i < 10'000; ++i) {
      const uint64_t call = random() % 64;
      follower.Add(call, call);
      trusted += follower.IsTrusted() ? 1 : 0;
    }
    EXPECT_LT(trusted, 500);
  }
}

}  // namespace
}  // namespace ravenstore::elastic
