#include "client/exporter/http_server.h"

#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "core/check.h"
#include "ipc/clock.h"
#include "transport/address.h"

namespace ravenstore::client::exporter {
namespace {

using core::Error;
using core::ErrorCode;
using core::Result;
using core::Status;
using core::Tick;

// Connections that are accepted before the others are read again.
constexpr int kAcceptsPerPass = 64;

Error SystemError() {
  return {ErrorCode::kSystem, std::strerror(errno)};
}

bool WouldWait() {
  return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR;
}

int MillisecondsUntil(Tick deadline, Tick now) {
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - now).count();
  return static_cast<int>(std::clamp<int64_t>(left, 0, 60'000));
}

uint16_t PortOf(const sockaddr_storage& address) {
  return ntohs(address.ss_family == AF_INET6
                   ? reinterpret_cast<const sockaddr_in6*>(&address)->sin6_port
                   : reinterpret_cast<const sockaddr_in*>(&address)->sin_port);
}

}  // namespace

Result<HttpServer> HttpServer::Listen(const std::string& address, Options options, Answer answer) {
  RAVEN_ASSIGN_OR_RETURN(const transport::Address at, transport::ParseAddress(address));
  ipc::UniqueFd listener(
      ::socket(at.get()->sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  const int on = 1;
  sockaddr_storage bound{};
  socklen_t length = sizeof(bound);
  if (!listener || ::setsockopt(listener.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) != 0 ||
      ::bind(listener.get(), at.get(), at.length) != 0 ||
      ::listen(listener.get(), SOMAXCONN) != 0 ||
      ::getsockname(listener.get(), reinterpret_cast<sockaddr*>(&bound), &length) != 0) {
    return SystemError();
  }
  return HttpServer(std::move(listener), PortOf(bound), options, std::move(answer));
}

Status HttpServer::Run(int stop) {
  while (true) {
    RAVEN_ASSIGN_OR_RETURN(const bool stopped, Pass(stop));
    if (stopped) return core::Ok();
  }
}

Result<bool> HttpServer::Pass(int stop) {
  std::vector<pollfd> polled = {{stop, POLLIN, 0}, {listener_.get(), POLLIN, 0}};
  for (const Connection& one : connections_) {
    const short wanted = one.answer.empty() ? POLLIN : POLLOUT;
    polled.push_back({one.socket.get(), wanted, 0});
  }
  const int wait_ms =
      connections_.empty() ? -1 : MillisecondsUntil(connections_.front().deadline, ipc::Now());
  if (::poll(polled.data(), polled.size(), wait_ms) < 0 && errno != EINTR) return SystemError();
  const Tick now = ipc::Now();
  if (polled[0].revents != 0) return true;
  auto polled_one = polled.begin() + 2;
  for (Connection& one : connections_) {
    if (polled_one++->revents == 0) continue;
    if (one.answer.empty()) {
      Read(&one);
    } else {
      Send(&one);
    }
  }
  if (polled[1].revents != 0) Accept(now);
  AnswerComplete(now);
  connections_.remove_if([&](const Connection& one) { return one.over || one.deadline <= now; });
  return false;
}

void HttpServer::Accept(Tick now) {
  for (int i = 0; i < kAcceptsPerPass; ++i) {
    ipc::UniqueFd socket(
        ::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!socket) {
      // At the limit of descriptors the connection would wait, and poll would return for ever.
      const bool no_descriptor = errno == EMFILE || errno == ENFILE;
      if (no_descriptor && !connections_.empty()) connections_.pop_front();
      return;
    }
    if (connections_.size() >= options_.connections_max) connections_.pop_front();
    connections_.push_back({.socket = std::move(socket),
                            .deadline = now + options_.connection_time,
                            .head = {},
                            .answer = {}});
    Read(&connections_.back());
  }
}

void HttpServer::Read(Connection* connection) {
  char bytes[2048];
  while (connection->head.size() <= options_.head_bytes_max) {
    const ssize_t count = ::recv(connection->socket.get(), bytes, sizeof(bytes), 0);
    if (count <= 0) {
      connection->over = count == 0 || !WouldWait();
      return;
    }
    // The end may lie across two reads.
    const size_t from = connection->head.size() - std::min(connection->head.size(), size_t{3});
    connection->head.append(bytes, static_cast<size_t>(count));
    const size_t end = connection->head.find(kHeadEnd, from);
    if (end == std::string::npos) continue;
    connection->head.resize(end + kHeadEnd.size());
    return;
  }
}

void HttpServer::AnswerComplete(Tick now) {
  std::vector<HttpRequest> requests;
  std::vector<Connection*> asked;
  std::vector<Connection*> answered;
  for (Connection& one : connections_) {
    if (one.over || !one.answer.empty()) continue;
    if (one.head.size() > options_.head_bytes_max) {
      one.answer = HttpAnswer(431, "The request is too long.\n");
    } else if (one.head.ends_with(kHeadEnd)) {
      if (auto request = ParseHttpHead(one.head)) {
        requests.push_back(std::move(*request));
        asked.push_back(&one);
        continue;
      }
      one.answer = HttpAnswer(400, "This is no HTTP request.\n");
    }
    if (!one.answer.empty()) answered.push_back(&one);
  }
  if (!requests.empty()) {
    std::vector<std::string> answers = answer_(requests, now);
    RAVEN_CHECK(answers.size() == requests.size());
    for (size_t i = 0; i < asked.size(); ++i) asked[i]->answer = std::move(answers[i]);
    answered.insert(answered.end(), asked.begin(), asked.end());
  }
  for (Connection* one : answered) Send(one);
}

void HttpServer::Send(Connection* connection) {
  while (connection->sent < connection->answer.size()) {
    const ssize_t count =
        ::send(connection->socket.get(), connection->answer.data() + connection->sent,
               connection->answer.size() - connection->sent, MSG_NOSIGNAL);
    if (count < 0) {
      connection->over = !WouldWait();
      return;
    }
    connection->sent += static_cast<size_t>(count);
  }
  connection->over = true;
}

}  // namespace ravenstore::client::exporter
