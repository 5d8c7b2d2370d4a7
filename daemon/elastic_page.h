// What the engine of an elastic job shows on its page (proto/elastic_page.h), as it may be sent on.
//
// The page is untrusted. It is read with pread, which waits for no process. All counts read from it
// are bounded, and all texts cut and printable.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "core/types.h"
#include "proto/control.pb.h"

namespace ravenstore::daemon {

// The row, without its device's name. nullopt: there is none, or it is being written all the time.
std::optional<proto::ElasticDevice> ReadElasticRow(int page, size_t row, core::Tick now);

// The words of a row that every question about jobs needs. They are read once: a row that is being
// written may give words of two writes.
struct ElasticTotals {
  uint64_t enough = 0;
  uint64_t moved_in = 0;
  uint64_t moved_out = 0;
};
// All 0: there is no row. Cost: one read of some words.
ElasticTotals ReadElasticTotals(int page, size_t row);

}  // namespace ravenstore::daemon
