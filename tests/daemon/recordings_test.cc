#include "daemon/recordings.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/daemon/fake_connections.h"
#include "tests/daemon/idle_loop.h"

namespace ravenstore::daemon {
namespace {

using core::ErrorCode;

class RecordingsTest : public testing::Test {
 protected:
  void Ask(const Caller& caller) { recordings_.Handle(caller, 9, {}); }
  Recorder* Recording(const Caller& caller) { return loop_->recorders().Find(caller.key); }
  void Run() {
    connections_.RunPosts();
    loop_.RunPosts();
  }

  FakeConnections connections_;
  IdleLoop loop_;
  Recordings recordings_{loop_.get(), &connections_,
                         [](core::ClientId, core::NameId) { return std::string(); }};
};

TEST_F(RecordingsTest, ARecordingBeginsOnceAndEndsWithItsConnection) {
  const Caller caller = connections_.Connect(1);
  Ask(caller);
  EXPECT_TRUE(connections_.SentNothing(caller)) << "the loop was not asked yet";
  Run();
  EXPECT_EQ(connections_.TakeOnlyPacket(caller).request(), 9u);
  const Recorder* recorder = Recording(caller);
  ASSERT_NE(recorder, nullptr);
  Ask(caller);
  Run();
  EXPECT_TRUE(connections_.TakeOnlyPacket(caller).has_recorded());
  EXPECT_EQ(Recording(caller), recorder);
  recordings_.Forget(caller.key);
  Run();
  EXPECT_EQ(Recording(caller), nullptr);
}

TEST_F(RecordingsTest, AUserRecordsItsOwnClientsAndRootEverybodys) {
  const Caller user = connections_.Connect(1);
  const Caller root = connections_.Connect(2, FakeConnections::kRoot);
  Ask(user);
  Ask(root);
  Run();
  const core::ClientId client{1};
  EXPECT_TRUE(Recording(user)->Wants(client, FakeConnections::kUser));
  EXPECT_FALSE(Recording(user)->Wants(client, FakeConnections::kUser + 1));
  EXPECT_TRUE(Recording(root)->Wants(client, FakeConnections::kUser));
}

TEST_F(RecordingsTest, AUserRecordsOnOneConnectionAtATime) {
  const Caller first = connections_.Connect(1);
  const Caller second = connections_.Connect(1);
  Ask(first);
  Ask(second);
  EXPECT_EQ(connections_.Refused(second), ErrorCode::kLimit);
  recordings_.Forget(first.key);
  Ask(second);
  Run();
  EXPECT_TRUE(connections_.TakeOnlyPacket(second).has_recorded());
}

TEST_F(RecordingsTest, OfManyUsersSomeWaitAndRootDoesNot) {
  std::vector<Caller> callers;
  for (uid_t i = 0; i < Recordings::kMost; ++i) {
    callers.push_back(connections_.Connect(1, FakeConnections::kUser + i));
    Ask(callers.back());
  }
  const Caller late = connections_.Connect(1, FakeConnections::kUser + Recordings::kMost);
  Ask(late);
  EXPECT_EQ(connections_.Refused(late), ErrorCode::kLimit);
  const Caller root = connections_.Connect(1, FakeConnections::kRoot);
  Ask(root);
  EXPECT_TRUE(connections_.SentNothing(root)) << "it was refused";
  recordings_.Forget(callers.front().key);
  recordings_.Forget(root.key);
  Ask(late);
  EXPECT_TRUE(connections_.SentNothing(late)) << "it was refused";
}

}  // namespace
}  // namespace ravenstore::daemon
