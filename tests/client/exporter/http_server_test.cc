#include "client/exporter/http_server.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "ipc/unique_fd.h"
#include "transport/address.h"

namespace ravenstore::client::exporter {
namespace {

using testing::EndsWith;
using testing::StartsWith;

constexpr char kScrape[] = "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n";

// A server whose connections have all the time that they want, unless a test says otherwise: a
// slow one that delayed another one would delay it for ever.
class HttpServerTest : public testing::Test {
 protected:
  void Start(HttpServer::Options options) {
    auto server = HttpServer::Listen("127.0.0.1:0", options, [this](const auto& requests, auto) {
      std::vector<std::string> answers;
      for (const HttpRequest& request : requests)
        answers.push_back(HttpAnswer(200, request.path + body_));
      return answers;
    });
    ASSERT_TRUE(server.ok()) << server.error().message;
    server_.emplace(std::move(*server));
    thread_ = std::thread([this] { EXPECT_TRUE(server_->Run(stop_.get()).ok()); });
  }
  void TearDown() override {
    if (!thread_.joinable()) return;
    ::eventfd_write(stop_.get(), 1);
    thread_.join();
  }

  ipc::UniqueFd Connect() {
    const auto at = transport::ParseAddress("127.0.0.1:" + std::to_string(server_->port()));
    ipc::UniqueFd socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    EXPECT_EQ(::connect(socket.get(), at->get(), at->length), 0);
    return socket;
  }
  static void Write(const ipc::UniqueFd& socket, const std::string& bytes) {
    EXPECT_EQ(::send(socket.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(bytes.size()));
  }
  // Until the server ends the connection.
  static std::string ReadAll(const ipc::UniqueFd& socket) {
    std::string all;
    char bytes[4096];
    ssize_t count = 0;
    while ((count = ::recv(socket.get(), bytes, sizeof(bytes), 0)) > 0)
      all.append(bytes, static_cast<size_t>(count));
    return all;
  }
  std::string Scrape() {
    const ipc::UniqueFd socket = Connect();
    Write(socket, kScrape);
    return ReadAll(socket);
  }

  static constexpr core::Duration kForEver = std::chrono::hours(24);
  std::string body_ = " is served\n";
  ipc::UniqueFd stop_{::eventfd(0, EFD_CLOEXEC)};
  std::optional<HttpServer> server_;
  std::thread thread_;
};

TEST_F(HttpServerTest, AnswersARequestThatComesInParts) {
  Start({.connection_time = kForEver});
  const ipc::UniqueFd socket = Connect();
  for (const char letter : std::string(kScrape)) Write(socket, std::string(1, letter));
  EXPECT_THAT(ReadAll(socket),
              AllOf(StartsWith("HTTP/1.1 200 OK"), EndsWith("/metrics is served\n")));
}

TEST_F(HttpServerTest, SlowConnectionsDelayNoScrape) {
  Start({.connection_time = kForEver});
  std::vector<ipc::UniqueFd> slow;
  for (int i = 0; i < 32; ++i) slow.push_back(Connect());
  for (size_t i = 0; i < slow.size(); i += 2) Write(slow[i], "GET /met");
  EXPECT_THAT(Scrape(), EndsWith("/metrics is served\n"));
  // They were not ended for it, either.
  Write(slow[0], "rics HTTP/1.1\r\n\r\n");
  EXPECT_THAT(ReadAll(slow[0]), EndsWith("/metrics is served\n"));
}

TEST_F(HttpServerTest, ANewConnectionEndsTheOldestOfTooMany) {
  Start({.connections_max = 8, .connection_time = kForEver});
  std::vector<ipc::UniqueFd> slow;
  for (int i = 0; i < 200; ++i) slow.push_back(Connect());
  EXPECT_THAT(Scrape(), EndsWith("/metrics is served\n"));
  EXPECT_EQ(ReadAll(slow[0]), "");
}

TEST_F(HttpServerTest, ConnectionsThatDoNotReadTheirAnswerDelayNoScrape) {
  body_.assign(size_t{8} << 20, 'x');
  Start({.connections_max = 8, .connection_time = kForEver});
  std::vector<ipc::UniqueFd> slow;
  for (int i = 0; i < 4; ++i) {
    slow.push_back(Connect());
    Write(slow.back(), kScrape);
  }
  EXPECT_GT(Scrape().size(), body_.size());
  EXPECT_GT(ReadAll(slow[0]).size(), body_.size());
}

TEST_F(HttpServerTest, AConnectionEndsWhenItsTimeIsOver) {
  Start({.connection_time = std::chrono::milliseconds(20)});
  const ipc::UniqueFd idle = Connect();
  EXPECT_EQ(ReadAll(idle), "");
}

TEST_F(HttpServerTest, WhatIsNoRequestOrTooLongIsRefused) {
  Start({.head_bytes_max = 100, .connection_time = kForEver});
  const ipc::UniqueFd nonsense = Connect();
  Write(nonsense, "nonsense\r\n\r\n");
  EXPECT_THAT(ReadAll(nonsense), StartsWith("HTTP/1.1 400 "));
  const ipc::UniqueFd longer = Connect();
  Write(longer, "GET /" + std::string(200, 'x'));
  EXPECT_THAT(ReadAll(longer), StartsWith("HTTP/1.1 431 "));
}

TEST_F(HttpServerTest, APortThatAnotherHasIsAnError) {
  Start({});
  const std::string address = "127.0.0.1:" + std::to_string(server_->port());
  const auto again = HttpServer::Listen(address, {}, nullptr);
  ASSERT_FALSE(again.ok());
  EXPECT_EQ(again.error().code, core::ErrorCode::kSystem);
  EXPECT_EQ(HttpServer::Listen("localhost:1", {}, nullptr).error().code,
            core::ErrorCode::kInvalidArgument);
}

}  // namespace
}  // namespace ravenstore::client::exporter
