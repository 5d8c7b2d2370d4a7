#include "client/requests.h"

#include <gtest/gtest.h>

#include <thread>
#include <vector>

#include "client/lease.h"
#include "ipc/clock.h"
#include "ipc/segment.h"
#include "ipc/wake.h"

namespace ravenstore::client {
namespace {

using core::ErrorCode;
using proto::LeaseState;
using std::chrono::milliseconds;

// The other end of the ring is cranked by hand.
class RequestsTest : public testing::Test {
 protected:
  RequestsTest()
      : segment_(*ipc::ControlSegment::Create(1)),
        bell_(*ipc::Doorbell::Create()),
        consumer_(&segment_->requests),
        queue_(segment_.get(), ipc::UniqueFd(dup(bell_.fd())), &phase_) {}

  core::Status Create(size_t count, milliseconds wait = milliseconds(2)) {
    requests_.assign(count, {});
    for (auto& request : requests_) {
      request.op = static_cast<uint32_t>(proto::RequestOp::kCreate);
    }
    return queue_.Create(requests_, ipc::Now() + wait, &sent_);
  }
  core::Status Free(uint32_t slot) {
    Set(slot, LeaseState::kFreeing);
    proto::Request free{};
    free.op = static_cast<uint32_t>(proto::RequestOp::kFree);
    free.slot = slot;
    return queue_.Send({&free, 1}, ipc::Now() + milliseconds(2), &sent_);
  }
  std::vector<proto::Request> Take() {
    std::vector<proto::Request> taken;
    proto::Request request;
    while (consumer_.Pop(&request) == ipc::Take::kEntry) taken.push_back(request);
    return taken;
  }
  LeaseState StateOf(uint32_t slot) {
    return proto::UnpackLease(segment_->slots[slot].word.load()).state;
  }
  void Set(uint32_t slot, LeaseState state) {
    segment_->slots[slot].word.store(proto::Pack(proto::LeaseWord{state, 0, 1}));
  }

  ipc::ControlSegment segment_;
  PhaseWord phase_{Phase::kAttached};
  ipc::Doorbell bell_;
  ipc::RequestConsumer consumer_;
  RequestQueue queue_;
  std::vector<proto::Request> requests_;
  size_t sent_ = 0;
};

TEST_F(RequestsTest, CreatesTakeFreshRowsInOrder) {
  ASSERT_TRUE(Create(3).ok());
  EXPECT_EQ(sent_, 3u);
  EXPECT_EQ(queue_.rows(), 3u);
  const auto taken = Take();
  ASSERT_EQ(taken.size(), 3u);
  for (uint32_t i = 0; i < 3; ++i) {
    EXPECT_EQ(taken[i].slot, i);
    EXPECT_EQ(StateOf(i), LeaseState::kRequested);
  }
}

TEST_F(RequestsTest, RowIsUsedAgainOnceTheDaemonFreedIt) {
  ASSERT_TRUE(Create(1).ok());
  ASSERT_TRUE(Free(0).ok());
  ASSERT_TRUE(Create(1).ok());
  EXPECT_EQ(requests_[0].slot, 1u) << "the daemon is not done with row 0";
  Set(0, LeaseState::kFree);
  ASSERT_TRUE(Create(1).ok());
  EXPECT_EQ(requests_[0].slot, 0u);
}

TEST_F(RequestsTest, FreeThatTakesLongDoesNotHoldUpOthers) {
  ASSERT_TRUE(Create(3).ok());
  for (uint32_t slot = 0; slot < 3; ++slot) ASSERT_TRUE(Free(slot).ok());
  Set(1, LeaseState::kFree);
  Set(2, LeaseState::kFree);
  ASSERT_TRUE(Create(2).ok());
  EXPECT_EQ(requests_[0].slot, 1u);
  EXPECT_EQ(requests_[1].slot, 2u);
}

TEST_F(RequestsTest, RefusedRowIsFreeImmediately) {
  ASSERT_TRUE(Create(1).ok());
  Set(0, LeaseState::kFailed);
  queue_.Recycle(0);
  EXPECT_EQ(StateOf(0), LeaseState::kFree);
  ASSERT_TRUE(Create(1).ok());
  EXPECT_EQ(requests_[0].slot, 0u);
}

TEST_F(RequestsTest, AwakeDaemonIsNotRungAndASleepingOneIsOnce) {
  ASSERT_TRUE(Create(1).ok());
  uint64_t rung = 0;
  EXPECT_LT(read(bell_.fd(), &rung, sizeof(rung)), 0) << "awake";
  segment_->header.daemon_asleep.store(1);
  ASSERT_TRUE(Create(500).ok());
  EXPECT_EQ(read(bell_.fd(), &rung, sizeof(rung)), static_cast<ssize_t>(sizeof(rung)));
  EXPECT_EQ(rung, 1u);
  EXPECT_EQ(segment_->header.daemon_asleep.load(), 0u);
}

TEST_F(RequestsTest, FullRingTimesOutAndMarksNoRow) {
  const auto status = Create(proto::kRequestRingEntries + 10);
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().code, ErrorCode::kTimedOut);
  EXPECT_EQ(sent_, proto::kRequestRingEntries);
  EXPECT_EQ(StateOf(proto::kRequestRingEntries), LeaseState::kFree);
  EXPECT_EQ(Free(0).error().code, ErrorCode::kTimedOut);
  EXPECT_EQ(sent_, 0u);
}

TEST_F(RequestsTest, BatchLongerThanTheRingGoesThroughAsTheDaemonTakesIt) {
  constexpr size_t kCount = 5 * proto::kRequestRingEntries;
  std::atomic<bool> done{false};
  size_t taken = 0;
  std::thread daemon([&] {
    while (taken < kCount && !done.load()) taken += Take().size();
  });
  EXPECT_TRUE(Create(kCount, std::chrono::seconds(10)).ok());
  EXPECT_EQ(sent_, kCount);
  if (sent_ < kCount) done.store(true);
  daemon.join();
  EXPECT_EQ(taken, kCount);
}

TEST_F(RequestsTest, LostSessionEndsTheWaitForRoom) {
  ASSERT_TRUE(Create(proto::kRequestRingEntries).ok());
  std::thread watcher([&] { phase_.store(Phase::kLost); });
  EXPECT_EQ(Create(1, std::chrono::seconds(10)).error().code, ErrorCode::kLost);
  watcher.join();
}

TEST_F(RequestsTest, RowsRunOutWithAnError) {
  std::atomic<bool> done{false};
  std::thread daemon([&] {
    while (!done.load()) Take();
  });
  const auto status = Create(proto::kSlotCapacity + 5u, std::chrono::seconds(60));
  done.store(true);
  daemon.join();
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().code, ErrorCode::kLimit);
  EXPECT_EQ(sent_, proto::kSlotCapacity);
  // The one that is free again stands behind some whose frees wait for their streams.
  Take();
  for (uint32_t slot = 0; slot < 10; ++slot) ASSERT_TRUE(Free(slot).ok());
  Set(9, LeaseState::kFree);
  ASSERT_TRUE(Create(1).ok());
  EXPECT_EQ(requests_[0].slot, 9u);
}

