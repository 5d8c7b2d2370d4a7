// What the engine of an elastic job shows on its page (proto/elastic_page.h), as it may be sent on.
//
// A stranger's page: it is read with pread, which waits for nobody, and of what stands there all
// counts are bounded and all texts cut and printable.
#pragma once

#include <cstddef>
#include <optional>

#include "core/types.h"
#include "proto/control.pb.h"

namespace ravenstore::daemon {

// The row, without its device's name. nullopt: there is none, or it is being written all the time.
std::optional<proto::ElasticDevice> ReadElasticRow(int page, size_t row, core::Tick now);

}  // namespace ravenstore::daemon
