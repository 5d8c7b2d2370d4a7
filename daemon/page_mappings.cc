#include "daemon/page_mappings.h"

namespace ravenstore::daemon {

using core::Bytes;
using core::plan::PhysicalPage;
using core::plan::Unit;
using proto::MapOp;

const PageMappings::Physical* PageMappings::Find(PhysicalPage page) const {
  const auto found = physical_.find(page);
  return found == physical_.end() ? nullptr : &found->second;
}

Bytes PageMappings::AddressOf(Unit unit, const Physical& physical) const {
  if (!core::plan::IsSlot(unit)) return arena_.page * (unit / 2);
  return Bytes(arena_.bytes.count() / 2) + arena_.page * physical.index;
}

void PageMappings::Add(PhysicalPage page, const Physical& physical) {
  physical_[page] = physical;
  by_memory_[physical.memory] = page;
}

PageMappings::Physical PageMappings::Remove(PhysicalPage page) {
  const Physical physical = physical_.extract(page).mapped();
  by_memory_.erase(physical.memory);
  return physical;
}

void PageMappings::Map(PhysicalPage page, Unit unit) {
  Physical& physical = physical_.at(page);
  QueueUnmap(&physical);
  const Bytes address = AddressOf(unit, physical);
  // A page that has left may be mapped there still.
  if (const auto stale = at_.find(address); stale != at_.end())
    QueueUnmap(&physical_.at(stale->second));
  mapping_[page] = unit;
  physical.mapped = address;
  at_[address] = page;
  maps_->Map(arena_.device, physical.memory, address, arena_.page);
}

bool PageMappings::QueueUnmap(Physical* physical) {
  if (!physical->mapped) return false;
  maps_->Unmap(arena_.device, physical->memory, *physical->mapped);
  at_.erase(*std::exchange(physical->mapped, std::nullopt));
  return true;
}

bool PageMappings::Unmap(PhysicalPage page) {
  if (!QueueUnmap(&physical_.at(page))) return false;
  unmapping_ = page;
  return true;
}

void PageMappings::Release(Physical physical) {
  QueueUnmap(&physical);
  maps_->Release(arena_.device, physical.memory);
  releasing_[physical.memory] = physical.index;
}

PageMappings::Ended PageMappings::End(const MapOrders::Ended& ended) {
  // Until the client has released the memory, it must not count as free.
  if (ended.op == MapOp::kRelease && ended.ok) {
    const auto index = releasing_.extract(ended.memory);
    return index ? Ended{.released = index.mapped()} : Ended{};
  }
  const auto found = by_memory_.find(ended.memory);
  if (found == by_memory_.end()) return {};
  if (ended.op == MapOp::kMap) {
    const auto mapping = mapping_.extract(found->second);
    if (mapping) return {.mapped = mapping.mapped()};
  } else if (ended.op == MapOp::kUnmap && unmapping_ == found->second) {
    return {.unmapped = EndUnmap()};
  }
  return {};
}

}  // namespace ravenstore::daemon
