#include "daemon/wait_queue.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

namespace ravenstore::daemon {
namespace {

using core::Bytes;
using core::GiB;

constexpr Bytes kTotal = GiB(100);

// One device, with processes named by their numbers, which are their connections', too.
class WaitQueueTest : public testing::Test {
 protected:
  void Wait(int process, uint32_t user, Bytes bytes) {
    EXPECT_FALSE(queue_.Add(Waiter(process, user, bytes)));
  }
  static WaitQueue::Waiter Waiter(int process, uint32_t user, Bytes bytes) {
    return {.process = {process, 1},
            .user = core::TenantId{user},
            .device = 0,
            .bytes = bytes,
            .connection = static_cast<uint64_t>(process),
            .request = 9};
  }
  void Use(int process, uint32_t user, Bytes bytes) {
    uses_.push_back({{process, 1}, core::TenantId{user}, bytes});
    used_ += std::min(bytes, kTotal);
  }
  // "1:0 2:1": the first has its turn, and the second is the next.
  std::string Look() {
    std::string text;
    for (const auto& told : queue_.Update(0, kTotal, used_, uses_)) {
      EXPECT_EQ(told.request, 9u);
      text += (text.empty() ? "" : " ") + std::to_string(told.connection) + ":" +
              std::to_string(told.position);
    }
    return text;
  }
  void End(int process) { queue_.Ended({process, 1}); }

  WaitQueue queue_;
  std::vector<WaitQueue::Use> uses_;
  Bytes used_;
};

TEST_F(WaitQueueTest, WhatIsPromisedIsNobodyElsesUntilTheProcessEnds) {
  Wait(1, 7, GiB(60));
  Wait(2, 7, GiB(60));
  EXPECT_EQ(Look(), "1:0 2:1");
  EXPECT_EQ(Look(), "");
  EXPECT_EQ(queue_.PlaceOf(2).position, 1u);
  EXPECT_EQ(queue_.PlaceOf(2).bytes, GiB(60));
  EXPECT_EQ(queue_.PlaceOf(1).position, 0u);
  queue_.Leave(1);  // who has its turn hangs up
  EXPECT_EQ(Look(), "");
  End(1);
  EXPECT_EQ(Look(), "2:0");
  EXPECT_TRUE(queue_.empty());
}

TEST_F(WaitQueueTest, OneUsersJobsComeInTheOrderOfTheirArrival) {
  Use(9, 8, GiB(90));
  for (const int process : {1, 2, 3}) Wait(process, 7, GiB(40));
  EXPECT_EQ(Look(), "1:1 2:2 3:3");
  // The third would find room behind a smaller job, and still is the third.
  uses_.clear();
  EXPECT_EQ(Look(), "1:0 2:0 3:1");
  End(2);
  EXPECT_EQ(Look(), "3:0");
}

TEST_F(WaitQueueTest, ASmallJobDoesNotPassALargeOneOfAnotherUser) {
  Use(9, 8, GiB(50));
  Wait(1, 7, GiB(80));
  Wait(2, 6, GiB(10));
  EXPECT_EQ(Look(), "1:1 2:2");
}

TEST_F(WaitQueueTest, UsersTakeTurns) {
  Use(900, 8, GiB(90));
  for (int process = 1; process <= 100; ++process) Wait(process, 7, GiB(100));
  Look();
  Wait(200, 6, GiB(100));
  Wait(201, 6, GiB(100));
  Look();
  EXPECT_EQ(queue_.PlaceOf(200).position, 2u);
  EXPECT_EQ(queue_.PlaceOf(2).position, 3u);
  EXPECT_EQ(queue_.PlaceOf(201).position, 4u);
  uses_.clear();
  Look();
  End(1);
  // A later one of the user whose turn it was is still behind.
  Wait(101, 7, GiB(100));
  Look();
  EXPECT_TRUE(queue_.Add(Waiter(200, 6, GiB(100))));
}

TEST_F(WaitQueueTest, WhoWaitsForItsOwnUserKeepsNobodyElseBack) {
  Use(9, 7, GiB(10));
  Wait(1, 7, GiB(100));  // never, as long as that job runs
  Wait(2, 7, GiB(20));
  Wait(3, 6, GiB(50));
  EXPECT_EQ(Look(), "1:1 3:0 2:2");
}

TEST_F(WaitQueueTest, WhatAJobSaysCountsOnlyAsFarAsSomethingIsUsed) {
  uses_.push_back({{9, 1}, core::TenantId{8}, Bytes(uint64_t{1} << 63)});
  uses_.push_back({{10, 1}, core::TenantId{8}, Bytes(uint64_t{1} << 63)});
  Wait(1, 7, GiB(100));
  EXPECT_EQ(Look(), "1:0");
}

TEST_F(WaitQueueTest, WhoWaitsOrIsPromisedSomethingIsNotCountedTwice) {
  Wait(1, 7, GiB(60));
  Wait(2, 7, GiB(40));
  Use(1, 7, GiB(55));
  Use(2, 7, GiB(1));  // its context
  EXPECT_EQ(Look(), "1:0 2:0");
}

TEST_F(WaitQueueTest, AProcessHasOnePlaceAndKeepsIt) {
  Use(9, 8, GiB(100));
  Wait(1, 7, GiB(60));
  Wait(2, 7, GiB(60));
  EXPECT_EQ(Look(), "1:1 2:2");
  WaitQueue::Waiter again = Waiter(1, 7, GiB(100));
  again.connection = 11;
  EXPECT_FALSE(queue_.Add(again));
  EXPECT_EQ(Look(), "11:1");
  queue_.Leave(1);  // the older connection
  EXPECT_EQ(queue_.PlaceOf(1).bytes, GiB(60));
  uses_.clear();
  EXPECT_EQ(Look(), "11:0 2:1");
  EXPECT_TRUE(queue_.Add(again));
}

TEST_F(WaitQueueTest, WhoHangsUpOrDiesWaitsNoMore) {
  Use(9, 8, GiB(100));
  for (const int process : {1, 2, 3}) Wait(process, 7, GiB(10));
  Look();
  queue_.Leave(1);
  End(2);
  EXPECT_EQ(Look(), "3:1");
  queue_.Leave(3);
  EXPECT_TRUE(queue_.empty());
  EXPECT_FALSE(queue_.WaitsFor(0));
}

TEST_F(WaitQueueTest, DevicesHaveQueuesOfTheirOwn) {
  Use(9, 8, GiB(100));
  Wait(1, 7, GiB(10));
  WaitQueue::Waiter other = Waiter(2, 7, GiB(10));
  other.device = 1;
  EXPECT_FALSE(queue_.Add(other));
  EXPECT_EQ(Look(), "1:1");
  const auto told = queue_.Update(1, kTotal, {}, {});
  ASSERT_EQ(told.size(), 1u);
  EXPECT_EQ(told[0].position, 0u);
  EXPECT_EQ(told[0].bytes, GiB(10));
}

}  // namespace
}  // namespace ravenstore::daemon
