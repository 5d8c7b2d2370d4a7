#include "transport/address.h"

#include <netdb.h>
#include <netinet/in.h>

#include <algorithm>
#include <charconv>
#include <cstring>

namespace ravenstore::transport {

core::Result<Address> ParseAddress(std::string_view text) {
  const size_t colon = text.rfind(':');
  std::string host(text.substr(0, std::min(colon, text.size())));
  const std::string port(colon == text.npos ? "" : text.substr(colon + 1));
  // getaddrinfo takes larger numbers, modulo 65,536.
  uint16_t number = 0;
  const auto [end, error] = std::from_chars(port.data(), port.data() + port.size(), number);
  const bool is_number = error != std::errc::invalid_argument && end == port.data() + port.size();
  if (is_number && error == std::errc::result_out_of_range) {
    return core::Error{core::ErrorCode::kInvalidArgument,
                       "\"" + std::string(text) + "\" has no port between 0 and 65535"};
  }
  if (host.starts_with('[') && host.ends_with(']')) host = host.substr(1, host.size() - 2);
  addrinfo hints{};
  hints.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (host.empty() || !is_number ||
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

core::Result<Address> ParseOwnAddress(std::string_view text) {
  RAVEN_ASSIGN_OR_RETURN(const Address address, ParseAddress(text));
  const bool is_any =
      address.get()->sa_family == AF_INET6
          ? IN6_IS_ADDR_UNSPECIFIED(
                &reinterpret_cast<const sockaddr_in6*>(address.get())->sin6_addr)
          : reinterpret_cast<const sockaddr_in*>(address.get())->sin_addr.s_addr == INADDR_ANY;
  if (is_any) {
    return core::Error{core::ErrorCode::kInvalidArgument,
                       "\"" + std::string(text) +
                           "\" is no address at which other nodes reach this one: name that of one "
                           "of its network interfaces"};
  }
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
