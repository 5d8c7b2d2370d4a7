// How many physical pages units take: one for each page, and for each size class of slots as many
// as its slots fill.
//
// Owns: the counts. Units: pages. Threads: one at a time. Cost: O(log classes).
#pragma once

#include <cstdint>
#include <map>

#include "core/check.h"

namespace ravenstore::core::plan {

class HeldPages {
 public:
  void Add(uint32_t slots_per_page) {
    if (slots_per_page <= 1 || slots_[slots_per_page]++ % slots_per_page == 0) ++pages_;
  }
  // REQUIRES: such a unit was added.
  void Remove(uint32_t slots_per_page) {
    if (slots_per_page <= 1 || --slots_.at(slots_per_page) % slots_per_page == 0) {
      RAVEN_CHECK(pages_ > 0);
      --pages_;
    }
  }
  uint32_t pages() const { return pages_; }
  // Size classes that slots were ever added of.
  uint32_t classes() const { return static_cast<uint32_t>(slots_.size()); }

 private:
  uint32_t pages_ = 0;
  std::map<uint32_t, uint32_t> slots_;  // by slots per page
};

}  // namespace ravenstore::core::plan
