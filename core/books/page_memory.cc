#include "core/books/page_memory.h"

namespace ravenstore::core {

using plan::IsSlot;
using plan::PageSupply;
using plan::PhysicalPage;
using plan::Unit;

PageMemory::PageMemory(Bytes page, uint32_t pages) : page_(page), pages_(pages) {
  supply_.Add(pages);
}

PageMemory::Place PageMemory::Of(Unit unit, uint32_t slots_per_page) const {
  if (!IsSlot(unit)) return {of_page_[unit], Bytes{}};
  const plan::SlotPlace place = slot_pages_.PlaceOf(unit);
  const Bytes slot = Bytes(page_.count() / slots_per_page).RoundDown(kExtentAlignment);
  return {of_slots_[place.page], slot * place.index};
}

void PageMemory::Add() {
  if (expected_ > 0) --expected_;
  supply_.Add(1);
  ++pages_;
}

std::optional<PageSupply::Released> PageMemory::Release() {
  const auto released = supply_.Release();
  if (!released) return std::nullopt;
  --pages_;
  ++releasing_;
  return released;
}

PageMemory::Mapping PageMemory::Take(Unit unit, uint32_t slots_per_page,
                                     PageSupply::Source source) {
  const PhysicalPage page = supply_.Take(source);
  std::vector<PhysicalPage>& of = IsSlot(unit) ? of_slots_ : of_page_;
  const uint32_t at = IsSlot(unit) ? slot_pages_.JoinEmpty(unit, slots_per_page) : unit;
  if (at >= of.size()) of.resize(at + 1);
  of[at] = page;
  return {page, PageSupply::StepsOf(source, IsSlot(unit))};
}

PageMemory::Mapping PageMemory::Join(Unit slot, uint32_t slots_per_page) {
  slot_pages_.Join(slot, slots_per_page);
  return {of_slots_[slot_pages_.PlaceOf(slot).page], {}};
}

void PageMemory::Leave(Unit unit, uint32_t slots_per_page) {
  const PhysicalPage page = Of(unit, slots_per_page).page;
  if (!IsSlot(unit)) return supply_.AddStale(page);
  if (slot_pages_.Leave(unit)) supply_.AddEmpty(page);
}

std::vector<PageMemory::SlotMove> PageMemory::Empty(const std::vector<Unit>& slots,
                                                    uint32_t slots_per_page) {
  std::vector<SlotMove> moves;
  for (const Unit slot : slots) moves.push_back({slot, Of(slot, slots_per_page), {}});
  slot_pages_.Empty(slots);
  for (SlotMove& move : moves) move.to = Of(move.slot, slots_per_page);
  supply_.AddEmpty(moves.front().from.page);
  return moves;
}

}  // namespace ravenstore::core
