// Pages that calls used in place, and that no plan brings: which one comes next.
//
// A page comes where memory is free. It is exchanged for a page on the device if that one has not
// been used for more than twice as long. So a cycle or chance moves few pages, and no two pages are
// exchanged again and again.
//
// Owns: 16 bytes a unit. Units: calls by number. Threads: one at a time. Cost: O(1).
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "core/books/page_books.h"
#include "core/plan/units.h"

namespace ravenstore::elastic {

class RecentUses {
 public:
  // Something lives in the unit from now on.
  void Created(core::plan::Unit unit, int64_t call);
  // `in_place`: the unit is away.
  void Used(core::plan::Unit unit, int64_t call, bool in_place);
  // The unit that comes, or is exchanged for another, if any: it is demanded, or the other one is
  // forced to leave. `call`: the next one. Returns true if the books have changed.
  bool Move(core::PageBooks* books, int64_t call);

 private:
  struct Uses {
    int64_t last = 0;
    int64_t gap = 0;  // between the last two
  };
  int64_t RestOf(core::plan::Unit unit, int64_t call) const;
  std::optional<core::plan::Unit> Next(const core::PageBooks& books, int64_t call);

  std::vector<Uses> uses_;                // by unit
  std::vector<core::plan::Unit> recent_;  // used in place, the last ones
};

}  // namespace ravenstore::elastic
