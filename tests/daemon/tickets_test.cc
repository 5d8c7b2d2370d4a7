#include "daemon/tickets.h"

#include <gtest/gtest.h>

#include <vector>

#include "ipc/segment.h"

namespace ravenstore::daemon {
namespace {

using core::TensorId;

class TicketsTest : public testing::Test {
 protected:
  // The tensors whose tickets are reached now.
  std::vector<uint64_t> Poll(size_t most = SIZE_MAX) {
    std::vector<uint64_t> reached;
    queues_.Poll(segment(), most, [&](const TicketQueues::Waiting& waiting) {
      reached.push_back(core::ToInt(waiting.tensor));
    });
    return reached;
  }
  proto::Segment& segment() { return *memory_->get(); }

  core::Result<ipc::ControlSegment> memory_ = ipc::ControlSegment::Create(1);
  TicketQueues queues_;
};

TEST_F(TicketsTest, ATicketIsReachedOnceItsWordIsThere) {
  EXPECT_TRUE(Reached(segment(), {.index = 5, .value = 0}));
  EXPECT_FALSE(Reached(segment(), {.index = 5, .value = 2}));
  segment().tickets[5] = 1;
  EXPECT_FALSE(Reached(segment(), {.index = 5, .value = 2}));
  segment().tickets[5] = 2;
  EXPECT_TRUE(Reached(segment(), {.index = 5, .value = 2}));
  segment().tickets[5] = 3;
  EXPECT_TRUE(Reached(segment(), {.index = 5, .value = 2}));
}

TEST_F(TicketsTest, ATicketOutOfRangeIsNeverReached) {
  EXPECT_FALSE(Reached(segment(), {.index = proto::kTicketWords, .value = 1}));
  EXPECT_FALSE(Reached(segment(), {.index = 0xffff, .value = 1}));
  queues_.Push({.index = proto::kTicketWords, .value = 1}, TensorId{1}, 1);
  queues_.Push({.index = 0xffff, .value = 1}, TensorId{1}, 1);
  EXPECT_TRUE(queues_.empty());
  EXPECT_TRUE(Poll().empty());
}

TEST_F(TicketsTest, WhatIsReachedIsReportedOnceInOrder) {
  for (uint64_t i = 1; i <= 5; ++i) queues_.Push({.index = 0, .value = i}, TensorId{i}, 100 + i);
  EXPECT_TRUE(Poll().empty());
  segment().tickets[0] = 3;
  EXPECT_EQ(Poll(), (std::vector<uint64_t>{1, 2, 3}));
  EXPECT_TRUE(Poll().empty());
  EXPECT_FALSE(queues_.empty());
  segment().tickets[0] = 9;
  EXPECT_EQ(Poll(), (std::vector<uint64_t>{4, 5}));
  EXPECT_TRUE(queues_.empty());
}

TEST_F(TicketsTest, AnEarlierTicketThatIsPushedLateDoesNotWaitForALaterOne) {
  queues_.Push({.index = 0, .value = 3}, TensorId{3}, 0);
  queues_.Push({.index = 0, .value = 2}, TensorId{2}, 0);
  segment().tickets[0] = 2;
  EXPECT_EQ(Poll(), (std::vector<uint64_t>{2}));
  segment().tickets[0] = 3;
  EXPECT_EQ(Poll(), (std::vector<uint64_t>{3}));
}

TEST_F(TicketsTest, WordsDoNotWaitForEachOther) {
  queues_.Push({.index = 0, .value = 1}, TensorId{1}, 0);
  queues_.Push({.index = proto::kTicketWords - 1, .value = 1}, TensorId{2}, 0);
  queues_.Push({.index = 7, .value = 1}, TensorId{3}, 0);
  segment().tickets[proto::kTicketWords - 1] = 1;
  EXPECT_EQ(Poll(), (std::vector<uint64_t>{2}));
  segment().tickets[0] = 1;
  segment().tickets[7] = 1;
  EXPECT_EQ(Poll().size(), 2u);
  EXPECT_TRUE(queues_.empty());
}

// A stream that catches up may reach what a million frees wait for.
TEST_F(TicketsTest, ManyThatAreReachedTogetherAreReportedInSeveralPasses) {
  for (uint64_t i = 1; i <= 3; ++i) queues_.Push({.index = 0, .value = i}, TensorId{i}, 0);
  for (uint64_t i = 4; i <= 5; ++i) queues_.Push({.index = 1, .value = i}, TensorId{i}, 0);
  segment().tickets[0] = 9;
  segment().tickets[1] = 9;
  EXPECT_EQ(Poll(2), (std::vector<uint64_t>{1, 2}));
  EXPECT_EQ(Poll(2), (std::vector<uint64_t>{3, 4}));
  EXPECT_EQ(queues_.size(), 1u);
  EXPECT_EQ(Poll(2), (std::vector<uint64_t>{5}));
  EXPECT_TRUE(queues_.empty());
}

TEST_F(TicketsTest, TheWaitersWordIsKept) {
  queues_.Push({.index = 0, .value = 1}, TensorId{1}, 77);
  segment().tickets[0] = 1;
  uint64_t word = 0;
  queues_.Poll(segment(), 1,
               [&](const TicketQueues::Waiting& waiting) { word = waiting.idle_word; });
  EXPECT_EQ(word, 77u);
}

}  // namespace
}  // namespace ravenstore::daemon
