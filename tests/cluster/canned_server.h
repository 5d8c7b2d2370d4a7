// A server of HTTP that says what a test gives it, or no HTTP at all.
#pragma once

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "ipc/unique_fd.h"
#include "tests/transport/proxy.h"

namespace ravenstore::cluster {

// Answers each request to a path with what that is to be, and every other with 404.
class CannedServer {
 public:
  CannedServer() : listener_(transport::LoopbackListener(&address_)) {}

  std::string endpoint() const { return "http://" + address_; }
  void Say(const std::string& path, const std::string& body, const char* status = "200 OK") {
    answers_[path] = "HTTP/1.1 " + std::string(status) +
                     "\r\nContent-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body;
  }
  // Instead of HTTP.
  void SayAlways(std::string bytes) { always_ = std::move(bytes); }
  size_t requests() const { return requests_; }

  // Answers what has come. Does not wait.
  void Step() {
    ipc::UniqueFd from(::accept4(listener_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (from) connections_.push_back({std::move(from), ""});
    for (Connection& connection : connections_) Serve(&connection);
    std::erase_if(connections_, [](const Connection& connection) { return !connection.socket; });
  }

 private:
  struct Connection {
    ipc::UniqueFd socket;
    std::string request;
  };

  void Serve(Connection* connection) {
    char bytes[4096];
    const ssize_t count = ::read(connection->socket.get(), bytes, sizeof(bytes));
    if (count == 0) connection->socket.reset();
    if (count <= 0) return;
    connection->request.append(bytes, static_cast<size_t>(count));
    const std::string& text = connection->request;
    const size_t head = text.find("\r\n\r\n");
    if (head == text.npos && always_.empty()) return;
    size_t length = 0;
    if (const size_t at = text.find("Content-Length: "); at < head) {
      length = static_cast<size_t>(std::stoul(text.substr(at + 16)));
    }
    if (head != text.npos && text.size() < head + 4 + length) return;
    ++requests_;
    const size_t path = text.find(' ') + 1;
    const auto found = answers_.find(text.substr(path, text.find(' ', path) - path));
    static const std::string kNone = "HTTP/1.1 404 Not Found\r\nContent-Length: 6\r\n\r\nno way";
    const std::string& answer = !always_.empty()          ? always_
                                : found == answers_.end() ? kNone
                                                          : found->second;
    EXPECT_EQ(::send(connection->socket.get(), answer.data(), answer.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(answer.size()));
    connection->request.clear();
    if (!always_.empty()) connection->socket.reset();
  }

  std::string address_;
  ipc::UniqueFd listener_;
  std::map<std::string, std::string> answers_;
  std::string always_;
  std::vector<Connection> connections_;
  size_t requests_ = 0;
};

}  // namespace ravenstore::cluster
