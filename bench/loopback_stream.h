// A TCP connection over the loopback whose reads and writes wait until all is done.
//
// Threads: one a direction. Errors: a connection that breaks ends the program.
#pragma once

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sched.h>
#include <sys/socket.h>

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "core/check.h"
#include "core/result.h"
#include "core/types.h"
#include "ipc/clock.h"
#include "ipc/unique_fd.h"
#include "tests/transport/proxy.h"

namespace ravenstore::bench {

class LoopbackStream {
 public:
  explicit LoopbackStream(ipc::UniqueFd socket) : socket_(std::move(socket)) {
    const int one = 1;
    RAVEN_CHECK(::setsockopt(socket_.get(), IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one)) == 0);
  }

  // Waits until something listens there. Errors: kUnavailable, nothing does until `deadline`.
  static core::Result<LoopbackStream> Connect(const std::string& address, core::Tick deadline) {
    const sockaddr_in at = transport::LoopbackAddress(address);
    for (;;) {
      ipc::UniqueFd socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
      if (::connect(socket.get(), reinterpret_cast<const sockaddr*>(&at), sizeof(at)) == 0)
        return LoopbackStream(std::move(socket));
      if (ipc::Now() >= deadline)
        return core::Error{core::ErrorCode::kUnavailable, "nothing listens at " + address};
      sched_yield();
    }
  }

  void Write(std::span<const std::byte> bytes) const {
    while (!bytes.empty()) {
      const ssize_t count = ::send(socket_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
      RAVEN_CHECK(count > 0);
      bytes = bytes.subspan(static_cast<size_t>(count));
    }
  }
  void Write(std::string_view text) const { Write(std::as_bytes(std::span(text))); }
  void Read(std::span<std::byte> bytes) const {
    while (!bytes.empty()) {
      const ssize_t count = ::recv(socket_.get(), bytes.data(), bytes.size(), 0);
      RAVEN_CHECK(count > 0);
      bytes = bytes.subspan(static_cast<size_t>(count));
    }
  }

 private:
  ipc::UniqueFd socket_;
};

}  // namespace ravenstore::bench
