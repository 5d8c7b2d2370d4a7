// Where physical pages come from: the order is never used, unmapped, stale, empty, dead.
//
// A stale page is still mapped where a page has left; it is unmapped when its address or its
// physical memory is needed. An empty page held slots, and is mapped for them still.
//
// Owns: the counts. Units: pages; steps are calls of the driver. Threads: one at a time. Cost:
// O(1).
#pragma once

#include <cstdint>
#include <optional>

#include "core/plan/calls.h"
#include "core/plan/units.h"

namespace ravenstore::core::plan {

struct PageSupply {
  enum class Source : uint8_t { kNeverUsed, kUnmapped, kStale, kEmpty };

  uint32_t never_used = 0;  // mapped where it is needed when it is made
  uint32_t unmapped = 0;
  uint32_t stale = 0;
  uint32_t empty = 0;
  uint32_t unmapping = 0;  // on its way from stale to unmapped

  // The first of the order; an empty one first if it is for slots. nullopt: there is none.
  std::optional<Source> Find(bool for_slots) const {
    if (for_slots && empty > 0) return Source::kEmpty;
    if (never_used > 0) return Source::kNeverUsed;
    if (unmapped > 0) return Source::kUnmapped;
    if (stale > 0) return Source::kStale;
    if (empty > 0) return Source::kEmpty;
    return std::nullopt;
  }
  // REQUIRES: Find(for_slots) == source.
  void Take(Source source) {
    switch (source) {
      case Source::kNeverUsed: --never_used; break;
      case Source::kUnmapped: --unmapped; break;
      case Source::kStale: --stale; break;
      case Source::kEmpty: --empty; break;
    }
  }
  // What mapping the page takes.
  struct Steps {
    bool unmap = false;
    bool map = false;
  };
  static Steps StepsOf(Source source, bool for_slots) {
    switch (source) {
      case Source::kNeverUsed: return {};
      case Source::kUnmapped: return {.map = true};
      case Source::kStale: return {.unmap = true, .map = true};
      case Source::kEmpty: return for_slots ? Steps{} : Steps{.unmap = true, .map = true};
    }
    return {};
  }
  uint32_t total() const { return never_used + unmapped + stale + empty + unmapping; }
};

}  // namespace ravenstore::core::plan
