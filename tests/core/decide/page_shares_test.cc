#include "core/decide/page_shares.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <vector>

#include "tests/core/plan/seeds.h"

namespace ravenstore::core::decide {
namespace {

using Shares = std::vector<uint32_t>;

Shares Share(const std::vector<PageDemand>& demands, uint32_t pages) {
  return SharePages(demands, pages);
}

TEST(PageSharesTest, EachHasWhatItHasUseForIfThereIsRoom) {
  EXPECT_EQ(Share({{.alive = 3}, {.alive = 5}}, 8), Shares({3, 5}));
}

TEST(PageSharesTest, WhatIsShortIsDividedEvenly) {
  EXPECT_EQ(Share({{.alive = 3}, {.alive = 50}, {.alive = 50}}, 23), Shares({3, 10, 10}));
}

TEST(PageSharesTest, OrByWeight) {
  EXPECT_EQ(Share({{.alive = 90}, {.alive = 90, .weight = 3}}, 40), Shares({10, 30}));
}

TEST(PageSharesTest, WhatCallsHoldComesFirst) {
  EXPECT_EQ(Share({{.in_use = 9, .alive = 9}, {.alive = 9}}, 10), Shares({9, 1}));
  EXPECT_EQ(Share({{.expected = 9, .alive = 9}, {.in_use = 3, .alive = 9}}, 10), Shares({7, 3}));
  EXPECT_EQ(Share({{.in_use = 9, .alive = 9}, {.alive = 9, .guarantee = 5}}, 10), Shares({9, 1}));
}

TEST(PageSharesTest, AGuaranteeComesBeforeTheRest) {
  EXPECT_EQ(Share({{.alive = 8, .guarantee = 8}, {.alive = 9}}, 10), Shares({8, 2}));
  EXPECT_EQ(Share({{.alive = 2, .guarantee = 8}, {.alive = 9}}, 10), Shares({2, 8}));
  EXPECT_EQ(Share({{.waits_for = 4, .guarantee = 8}, {.expected = 9}}, 10), Shares({4, 6}));
}

TEST(PageSharesTest, TheRestIsDividedBeyondGuarantees) {
  EXPECT_EQ(Share({{.alive = 90, .guarantee = 10}, {.alive = 90}}, 30), Shares({20, 10}));
}

TEST(PageSharesTest, AHigherPriorityIsServedFirstBeyondGuarantees) {
  const PageDemand low{.alive = 9, .guarantee = 2};
  EXPECT_EQ(Share({low, {.alive = 9, .priority = 1}}, 10), Shares({2, 8}));
  EXPECT_EQ(Share({low, {.alive = 4, .priority = 1}}, 10), Shares({6, 4}));
  EXPECT_EQ(Share({{.in_use = 7}, {.alive = 9, .priority = 1}}, 10), Shares({7, 3}));
}

TEST(PageSharesTest, NoShareIsMoreThanItsClientMayHold) {
  EXPECT_EQ(Share({{.alive = 9, .most = 3}, {}}, 10), Shares({3, 7}));
  EXPECT_EQ(Share({{.in_use = 5, .most = 3}, {.most = 4}}, 10), Shares({3, 4}));
}

TEST(PageSharesTest, AWeightHoldsForCallsToo) {
  EXPECT_EQ(Share({{.expected = 30}, {.alive = 30, .weight = 3}}, 40), Shares({10, 30}));
}

TEST(PageSharesTest, WhatNoClientNeedsStaysWhereItIs) {
  EXPECT_EQ(Share({{.alive = 1, .held = 2}, {.alive = 1, .held = 8}}, 10), Shares({2, 8}));
  EXPECT_EQ(Share({{.alive = 1, .held = 2}, {.alive = 9, .held = 8}}, 10), Shares({1, 9}));
}

TEST(PageSharesTest, PagesStayFreeThatNeitherCallsNorGuaranteesNeed) {
  EXPECT_EQ(
      SharePages(std::vector<PageDemand>{{.alive = 20}, {.alive = 20, .guarantee = 4}}, 16, 2),
      Shares({5, 9}));
  EXPECT_EQ(SharePages(std::vector<PageDemand>{{.held = 16}}, 16, 2), Shares({14}));
  EXPECT_EQ(SharePages(std::vector<PageDemand>{{.in_use = 15}}, 16, 2), Shares({15}));
  EXPECT_EQ(SharePages(std::vector<PageDemand>{{.alive = 20, .guarantee = 16}}, 16, 2),
            Shares({16}));
}

TEST(PageSharesTest, AllPagesAreSharedAndNoStageTakesFromOneBefore) {
  plan::ForSeeds(300, [](plan::Random& random) {
    std::vector<PageDemand> demands;
    for (uint64_t i = 0; i <= random.Below(6); ++i) {
      const auto number = [&] { return static_cast<uint32_t>(random.Below(200)); };
      demands.push_back({.in_use = number(),
                         .expected = number(),
                         .alive = number(),
                         .held = number(),
                         .guarantee = number()});
    }
    const auto pages = static_cast<uint32_t>(random.Below(1000));
    const Shares shares = Share(demands, pages);
    EXPECT_EQ(std::accumulate(shares.begin(), shares.end(), 0u), pages);
    const auto lacks = [&](auto most_of) {
      for (size_t i = 0; i < demands.size(); ++i)
        if (shares[i] < most_of(demands[i])) return true;
      return false;
    };
    const auto exceeds = [&](auto most_of) {
      for (size_t i = 0; i < demands.size(); ++i)
        if (shares[i] > most_of(demands[i])) return true;
      return false;
    };
    const auto due = [](const PageDemand& of) {
      return std::max(of.in_use, std::min(std::max(of.expected, of.alive), of.guarantee));
    };
    const auto base = [&](const PageDemand& of) { return std::max(due(of), of.expected); };
    const auto useful = [&](const PageDemand& of) { return std::max(base(of), of.alive); };
    const auto in_use = [](const PageDemand& of) { return of.in_use; };
    EXPECT_FALSE(lacks(in_use) && exceeds(in_use));
    EXPECT_FALSE(lacks(due) && exceeds(due));
    EXPECT_FALSE(lacks(base) && exceeds(base));
    EXPECT_FALSE(lacks(useful) && exceeds(useful));
  });
}

TEST(PageSharesTest, ACallThatWaitsComesBeforeCallsThatAreExpected) {
  EXPECT_EQ(Share({{.waits_for = 8, .alive = 2}, {.expected = 9}}, 12), (Shares{8, 4}));
  EXPECT_EQ(Share({{.waits_for = 3}, {.in_use = 9}}, 10), (Shares{1, 9}));
}

TEST(PageSharesTest, TheClientWithTheTurnHasItsPagesFirst) {
  const PageDemand grows{.in_use = 1, .alive = 8, .guarantee = 2};
  PageDemand first = grows;
  first.has_turn = true;
  EXPECT_EQ(Share({grows, first}, 10), (Shares{2, 8}));
  EXPECT_EQ(Share({grows, grows}, 10), (Shares{5, 5}));
}

TEST(PageSharesTest, APlanIsMadeWhenItsShareHasChangedByHalf) {
  EXPECT_FALSE(NeedsPlan(100, 149));
  EXPECT_TRUE(NeedsPlan(100, 150));
  EXPECT_FALSE(NeedsPlan(100, 51));
  EXPECT_TRUE(NeedsPlan(100, 50));
  EXPECT_FALSE(NeedsPlan(1, 1));
  EXPECT_TRUE(NeedsPlan(0, 1));
}

}  // namespace
}  // namespace ravenstore::core::decide
