#include "client/ctl/session.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>

#include "tests/client/ctl/scripted_daemon.h"

namespace ravenstore::client::ctl {
namespace {

using core::ErrorCode;
using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr core::Duration kTimeout = seconds(60);

template <typename T>
ErrorCode CodeOf(const core::Result<T>& result) {
  EXPECT_FALSE(result.ok());
  return result.ok() ? ErrorCode{} : result.error().code;
}

TEST(SessionTest, IntroducesItselfAsAToolAndKeepsTheWelcome) {
  proto::Hello heard;
  GoodDaemon good;
  ScriptedDaemon daemon([&](const proto::ClientPacket& question) {
    if (question.has_hello()) heard = question.hello();
    return good(question);
  });
  auto session = Session::Open(daemon.path(), kTimeout);
  ASSERT_TRUE(session.ok()) << core::Describe(session.error());
  EXPECT_EQ(session->welcome().devices_size(), 2);
  EXPECT_TRUE(heard.control_only());
  EXPECT_EQ(heard.protocol_version(), proto::kProtocolVersion);
  auto peer = session->Peer();
  ASSERT_TRUE(peer.ok());
  EXPECT_EQ(peer->pid, getpid());
}

TEST(SessionTest, SaysWhyThereIsNoDaemon) {
  const ipc::ShortDirectory directory;
  EXPECT_EQ(CodeOf(Session::Open(directory / "s", kTimeout)), ErrorCode::kUnavailable);
  EXPECT_EQ(CodeOf(Session::Open(directory / std::string(200, 'x'), kTimeout)),
            ErrorCode::kInvalidArgument);
}

TEST(SessionTest, EveryReasonNotToConnectHasAdvice) {
  // An error for want of permission says itself what lets the caller in.
  for (const ErrorCode code :
       {ErrorCode::kUnavailable, ErrorCode::kTimedOut, ErrorCode::kVersionMismatch}) {
    EXPECT_FALSE(AdviceAbout(code).empty()) << core::Name(code);
  }
}

TEST(SessionTest, RefusesAnotherProtocol) {
  GoodDaemon good;
  good.welcome.set_protocol_version(proto::kProtocolVersion + 1);
  ScriptedDaemon daemon(std::ref(good));
  EXPECT_EQ(CodeOf(Session::Open(daemon.path(), kTimeout)), ErrorCode::kVersionMismatch);
}

TEST(SessionTest, PassesTheDaemonsRefusalOn) {
  ScriptedDaemon daemon([](const proto::ClientPacket& question) {
    return Refuse(question, ErrorCode::kVersionMismatch, "too old");
  });
  const auto session = Session::Open(daemon.path(), kTimeout);
  ASSERT_FALSE(session.ok());
  EXPECT_EQ(session.error().code, ErrorCode::kVersionMismatch);
  EXPECT_NE(session.error().message.find("too old"), std::string::npos);
}

TEST(SessionTest, ARefusalWithAnUnknownCodeIsCorrupt) {
  ScriptedDaemon daemon([](const proto::ClientPacket& question) {
    return Refuse(question, static_cast<ErrorCode>(999), "?");
  });
  EXPECT_EQ(CodeOf(Session::Open(daemon.path(), kTimeout)), ErrorCode::kCorrupt);
}

TEST(SessionTest, GivesUpOnADaemonThatDoesNotAnswer) {
  ScriptedDaemon daemon([](const proto::ClientPacket&) { return Reply{}; });
  EXPECT_EQ(CodeOf(Session::Open(daemon.path(), milliseconds(20))), ErrorCode::kTimedOut);
}

TEST(SessionTest, NoticesAHangUp) {
  ScriptedDaemon daemon([](const proto::ClientPacket&) { return Reply{.hang_up = true}; });
  EXPECT_EQ(CodeOf(Session::Open(daemon.path(), kTimeout)), ErrorCode::kUnavailable);
}

TEST(SessionTest, RefusesNonsense) {
  ScriptedDaemon daemon([](const proto::ClientPacket&) { return Reply{.packets = {"\xff\xff"}}; });
  EXPECT_EQ(CodeOf(Session::Open(daemon.path(), kTimeout)), ErrorCode::kCorrupt);
}

TEST(SessionTest, RefusesAnAnswerToAnotherKindOfQuestion) {
  ScriptedDaemon daemon([](const proto::ClientPacket& question) {
    proto::DaemonPacket answer;
    answer.mutable_stats();
    return Answer(question, std::move(answer));
  });
  EXPECT_EQ(CodeOf(Session::Open(daemon.path(), kTimeout)), ErrorCode::kCorrupt);
}

TEST(SessionTest, PassesOverPacketsThatAnswerNothing) {
  GoodDaemon good;
  ScriptedDaemon daemon([&](const proto::ClientPacket& question) {
    Reply reply = good(question);
    proto::DaemonPacket stray;
    stray.set_request(question.request() + 100);
    stray.mutable_stats();
    reply.packets.insert(reply.packets.begin(), stray.SerializeAsString());
    return reply;
  });
  auto session = Session::Open(daemon.path(), kTimeout);
  ASSERT_TRUE(session.ok());
  auto stats = session->Stats();
  ASSERT_TRUE(stats.ok());
  EXPECT_EQ(stats->gets(), 1000u);
}

TEST(SessionTest, ListsEveryPage) {
  GoodDaemon good;
  ScriptedDaemon daemon(std::ref(good));
  auto session = Session::Open(daemon.path(), kTimeout);
  ASSERT_TRUE(session.ok());
  std::vector<uint64_t> ids;
  ASSERT_TRUE(session
                  ->List(0,
                         [&ids](const proto::TensorInfo& tensor) {
                           ids.push_back(tensor.id());
                           return true;
                         })
                  .ok());
  ASSERT_EQ(ids.size(), 300u);
  for (uint64_t i = 0; i < ids.size(); ++i) EXPECT_EQ(ids[i], i + 1);
  auto clients = session->Clients();
  ASSERT_TRUE(clients.ok());
  ASSERT_EQ(clients->size(), 3u);
  EXPECT_EQ(clients->back().client(), 3u);
}

TEST(SessionTest, StopsListingWhenAskedTo) {
  GoodDaemon good;
  ScriptedDaemon daemon(std::ref(good));
  auto session = Session::Open(daemon.path(), kTimeout);
  ASSERT_TRUE(session.ok());
  int taken = 0;
  ASSERT_TRUE(session->List(0, [&taken](const proto::TensorInfo&) { return ++taken < 5; }).ok());
  EXPECT_EQ(taken, 5);
}

TEST(SessionTest, AListThatDoesNotAdvanceEnds) {
  GoodDaemon good;
  ScriptedDaemon daemon([&](const proto::ClientPacket& question) {
    if (question.has_hello()) return good(question);
    proto::DaemonPacket answer;
    if (question.has_list_tensors()) answer.mutable_tensors()->set_next_cursor(7);
    if (question.has_list_clients()) answer.mutable_clients()->set_next_cursor(7);
    return Answer(question, std::move(answer));
  });
  auto session = Session::Open(daemon.path(), kTimeout);
  ASSERT_TRUE(session.ok());
  const auto all = [](const proto::TensorInfo&) { return true; };
  EXPECT_EQ(CodeOf(session->List(0, all)), ErrorCode::kCorrupt);
  EXPECT_EQ(CodeOf(session->Clients()), ErrorCode::kCorrupt);
}

}  // namespace
}  // namespace ravenstore::client::ctl
