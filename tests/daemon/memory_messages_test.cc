#include "daemon/memory_messages.h"

#include <fcntl.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "tests/daemon/clients_fixture.h"

namespace ravenstore::daemon {
namespace {

using core::Bytes;
using core::ClientId;
using core::ErrorCode;
using core::MiB;
using proto::ClientPacket;

constexpr ClientId kNoClient{99};

class MemoryMessagesTest : public ClientsFixture {
 protected:
  MemoryMessagesTest() {
    clients_.HandleHello(client_, 1, Hello());
    RAVEN_CHECK(connections_.TakeOnlyPacket(client_).has_welcome());
    descriptors_of_welcome_ = connections_.descriptors();
  }
  void Deliver() { mailbox_.RunSome(mailbox_.size()); }
  static std::shared_ptr<MemoryForClient> Memory(ClientId client) {
    auto memory =
        std::make_shared<MemoryForClient>(MemoryForClient{client, {.first = 7, .descriptors = {}}});
    for (int i = 0; i < 2; ++i)
      memory->batch.descriptors.emplace_back(::open("/dev/null", O_RDONLY | O_CLOEXEC));
    return memory;
  }

  MemoryMessages messages_{1, &clients_, loop_.get(), &mailbox_, &connections_};
  Caller client_ = connections_.Connect(1);
  size_t descriptors_of_welcome_ = 0;
};

TEST_F(MemoryMessagesTest, DescriptorsGoToTheirClient) {
  messages_.PostMemoryReady(Memory(client_.client));
  EXPECT_TRUE(connections_.SentNothing(client_)) << "this may be any thread";
  Deliver();
  EXPECT_EQ(connections_.TakeOnlyPacket(client_).memory_ready().first(), 7u);
  EXPECT_EQ(connections_.descriptors(), descriptors_of_welcome_ + 2);
}

TEST_F(MemoryMessagesTest, ASlabOfPinnedMemoryGoesThere) {
  messages_.PostPinnedSlab(std::make_shared<PinnedSlabForClient>(
      PinnedSlabForClient{client_.client, {3, MiB(2)}, MiB(4), {}}));
  Deliver();
  EXPECT_EQ(connections_.TakeOnlyPacket(client_).pinned_slab().pool(), 3u);
  messages_.PostReleasePinnedSlab(client_.client, {3, MiB(2)});
  Deliver();
  EXPECT_EQ(connections_.TakeOnlyPacket(client_).release_pinned_slab().offset(), MiB(2).count());
}

TEST_F(MemoryMessagesTest, WhatIsForAClientThatLeftIsDropped) {
  messages_.PostMemoryReady(Memory(kNoClient));
  messages_.PostReleasePinnedSlab(kNoClient, {3, MiB(2)});
  Deliver();
  EXPECT_TRUE(connections_.SentNothing(client_));
  EXPECT_EQ(connections_.descriptors(), descriptors_of_welcome_);
}

TEST_F(MemoryMessagesTest, OtherMessagesAreNotIts) {
  ClientPacket packet;
  packet.mutable_stats();
  EXPECT_FALSE(messages_.Handle(client_, packet));
  EXPECT_EQ(connections_.posts(), 0u);
}

TEST_F(MemoryMessagesTest, NoticesGoToTheLoop) {
  ClientPacket packet;
  packet.mutable_trim();
  EXPECT_TRUE(messages_.Handle(client_, packet));
  packet.mutable_pinned_slab_released();
  EXPECT_TRUE(messages_.Handle(client_, packet));
  packet.mutable_pinned_free();
  EXPECT_TRUE(messages_.Handle(client_, packet));
  EXPECT_EQ(connections_.posts(), 3u);
  connections_.RunPosts();
  EXPECT_TRUE(connections_.SentNothing(client_));
}

TEST_F(MemoryMessagesTest, PinnedMemoryIsAClientsAndNearADevice) {
  ClientPacket packet;
  packet.mutable_pinned_alloc()->set_bytes(MiB(1).count());
  const Caller tool = connections_.Connect(2);
  EXPECT_TRUE(messages_.Handle(tool, packet));
  EXPECT_EQ(connections_.Refused(tool), ErrorCode::kWrongState);
  packet.mutable_pinned_alloc()->set_device(1);
  EXPECT_TRUE(messages_.Handle(client_, packet));
  EXPECT_EQ(connections_.Refused(client_), ErrorCode::kInvalidArgument);
  packet.mutable_pinned_alloc()->set_device(0);
  EXPECT_TRUE(messages_.Handle(client_, packet));
  EXPECT_EQ(connections_.posts(), 1u);
}

TEST_F(MemoryMessagesTest, AClientAloneHasTensorsThatAreKeptInPlace) {
  ClientPacket packet;
  packet.mutable_keep_in_place()->set_slot(1);
  const Caller tool = connections_.Connect(2);
  EXPECT_TRUE(messages_.Handle(tool, packet));
  EXPECT_EQ(connections_.Refused(tool), ErrorCode::kWrongState);
  EXPECT_TRUE(messages_.Handle(client_, packet));
  EXPECT_EQ(connections_.posts(), 1u);
}

TEST_F(MemoryMessagesTest, AFreeWaitsForNoMoreThanSoManyTickets) {
  ClientPacket packet;
  for (int i = 0; i < 64; ++i) packet.mutable_pinned_free()->add_tickets(1);
  EXPECT_TRUE(messages_.Handle(client_, packet));
  EXPECT_EQ(connections_.posts(), 1u);
  packet.mutable_pinned_free()->add_tickets(1);
  EXPECT_TRUE(messages_.Handle(client_, packet));
  EXPECT_EQ(connections_.Refused(client_), ErrorCode::kInvalidArgument);
}

}  // namespace
}  // namespace ravenstore::daemon
