// The physical memory of a client on its device: which page, and which part of it, is beneath each
// unit, and which pages are free.
//
// Owns: the numbers of the pages; the memory itself is the backend's. Units: pages, bytes. Threads:
// one at a time. Cost: O(log slots) a change; Empty() O(slots of a page).
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "core/plan/page_supply.h"
#include "core/plan/slot_pages.h"
#include "core/plan/units.h"
#include "core/types.h"

namespace ravenstore::core {

class PageMemory {
 public:
  // Bytes on the device: a physical page and the offset in it.
  struct Place {
    plan::PhysicalPage page = 0;
    Bytes offset;
  };
  struct Mapping {
    plan::PhysicalPage page = 0;
    plan::PageSupply::Steps steps;
  };
  struct SlotMove {
    plan::Unit slot;
    Place from;
    Place to;
  };

  // `page`: the bytes of one; `pages`: of the client's.
  PageMemory(Bytes page, uint32_t pages);

  // All of the client's, in use or free.
  uint32_t pages() const { return pages_; }
  // Pages that are being made.
  uint32_t expected() const { return expected_; }
  const plan::PageSupply& supply() const { return supply_; }
  const plan::SlotPages& slot_pages() const { return slot_pages_; }
  // Where the unit's bytes are. REQUIRES: it has memory.
  Place Of(plan::Unit unit, uint32_t slots_per_page) const;

  // A page is being made for the client, and is there.
  void Expect() { ++expected_; }
  void Add();
  // Takes a free page from the client; nullopt: none is free.
  std::optional<plan::PageSupply::Released> Release();
  // A page that was released is destroyed. Until then it takes the device's memory.
  void Destroyed() {
    --releasing_;
    ++destroyed_;
  }
  uint32_t releasing() const { return releasing_; }
  uint64_t destroyed() const { return destroyed_; }
  // The unit has a free page. REQUIRES: there is one of this source.
  Mapping Take(plan::Unit unit, uint32_t slots_per_page, plan::PageSupply::Source source);
  // The slot has a part of a page of its class. REQUIRES: slot_pages().HasRoom.
  Mapping Join(plan::Unit slot, uint32_t slots_per_page);
  // The unit has none any more.
  void Leave(plan::Unit unit, uint32_t slots_per_page);
  // A page of slots becomes free: they get other places. REQUIRES: the slots are FindSparse's.
  std::vector<SlotMove> Empty(const std::vector<plan::Unit>& slots, uint32_t slots_per_page);
  // A stale page is unmapped ahead of its next use. REQUIRES for StartUnmap: there is one.
  plan::PhysicalPage StartUnmap() { return supply_.StartUnmap(); }
  void FinishUnmap(plan::PhysicalPage page) { supply_.FinishUnmap(page); }

 private:
  const Bytes page_;
  uint32_t pages_;
  uint32_t expected_ = 0;
  uint32_t releasing_ = 0;
  uint64_t destroyed_ = 0;  // since the beginning
  plan::PageSupply supply_;
  plan::SlotPages slot_pages_;
  std::vector<plan::PhysicalPage> of_page_;   // by unit; of a slot see of_slots_
  std::vector<plan::PhysicalPage> of_slots_;  // by page of slots
};

}  // namespace ravenstore::core
