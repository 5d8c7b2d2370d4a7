#include "transport/fake.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "tests/transport/testing.h"

namespace ravenstore::transport {
namespace {

using core::ErrorCode;
using core::MiB;
using std::chrono::milliseconds;
using std::chrono::seconds;

class FakeTest : public testing::Test {
 protected:
  void SetUp() override { Begin(1); }
  void TearDown() override { End(); }

  void Begin(uint64_t seed) {
    network_ = std::make_unique<FakeNetwork>(seed);
    for (size_t i = 0; i < 3; ++i) {
      nodes_[i] = network_->Add(kNames[i], &services_[i]);
      services_[i].transport = nodes_[i].get();
    }
  }
  void End() {
    for (auto& node : nodes_) node.reset();
    network_.reset();
  }
  ConnectionId Connect(const std::string& to, core::Tick deadline = core::kNever) {
    return nodes_[0]->Connect(to, to, deadline).value();
  }
  void Call(ConnectionId connection, Outcome* outcome, Request request = {.header = "x"}) {
    request.done = outcome->Keep();
    ASSERT_TRUE(nodes_[0]->Call(connection, std::move(request)).ok());
  }
  void Run(core::Duration duration) { network_->RunUntil(network_->Now() + duration); }

  static constexpr const char* kNames[] = {"a", "b", "c"};
  EchoService services_[3];
  std::unique_ptr<FakeNetwork> network_;
  std::unique_ptr<Transport> nodes_[3];
};

TEST_F(FakeTest, TimeIsTheLinksDelaysAndRate) {
  network_->SetLink("a", "b", {.delay = milliseconds(10), .bytes_per_second = 1e6});
  const ConnectionId connection = Connect("b");
  const Buffer sent(1'000'000);
  Outcome outcome;
  Call(connection, &outcome, {.header = "put", .send = sent});
  // To connect one delay, a hello each way another, the bulk a second, the answer a delay.
  Run(milliseconds(1020));
  EXPECT_FALSE(outcome.completed());
  Run(milliseconds(40));
  EXPECT_TRUE(outcome.ok());
}

TEST_F(FakeTest, AllConnectionsOfANodeShareItsPort) {
  network_->SetPort("a", 1e6);
  const ConnectionId connections[] = {Connect("b"), Connect("c")};
  Run(milliseconds(10));
  const Buffer sent(1'000'000);
  Outcome outcomes[2];
  for (size_t i = 0; i < 2; ++i) {
    Call(connections[i], &outcomes[i], {.header = "put", .send = sent});
  }
  // Two megabytes over one port of a megabyte a second.
  Run(milliseconds(1900));
  EXPECT_FALSE(outcomes[0].completed() && outcomes[1].completed());
  Run(milliseconds(200));
  EXPECT_TRUE(outcomes[0].ok());
  EXPECT_TRUE(outcomes[1].ok());
}

TEST_F(FakeTest, WhatArrivesAndWhatIsSentDoNotWaitForEachOther) {
  network_->SetPort("a", 1e6);
  network_->SetPort("b", 1e6);
  const ConnectionId connection = Connect("b");
  const ConnectionId other = nodes_[1]->Connect("a", "a", core::kNever).value();
  Run(milliseconds(10));
  const Buffer sent(1'000'000);
  Outcome outcomes[2];
  Call(connection, &outcomes[0], {.header = "put", .send = sent});
  Request request{.header = "put", .send = sent, .done = outcomes[1].Keep()};
  ASSERT_TRUE(nodes_[1]->Call(other, std::move(request)).ok());
  Run(milliseconds(1100));
  EXPECT_TRUE(outcomes[0].ok());
  EXPECT_TRUE(outcomes[1].ok());
}

TEST_F(FakeTest, PingsAreCountedAsBareFrames) {
  Connect("b");
  Run(seconds(1));
  EXPECT_EQ(network_->bare_frames(), 0u);
  Run(seconds(100));
  // About every two seconds one of them pings, and the other answers.
  EXPECT_GE(network_->bare_frames(), 90u);
  EXPECT_LE(network_->bare_frames(), 210u);
}

TEST_F(FakeTest, ASilentCutIsReportedWhenTheTimeoutEnds) {
  const ConnectionId connection = Connect("b");
  Run(seconds(1));
  network_->Cut("a", "b");
  Outcome outcome;
  Call(connection, &outcome);
  Run(seconds(6));
  EXPECT_FALSE(outcome.completed());
  Run(seconds(4));
  ASSERT_TRUE(outcome.completed());
  EXPECT_EQ(outcome.error().code, ErrorCode::kUnavailable);
  EXPECT_TRUE(outcome.error().message.starts_with("nothing was heard from the node b for 8000 ms"));
  EXPECT_EQ(services_[1].lost.size(), 1u);
}

TEST_F(FakeTest, WhatWasSentDuringACutArrivesWhenItIsHealed) {
  const ConnectionId connection = Connect("b");
  Run(seconds(1));
  network_->Cut("a", "b");
  Outcome outcome;
  Call(connection, &outcome);
  Run(seconds(5));
  EXPECT_FALSE(outcome.completed());
  network_->Heal("a", "b");
  Run(milliseconds(1));
  EXPECT_TRUE(outcome.ok());
}

TEST_F(FakeTest, AnIdleConnectionLives) {
  Connect("b");
  Run(seconds(3600));
  EXPECT_TRUE(services_[0].lost.empty());
  EXPECT_TRUE(services_[1].lost.empty());
}

TEST_F(FakeTest, ADropIsReportedToBothEndsAndOthersGoOn) {
  const ConnectionId to_b = Connect("b");
  const ConnectionId to_c = Connect("c");
  Run(seconds(1));
  Outcome outcomes[2];
  Call(to_b, &outcomes[0]);
  Call(to_c, &outcomes[1]);
  network_->Drop("a", "b");
  EXPECT_EQ(outcomes[0].error().code, ErrorCode::kUnavailable);
  EXPECT_EQ(services_[0].lost.size(), 1u);
  EXPECT_EQ(services_[1].lost.size(), 1u);
  Run(seconds(1));
  EXPECT_TRUE(outcomes[1].ok());
}

TEST_F(FakeTest, ConnectingToAMissingNodeOrInSilenceFails) {
  const ConnectionId missing = Connect("absent");
  Run(seconds(1));
  EXPECT_EQ(services_[0].lost.at(missing).message, "no node listens at absent");
  network_->Cut("a", "b");
  const ConnectionId silent = Connect("b", network_->Now() + milliseconds(500));
  Run(milliseconds(499));
  EXPECT_FALSE(services_[0].lost.contains(silent));
  Run(milliseconds(1));
  EXPECT_EQ(services_[0].lost.at(silent).code, ErrorCode::kTimedOut);
}

TEST_F(FakeTest, MissingBytesEndTheConnection) {
  const ConnectionId connection = Connect("b");
  Run(seconds(1));
  network_->DamageNext("a", "b", Damage::kMissingBytes);
  const Buffer sent(MiB(2).count());
  Outcome outcome;
  Call(connection, &outcome, {.header = "put", .send = sent});
  Run(seconds(10));
  ASSERT_TRUE(outcome.completed());
  EXPECT_FALSE(outcome.ok());
  EXPECT_EQ(services_[1].lost.begin()->second.code, ErrorCode::kCorrupt);
}

TEST_F(FakeTest, JitterReordersAcrossConnectionsTheSameWayForOneSeed) {
  const auto order = [this](uint64_t seed) {
    End();
    for (EchoService& service : services_) service = EchoService{};
    Begin(seed);
    network_->SetLink("a", "b", {.jitter = milliseconds(10)});
    std::string ends;
    for (char name = 'A'; name <= 'P'; ++name) {
      const auto done = [&ends, name](const core::Result<Response>&) { ends += name; };
      EXPECT_TRUE(nodes_[0]->Call(Connect("b"), {.header = "x", .done = done}).ok());
    }
    Run(seconds(1));
    return ends;
  };
  const std::string first = order(7);
  EXPECT_EQ(first.size(), 16u);
  EXPECT_FALSE(std::ranges::is_sorted(first));
  EXPECT_EQ(order(7), first);
  EXPECT_NE(order(8), first);
}

TEST_F(FakeTest, AnotherVersionIsRefusedInWords) {
  nodes_[1].reset();
  nodes_[1] = network_->Add("b", &services_[1], {}, kProtocolVersion + 1);
  const ConnectionId connection = Connect("b");
  Run(seconds(1));
  const auto& why = services_[0].lost.at(connection);
  EXPECT_EQ(why.code, ErrorCode::kVersionMismatch);
  EXPECT_EQ(why.message,
            "the peer speaks version 3 of the transport protocol, this node version 2");
}

TEST_F(FakeTest, APausedNodeReadsWhatArrivedAndIsNotifiedOfLossesWhenItResumes) {
  const ConnectionId connection = Connect("b");
  const ConnectionId other = Connect("c");
  Run(seconds(1));
  network_->Pause("a");
  network_->Drop("a", "c");
  Outcome outcome;
  Call(connection, &outcome);
  Run(seconds(1));
  EXPECT_FALSE(outcome.completed());
  EXPECT_FALSE(services_[0].lost.contains(other));
  EXPECT_EQ(services_[2].lost.size(), 1u);
  network_->Resume("a");
  Run(seconds(1));
  EXPECT_TRUE(outcome.ok());
  EXPECT_TRUE(services_[0].lost.contains(other));
}

TEST_F(FakeTest, APausedNodeNoticesSilenceOnlyLater) {
  Connect("b");
  Run(seconds(1));
  network_->Pause("b");
  Run(seconds(30));
  EXPECT_EQ(services_[0].lost.size(), 1u);
  EXPECT_TRUE(services_[1].lost.empty());
  network_->Resume("b");
  Run(seconds(1));
  EXPECT_EQ(services_[1].lost.size(), 1u);
}

}  // namespace
}  // namespace ravenstore::transport
