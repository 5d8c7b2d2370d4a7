// The release that daemon, tools and client library belong to.
#pragma once

namespace ravenstore::proto {

inline constexpr const char* kVersion = "0.1.0";

}  // namespace ravenstore::proto
