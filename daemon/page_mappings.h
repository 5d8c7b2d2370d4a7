// The addresses at which a client has its physical pages of one device mapped, and the instructions
// that its mapper has not executed.
//
// The client's arena has two halves of equal size. A page of its range is at its number times the
// page size. A page of slots is in the second half, at the index that it has in the daemon's arena.
//
// A page may stay mapped after its unit has left. It is unmapped when another page is mapped at its
// address.
//
// Owns: the bookkeeping. Units: bytes. Threads: the planner loop. Errors: none. Cost: O(log pages)
// a call.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <utility>

#include "core/plan/page_supply.h"
#include "core/plan/units.h"
#include "core/types.h"
#include "daemon/map_orders.h"
#include "daemon/physical_pages.h"

namespace ravenstore::daemon {

class PageMappings {
 public:
  struct Physical {
    uint32_t index = 0;                   // in the arenas
    uint32_t memory = 0;                  // the number that the client knows it by
    std::optional<core::Bytes> mapped{};  // in the client's arena
  };
  // The end of an instruction. It is empty for one whose end changes nothing.
  struct Ended {
    std::optional<core::plan::Unit> mapped{};
    std::optional<core::plan::PhysicalPage> unmapped{};
    std::optional<uint32_t> released{};  // the page's index
  };

  // `maps` outlives this.
  PageMappings(const PhysicalPages::Arena& arena, MapOrders* maps) : arena_(arena), maps_(maps) {}

  // Null: the page is not made.
  const Physical* Find(core::plan::PhysicalPage page) const;
  size_t pages() const { return physical_.size(); }
  // The unit's address in the client's arena. REQUIRES: a unit of slots is on that page.
  core::Bytes AddressOf(core::plan::Unit unit, const Physical& physical) const;

  // `physical` is that page from now on. REQUIRES: the client imports it.
  void Add(core::plan::PhysicalPage page, const Physical& physical);
  Physical Remove(core::plan::PhysicalPage page);

  // ---- Instructions, which MapOrders::Send() sends.
  // Maps the page where the unit is, and unmaps it elsewhere.
  void Map(core::plan::PhysicalPage page, core::plan::Unit unit);
  // Returns false if it is mapped nowhere. REQUIRES: no other page is being unmapped so.
  bool Unmap(core::plan::PhysicalPage page);
  // Unmaps and releases the memory. REQUIRES: it is no page's any more.
  void Release(Physical physical);
  Ended End(const MapOrders::Ended& ended);
  // The client is gone: instructions that it has not executed count as executed.
  std::map<core::plan::PhysicalPage, core::plan::Unit> EndMaps() {
    return std::exchange(mapping_, {});
  }
  std::optional<core::plan::PhysicalPage> EndUnmap() {
    return std::exchange(unmapping_, std::nullopt);
  }
  // By memory, the indexes of pages that it has not released.
  std::map<uint32_t, uint32_t> EndReleases() { return std::exchange(releasing_, {}); }

 private:
  // Returns false if it is mapped nowhere.
  bool QueueUnmap(Physical* physical);

  const PhysicalPages::Arena arena_;
  MapOrders* const maps_;
  std::map<core::plan::PhysicalPage, Physical> physical_;   // those that are made
  std::map<uint32_t, core::plan::PhysicalPage> by_memory_;  // the client's numbers of these
  std::map<core::Bytes, core::plan::PhysicalPage> at_;      // by Physical::mapped
  std::map<uint32_t, uint32_t> releasing_;                  // index by memory
  std::map<core::plan::PhysicalPage, core::plan::Unit> mapping_;
  std::optional<core::plan::PhysicalPage> unmapping_;  // the executor's, one at a time
};

}  // namespace ravenstore::daemon