TEST_F(RequestsTest, OrphansAreFreedOnceTheirAnswerArrives) {
  ASSERT_TRUE(Create(3).ok());
  for (uint32_t slot = 0; slot < 3; ++slot) queue_.Orphan(slot);
  ASSERT_EQ(Take().size(), 3u);
  ASSERT_TRUE(Create(1).ok());
  EXPECT_EQ(Take().size(), 1u) << "nobody answered yet";
  Set(0, LeaseState::kInUse);
  segment_->slots[0].id.store(99);
  Set(1, LeaseState::kFailed);
  ASSERT_TRUE(Create(1).ok());
  const auto taken = Take();
  ASSERT_EQ(taken.size(), 2u);
  EXPECT_EQ(taken[0].op, static_cast<uint32_t>(proto::RequestOp::kFree));
  EXPECT_EQ(taken[0].slot, 0u);
  EXPECT_EQ(taken[0].id, 99u);
  EXPECT_EQ(StateOf(0), LeaseState::kFreeing);
  EXPECT_EQ(taken[1].slot, 1u) << "the failed one is used again";
  EXPECT_EQ(StateOf(2), LeaseState::kRequested) << "still nobody's answer";
}

TEST_F(RequestsTest, OrphansAreFreedByALaterFreeAsWell) {
  ASSERT_TRUE(Create(2).ok());
  queue_.Orphan(requests_[0].slot);
  ASSERT_EQ(Take().size(), 2u);
  Set(requests_[0].slot, LeaseState::kInUse);
  ASSERT_TRUE(Free(requests_[1].slot).ok());
  const auto taken = Take();
  ASSERT_EQ(taken.size(), 2u);
  EXPECT_EQ(taken[0].slot, requests_[0].slot);
  EXPECT_EQ(taken[0].op, static_cast<uint32_t>(proto::RequestOp::kFree));
}

TEST_F(RequestsTest, FreesThatFoundTheRingFullGoWithALaterCall) {
  ASSERT_TRUE(Create(1).ok());
  std::vector<proto::Request> steps(proto::kRequestRingEntries - 1);
  for (auto& step : steps) step.op = static_cast<uint32_t>(proto::RequestOp::kStep);
  ASSERT_TRUE(queue_.Send(steps, ipc::Now() + milliseconds(2), &sent_).ok());
  EXPECT_EQ(Free(requests_[0].slot).error().code, ErrorCode::kTimedOut);
  EXPECT_EQ(Take().size(), proto::kRequestRingEntries);
  ASSERT_TRUE(queue_.Send({}, ipc::Now() + milliseconds(2), &sent_).ok());
  const auto taken = Take();
  ASSERT_EQ(taken.size(), 1u);
  EXPECT_EQ(taken[0].op, static_cast<uint32_t>(proto::RequestOp::kFree));
  EXPECT_EQ(taken[0].slot, requests_[0].slot);
}

}  // namespace
}  // namespace ravenstore::client
