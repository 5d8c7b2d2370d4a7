#include "daemon/client_memory.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "core/books/page_views.h"
#include "ipc/clock.h"

namespace ravenstore::daemon {

using core::Bytes;
using core::PageBackend;
using core::plan::PhysicalPage;
using core::plan::Unit;

namespace {

// A device without memory is asked again after that time.
constexpr auto kRetry = std::chrono::milliseconds(10);
// A client has one spare for each kPagesPerSpare of its pages, and at most kSparesMost. Fewer
// spares: more creates wait for a page to be made. More: an idle client keeps more memory from
// others.
constexpr uint32_t kPagesPerSpare = 16;
constexpr uint32_t kSparesMost = 4;
// Pages in making at a time: the two that a user's workers make (daemon/threads.h), and the next
// for each. Fewer: a worker waits for the loop. More: other work for the user waits longer.
constexpr uint32_t kMakingMost = 4;

}  // namespace

ClientMemory::ClientMemory(const PhysicalPages::Arena& arena,
                           std::shared_ptr<Attachment> attachment,
                           std::shared_ptr<device::Device> device, MapOrders* maps,
                           WorkerPool* workers, Mailbox* mailbox, Owner* owner, ClientPages* client)
    : arena_(arena),
      maps_(maps),
      mailbox_(mailbox),
      owner_(owner),
      client_(client),
      physical_(arena, std::move(attachment), std::move(device), workers, mailbox, this),
      mappings_(arena, maps) {}

// ---- Addresses.

Bytes ClientMemory::AddressOf(core::TensorNumber tensor) const {
  const core::PageTensors::Row& row = executor_->tensors()[tensor];
  if (!row.units.is_slot()) return mappings_.AddressOf(row.units.first, {}) + row.offset;
  const core::PageMemory::Place place = core::PlaceOf(executor_->books(), row.units.first);
  return mappings_.AddressOf(row.units.first, *mappings_.Find(place.page)) + place.offset;
}

Bytes ClientMemory::OffsetOf(const core::PageMemory::Place& place) const {
  return page() * mappings_.Find(place.page)->index + place.offset;
}

std::vector<Bytes> ClientMemory::PagesOf(core::TensorNumber tensor) const {
  const core::plan::UnitSpan& units = executor_->tensors()[tensor].units;
  std::vector<Bytes> pages;
  for (uint32_t i = 0; i < units.count; ++i) {
    const core::PageMemory::Place place = core::PlaceOf(executor_->books(), units[i]);
    pages.push_back(page() * mappings_.Find(place.page)->index);
  }
  return pages;
}

// ---- The executor's orders.

bool ClientMemory::Map(const PageBackend::MapOrder& order) {
  if (retired_) return true;
  const bool is_made = mappings_.Find(order.page) != nullptr;
  if (is_made && !order.steps.map) return true;
  if (is_made) {
    QueueMap(order);
  } else if (!spares_.empty()) {
    UseSpare(order);
  } else {
    unmade_.push_back(order);
  }
  MakeAhead();
  return false;
}

void ClientMemory::UseSpare(const PageBackend::MapOrder& order) {
  mappings_.Add(order.page, spares_.front());
  spares_.pop_front();
  QueueMap(order);
}

void ClientMemory::QueueMap(const PageBackend::MapOrder& order) {
  mappings_.Map(order.page, order.unit);
  owner_->MapsQueued(client_);
}

void ClientMemory::Unmap(PhysicalPage page) {
  if (!retired_ && mappings_.Unmap(page)) return owner_->MapsQueued(client_);
  ++posted_;
  mailbox_->Post([this, page] {
    --posted_;
    owner_->Unmapped(client_, page);
    owner_->Progressed(client_);
  });
}

void ClientMemory::Release(const core::plan::PageSupply::Released& released) {
  PageMappings::Physical physical;
  if (mappings_.Find(released.page) != nullptr) {
    physical = mappings_.Remove(released.page);
  } else if (Ahead() <= NeverMapped()) {
    return owner_->PageDestroyed(client_);
  } else if (spares_.empty()) {
    ++owed_;
    return;
  } else {
    physical = spares_.back();
    spares_.pop_back();
  }
  if (retired_) return physical_.Destroy(physical.index);
  mappings_.Release(physical);
  owner_->MapsQueued(client_);
}

void ClientMemory::Ended(const MapOrders::Ended& ended) {
  if (retired_) return;
  const PageMappings::Ended of = mappings_.End(ended);
  if (of.mapped) owner_->Mapped(client_, *of.mapped);
  if (of.unmapped) owner_->Unmapped(client_, *of.unmapped);
  if (of.released) physical_.Destroy(*of.released);
}

void ClientMemory::Retire() {
  retired_ = true;
  for (const auto& [page, unit] : mappings_.EndMaps()) owner_->Mapped(client_, unit);
  for (const auto& order : std::exchange(unmade_, {})) owner_->Mapped(client_, order.unit);
  if (const auto page = mappings_.EndUnmap()) owner_->Unmapped(client_, *page);
  for (const auto& [memory, index] : mappings_.EndReleases()) physical_.Destroy(index);
}

// ---- Pages that are made ahead.

uint32_t ClientMemory::NeverMapped() const {
  return executor_->books().memory().supply().never_used() + static_cast<uint32_t>(unmade_.size());
}

uint32_t ClientMemory::AheadWanted() const {
  const Bytes awaited = executor_->books().totals()[core::UnitTotals::Sum::kAwaited];
  const uint64_t spares = std::clamp<uint64_t>(mappings_.pages() / kPagesPerSpare, 1, kSparesMost);
  const uint64_t wanted =
      awaited.RoundUp(page()).count() / page().count() + unmade_.size() + spares;
  return static_cast<uint32_t>(std::min<uint64_t>(wanted, NeverMapped()));
}

void ClientMemory::MakeAhead() {
  while (!retired_ && !retries_ && Ahead() < AheadWanted()) {
    // The first one reserves the arena.
    if (physical_.making() >= (physical_.has_arena() && !is_short_ ? kMakingMost : 1)) return;
    const bool is_needed = !unmade_.empty() && Ahead() == 0;
    if (!is_needed && (is_short_ || !maps_->MayImport(physical_.making()))) return;
    if (owner_->MayMakePage(client_)) {
      physical_.Make();
    } else {
      NoteShort();
    }
  }
}

void ClientMemory::NoteShort() {
  is_short_ = true;
  if (unmade_.empty() || Ahead() > 0) return;
  retries_ = true;
  owner_->RetryAt(client_, ipc::Now() + kRetry);
}

void ClientMemory::Retry() {
  retries_ = false;
  MakeAhead();
}

void ClientMemory::Made(uint32_t index, core::Result<ipc::UniqueFd> descriptor) {
  const bool is_made = descriptor.ok();
  if (is_made) {
    is_short_ = false;
    if (owed_ > 0 && unmade_.empty()) {
      --owed_;
      physical_.Destroy(index);
    } else {
      AddSpare(index, *std::move(descriptor));
    }
  }
  // The page that was to be destroyed is the one that was waited for, or it was not made.
  for (; owed_ > physical_.making(); --owed_) owner_->PageDestroyed(client_);
  if (!is_made) NoteShort();
  MakeAhead();
  owner_->Progressed(client_);
}

void ClientMemory::AddSpare(uint32_t index, ipc::UniqueFd descriptor) {
  spares_.push_back({.index = index});
  if (retired_) return;
  spares_.back().memory = maps_->Import(device(), page(), std::move(descriptor));
  if (unmade_.empty()) return owner_->MapsQueued(client_);
  UseSpare(unmade_.front());
  unmade_.pop_front();
}

void ClientMemory::Destroyed(bool ok) {
  if (ok) owner_->PageDestroyed(client_);
  owner_->Progressed(client_);
}

}  // namespace ravenstore::daemon
