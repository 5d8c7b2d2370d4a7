#include "core/plan/slot_pages.h"

#include <algorithm>
#include <iterator>

#include "core/check.h"

namespace ravenstore::core::plan {

void SlotPages::Index(uint32_t page, bool insert) {
  const Page& of = pages_[page];
  const auto used = static_cast<uint32_t>(of.slots.size());
  if (used >= of.slots_per_page) return;
  auto& with_room = classes_[of.slots_per_page].with_room;
  if (insert) {
    with_room.emplace(used, page);
  } else {
    with_room.erase({used, page});
  }
}

void SlotPages::Add(Unit slot, uint32_t page) {
  Index(page, false);
  Page& of = pages_[page];
  const uint32_t index = of.free.empty() ? of.end++ : of.free.back();
  if (!of.free.empty()) of.free.pop_back();
  of.slots.emplace(slot, index);
  Index(page, true);
  ++classes_[pages_[page].slots_per_page].slots;
  RAVEN_CHECK(page_of_.emplace(slot, page).second);
}

bool SlotPages::HasRoom(uint32_t slots_per_page) const {
  const auto found = classes_.find(slots_per_page);
  return found != classes_.end() && !found->second.with_room.empty();
}

void SlotPages::Join(Unit slot, uint32_t slots_per_page) {
  RAVEN_CHECK(HasRoom(slots_per_page));
  Add(slot, classes_[slots_per_page].with_room.rbegin()->second);
}

uint32_t SlotPages::JoinEmpty(Unit slot, uint32_t slots_per_page) {
  if (unused_.empty()) {
    unused_.insert(static_cast<uint32_t>(pages_.size()));
    pages_.emplace_back();
  }
  const uint32_t page = *unused_.begin();
  unused_.erase(unused_.begin());
  pages_[page] = Page{slots_per_page, {}, {}, 0};
  ++classes_[slots_per_page].pages;
  ++pages_in_use_;
  Add(slot, page);
  return page;
}

SlotPlace SlotPages::PlaceOf(Unit slot) const {
  const uint32_t page = page_of_.at(slot);
  return {page, pages_[page].slots.at(slot)};
}

bool SlotPages::Leave(Unit slot) {
  const auto found = page_of_.find(slot);
  RAVEN_CHECK(found != page_of_.end());
  const uint32_t page = found->second;
  page_of_.erase(found);
  Index(page, false);
  Page& of = pages_[page];
  const auto slot_of = of.slots.find(slot);
  of.free.push_back(slot_of->second);
  of.slots.erase(slot_of);
  Class& its_class = classes_[of.slots_per_page];
  --its_class.slots;
  if (!of.slots.empty()) {
    Index(page, true);
    return false;
  }
  --its_class.pages;
  --pages_in_use_;
  unused_.insert(page);
  return true;
}

uint32_t SlotPages::SparePages() const {
  uint32_t pages = 0;
  for (const auto& [slots_per_page, of] : classes_)
    pages += (of.pages * slots_per_page - of.slots) / slots_per_page;
  return pages;
}

std::vector<Unit> SlotPages::FindSparse(const std::function<bool(Unit)>& may_move) const {
  for (const auto& [slots_per_page, its_class] : classes_) {
    if (its_class.pages < 2 || its_class.slots > (its_class.pages - 1) * slots_per_page) continue;
    for (const auto& [used, page] : its_class.with_room) {
      const auto& slots = pages_[page].slots;
      const auto moves = [&](const auto& slot) { return may_move(slot.first); };
      if (!std::all_of(slots.begin(), slots.end(), moves)) continue;
      std::vector<Unit> found;
      for (const auto& [slot, index] : slots) found.push_back(slot);
      return found;
    }
  }
  return {};
}

void SlotPages::Empty(const std::vector<Unit>& slots) {
  RAVEN_CHECK(!slots.empty());
  const uint32_t page = page_of_.at(slots.front());
  const uint32_t slots_per_page = pages_[page].slots_per_page;
  for (const Unit slot : slots) {
    Leave(slot);
    // Not back onto the page that empties: the fullest other one.
    const auto& with_room = classes_[slots_per_page].with_room;
    auto to = with_room.rbegin();
    if (to != with_room.rend() && to->second == page) ++to;
    RAVEN_CHECK(to != with_room.rend());
    Add(slot, to->second);
  }
}

}  // namespace ravenstore::core::plan
