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
constexpr core::Duration kSettle = std::chrono::seconds(60);

// One device, with processes named by their numbers, which are their connections', too.
class WaitQueueTest : public testing::Test {
 protected:
  void Wait(int process, uint32_t user, Bytes bytes) {
    EXPECT_FALSE(queue_.Add(Waiter(process, user, bytes)));
  }
  static WaitQueue::Waiter Waiter(int process, uint32_t user, Bytes bytes) {
    return {.process = {process, 1},
            .user = core::TenantId{user},
            .devices = 1,
            .need = {.bytes = bytes},
            .connection = static_cast<uint64_t>(process),
            .request = 9};
  }
  void Use(int process, uint32_t user, Bytes bytes) {
    uses_.push_back({.process = {process, 1}, .user = core::TenantId{user}, .bytes = bytes});
    used_ += std::min(bytes, kTotal);
  }
  // "1:0 2:1": the first has its turn, and the second is the next.
  std::string Look() {
    std::string text;
    for (const auto& notification : queue_.Update(now_, {Device()}).notifications) {
      EXPECT_EQ(notification.request, 9u);
      text += (text.empty() ? "" : " ") + std::to_string(notification.connection) + ":" +
              std::to_string(notification.position);
    }
    return text;
  }
  WaitQueue::Device Device() const { return {.total = kTotal, .used = used_, .uses = uses_}; }
  void End(int process) { queue_.Ended({process, 1}); }

  WaitQueue queue_{kSettle};
  core::Tick now_{};
  std::vector<WaitQueue::Use> uses_;
  Bytes used_;
};

