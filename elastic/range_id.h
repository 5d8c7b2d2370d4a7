// The number of a range, or of a segment's page.
#pragma once

#include <cstdint>

namespace ravenstore::elastic {

enum class RangeId : uint32_t {};

}  // namespace ravenstore::elastic
