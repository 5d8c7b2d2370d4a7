#include "daemon/clients.h"

#include <gtest/gtest.h>
#include <poll.h>

#include <string>
#include <vector>

#include "tests/daemon/clients_fixture.h"

namespace ravenstore::daemon {
namespace {

using core::Bytes;
using core::ClientId;
using core::ErrorCode;
using core::MiB;

class ClientsTest : public ClientsFixture {
 protected:
  using ClientsFixture::ClientsFixture;
  proto::Welcome Attach(Caller& caller, const proto::Hello& hello = Hello()) {
    clients_.HandleHello(caller, 9, hello);
    const proto::DaemonPacket answer = connections_.TakeOnlyPacket(caller);
    EXPECT_EQ(answer.request(), 9u);
    EXPECT_TRUE(answer.has_welcome()) << answer.failure().message();
    loop_.RunPosts();
    return answer.welcome();
  }
  ErrorCode Refused(Caller& caller, const proto::Hello& hello = Hello()) {
    clients_.HandleHello(caller, 9, hello);
    return connections_.Refused(caller);
  }
  // The loop releases the clients that left, and a worker returns their memory.
  void ReturnMemory() {
    loop_.RunPosts();
    pollfd bells[] = {{mailbox_.descriptor(), POLLIN, 0},
                      {loop_->mailbox().descriptor(), POLLIN, 0}};
    while (mailbox_.size() == 0) {
      ASSERT_GT(::poll(bells, 2, 20'000), 0);
      loop_.RunPosts();
    }
    mailbox_.RunSome(mailbox_.size());
  }
};

TEST_F(ClientsTest, AClientIsWelcomedWithWhatItMayHave) {
  Caller caller = connections_.Connect(1);
  proto::Hello hello = Hello();
  hello.set_device_budget(MiB(4).count());
  hello.set_host_budget(MiB(999).count());
  const proto::Welcome welcome = Attach(caller, hello);
  EXPECT_EQ(welcome.client(), 5u);
  EXPECT_EQ(welcome.backend(), "host");
  EXPECT_EQ(welcome.restart_timeout_ms(), 7u);
  EXPECT_EQ(welcome.device_budget(), MiB(4).count());
  EXPECT_EQ(welcome.host_budget(), MiB(64).count()) << "no more than its user's";
  ASSERT_EQ(welcome.devices_size(), 1);
  EXPECT_EQ(welcome.devices(0).arena_bytes(), MiB(64).count());
  EXPECT_EQ(connections_.descriptors(), 2u);
  EXPECT_EQ(caller.client, ClientId{5});
  EXPECT_EQ(clients_.KeyOf(ClientId{5}), caller.key);
  EXPECT_NE(loop_->sessions().Find(ClientId{5}), nullptr);
}

TEST_F(ClientsTest, AToolIsWelcomedAndNoClient) {
  Caller tool = connections_.Connect(1);
  proto::Hello hello = Hello();
  hello.set_control_only(true);
  EXPECT_EQ(Attach(tool, hello).client(), 0u);
  EXPECT_TRUE(tool.greeted);
  EXPECT_EQ(tool.client, ClientId{});
  EXPECT_EQ(loop_->sessions().all().size(), 0u);
  EXPECT_EQ(descriptors_.taken(), 0u);
  clients_.HandleDetach(tool, 9);
  EXPECT_EQ(connections_.Refused(tool), ErrorCode::kWrongState);
}

TEST_F(ClientsTest, HelloIsSaidOnceAndInOneLanguage) {
  Caller caller = connections_.Connect(1);
  proto::Hello old = Hello();
  old.set_protocol_version(proto::kProtocolVersion + 1);
  EXPECT_EQ(Refused(caller, old), ErrorCode::kVersionMismatch);
  Attach(caller);
  EXPECT_EQ(Refused(caller), ErrorCode::kWrongState);
}

TEST_F(ClientsTest, APlaceIsTheClientsUntilItsMemoryIsReturned) {
  std::vector<Caller> callers;
  for (pid_t pid = 1; pid <= 7; ++pid) {
    callers.push_back(connections_.Connect(pid));
    Attach(callers.back());
  }
  EXPECT_EQ(descriptors_.taken(), 14u);
  Caller late = connections_.Connect(99);
  EXPECT_EQ(Refused(late), ErrorCode::kLimit);
  Caller& leaving = callers.back();
  clients_.HandleDetach(leaving, 9);
  EXPECT_EQ(leaving.client, ClientId{});
  EXPECT_EQ(Refused(late), ErrorCode::kLimit);
  EXPECT_TRUE(connections_.SentNothing(leaving));
  ReturnMemory();
  connections_.AwaitAnswer();
  EXPECT_TRUE(connections_.TakeOnlyPacket(leaving).has_detached());
  EXPECT_EQ(descriptors_.taken(), 12u);
  Attach(late);
}

class SingleUserTest : public ClientsTest {
 protected:
  SingleUserTest() : ClientsTest(/*single_user=*/true) {}
};

TEST_F(SingleUserTest, AnotherUserIsRefusedInWordsUntilTheFirstOnesClientsHaveEnded) {
  constexpr uid_t kOther = FakeConnections::kUser + 1;
  Caller first = connections_.Connect(1);
  Attach(first);
  Caller second = connections_.Connect(2);
  Attach(second);
  Caller other = connections_.Connect(3, kOther);
  clients_.HandleHello(other, 9, Hello());
  const std::string why = connections_.TakeOnlyPacket(other).failure().message();
  EXPECT_NE(why.find("limits.single_user"), std::string::npos) << why;
  Caller tool = connections_.Connect(4, kOther);
  proto::Hello looks = Hello();
  looks.set_control_only(true);
  Attach(tool, looks);
  for (Caller* caller : {&first, &second}) {
    EXPECT_EQ(Refused(other), ErrorCode::kLimit);
    clients_.Died(*caller);
    ReturnMemory();
  }
  Attach(other);
  Caller again = connections_.Connect(5);
  EXPECT_EQ(Refused(again), ErrorCode::kLimit);
}

TEST_F(ClientsTest, AClientWhoseProcessEndsLeaves) {
  Caller caller = connections_.Connect(1);
  Attach(caller);
  clients_.Died(caller);
  EXPECT_EQ(clients_.KeyOf(ClientId{5}), 0u);
  ReturnMemory();
  EXPECT_EQ(descriptors_.taken(), 0u);
  EXPECT_EQ(loop_->sessions().all().size(), 0u);
}

TEST_F(ClientsTest, ConnectionsKeptForToolsTakeNoClients) {
  Caller caller = connections_.Connect(1, FakeConnections::kRoot);
  caller.reserved = true;
  EXPECT_EQ(Refused(caller), ErrorCode::kLimit);
}

TEST_F(ClientsTest, ANewTimeoutIsSaidToTheNextClients) {
  clients_.SetRestartTimeout(11);
  Caller caller = connections_.Connect(1);
  EXPECT_EQ(Attach(caller).restart_timeout_ms(), 11u);
}

}  // namespace
}  // namespace ravenstore::daemon
