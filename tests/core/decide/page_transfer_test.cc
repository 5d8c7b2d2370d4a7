#include "core/decide/page_transfer.h"

#include <gtest/gtest.h>

#include <chrono>
#include <optional>
#include <vector>

#include "core/books/page_books.h"
#include "core/books/page_views.h"

namespace ravenstore::core::decide {
namespace {

using std::chrono::microseconds;

constexpr Duration kMaking = microseconds(200);
constexpr Duration kNow{0};

std::optional<PageTransfer> Next(const std::vector<PageNeed>& clients) {
  return NextTransfer(clients, kMaking);
}

// A client with one page, which it will create a tensor on after 100 us.
TEST(PageTransferTest, AClientLacksPagesUntilEnoughAreBeingMade) {
  const plan::PlanLimits limits{.page = MiB(2), .pages = 1, .pools = {{.out_rate = 1e9}}};
  PageBooks books({.limits = limits, .coming_most = limits.page});
  EXPECT_EQ(NeedOf(books.view()).spare, Duration::max());
  const plan::UnitSpan page{0, 1};
  books.Ensure(page);
  const std::vector<plan::PlannedCall> calls = {
      {.kind = plan::CallKind::kCreate, .units = page, .at = microseconds(100)}};
  books.SetPlan(plan::ResidencyPlan::Make(calls, SnapshotOf(books), limits));
  EXPECT_EQ(NeedOf(books.view()).lacks, std::nullopt);
  EXPECT_EQ(NeedOf(books.view()).spare, std::nullopt);
  ASSERT_TRUE(books.ReleasePage());
  EXPECT_EQ(NeedOf(books.view()).lacks, microseconds(100));
  books.Pin(page.first);
  EXPECT_EQ(NeedOf(books.view()).lacks, kHeldCall);
  books.memory().Expect();
  EXPECT_EQ(NeedOf(books.view()).lacks, kHeldCall);
  books.memory().Expect();
  EXPECT_EQ(NeedOf(books.view()).lacks, std::nullopt);
  EXPECT_EQ(NeedOf(books.view()).coming, 2u);
}

TEST(PageTransferTest, ThePageThatIsNeededLastGoesToTheFirstNeed) {
  const auto next = Next({{.spare = microseconds(2000)},
                          {.lacks = microseconds(500)},
                          {.spare = microseconds(3000)},
                          {.lacks = microseconds(100)}});
  ASSERT_TRUE(next);
  EXPECT_EQ(next->from, 2u);
  EXPECT_EQ(next->to, 3u);
}

TEST(PageTransferTest, ThereIsNoneThatTakesLongerThanItHelps) {
  EXPECT_FALSE(Next({{.spare = microseconds(300)}, {.lacks = microseconds(100)}}));
  EXPECT_TRUE(Next({{.spare = microseconds(301)}, {.lacks = microseconds(100)}}));
  EXPECT_TRUE(Next({{.spare = microseconds(10)}, {.lacks = kNow}}));  // a call waits
  EXPECT_FALSE(Next({{.spare = kNow}, {.lacks = kNow}}));
}

// It keeps its pages until it has them all, and a call that waits for room keeps none.
TEST(PageTransferTest, ACallThatHoldsPagesGetsWhatAnotherNeedsNow) {
  EXPECT_TRUE(Next({{.spare = kNow}, {.lacks = kHeldCall}}));
  const auto next = Next({{.spare = kNow}, {.lacks = kNow}, {.lacks = kHeldCall}});
  ASSERT_TRUE(next);
  EXPECT_EQ(next->to, 2u);
}

TEST(PageTransferTest, NoClientGivesToItself) {
  EXPECT_FALSE(Next({{.lacks = microseconds(100), .spare = microseconds(900)}}));
}

TEST(PageTransferTest, WhatIsNeededLastLeavesForACallThatWaits) {
  const PageNeed waits{.lacks = kNow, .idle = microseconds(100)};
  EXPECT_EQ(NextToLeave(std::vector<PageNeed>{waits, {.idle = microseconds(400)}}), 1u);
  EXPECT_EQ(NextToLeave(std::vector<PageNeed>{waits, {.idle = microseconds(50)}}), 0u);
  EXPECT_EQ(NextToLeave(std::vector<PageNeed>{{.lacks = kNow}, {}}), std::nullopt);
}

TEST(PageTransferTest, NothingLeavesWhileMemoryIsOnItsWayOrNoClientWaits) {
  const PageNeed idle{.idle = microseconds(400), .coming = 1};
  EXPECT_EQ(NextToLeave(std::vector<PageNeed>{{.lacks = kNow}, idle}), std::nullopt);
  EXPECT_EQ(NextToLeave(std::vector<PageNeed>{{.lacks = microseconds(1)}, {.idle = kNow}}),
            std::nullopt);
}

}  // namespace
}  // namespace ravenstore::core::decide
