#include "transport/transport.h"

#include <algorithm>

namespace ravenstore::transport {

bool IsNodeName(std::string_view name) {
  return !name.empty() && name.size() <= kNodeNameMax && std::ranges::all_of(name, [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' ||
           c == '-' || c == '_';
  });
}

}  // namespace ravenstore::transport
