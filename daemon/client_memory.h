// The device memory of one client on one device: which physical pages it has, and where they are.
//
// Physical pages are made ahead of the first map that needs one: for all calls that wait, and a few
// more (spares). The client imports them meanwhile, so that such a map takes no longer than others.
// A spare is one of the pages that the client may have and has not used. If it may have fewer,
// spares are destroyed where they would be too many. If the device has no memory, making is tried
// again: the call that waits for it has a deadline.
//
// Owns: the physical pages. Units: bytes. Threads: the planner loop. Errors: failure(). Cost: O(log
// pages) a call.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <vector>

#include "core/execution/page_backend.h"
#include "core/execution/page_executor.h"
#include "core/types.h"
#include "daemon/map_orders.h"
#include "daemon/page_mappings.h"
#include "daemon/physical_pages.h"

namespace ravenstore::daemon {

class ClientPages;

class ClientMemory final : private PhysicalPages::Owner {
 public:
  class Owner {
   public:
    virtual ~Owner() = default;
    // For the executor.
    virtual void Mapped(ClientPages* pages, core::plan::Unit unit) = 0;
    virtual void Unmapped(ClientPages* pages, core::plan::PhysicalPage page) = 0;
    // There are instructions for the mapper.
    virtual void MapsQueued(ClientPages* pages) = 0;
    // The executor may have something to do.
    virtual void Progressed(ClientPages* pages) = 0;
    // A physical page that the executor released is destroyed.
    virtual void PageDestroyed(ClientPages* pages) = 0;
    // The device had no memory for a page: Retry() is to be called then.
    virtual void RetryAt(ClientPages* pages, core::Tick at) = 0;
    // The device has room for one more page of the client.
    virtual bool MayMakePage(ClientPages* pages) = 0;
  };

  // `client`: the owner's name of the client on this device. All that is pointed to outlives this.
  ClientMemory(const PhysicalPages::Arena& arena, std::shared_ptr<Attachment> attachment,
               std::shared_ptr<device::Device> device, MapOrders* maps, WorkerPool* workers,
               Mailbox* mailbox, Owner* owner, ClientPages* client);

  // REQUIRES: before anything else. It outlives this.
  void SetExecutor(const core::PageExecutor* executor) { executor_ = executor; }
  core::DeviceId device() const { return arena_.device; }
  core::Bytes page() const { return arena_.page; }

  // As those of ClientPages.
  core::Bytes AddressOf(core::TensorNumber tensor) const;
  uint32_t made() const { return physical_.made(); }
  uint32_t held() const { return made() + physical_.making(); }
  const std::optional<core::Error>& failure() const { return physical_.failure(); }
  void Ended(const MapOrders::Ended& ended);
  void Retry();
  void Retire();
  bool is_retired() const { return retired_; }
  bool IsQuiet() const { return posted_ == 0 && physical_.IsQuiet(); }

  // ---- Addresses in this process. REQUIRES: the place has memory.
  std::byte* base() const { return physical_.base(); }
  // Where the tensor's pages are in the daemon's arena, in their order. REQUIRES: it is resident.
  std::vector<core::Bytes> PagesOf(core::TensorNumber tensor) const;
  // Bytes from the base to the place.
  core::Bytes OffsetOf(const core::PageMemory::Place& place) const;
  std::byte* At(const core::PageMemory::Place& place) const {
    return base() + OffsetOf(place).count();
  }
  // No page is destroyed until each Hold() has had its Unhold().
  void Hold() { physical_.Hold(); }
  void Unhold() { physical_.Unhold(); }

  // ---- As PageBackend's.
  bool Map(const core::PageBackend::MapOrder& order);
  void Unmap(core::plan::PhysicalPage page);
  void Release(const core::plan::PageSupply::Released& page);

 private:
  void Made(uint32_t index, core::Result<ipc::UniqueFd> descriptor) override;
  void Destroyed(bool ok) override;
  // Pages that the client may have and that were never mapped.
  uint32_t NeverMapped() const;
  // Of these, those that are made or in making.
  uint32_t Ahead() const {
    return static_cast<uint32_t>(spares_.size()) + physical_.making() - owed_;
  }
  // That should be.
  uint32_t AheadWanted() const;
  // Begins to make pages until AheadWanted() are made or in making.
  void MakeAhead();
  // The device has no memory for one more.
  void NoteShort();
  void AddSpare(uint32_t index, ipc::UniqueFd descriptor);
  void UseSpare(const core::PageBackend::MapOrder& order);
  void QueueMap(const core::PageBackend::MapOrder& order);

  const PhysicalPages::Arena arena_;
  MapOrders* const maps_;
  Mailbox* const mailbox_;
  Owner* const owner_;
  ClientPages* const client_;
  const core::PageExecutor* executor_ = nullptr;
  PhysicalPages physical_;
  PageMappings mappings_;
  std::deque<PageMappings::Physical> spares_;       // not mapped yet
  std::deque<core::PageBackend::MapOrder> unmade_;  // that wait for a page to be made
  uint32_t owed_ = 0;      // of those in making, pages that the client may not have any more
  bool is_short_ = false;  // the device had no memory for the last one: no spare is made
  bool retries_ = false;   // Retry() is to be called
  bool retired_ = false;
  uint32_t posted_ = 0;  // reports of unmaps, in the mailbox
};

}  // namespace ravenstore::daemon
