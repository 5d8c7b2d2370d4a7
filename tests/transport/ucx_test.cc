#include "transport/ucx.h"

#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "ipc/clock.h"
#include "tests/timing/timing.h"
#include "tests/transport/proxy.h"
#include "tests/transport/testing.h"

namespace ravenstore::transport {
namespace {

using core::ErrorCode;
using std::chrono::milliseconds;
using std::chrono::seconds;

UcxOptions Options(const std::string& node) {
  return {.node = node, .trusted_fabric = true, .transports = "tcp", .devices = "lo"};
}

class UcxTest : public testing::Test {
 protected:
  void SetUp() override {
    if (const auto ucx = LoadUcx(); !ucx.ok()) GTEST_SKIP() << ucx.error().message;
  }

  // Opens the node that is connected to.
  void Serve(UcxOptions options) {
    options.listen = "127.0.0.1:0";
    auto opened = OpenUcx(std::move(options), &service_);
    ASSERT_TRUE(opened.ok()) << Describe(opened.error());
    server_ = *std::move(opened);
    service_.transport = server_.get();
  }
  ConnectionId Join(UcxOptions options, const UcxLibrary& ucx = **LoadUcx()) {
    client_ = OpenUcx(std::move(options), &client_service_, ucx).value();
    client_service_.transport = client_.get();
    return client_->Connect("server", server_->address(), core::kNever).value();
  }
  bool Eventually(const std::function<bool()>& condition) {
    const auto step = [this] {
      if (client_) client_->Poll(core::Tick{});
      server_->Poll(core::Tick{});
    };
    return EventuallyWith(condition, step, kTestPatience);
  }
  core::Error Refused(UcxOptions options) {
    const auto opened = OpenUcx(std::move(options), &service_);
    EXPECT_FALSE(opened.ok());
    return opened.ok() ? core::Error{} : opened.error();
  }

