#include "daemon/send_queue.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <string>
#include <utility>
#include <vector>

#include "core/check.h"
#include "ipc/socket.h"

namespace ravenstore::daemon {
namespace {

using core::ErrorCode;

constexpr core::TenantId kUser{7};

// A socket pair, whose other end reads when the test says so.
class SendQueueTest : public testing::Test {
 protected:
  SendQueueTest() {
    int ends[2];
    RAVEN_CHECK(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) == 0);
    peer_.reset(ends[0]);
    queue_.emplace(ipc::UniqueFd(ends[1]), kUser, &descriptors_);
  }
  static proto::DaemonPacket Answer(uint64_t request) {
    proto::DaemonPacket packet;
    packet.set_request(request);
    packet.mutable_detached();
    return packet;
  }
  static proto::DaemonPacket Unasked() {
    proto::DaemonPacket packet;
    packet.mutable_memory_ready()->set_first(1);
    return packet;
  }
  static std::vector<ipc::UniqueFd> Descriptors(size_t count) {
    std::vector<ipc::UniqueFd> descriptors;
    for (size_t i = 0; i < count; ++i)
      descriptors.emplace_back(::open("/dev/null", O_RDONLY | O_CLOEXEC));
    return descriptors;
  }
  void Push(const proto::DaemonPacket& packet, size_t descriptors = 0) {
    ASSERT_TRUE(queue_->Push(packet, Descriptors(descriptors)).ok());
  }
  void Flush() {
    queue_->Flush([](const core::Error& error) { ADD_FAILURE() << core::Describe(error); });
  }
  // The number of the packet that the peer reads next; 0: there is none.
  uint64_t Read() {
    const auto packet = ipc::Receive(peer_.get(), false);
    if (!packet.ok() || !packet->has_value()) return 0;
    proto::DaemonPacket read;
    RAVEN_CHECK(read.ParseFromString((*packet)->bytes));
    return read.request();
  }

  core::Shares descriptors_{"descriptors", 64};
  ipc::UniqueFd peer_;
  std::optional<SendQueue> queue_;
};

TEST_F(SendQueueTest, SendsInOrderWhatTheSocketTakes) {
  uint64_t pushed = 0;
  while (queue_->empty()) {
    Push(Answer(++pushed));
    Flush();
  }
  for (uint64_t i = 1; i < pushed; ++i) ASSERT_EQ(Read(), i);
  EXPECT_EQ(Read(), 0u) << "it waits for the socket's room";
  Flush();
  EXPECT_TRUE(queue_->empty());
  EXPECT_EQ(Read(), pushed);
}

TEST_F(SendQueueTest, APeerThatDoesNotReadItsAnswersIsAskedForNoMore) {
  for (size_t i = 1; i < SendQueue::kAnswersMax; ++i) Push(Answer(i));
  EXPECT_TRUE(queue_->HasRoomForAnswers());
  for (int i = 0; i < 100; ++i) Push(Unasked());
  EXPECT_TRUE(queue_->HasRoomForAnswers()) << "those it did not ask for";
  Push(Answer(99));
  EXPECT_FALSE(queue_->HasRoomForAnswers());
  Flush();
  EXPECT_TRUE(queue_->HasRoomForAnswers());
}

TEST_F(SendQueueTest, LargeAnswersAreFewer) {
  proto::DaemonPacket large = Answer(1);
  large.mutable_recorded()->set_ops(std::string(SendQueue::kAnswerBytesMax / 2, 'x'));
  Push(large);
  EXPECT_TRUE(queue_->HasRoomForAnswers());
  Push(large);
  EXPECT_FALSE(queue_->HasRoomForAnswers());
}

TEST_F(SendQueueTest, NoMoreWaitThanABound) {
  for (size_t i = 0; i < SendQueue::kPacketsMax; ++i) Push(Unasked());
  const core::Status refused = queue_->Push(Answer(1), {});
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().message, "4096 messages lie unread");
}

TEST_F(SendQueueTest, DescriptorsCountForTheUserUntilThePeerHasReadThem) {
  Push(Unasked(), 2);
  EXPECT_EQ(descriptors_.Held(kUser), 2u);
  Flush();
  Push(Unasked(), 1);
  EXPECT_EQ(descriptors_.Held(kUser), 3u) << "the peer may not have read them";
  Read();
  Flush();
  Read();
  Push(Unasked(), 1);
  EXPECT_EQ(descriptors_.Held(kUser), 1u);
}

TEST_F(SendQueueTest, WhatFindsNoDescriptorsLeftIsDropped) {
  ASSERT_TRUE(descriptors_.Take(core::TenantId{8}, 56).ok());
  const core::Status refused = queue_->Push(Unasked(), Descriptors(2));
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, ErrorCode::kLimit);
  EXPECT_TRUE(queue_->empty());
}

TEST_F(SendQueueTest, APeerThatEndedIsNoFailure) {
  peer_.reset();
  Push(Answer(1));
  Flush();
  EXPECT_TRUE(queue_->empty());
}

TEST_F(SendQueueTest, ClosedItHoldsNothing) {
  Push(Answer(1));
  Push(Unasked(), 2);
  const ipc::UniqueFd socket = queue_->Close();
  EXPECT_TRUE(socket);
  EXPECT_LT(queue_->socket(), 0);
  EXPECT_TRUE(queue_->empty());
  EXPECT_TRUE(queue_->HasRoomForAnswers());
  EXPECT_EQ(descriptors_.Held(kUser), 0u);
}

}  // namespace
}  // namespace ravenstore::daemon
