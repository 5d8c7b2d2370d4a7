#include "transport/tls_socket.h"

#include <gtest/gtest.h>
#include <sys/socket.h>

#include <csignal>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "ipc/clock.h"
#include "tests/timing/timing.h"
#include "tests/transport/proxy.h"
#include "tests/transport/testing.h"

namespace ravenstore::transport {
namespace {

using core::ErrorCode;
using core::MiB;
using std::chrono::milliseconds;
using std::chrono::seconds;

const NodeKey kKey({1, 2, 3});
constexpr const char* kNotAllowed =
    "the peer does not allow this node's name (its list of nodes lacks it), or has no key";

class TlsSocketTest : public testing::Test {
 protected:
  void SetUp() override { std::signal(SIGPIPE, SIG_IGN); }

  // Opens the node that is connected to.
  void Serve(TlsSocketOptions options) {
    if (options.listen.empty()) options.listen = "127.0.0.1:0";
    auto opened = OpenTlsSocket(std::move(options), &service_);
    ASSERT_TRUE(opened.ok()) << Describe(opened.error());
    server_ = *std::move(opened);
    service_.transport = server_.get();
  }
  ConnectionId Join(TlsSocketOptions options, core::Tick deadline = core::kNever) {
    client_ = OpenTlsSocket(std::move(options), &client_service_).value();
    client_service_.transport = client_.get();
    return client_->Connect("server", server_->address(), deadline).value();
  }
  bool Eventually(const std::function<bool()>& condition) {
    const auto step = [this] {
      if (client_) client_->Poll(core::Tick{});
      server_->Poll(core::Tick{});
    };
    return EventuallyWith(condition, step, kTestPatience);
  }
  // Both ends lose the only connection; their words.
  void ExpectRefusal(const std::string& servers, const std::string& clients) {
    ASSERT_TRUE(Eventually(
        [&] { return !service_.lost.empty() && (!client_ || !client_service_.lost.empty()); }));
    EXPECT_EQ(service_.lost.begin()->second.message, servers);
    if (client_) {
      EXPECT_EQ(client_service_.lost.begin()->second.message, clients);
    }
    EXPECT_TRUE(service_.connected.empty());
    EXPECT_TRUE(client_service_.connected.empty());
  }