TEST_F(WaitQueueTest, AReservationLastsUntilTheProcessEnds) {
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

TEST_F(WaitQueueTest, AJobThatWaitsForItsOwnUserBlocksNoOther) {
  Use(9, 7, GiB(10));
  Wait(1, 7, GiB(100));  // never, as long as that job runs
  Wait(2, 7, GiB(20));
  Wait(3, 6, GiB(50));
  EXPECT_EQ(Look(), "1:1 3:0 2:2");
}

TEST_F(WaitQueueTest, WhatAJobSaysCountsOnlyAsFarAsSomethingIsUsed) {
  uses_.push_back(
      {.process = {9, 1}, .user = core::TenantId{8}, .bytes = Bytes(uint64_t{1} << 63)});
  uses_.push_back(
      {.process = {10, 1}, .user = core::TenantId{8}, .bytes = Bytes(uint64_t{1} << 63)});
  Wait(1, 7, GiB(100));
  EXPECT_EQ(Look(), "1:0");
}

TEST_F(WaitQueueTest, AJobThatWaitsOrHasAReservationIsNotCountedTwice) {
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

TEST_F(WaitQueueTest, AJobThatHangsUpOrDiesWaitsNoMore) {
  Use(9, 8, GiB(100));
  for (const int process : {1, 2, 3}) Wait(process, 7, GiB(10));
  Look();
  queue_.Leave(1);
  End(2);
  EXPECT_EQ(Look(), "3:1");
  queue_.Leave(3);
  EXPECT_TRUE(queue_.empty());
}

TEST_F(WaitQueueTest, DevicesHaveQueuesOfTheirOwn) {
  Use(9, 8, GiB(100));
  Wait(1, 7, GiB(10));
  WaitQueue::Waiter other = Waiter(2, 7, GiB(10));
  other.devices = 2;
  EXPECT_FALSE(queue_.Add(other));
  const auto notifications = queue_.Update(now_, {Device(), {.total = kTotal}}).notifications;
  ASSERT_EQ(notifications.size(), 2u);
  EXPECT_EQ(notifications[0].position, 1u);
  EXPECT_EQ(notifications[1].position, 0u);
  EXPECT_EQ(notifications[1].device, 1u);
  EXPECT_EQ(notifications[1].need.bytes, GiB(10));
}

// Several devices, and jobs that are admitted by what is expected of them.
class AdmissionQueueTest : public testing::Test {
 protected:
  static constexpr double kSlowdownMost = 1.5;

  AdmissionQueueTest() : devices_(2, {.total = kTotal}) {}
  WaitQueue::Waiter Waiter(int process, uint32_t user, Bytes bytes, uint64_t devices = 3) {
    return {.process = {process, 1},
            .user = core::TenantId{user},
            .devices = devices,
            .need = {.bytes = bytes},
            .slowdown_most = kSlowdownMost,
            .connection = static_cast<uint64_t>(process),
            .estimate = JobHistory::Estimate{"history", bytes, bytes}};
  }
  void Admit(int process, uint32_t user, Bytes bytes, uint64_t devices = 3) {
    EXPECT_FALSE(queue_.Add(Waiter(process, user, bytes, devices)));
  }
  void Use(size_t device, int process, uint32_t user, Bytes bytes, pid_t run = 0) {
    devices_[device].uses.push_back({.process = {process, 1},
                                     .user = core::TenantId{user},
                                     .run = run,
                                     .bytes = bytes,
                                     .peak = bytes});
    devices_[device].used += bytes;
  }
  // "1@0 2:1": the first comes to device 0, the second is the next.
  std::string Look() {
    std::string text;
    corrected_ = {};
    WaitQueue::News news = queue_.Update(now_, devices_);
    for (const auto& notification : news.notifications) {
      text += (text.empty() ? "" : " ") + std::to_string(notification.connection);
      text += notification.position == 0 ? "@" + std::to_string(notification.device)
                                         : ":" + std::to_string(notification.position);
    }
    for (const auto& one : news.corrected) corrected_ += one.bytes;
    return text;
  }

  WaitQueue queue_{kSettle};
  core::Tick now_{std::chrono::hours(1)};
  std::vector<WaitQueue::Device> devices_;
  Bytes corrected_;
};

TEST_F(AdmissionQueueTest, AJobComesToTheFullestDeviceThatHasRoom) {
  Use(1, 90, 8, GiB(50));
  Admit(1, 7, GiB(40));
  Admit(2, 7, GiB(40));
  Admit(3, 7, GiB(90));
  Admit(4, 7, GiB(5), 1);
  EXPECT_EQ(Look(), "1@1 2@0 3:1 4:2") << "one behind a large job does not pass it";
}

TEST_F(AdmissionQueueTest, AWaitingJobHoldsTheDevicesThatItNamedAndNoOthers) {
  Use(0, 90, 8, GiB(50));
  Admit(1, 7, GiB(80), 1);
  Admit(2, 6, GiB(80), 2);
  EXPECT_EQ(Look(), "1:1 2@1");
}

TEST_F(AdmissionQueueTest, WhatUnknownProcessesUseIsInTheWay) {
  devices_[0].used = GiB(30);
  devices_[1].used = GiB(70);
  Admit(1, 7, GiB(80));
  EXPECT_EQ(Look(), "1:1");
  devices_[0].used = GiB(20);
  EXPECT_EQ(Look(), "1@0");
}

TEST_F(AdmissionQueueTest, AUsersLimitKeepsNoOtherWaiting) {
  WaitQueue::Waiter limited = Waiter(1, 7, GiB(30), 1);
  limited.need.limit = GiB(50);
  queue_.Add(limited);
  EXPECT_EQ(Look(), "1@0");
  limited.process.pid = 2;
  limited.connection = 2;
  queue_.Add(limited);
  Admit(3, 6, GiB(30), 1);
  EXPECT_EQ(Look(), "2:1 3@0");
  EXPECT_EQ(queue_.PlaceOf(2).judgement.verdict, Verdict::kUserIsAtLimit);
}

TEST_F(AdmissionQueueTest, AJobGoesWhereLessIsComputed) {
  devices_[0].measured.compute = 0.4;
  devices_[1].measured.compute = 0.0;
  Use(0, 90, 8, GiB(50));
  Admit(1, 7, GiB(10));
  EXPECT_EQ(Look(), "1@1");
}

TEST_F(AdmissionQueueTest, WhereJobsWouldSlowEachOtherDownTooMuchTheNextWaits) {
  devices_[0].measured.compute = 0.7;
  Use(0, 90, 8, GiB(10));
  Admit(1, 7, GiB(10), 1);
  EXPECT_EQ(Look(), "1:1");
  EXPECT_EQ(queue_.PlaceOf(1).judgement.verdict, Verdict::kTooSlow);
  devices_[0].measured.compute = 0.5;
  EXPECT_EQ(Look(), "1@0");
}

TEST_F(AdmissionQueueTest, OneThatWasJustAdmittedCountsUntilItIsMeasured) {
  devices_[0].measured.compute = 0.0;
  Admit(1, 7, GiB(10), 1);
  Admit(2, 7, GiB(10), 1);
  EXPECT_EQ(Look(), "1@0 2:1");
  now_ += WaitQueue::kMeasuredAfter;
  EXPECT_EQ(Look(), "") << "it holds nothing yet";
  Use(0, 1, 7, GiB(1));
  EXPECT_EQ(Look(), "") << "its kernels are not in what is measured yet";
  now_ += WaitQueue::kMeasuredAfter;
  EXPECT_EQ(Look(), "2@0");
}

TEST_F(AdmissionQueueTest, OneThatHeldSomethingBeforeAnybodyWaitedIsMeasured) {
  devices_[0].measured.compute = 0.4;
  Admit(1, 7, GiB(10), 1);
  EXPECT_EQ(Look(), "1@0");
  Use(0, 1, 7, GiB(1));
  now_ += WaitQueue::kMeasuredAfter;
  Admit(2, 6, GiB(10), 1);
  EXPECT_EQ(Look(), "2@0");
}

// Another user's reservation of one byte, of which it uses nothing.
TEST_F(AdmissionQueueTest, AJobThatHoldsNothingKeepsOthersWaitingForAWhileOnly) {
  devices_[0].measured.compute = 0.0;
  Admit(1, 8, Bytes{1}, 1);
  Admit(2, 7, GiB(10), 1);
  EXPECT_EQ(Look(), "1@0 2:1");
  now_ += WaitQueue::kBeginsWithin - core::Duration(1);
  EXPECT_EQ(Look(), "");
  // The next job of that user queues behind the one that waits already.
  Admit(3, 8, Bytes{1}, 1);
  EXPECT_EQ(Look(), "3:2");
  now_ += core::Duration(1);
  EXPECT_EQ(Look(), "2@0 3:1");
}

TEST_F(AdmissionQueueTest, WhatIsNotUsedIsOthersOnceThePeakHasSettledAndSomebodyWaits) {
  Admit(1, 7, GiB(60), 1);
  EXPECT_EQ(Look(), "1@0");
  Use(0, 1, 7, GiB(20));
  now_ += 2 * kSettle;
  Look();
  EXPECT_EQ(corrected_, Bytes{0}) << "nobody waits";
  Admit(2, 6, GiB(70), 1);
  EXPECT_EQ(Look(), "2:1");
  now_ += kSettle - core::Duration(1);
  EXPECT_EQ(Look(), "");
  now_ += core::Duration(1);
  EXPECT_EQ(Look(), "2@0");
  EXPECT_EQ(corrected_, GiB(21));
}

TEST_F(AdmissionQueueTest, ASizeThatTheUserGaveIsNotCorrected) {
  WaitQueue::Waiter given = Waiter(1, 7, GiB(60), 1);
  given.estimate->source = "given";
  queue_.Add(given);
  Look();
  Use(0, 1, 7, GiB(20));
  Admit(2, 6, GiB(70), 1);
  Look();
  now_ += 2 * kSettle;
  EXPECT_EQ(Look(), "");
  EXPECT_EQ(corrected_, Bytes{0});
}

TEST_F(AdmissionQueueTest, TheProcessesOfARunAreWithinItsReservation) {
  Admit(1, 7, GiB(60), 1);
  Look();
  Use(0, 2, 7, GiB(30), /*run=*/1);
  Admit(3, 6, GiB(40), 1);
  EXPECT_EQ(Look(), "3@0");
  Use(0, 4, 8, GiB(1), /*run=*/1);  // another user says so
  Admit(5, 6, Bytes{1}, 1);
  EXPECT_EQ(Look(), "5:1");
  EXPECT_NE(queue_.FindReservation(core::TenantId{7}, 2, 1), nullptr);
  EXPECT_EQ(queue_.FindReservation(core::TenantId{8}, 4, 1), nullptr);
}

}  // namespace
}  // namespace ravenstore::daemon
