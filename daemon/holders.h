// The holders of memory, as text for a client that finds no room.
//
// The client's own user sees which of its clients hold what. Of other users it sees the sums alone.
//
// Owns: nothing. Units: bytes. Threads: any. Errors: none. Cost: O(clients log clients).
#pragma once

#include <optional>
#include <span>
#include <string>

#include "core/types.h"

namespace ravenstore::daemon {

struct Holder {
  core::ClientId client{};
  core::TenantId tenant{};
  core::Bytes held;
  std::optional<core::Bytes> in_use{};  // of that; not set: it says nothing here
};

// " client 3 holds 4.0 MiB (2.0 MiB in use); user 1000 holds 8.0 MiB;". Those that hold the most
// come first, at most four clients and four users. `what`: follows the bytes, as " pinned".
std::string DescribeHolders(core::TenantId asker, std::span<const Holder> holders,
                            const std::string& what = "");

}  // namespace ravenstore::daemon