  EchoService service_;
  EchoService client_service_;
  std::unique_ptr<UcxTransport> server_;
  std::unique_ptr<UcxTransport> client_;
};

TEST_F(UcxTest, ItStartsOnATrustedFabricOnly) {
  UcxOptions options = Options("server");
  options.trusted_fabric = false;
  const core::Error why = Refused(options);
  EXPECT_EQ(why.code, ErrorCode::kPermission);
  EXPECT_NE(why.message.find("whoever reaches its port owns the daemon"), std::string::npos);
}

TEST_F(UcxTest, EachTransportAndDeviceMustBeThere) {
  UcxOptions options = Options("server");
  options.transports = "tcp,none_of_that_name";
  core::Error why = Refused(options);
  EXPECT_EQ(why.code, ErrorCode::kUnsupported);
  EXPECT_TRUE(
      why.message.starts_with("UCX has no transport none_of_that_name on the device lo here: "))
      << why.message;
  options = Options("server");
  options.devices = "lo,nothing0";
  why = Refused(options);
  EXPECT_EQ(why.code, ErrorCode::kUnsupported);
  EXPECT_TRUE(why.message.starts_with("UCX has no transport tcp on the device nothing0 here: "))
      << why.message;
  options.devices = "";
  EXPECT_EQ(Refused(options).code, ErrorCode::kInvalidArgument);
}

TEST_F(UcxTest, WhatIsNoAddressOrNameIsRefused) {
  Serve(Options("server"));
  for (const char* address : {"", "host:1", "127.0.0.1", ":1"}) {
    EXPECT_EQ(server_->Connect("a", address, core::kNever).error().code,
              ErrorCode::kInvalidArgument)
        << address;
  }
  EXPECT_EQ(Refused(Options("no name")).code, ErrorCode::kInvalidArgument);
  UcxOptions taken = Options("other");
  taken.listen = server_->address();
  EXPECT_EQ(Refused(taken).code, ErrorCode::kUnavailable);
}

TEST_F(UcxTest, AMissingPeerIsReported) {
  Serve(Options("server"));
  std::string missing;
  LoopbackListener(&missing).reset();
  const auto connection = server_->Connect("a", missing, core::kNever);
  ASSERT_TRUE(connection.ok());
  ASSERT_TRUE(Eventually([&] { return service_.lost.contains(*connection); }));
  EXPECT_TRUE(service_.lost.at(*connection).message.starts_with("the connection broke: "));
}

TEST_F(UcxTest, AnotherVersionIsRefused) {
  Serve(Options("server"));
  UcxOptions options = Options("client");
  options.version = 7;
  Join(std::move(options));
  ASSERT_TRUE(Eventually([&] { return !service_.lost.empty() && !client_service_.lost.empty(); }));
  EXPECT_TRUE(service_.connected.empty());
  EXPECT_TRUE(client_service_.connected.empty());
}

TEST_F(UcxTest, ConnectingHasADeadline) {
  Serve(Options("server"));
  std::string address;
  const auto mute = LoopbackListener(&address);
  const auto connection = server_->Connect("mute", address, ipc::Now() + milliseconds(100));
  ASSERT_TRUE(connection.ok());
  ASSERT_TRUE(Eventually([&] { return service_.lost.contains(*connection); }));
  EXPECT_EQ(service_.lost.at(*connection).code, ErrorCode::kTimedOut);
}

TEST_F(UcxTest, ASilentPeerIsGivenUp) {
  Serve(Options("server"));
  UcxOptions options = Options("client");
  options.patience = {.ping = milliseconds(500), .silence = seconds(1)};
  const ConnectionId connection = Join(std::move(options));
  ASSERT_TRUE(Eventually([&] { return !client_service_.connected.empty(); }));
  while (client_service_.lost.empty()) client_->Poll(ipc::Now() + seconds(10));
  EXPECT_TRUE(client_service_.lost.at(connection)
                  .message.starts_with("nothing was heard from the node server for 1"));
}

TEST_F(UcxTest, ConnectionsBeyondTheBoundAreRefused) {
  UcxOptions options = Options("server");
  options.connections_max = 1;
  Serve(std::move(options));
  const ConnectionId first = Join(Options("client"));
  ASSERT_TRUE(Eventually([&] { return client_service_.connected.contains(first); }));
  const auto second = client_->Connect("server", server_->address(), core::kNever);
  ASSERT_TRUE(second.ok());
  ASSERT_TRUE(Eventually([&] { return client_service_.lost.contains(*second); }));
  EXPECT_EQ(service_.connected.size(), 1u);
  EXPECT_EQ(server_->Connect("a", server_->address(), core::kNever).error().code,
            ErrorCode::kLimit);
}

TEST_F(UcxTest, AnotherThreadWakesAPollThatWaits) {
  Serve(Options("server"));
  std::thread other([&] { server_->Wake(); });
  server_->Poll(ipc::Now() + seconds(3600));
  other.join();
}

// What a peer may send that is not this transport's.
enum class Wrong { kShortHeader, kNumberAhead, kNumberTwice, kConsumedAhead, kRendezvous, kEmpty };

Wrong wrong;

// Sends the header and bytes as `wrong` says, once the hello is out.
ucs_status_ptr_t SendWrong(ucp_ep_h to, unsigned id, const void* header, size_t header_length,
                           const void* bytes, size_t count, const ucp_request_param_t* params) {
  auto* const words = static_cast<uint64_t*>(const_cast<void*>(header));
  ucp_request_param_t sent = *params;
  if (words[0] != 0) {
    switch (wrong) {
      case Wrong::kShortHeader: header_length = 8; break;
      case Wrong::kNumberAhead: words[0] += 100; break;
      case Wrong::kNumberTwice: words[0] = 0; break;
      case Wrong::kConsumedAhead: words[1] += 100; break;
      case Wrong::kRendezvous: sent.flags = UCP_AM_SEND_FLAG_RNDV | UCP_AM_SEND_FLAG_REPLY; break;
      case Wrong::kEmpty: count = 0; break;
    }
  }
  return (*LoadUcx())->ucp_am_send_nbx(to, id, header, header_length, bytes, count, &sent);
}

TEST_F(UcxTest, MessagesThatAreNotTheTransportsEndTheConnection) {
  UcxLibrary library = **LoadUcx();
  library.ucp_am_send_nbx = SendWrong;
  for (const Wrong each : {Wrong::kShortHeader, Wrong::kNumberAhead, Wrong::kNumberTwice,
                           Wrong::kConsumedAhead, Wrong::kRendezvous, Wrong::kEmpty}) {
    wrong = each;
    service_ = {};
    client_service_ = {};
    Serve(Options("server"));
    const ConnectionId connection = Join(Options("client"), library);
    ASSERT_TRUE(Eventually([&] { return client_service_.connected.contains(connection); }));
    const Buffer sent(100'000);
    Outcome outcome;
    ASSERT_TRUE(
        client_->Call(connection, {.header = "x", .send = sent, .done = outcome.Keep()}).ok());
    ASSERT_TRUE(Eventually([&] { return outcome.completed(); })) << static_cast<int>(each);
    EXPECT_FALSE(outcome.ok());
    ASSERT_EQ(service_.lost.size(), 1u);
    EXPECT_EQ(service_.lost.begin()->second.message, "the peer's messages are not this transport's")
        << static_cast<int>(each);
    EXPECT_TRUE(service_.calls.empty());
    client_.reset();
    server_.reset();
  }
}

}  // namespace
}  // namespace ravenstore::transport
