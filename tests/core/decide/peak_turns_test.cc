#include "core/decide/peak_turns.h"

#include <gtest/gtest.h>

#include <chrono>
#include <optional>
#include <vector>

namespace ravenstore::core::decide {
namespace {

using std::chrono::milliseconds;

// 100 pages.
std::optional<PeakTurn> Next(const std::optional<PeakTurn>& turn,
                             const std::vector<uint32_t>& alive, Duration now) {
  std::vector<PageDemand> demands;
  for (const uint32_t pages : alive) demands.push_back({.alive = pages});
  return NextTurn(turn, demands, 100, now);
}

TEST(PeakTurnsTest, NoClientHasATurnWhereAllFits) {
  EXPECT_FALSE(Next(std::nullopt, {40, 60}, milliseconds(1)));
  EXPECT_FALSE(Next(PeakTurn{0, 90, milliseconds(0)}, {40, 60}, milliseconds(1)));
}

TEST(PeakTurnsTest, TheLargestClientGoesFirst) {
  const auto turn = Next(std::nullopt, {40, 61, 30}, milliseconds(1));
  ASSERT_TRUE(turn);
  EXPECT_EQ(turn->client, 1u);
  EXPECT_EQ(turn->peak, 61u);
  EXPECT_EQ(turn->grew, milliseconds(1));
}

TEST(PeakTurnsTest, ATurnEndsWhenHalfOfThePeakHasDied) {
  const PeakTurn turn{1, 60, milliseconds(1)};
  const auto grows = Next(turn, {50, 80}, milliseconds(2));
  ASSERT_TRUE(grows);
  EXPECT_EQ(grows->client, 1u);
  EXPECT_EQ(grows->peak, 80u);
  EXPECT_EQ(grows->grew, milliseconds(2));
  const auto shrinks = Next(grows, {70, 40}, milliseconds(3));
  ASSERT_TRUE(shrinks);
  EXPECT_EQ(shrinks->client, 1u);
  EXPECT_EQ(shrinks->peak, 80u);
  const auto ends = Next(shrinks, {70, 39}, milliseconds(4));
  ASSERT_TRUE(ends);
  EXPECT_EQ(ends->client, 0u);
  EXPECT_EQ(ends->peak, 70u);
}

TEST(PeakTurnsTest, AClientThatDoesNotGrowLosesItsTurn) {
  const PeakTurn turn{0, 60, milliseconds(100)};
  EXPECT_EQ(Next(turn, {60, 60}, milliseconds(1100))->client, 0u);
  EXPECT_EQ(Next(turn, {60, 60}, milliseconds(1101))->client, 1u);
}

TEST(PeakTurnsTest, AClientInWhichNothingLivesHasNoTurn) {
  const PeakTurn turn{0, 90, milliseconds(100)};
  EXPECT_EQ(Next(turn, {60, 0, 60}, milliseconds(1101))->client, 2u);
  EXPECT_EQ(Next(turn, {0, 0, 101}, milliseconds(200))->client, 2u);
  EXPECT_EQ(Next(turn, {101, 0, 0}, milliseconds(1300))->client, 0u);
}

}  // namespace
}  // namespace ravenstore::core::decide
