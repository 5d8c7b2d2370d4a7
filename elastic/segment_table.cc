#include "elastic/segment_table.h"

#include <algorithm>

namespace ravenstore::elastic {

using core::Bytes;

void SegmentTable::Reserve(CUdeviceptr begin, Bytes size) {
  auto reservation = std::make_unique<Reservation>();
  reservation->begin = begin;
  reservation->size = size;
  reservations_.emplace(begin, std::move(reservation));
}

SegmentTable::Reservation* SegmentTable::ReservationAt(CUdeviceptr begin, Bytes size) const {
  auto found = reservations_.upper_bound(begin);
  if (found == reservations_.begin()) return nullptr;
  --found;
  const bool within = begin + size.count() <= found->first + found->second->size.count();
  return within ? found->second.get() : nullptr;
}

SegmentTable::Reservation* SegmentTable::ReservationOf(const Pages& pages) const {
  return pages.first < pages.second ? pages_[pages.first]->reservation : nullptr;
}

// One behind the other.
SegmentTable::Pages SegmentTable::Create(Bytes size) {
  live_ += size;
  const auto count = static_cast<uint32_t>(size.RoundUp(part_).count() / part_.count());
  auto& unused = unused_[size];
  if (!unused.empty()) {
    const uint32_t first = unused.back();
    unused.pop_back();
    return {first, first + count};
  }
  const auto first = static_cast<uint32_t>(pages_.size());
  for (Bytes at; at < size; at += part_) {
    pages_.push_back(std::make_unique<Page>());
    pages_.back()->size = std::min(part_, size - at);
    pages_.back()->busy = 1;  // until it is mapped
  }
  return {first, first + count};
}

void SegmentTable::End(const Pages& pages, Bytes size) {
  for (uint32_t page = pages.first; page < pages.second; ++page) pages_[page]->pinned = false;
  unused_[size].push_back(pages.first);
  live_ -= size;
}

std::vector<SegmentTable::Mapping> SegmentTable::MappingsOf(const Pages& pages,
                                                            CUdeviceptr begin) const {
  std::vector<Mapping> mappings;
  for (uint32_t page = pages.first; page < pages.second; ++page) {
    const Bytes at = part_ * (page - pages.first);
    mappings.push_back({begin + at.count(), pages_[page]->part, pages_[page]->is_mapped});
  }
  return mappings;
}

void SegmentTable::Mapped(const Pages& pages, CUdeviceptr begin, Reservation* reservation) {
  for (uint32_t page = pages.first; page < pages.second; ++page) {
    pages_[page]->begin = begin + (part_ * (page - pages.first)).count();
    pages_[page]->reservation = reservation;
    pages_[page]->is_mapped = true;
  }
  Unhold(pages);
}

void SegmentTable::Unmapped(const Pages& pages) {
  --ReservationOf(pages)->segments;
  for (uint32_t page = pages.first; page < pages.second; ++page) {
    pages_[page]->is_mapped = false;
    pages_[page]->reservation = nullptr;
  }
}

void SegmentTable::Hold(const Pages& pages) {
  for (uint32_t page = pages.first; page < pages.second; ++page) ++pages_[page]->busy;
}

void SegmentTable::Unhold(const Pages& pages) {
  for (uint32_t page = pages.first; page < pages.second; ++page) --pages_[page]->busy;
}

void SegmentTable::Pin(const Pages& pages) {
  for (uint32_t page = pages.first; page < pages.second; ++page) pages_[page]->pinned = true;
}

bool SegmentTable::IsMoving(const Pages& pages) const {
  return std::any_of(pages_.begin() + pages.first, pages_.begin() + pages.second,
                     [](const auto& page) { return page->moving; });
}

Bytes SegmentTable::AwayOf(const Pages& pages) const {
  Bytes away;
  for (uint32_t page = pages.first; page < pages.second; ++page)
    away += pages_[page]->away() ? pages_[page]->size : Bytes{0};
  return away;
}

void SegmentTable::SetPart(PageId id, const Parts::There& there) {
  Page& page = At(id);
  page.is_mapped = there.is_mapped;
  if (there.part == page.part) return;
  const auto sum = [&]() -> Bytes& { return page.place == Place::kDevice ? device_ : away_; };
  if (page.part != nullptr) sum() -= page.size;
  page.part = there.part;
  if (page.part != nullptr) page.place = page.part->place;
  if (page.part != nullptr) sum() += page.size;
}

void SegmentTable::BeginMoving(Page* page) {
  page->moving = true;
  if (page->reservation != nullptr) ++page->reservation->moving;
  ++moving_;
}

void SegmentTable::EndMoving(Page* page) {
  page->moving = false;
  if (page->reservation != nullptr) --page->reservation->moving;
  --moving_;
}

bool SegmentTable::CanMove(Page* page) {
  Reservation* with = page->reservation;
  if (with != nullptr && (with->busy > 0 || !streams_.HavePassed(&with->uses))) return false;
  return page->part != nullptr && !page->pinned && page->busy == 0 && !page->moving &&
         streams_.HavePassed(&page->uses);
}

std::optional<PageId> SegmentTable::Next(bool leaves, Bytes room) {
  std::optional<PageId> next;
  for (uint32_t number = 0; number < pages_.size(); ++number) {
    Page& page = *pages_[number];
    if (page.part == nullptr || page.away() == leaves || (!leaves && page.size > room)) continue;
    if (!CanMove(&page)) continue;
    if (next && (page.stamp < At(*next).stamp) != leaves) continue;
    next = PageId{number};
  }
  return next;
}

}  // namespace ravenstore::elastic