  EchoService service_;
  EchoService client_service_;
  std::unique_ptr<TlsSocketTransport> server_;
  std::unique_ptr<TlsSocketTransport> client_;
};

TEST_F(TlsSocketTest, AnotherKeyIsRefused) {
  Serve({.node = "server", .key = kKey});
  Join({.node = "client", .key = NodeKey({9})});
  ExpectRefusal("the peer has another key: both need the same",
                "the peer has another key: both need the same");
}

TEST_F(TlsSocketTest, ANameThatIsNotAllowedIsRefused) {
  Serve({.node = "server", .key = kKey, .nodes = {"one", "other"}});
  Join({.node = "client", .key = kKey});
  ExpectRefusal("the node client is not allowed here", kNotAllowed);
}

TEST_F(TlsSocketTest, ItsOwnNameIsRefused) {
  Serve({.node = "server", .key = kKey});
  Join({.node = "server", .key = kKey});
  ExpectRefusal("the node server is not allowed here", kNotAllowed);
}

TEST_F(TlsSocketTest, AnotherVersionIsRefused) {
  Serve({.node = "server", .key = kKey, .version = 7});
  const ConnectionId connection = Join({.node = "client", .key = kKey});
  ASSERT_TRUE(Eventually([&] { return client_service_.lost.contains(connection); }));
  EXPECT_EQ(client_service_.lost.at(connection).message,
            "the peer speaks version 7 of the transport protocol, this node version 2");
  EXPECT_TRUE(client_service_.connected.empty());
}

TEST_F(TlsSocketTest, PlainTcpIsRefused) {
  Serve({.node = "server", .key = kKey});
  const auto plain = LoopbackConnection(server_->address());
  const std::string words = "GET / HTTP/1.1\r\n\r\n";
  ASSERT_EQ(::send(plain.get(), words.data(), words.size(), 0), static_cast<ssize_t>(words.size()));
  ExpectRefusal("the peer speaks no TLS", "");
}

TEST_F(TlsSocketTest, StrangersThatSayNothingAreFewAndEnd) {
  Serve({.node = "server", .key = kKey, .handshake = milliseconds(200), .handshakes_max = 2});
  std::vector<ipc::UniqueFd> silent;
  for (int i = 0; i < 5; ++i) silent.push_back(LoopbackConnection(server_->address()));
  const core::Tick begin = ipc::Now();
  ASSERT_TRUE(Eventually([&] { return service_.lost.size() == 5; }));
  EXPECT_GE(ipc::Now() - begin, milliseconds(600));  // two, two and one
  for (const auto& [id, why] : service_.lost) {
    EXPECT_EQ(why.message, "the peer did not prove itself in time");
  }
  Join({.node = "client", .key = kKey});
  EXPECT_TRUE(Eventually([&] { return !client_service_.connected.empty(); }));
}

TEST_F(TlsSocketTest, ConnectingHasADeadline) {
  Serve({.node = "server", .key = kKey});
  std::string address;
  const auto mute = LoopbackListener(&address);
  client_ = OpenTlsSocket({.node = "client", .key = kKey}, &client_service_).value();
  const auto connection = client_->Connect("mute", address, ipc::Now() + milliseconds(100));
  ASSERT_TRUE(connection.ok());
  ASSERT_TRUE(Eventually([&] { return client_service_.lost.contains(*connection); }));
  EXPECT_EQ(client_service_.lost.at(*connection).code, ErrorCode::kTimedOut);
}

TEST_F(TlsSocketTest, AMissingPeerIsReportedInWords) {
  Serve({.node = "server", .key = kKey});
  const std::string address = server_->address();
  const auto other = OpenTlsSocket({.node = "other", .key = kKey, .listen = address}, &service_);
  ASSERT_FALSE(other.ok());
  EXPECT_EQ(other.error().code, ErrorCode::kUnavailable);
  server_.reset();
  client_ = OpenTlsSocket({.node = "client", .key = kKey}, &client_service_).value();
  ASSERT_TRUE(client_->Connect("server", address, core::kNever).ok());
  while (client_service_.lost.empty()) client_->Poll(ipc::Now() + seconds(1));
  EXPECT_EQ(client_service_.lost.begin()->second.message,
            "the connection broke: Connection refused");
}

TEST_F(TlsSocketTest, ASilentPeerIsGivenUp) {
  Serve({.node = "server", .key = kKey});
  const Patience patience{.ping = seconds(1), .silence = seconds(2)};
  const ConnectionId connection = Join({.node = "client", .key = kKey, .patience = patience});
  ASSERT_TRUE(Eventually([&] { return !client_service_.connected.empty(); }));
  // The server no longer runs, and its kernel answers.
  while (client_service_.lost.empty()) client_->Poll(ipc::Now() + seconds(10));
  EXPECT_TRUE(client_service_.lost.at(connection)
                  .message.starts_with("nothing was heard from the node server for 2"));
}

TEST_F(TlsSocketTest, APollThatReadWhileItWroteDoesNotWait) {
  Serve({.node = "server", .key = kKey});
  const Patience patience{.ping = seconds(3600), .silence = seconds(7200)};
  const ConnectionId connection = Join({.node = "client", .key = kKey, .patience = patience});
  ASSERT_TRUE(Eventually([&] { return !client_service_.connected.empty(); }));
  Outcome outcomes[2];
  ASSERT_TRUE(client_->Call(connection, {.header = "x", .done = outcomes[0].Keep()}).ok());
  client_->Poll(core::Tick{});
  const auto answered = [&] {
    server_->Poll(core::Tick{});
    return !service_.calls.empty() && service_.calls.begin()->second.ended.has_value();
  };
  while (!answered()) {
  }
  server_->Poll(core::Tick{});  // writes the answer
  ASSERT_TRUE(client_->Call(connection, {.header = "x", .done = outcomes[1].Keep()}).ok());
  TimeLimit limit(seconds(20));
  const core::Tick late = ipc::Now() + std::chrono::hours(1);
  while (!outcomes[0].completed()) client_->Poll(late);
  EXPECT_FALSE(limit.IsOver());
  EXPECT_FALSE(outcomes[1].completed());
  client_->Close(connection);
  EXPECT_TRUE(outcomes[1].completed());
}

TEST_F(TlsSocketTest, AnotherThreadWakesAPollThatWaits) {
  Serve({.node = "server", .key = kKey});
  std::thread other([&] { server_->Wake(); });
  server_->Poll(ipc::Now() + seconds(3600));
  other.join();
}

TEST_F(TlsSocketTest, NodesMeetOverIpv6AsWell) {
  if (!std::filesystem::exists("/proc/net/if_inet6")) GTEST_SKIP() << "this machine has no IPv6";
  TlsSocketOptions options{.node = "server", .key = kKey, .listen = "[::1]:0"};
  if (const auto free = OpenTlsSocket(options, &service_); !free.ok()) {
    GTEST_SKIP() << "the loopback has no IPv6: " << free.error().message;
  }
  Serve(std::move(options));
  EXPECT_TRUE(server_->address().starts_with("[::1]:")) << server_->address();
  const ConnectionId connection = Join({.node = "client", .key = kKey});
  const Buffer sent = Pattern(MiB(1).count(), 1);
  Buffer received(sent.size());
  Outcome outcome;
  ASSERT_TRUE(client_
                  ->Call(connection,
                         {.header = "x", .send = sent, .receive = received, .done = outcome.Keep()})
                  .ok());
  ASSERT_TRUE(Eventually([&] { return outcome.completed(); }));
  ASSERT_TRUE(outcome.ok()) << Describe(outcome.error());
  EXPECT_EQ(received, sent);
}

TEST_F(TlsSocketTest, WhatIsNoAddressOrNameIsRefused) {
  Serve({.node = "server", .key = kKey});
  for (const char* address : {"", "host:1", "127.0.0.1", "127.0.0.1:x", ":1"}) {
    EXPECT_EQ(server_->Connect("a", address, core::kNever).error().code,
              ErrorCode::kInvalidArgument)
        << address;
  }
  EXPECT_EQ(OpenTlsSocket({.node = "no name", .key = kKey}, &service_).error().code,
            ErrorCode::kInvalidArgument);
}

}  // namespace
}  // namespace ravenstore::transport
