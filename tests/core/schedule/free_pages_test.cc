#include "core/schedule/free_pages.h"

#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <vector>

#include "core/schedule/learned_foresight.h"
#include "tests/core/execution/word_backend.h"

namespace ravenstore::core {
namespace {

class FreePagesTest : public testing::Test {
 protected:
  // A client that has `made` pages, and may hold `share`.
  ScheduledClient* Add(uint32_t id, uint32_t made, uint32_t share) {
    const plan::PlanLimits limits{
        .page = MiB(2), .pages = made, .pools = {{.in_rate = 50e9, .out_rate = 50e9}}};
    clients_.push_back(std::make_unique<ScheduledClient>(ScheduledClient::Options{
        .id = ClientId{id},
        .backend = &backend_,
        .books = {.limits = limits, .coming_most = MiB(16)},
        .foresight = std::make_unique<LearnedForesight>(limits, LearnedForesight::Options{})}));
    clients_.back()->executor().SetShare(share);
    all_.push_back(clients_.back().get());
    return all_.back();
  }
  std::optional<ClientId> Next(FreePages* pages) { return pages->Next(all_, tenants_); }

  WordBackend backend_;
  DeviceTenants tenants_;
  std::vector<std::unique_ptr<ScheduledClient>> clients_;
  std::vector<ScheduledClient*> all_;
};

TEST_F(FreePagesTest, PagesGoToTheClientThatLacksMost) {
  FreePages pages(10);
  ScheduledClient* const first = Add(1, 4, 5);
  ScheduledClient* const second = Add(2, 3, 8);
  pages.Take(7);
  EXPECT_EQ(Next(&pages), ClientId{2});
  EXPECT_EQ(first->executor().books().memory().expected(), 0u);
  EXPECT_EQ(second->executor().books().memory().expected(), 3u);
  // One is made at a time.
  EXPECT_EQ(Next(&pages), std::nullopt);
  pages.Made();
  second->executor().AddPage();
  EXPECT_EQ(Next(&pages), ClientId{2});
}

TEST_F(FreePagesTest, APageThatIsAssignedAheadIsMadeWhenItIsDestroyed) {
  FreePages pages(4);
  ScheduledClient* const client = Add(1, 2, 2);
  pages.Take(4);
  pages.AssignAhead(&client->executor());
  EXPECT_EQ(client->executor().books().memory().expected(), 1u);
  EXPECT_EQ(Next(&pages), std::nullopt);
  pages.Add();
  EXPECT_EQ(Next(&pages), ClientId{1});
}

TEST_F(FreePagesTest, WhatAClientExpectedIsAssignedToOthersWhenItEnds) {
  FreePages pages(6);
  ScheduledClient* const removed = Add(1, 0, 4);
  pages.Take(2);
  ASSERT_EQ(Next(&pages), ClientId{1});
  pages.AssignAhead(&removed->executor());
  ASSERT_EQ(removed->executor().books().memory().expected(), 5u);
  pages.Unassign(*removed);
  all_.clear();
  ScheduledClient* const next = Add(2, 0, 6);
  // One is being made for the client that is gone; the page ahead is not destroyed yet.
  EXPECT_EQ(Next(&pages), std::nullopt);
  EXPECT_EQ(next->executor().books().memory().expected(), 3u);
  pages.Add();
  pages.Made();
  EXPECT_EQ(Next(&pages), ClientId{2});
  EXPECT_EQ(next->executor().books().memory().expected(), 4u);
}

}  // namespace
}  // namespace ravenstore::core
