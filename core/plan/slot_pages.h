// Which pages hold slots, of which size class and with which slots.
//
// A slot takes room on the fullest page of its class that has some, so that other pages empty. A
// page changes its class only when it is empty. Where the slots of one page fit on others of the
// class it can be emptied by copies on the device.
//
// Owns: the pages' lists. Units: slots. Threads: one at a time. Cost: O(log pages) a call;
// FindSparse looks at pages from the emptiest on.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "core/plan/units.h"

namespace ravenstore::core::plan {

// Where a slot is: in a page of slots, as its index-th part.
struct SlotPlace {
  uint32_t page = 0;
  uint32_t index = 0;
};

class SlotPages {
 public:
  // A page of the class has room for a slot.
  bool HasRoom(uint32_t slots_per_page) const;
  // Puts the slot on such a page. REQUIRES: HasRoom.
  void Join(Unit slot, uint32_t slots_per_page);
  // Puts the slot on an empty page that becomes one of the class. Returns the page: the least
  // number that is not in use.
  uint32_t JoinEmpty(Unit slot, uint32_t slots_per_page);
  // The slot leaves its page. Returns true if that empties the page, which is then removed.
  bool Leave(Unit slot);

  // The emptiest page of a class whose slots fit on its other pages and may all move; its slots.
  // Empty: there is none.
  std::vector<Unit> FindSparse(const std::function<bool(Unit)>& may_move) const;
  // Moves the slots of one page to other pages of their class; the page is removed.
  // REQUIRES: the slots are FindSparse's.
  void Empty(const std::vector<Unit>& slots);

  // How many pages would be empty if the slots of each class were on as few pages as possible.
  uint32_t SparePages() const;
  uint32_t pages() const { return pages_in_use_; }
  bool Contains(Unit slot) const { return page_of_.count(slot) > 0; }
  // REQUIRES: Contains(slot).
  SlotPlace PlaceOf(Unit slot) const;

 private:
  struct Page {
    uint32_t slots_per_page = 0;
    std::map<Unit, uint32_t> slots;  // their indices
    std::vector<uint32_t> free;      // indices below `end` that no slot has
    uint32_t end = 0;
  };
  struct Class {
    uint32_t slots = 0;  // in use
    uint32_t pages = 0;
    std::set<std::pair<uint32_t, uint32_t>> with_room;  // slots in use, page
  };

  void Index(uint32_t page, bool insert);
  void Add(Unit slot, uint32_t page);

  std::vector<Page> pages_;
  std::set<uint32_t> unused_;  // of pages_
  std::map<uint32_t, Class> classes_;
  std::map<Unit, uint32_t> page_of_;
  uint32_t pages_in_use_ = 0;
};

}  // namespace ravenstore::core::plan
