#include "transport/address.h"

#include <netdb.h>

#include <algorithm>
#include <cstring>

namespace ravenstore::transport {

core::Result<Address> ParseAddress(std::string_view text) {
  const size_t colon = text.rfind(':');
  std::string host(text.substr(0, std::min(colon, text.size())));
  const std::string port(colon == text.npos ? "" : text.substr(colon + 1));
  if (host.starts_with('[') && host.ends_with(']')) host = host.substr(1, host.size() - 2);
  addrinfo hints{};
  hints.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (host.empty() || port.empty() ||
      ::getaddrinfo(host.c_str(), port.c_str(), &hints, &found) != 0) {
    return core::Error{core::ErrorCode::kInvalidArgument,
                       "\"" + std::string(text) + "\" is no numeric address with a port"};
  }
  Address address;
  address.length = found->ai_addrlen;
  std::memcpy(&address.bytes, found->ai_addr, found->ai_addrlen);
  ::freeaddrinfo(found);
  return address;
}

std::string FormatAddress(const Address& address) {
  char host[NI_MAXHOST];
  char port[NI_MAXSERV];
  if (::getnameinfo(address.get(), address.length, host, sizeof(host), port, sizeof(port),
                    NI_NUMERICHOST | NI_NUMERICSERV) != 0) {
    return "?";
  }
  const bool six = address.get()->sa_family == AF_INET6;
  return (six ? "[" + std::string(host) + "]" : std::string(host)) + ":" + port;
}

}  // namespace ravenstore::transport
