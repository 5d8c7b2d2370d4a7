// The release that daemon, tools and client library belong to.
#pragma once

namespace ravenstore::proto {

// Each binary holds it once, as text.
extern const char kVersion[];

}  // namespace ravenstore::proto
