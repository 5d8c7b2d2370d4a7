#include "daemon/yields.h"

#include <gtest/gtest.h>

#include <chrono>

namespace ravenstore::daemon {
namespace {

using core::Bytes;
using core::GiB;
using core::Tick;
using std::chrono::milliseconds;
using std::chrono::seconds;

Tick At(std::chrono::nanoseconds time) {
  return Tick(time);
}

// Of a device that the store holds 90 GiB of, and nobody the other 10.
Yields::Ask Ask(uint64_t asker, uint64_t request, Bytes bytes) {
  return {asker, request, 0, bytes, GiB(90), GiB(10)};
}

TEST(YieldsTest, LowersTheLimitAndAnswersOnceTheMemoryIsGone) {
  Yields yields({GiB(100)});
  yields.Begin(Ask(1, 7, GiB(20)), At(seconds(1)));
  auto outcome = yields.Look({GiB(90)}, {GiB(5)}, At(seconds(1)));
  ASSERT_EQ(outcome.limits.size(), 1u);
  EXPECT_EQ(outcome.limits[0].capacity, GiB(70));
  EXPECT_TRUE(outcome.answers.empty());
  EXPECT_TRUE(yields.waiting());

  outcome = yields.Look({GiB(80)}, {GiB(5)}, At(milliseconds(1100)));
  EXPECT_TRUE(outcome.answers.empty());
  outcome = yields.Look({GiB(70)}, {GiB(5)}, At(milliseconds(1200)));
  ASSERT_EQ(outcome.answers.size(), 1u);
  EXPECT_EQ(outcome.answers[0].asker, 1u);
  EXPECT_EQ(outcome.answers[0].request, 7u);
  EXPECT_EQ(outcome.answers[0].given, GiB(20));
  EXPECT_FALSE(yields.waiting());
  EXPECT_TRUE(yields.lowered());
}

TEST(YieldsTest, AsksOfTwoJobsAddUp) {
  Yields yields({GiB(100)});
  yields.Begin(Ask(1, 1, GiB(20)), At(seconds(1)));
  yields.Begin(Ask(2, 1, GiB(10)), At(seconds(1)));
  const auto outcome = yields.Look({GiB(90)}, {Bytes{0}}, At(seconds(1)));
  ASSERT_EQ(outcome.limits.size(), 2u);
  EXPECT_EQ(outcome.limits[1].capacity, GiB(60));
}

TEST(YieldsTest, AnswersWhatCameWhenNoMoreComes) {
  Yields yields({GiB(100)});
  yields.Begin(Ask(1, 1, GiB(20)), At(seconds(1)));
  yields.Look({GiB(90)}, {Bytes{0}}, At(seconds(1)));
  EXPECT_TRUE(yields.Look({GiB(85)}, {Bytes{0}}, At(milliseconds(1500))).answers.empty());
  const auto outcome = yields.Look({GiB(85)}, {Bytes{0}}, At(milliseconds(2600)));
  ASSERT_EQ(outcome.answers.size(), 1u);
  EXPECT_EQ(outcome.answers[0].given, GiB(5));
  // What could not be given up may stay.
  ASSERT_EQ(outcome.limits.size(), 1u);
  EXPECT_EQ(outcome.limits[0].capacity, GiB(85));
}

TEST(YieldsTest, AnEmptyStoreGivesNothingAtOnce) {
  Yields yields({GiB(100)});
  yields.Begin(Ask(1, 1, GiB(20)), At(seconds(1)));
  const auto outcome = yields.Look({Bytes{0}}, {Bytes{0}}, At(seconds(1)));
  ASSERT_EQ(outcome.answers.size(), 1u);
  EXPECT_EQ(outcome.answers[0].given, Bytes{0});
}

TEST(YieldsTest, WhoWantsMoreThanThereIsGetsNothingAndNothingIsEmptied) {
  Yields yields({GiB(100)});
  yields.Begin(Ask(1, 7, GiB(1024)), At(seconds(1)));
  yields.Begin(Ask(2, 3, GiB(100) + Bytes{1}), At(seconds(1)));
  const auto outcome = yields.Look({GiB(90)}, {Bytes{0}}, At(seconds(1)));
  EXPECT_TRUE(outcome.limits.empty());
  ASSERT_EQ(outcome.answers.size(), 2u);
  EXPECT_EQ(outcome.answers[0].request, 7u);
  EXPECT_EQ(outcome.answers[0].given, Bytes{0});
  EXPECT_EQ(outcome.answers[1].given, Bytes{0});
  EXPECT_FALSE(yields.waiting());
  EXPECT_FALSE(yields.lowered());
}

TEST(YieldsTest, WhoWantsAllThereIsGetsIt) {
  Yields yields({GiB(100)});
  yields.Begin(Ask(1, 7, GiB(100)), At(seconds(1)));
  // What was given back since the driver was asked is not missing.
  const auto outcome = yields.Look({GiB(80)}, {Bytes{0}}, At(seconds(1)));
  ASSERT_EQ(outcome.limits.size(), 1u);
  EXPECT_EQ(outcome.limits[0].capacity, Bytes{0});
}

TEST(YieldsTest, TheStoreMayHaveItAgainOnceTheJobFreedItAndSomeTimePassed) {
  Yields yields({GiB(100)});
  yields.Begin(Ask(1, 1, GiB(20)), At(seconds(1)));
  yields.Look({GiB(90)}, {Bytes{0}}, At(seconds(1)));
  yields.Look({GiB(70)}, {GiB(20)}, At(seconds(1)));
  EXPECT_TRUE(yields.Look({GiB(70)}, {Bytes{0}}, At(seconds(2))).limits.empty());
  // Still held by the job: no more than the rest.
  auto outcome = yields.Look({GiB(70)}, {GiB(20)}, At(seconds(4)));
  ASSERT_EQ(outcome.limits.size(), 1u);
  EXPECT_EQ(outcome.limits[0].capacity, GiB(80));
  outcome = yields.Look({GiB(70)}, {Bytes{0}}, At(seconds(5)));
  ASSERT_EQ(outcome.limits.size(), 1u);
  EXPECT_EQ(outcome.limits[0].capacity, GiB(100));
  EXPECT_FALSE(yields.lowered());
}

TEST(YieldsTest, ForgetsThoseWhoHungUp) {
  Yields yields({GiB(100)});
  yields.Begin(Ask(1, 1, GiB(20)), At(seconds(1)));
  yields.Forget(1);
  EXPECT_FALSE(yields.waiting());
}

}  // namespace
}  // namespace ravenstore::daemon
