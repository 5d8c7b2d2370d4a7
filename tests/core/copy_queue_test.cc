#include "core/copy_queue.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <vector>

namespace ravenstore::core {
namespace {

using Urgency = CopyQueue::Urgency;

constexpr TurnOwner kOne{TenantId{1}, ClientId{1}};
constexpr TurnOwner kOther{TenantId{2}, ClientId{2}};

// Drives the queue with jobs of given sizes.
class Driver {
 public:
  explicit Driver(CopyQueue::Options options = {}) : queue_(options) {}

  void Submit(CopyQueue::Job job, Bytes bytes, Urgency urgency, TurnOwner owner = kOne) {
    left_[job] = bytes;
    queue_.Submit(job, owner, urgency);
  }
  // Puts in flight what may be; the jobs of the pieces.
  std::vector<CopyQueue::Job> Fill() {
    std::vector<CopyQueue::Job> begun;
    while (const auto job = queue_.Next()) {
      const Bytes piece = std::min(left_[*job], queue_.chunk());
      if (!queue_.Begin(piece, piece == left_[*job])) break;
      left_[*job] -= piece;
      begun.push_back(*job);
    }
    return begun;
  }
  CopyQueue& queue() { return queue_; }

 private:
  CopyQueue queue_;
  std::map<CopyQueue::Job, Bytes> left_;
};

using Jobs = std::vector<CopyQueue::Job>;

TEST(CopyQueue, HasSoManyBytesInFlight) {
  Driver driver;
  driver.Submit(1, MiB(50), Urgency::kDemand);
  EXPECT_EQ(driver.Fill(), Jobs({1, 1}));
  EXPECT_EQ(driver.queue().in_flight(), MiB(32));
  const CopyQueue::Piece first = driver.queue().End();
  EXPECT_EQ(first.job, 1u);
  EXPECT_EQ(first.bytes, MiB(16));
  EXPECT_EQ(driver.Fill(), Jobs({1}));
  driver.queue().End();
  EXPECT_EQ(driver.Fill(), Jobs({1}));
  EXPECT_EQ(driver.queue().in_flight(), MiB(18));
  EXPECT_FALSE(driver.queue().Next());
}

TEST(CopyQueue, HasHalfAsMuchInFlightWhereNoCallWaits) {
  Driver driver;
  driver.Submit(1, MiB(50), Urgency::kBackground);
  EXPECT_EQ(driver.Fill(), Jobs({1, 1}));
  EXPECT_EQ(driver.queue().in_flight(), MiB(16));
}

TEST(CopyQueue, PutsAPieceThatIsLargerThanAllInFlightAlone) {
  Driver driver({.chunk = MiB(16), .in_flight = MiB(8)});
  driver.Submit(1, MiB(20), Urgency::kDemand);
  EXPECT_EQ(driver.Fill(), Jobs({1}));
  driver.queue().End();
  EXPECT_EQ(driver.Fill(), Jobs({1}));
}

TEST(CopyQueue, CountsPieces) {
  Driver driver({.in_flight_copies = 2});
  for (CopyQueue::Job job = 1; job <= 3; ++job) driver.Submit(job, KiB(4), Urgency::kDemand);
  EXPECT_EQ(driver.Fill(), Jobs({1, 2}));
  EXPECT_EQ(driver.queue().pieces(), 2u);
}

TEST(CopyQueue, DemandsGoFirst) {
  Driver driver({.in_flight_copies = 1});
  driver.Submit(1, MiB(16), Urgency::kBackground);
  EXPECT_EQ(driver.Fill(), Jobs({1}));
  driver.Submit(2, MiB(1), Urgency::kDemand);
  driver.queue().End();
  EXPECT_EQ(driver.Fill(), Jobs({2}));
  driver.queue().End();
  EXPECT_EQ(driver.Fill(), Jobs({1}));
}

TEST(CopyQueue, ServesUsersInTurnAndAUsersBackgroundInOrder) {
  Driver driver({.in_flight_copies = 1, .turn = MiB(16)});
  const TurnOwner second{kOne.tenant, ClientId{9}};
  driver.Submit(1, MiB(16), Urgency::kBackground, second);
  driver.Submit(2, MiB(8), Urgency::kBackground, kOne);
  driver.Submit(3, MiB(8), Urgency::kBackground, kOther);
  Jobs order;
  while (driver.queue().Next()) {
    order.push_back(driver.Fill().at(0));
    driver.queue().End();
  }
  EXPECT_EQ(order, Jobs({1, 1, 3, 2}));
}

TEST(CopyQueue, APromotedJobIsADemandFromThereOn) {
  Driver driver({.in_flight_copies = 1});
  driver.Submit(1, MiB(16), Urgency::kBackground);
  driver.Submit(2, MiB(16), Urgency::kBackground);
  EXPECT_EQ(driver.Fill(), Jobs({1}));
  driver.queue().Promote(2, kOther);
  driver.queue().Promote(2, kOther);
  driver.queue().End();
  EXPECT_EQ(driver.Fill(), Jobs({2}));
  EXPECT_EQ(driver.queue().in_flight(), MiB(16));
  // All of it is in flight: nothing is left to promote.
  driver.queue().Promote(2, kOne);
  driver.queue().End();
  EXPECT_EQ(driver.Fill(), Jobs({1}));
}

TEST(CopyQueue, IsEmptyAfterClear) {
  Driver driver;
  driver.Submit(1, MiB(50), Urgency::kDemand);
  driver.Submit(2, MiB(50), Urgency::kBackground);
  driver.Fill();
  driver.queue().Clear();
  EXPECT_EQ(driver.queue().pieces(), 0u);
  EXPECT_EQ(driver.queue().in_flight(), Bytes{0});
  EXPECT_FALSE(driver.queue().Next());
  driver.queue().Promote(2, kOne);
  driver.Submit(2, MiB(1), Urgency::kDemand);
  EXPECT_EQ(driver.Fill(), Jobs({2}));
}

}  // namespace
}  // namespace ravenstore::core
