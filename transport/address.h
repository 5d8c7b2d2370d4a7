// Where a node is reached: a numeric address and a port, "127.0.0.1:7000" or "[::1]:7000". Names
// would have to be looked up, which takes as long as it takes.
#pragma once

#include <sys/socket.h>

#include <string>
#include <string_view>

#include "core/result.h"

namespace ravenstore::transport {

struct Address {
  sockaddr_storage bytes{};
  socklen_t length = 0;
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&bytes); }
};

// Errors: kInvalidArgument.
core::Result<Address> ParseAddress(std::string_view text);

// As ParseAddress, of an address that this node listens at and names to others. Errors:
// kInvalidArgument, also for 0.0.0.0 and [::], at which no other node reaches this one.
core::Result<Address> ParseOwnAddress(std::string_view text);

// As ParseAddress reads it.
std::string FormatAddress(const Address& address);

}  // namespace ravenstore::transport
