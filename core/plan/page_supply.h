// The physical pages that are free, and where one comes from: the order is never used, unmapped,
// stale, empty.
//
// A page that is never used is mapped where it is needed first. A stale page is still mapped where
// a page has left; it is unmapped when its address or its physical memory is needed. An empty page
// held slots, and is mapped for them still.
//
// Owns: the lists. Units: pages. Threads: one at a time. Cost: O(1).
#pragma once

#include <cstdint>
#include <deque>
#include <optional>

#include "core/check.h"

namespace ravenstore::core::plan {

// The number of a physical page among those that the client may hold.
using PhysicalPage = uint32_t;

class PageSupply {
 public:
  enum class Source : uint8_t { kNeverUsed, kUnmapped, kStale, kEmpty };
  // Calls of the driver that bring a page to its place.
  struct Steps {
    bool unmap = false;
    bool map = false;
  };

  // The first of the order; an empty one first if it is for slots. nullopt: there is none.
  std::optional<Source> Find(bool for_slots) const {
    if (for_slots && !empty_.empty()) return Source::kEmpty;
    if (next_ < end_) return Source::kNeverUsed;
    if (!unmapped_.empty()) return Source::kUnmapped;
    if (!stale_.empty()) return Source::kStale;
    if (!empty_.empty()) return Source::kEmpty;
    return std::nullopt;
  }
  // REQUIRES: Find(for_slots) == source.
  PhysicalPage Take(Source source) {
    switch (source) {
      case Source::kNeverUsed: return next_++;
      case Source::kUnmapped: return First(&unmapped_);
      case Source::kStale: return First(&stale_);
      case Source::kEmpty: break;
    }
    return First(&empty_);
  }
  static Steps StepsOf(Source source, bool for_slots) {
    switch (source) {
      case Source::kNeverUsed: return {};
      case Source::kUnmapped: return {.map = true};
      case Source::kStale: return {.unmap = true, .map = true};
      case Source::kEmpty: return for_slots ? Steps{} : Steps{.unmap = true, .map = true};
    }
    return {};
  }

  void AddUnmapped(PhysicalPage page) { unmapped_.push_back(page); }
  void AddStale(PhysicalPage page) { stale_.push_back(page); }
  void AddEmpty(PhysicalPage page) { empty_.push_back(page); }
  bool HasStale() const { return !stale_.empty(); }
  // A stale page is unmapped ahead of its next use. REQUIRES for StartUnmap: HasStale().
  PhysicalPage StartUnmap() {
    ++unmapping_;
    return First(&stale_);
  }
  void FinishUnmap(PhysicalPage page) {
    RAVEN_CHECK(unmapping_ > 0);
    --unmapping_;
    AddUnmapped(page);
  }
  // More pages of the client's: never used. Their numbers follow those that there are.
  void Add(uint32_t pages) { end_ += pages; }
  // A page that the client releases, and whether it is still mapped.
  struct Released {
    PhysicalPage page = 0;
    bool mapped = false;
  };
  // Takes one that is not mapped, if there is one; nullopt: no page is free.
  std::optional<Released> Release() {
    const auto source = Find(false);
    if (!source) return std::nullopt;
    return Released{Take(*source), *source == Source::kStale || *source == Source::kEmpty};
  }
  // Pages that were never mapped.
  uint32_t never_used() const { return end_ - next_; }
  // Of free pages, those on their way from stale to unmapped included.
  uint32_t total() const {
    return never_used() + unmapping_ +
           static_cast<uint32_t>(unmapped_.size() + stale_.size() + empty_.size());
  }

 private:
  static PhysicalPage First(std::deque<PhysicalPage>* pages) {
    RAVEN_CHECK(!pages->empty());
    const PhysicalPage page = pages->front();
    pages->pop_front();
    return page;
  }

  uint32_t next_ = 0;  // never used: [next_, end_)
  uint32_t end_ = 0;
  std::deque<PhysicalPage> unmapped_;
  std::deque<PhysicalPage> stale_;
  std::deque<PhysicalPage> empty_;
  uint32_t unmapping_ = 0;
};

}  // namespace ravenstore::core::plan
