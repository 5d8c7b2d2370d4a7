// A TCP proxy in front of a node, which can fall silent or damage what it passes on.
#pragma once

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <memory>
#include <string>
#include <vector>

#include "core/check.h"
#include "ipc/unique_fd.h"

namespace ravenstore::transport {

// REQUIRES: "127.0.0.1:" and a port.
inline sockaddr_in LoopbackAddress(const std::string& address) {
  sockaddr_in at{};
  at.sin_family = AF_INET;
  at.sin_addr.s_addr = ::htonl(INADDR_LOOPBACK);
  at.sin_port = ::htons(static_cast<uint16_t>(std::stoi(address.substr(address.rfind(':') + 1))));
  return at;
}

// A listening socket at a free port of the loopback.
inline ipc::UniqueFd LoopbackListener(std::string* address) {
  ipc::UniqueFd socket(::socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  sockaddr_in at = LoopbackAddress(":0");
  socklen_t length = sizeof(at);
  RAVEN_CHECK(::bind(socket.get(), reinterpret_cast<sockaddr*>(&at), length) == 0);
  RAVEN_CHECK(::listen(socket.get(), 16) == 0);
  RAVEN_CHECK(::getsockname(socket.get(), reinterpret_cast<sockaddr*>(&at), &length) == 0);
  *address = "127.0.0.1:" + std::to_string(::ntohs(at.sin_port));
  return socket;
}

// Free now, and most likely as a process begins that is to listen there.
inline std::string FreeAddress() {
  std::string address;
  const ipc::UniqueFd socket = LoopbackListener(&address);
  return address;
}

// A connected socket that does not block.
inline ipc::UniqueFd LoopbackConnection(const std::string& address) {
  ipc::UniqueFd socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const sockaddr_in at = LoopbackAddress(address);
  RAVEN_CHECK(::connect(socket.get(), reinterpret_cast<const sockaddr*>(&at), sizeof(at)) == 0);
  RAVEN_CHECK(::fcntl(socket.get(), F_SETFL, O_NONBLOCK) == 0);
  return socket;
}

class Proxy {
 public:
  explicit Proxy(std::string to) : to_(std::move(to)), listener_(LoopbackListener(&address_)) {}

  const std::string& address() const { return address_; }
  void Cut() { cut_ = true; }
  // Flips a bit of what the next long run of bytes towards the node has.
  void Damage() { damage_ = true; }

  // Passes on what there is.
  void Step() {
    if (cut_) return;
    ipc::UniqueFd from(::accept4(listener_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (from) pairs_.push_back({std::move(from), LoopbackConnection(to_), {}, {}});
    for (Pair& pair : pairs_) {
      Pass(&pair.from, &pair.to, &pair.forth, damage_);
      Pass(&pair.to, &pair.from, &pair.back, false);
    }
    std::erase_if(pairs_, [](const Pair& pair) { return !pair.from && !pair.to; });
  }

 private:
  static constexpr size_t kMost = 256 << 10;
  static constexpr size_t kLong = 4 << 10;
  struct Pair {
    ipc::UniqueFd from;
    ipc::UniqueFd to;
    std::string forth;  // waits to be written
    std::string back;
  };

  void Pass(ipc::UniqueFd* from, ipc::UniqueFd* to, std::string* waiting, bool damage) {
    bool ended = !*from;
    if (waiting->empty() && *from) {
      waiting->resize(kMost);
      const ssize_t count = ::recv(from->get(), waiting->data(), kMost, 0);
      ended = count == 0 || (count < 0 && errno != EAGAIN);
      waiting->resize(count > 0 ? static_cast<size_t>(count) : 0);
      if (damage && waiting->size() >= kLong) {
        (*waiting)[waiting->size() / 2] ^= 1;
        damage_ = false;
      }
    }
    if (!waiting->empty() && *to) {
      const ssize_t count = ::send(to->get(), waiting->data(), waiting->size(), MSG_NOSIGNAL);
      if (count > 0) waiting->erase(0, static_cast<size_t>(count));
      ended |= count < 0 && errno != EAGAIN;
    }
    if (ended && (waiting->empty() || !*to)) {
      from->reset();
      to->reset();
    }
  }

  const std::string to_;
  std::string address_;
  ipc::UniqueFd listener_;
  bool cut_ = false;
  bool damage_ = false;
  std::vector<Pair> pairs_;
};

}  // namespace ravenstore::transport
