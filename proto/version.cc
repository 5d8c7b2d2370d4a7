#include "proto/version.h"

namespace ravenstore::proto {

const char kVersion[] = "0.1.0";

}  // namespace ravenstore::proto
