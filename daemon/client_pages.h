// The pages of one client on one device: what the executor (core/execution/page_executor.h) begins
// is done here with the device, the pools for copies, and memory that is shared with the client:
// physical pages by ClientMemory, copies by PageCopies.
//
// Owns: both. The executor is the owner's. Units: bytes. Threads: the planner loop. Errors: a copy
// that fails is reported as such. Cost: that of the parts.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "core/execution/page_backend.h"
#include "core/execution/page_executor.h"
#include "core/types.h"
#include "daemon/attachment.h"
#include "daemon/client_memory.h"
#include "daemon/mailbox.h"
#include "daemon/map_orders.h"
#include "daemon/move_checks.h"
#include "daemon/page_copies.h"
#include "daemon/page_pool.h"
#include "daemon/tensor_move.h"
#include "daemon/threads.h"
#include "device/device.h"

namespace ravenstore::daemon {

class ClientPages final : public core::PageBackend {
 public:
  // What belongs to a client's lease words, and what is done for all its devices.
  class Owner : public ClientMemory::Owner, public PageCopies::Owner {
   public:
    // As in PageBackend.
    virtual bool Revoke(ClientPages* pages, core::TensorNumber tensor) = 0;
    virtual void Publish(ClientPages* pages, core::TensorNumber tensor) = 0;
    virtual void Grant(ClientPages* pages, core::TensorNumber tensor) = 0;
    virtual void Refuse(ClientPages* pages, core::TensorNumber tensor) = 0;
    virtual bool GrantEarly(ClientPages* pages, core::TensorNumber tensor) = 0;
    virtual void Arrived(ClientPages* pages, core::TensorNumber tensor) = 0;
    virtual void Break(ClientPages* pages, core::TensorNumber tensor) = 0;
  };
  struct Options {
    core::DeviceId device{};
    core::Bytes arena;  // the client's, both halves
    core::Bytes page;
    // Each copy's bytes are compared at its end; where they differ it has failed. Null: they are
    // not. REQUIRES: the host backend, whose memory the CPU reads.
    MoveChecks* checks = nullptr;
  };

  // `pools`: by the executor's numbers; `host`: of the host pool. All that is pointed to outlives
  // this, and no worker runs any more when it ends.
  ClientPages(const Options& options, std::shared_ptr<Attachment> attachment,
              std::shared_ptr<device::Device> device, std::vector<PagePool*> pools,
              core::plan::PoolNumber host, MapOrders* maps, WorkerPool* workers, Mailbox* mailbox,
              Owner* owner);

  // REQUIRES: before anything else. It outlives this.
  void SetExecutor(const core::PageExecutor* executor);
  core::DeviceId device() const { return memory_.device(); }
  core::Bytes page() const { return memory_.page(); }
  // The executor's number of the host pool.
  core::plan::PoolNumber host() const { return copies_.options().host; }

  // Where the tensor is in the client's arena. REQUIRES: it is placed; in a slot, it is resident.
  core::Bytes AddressOf(core::TensorNumber tensor) const { return memory_.AddressOf(tensor); }

  // Where its pages are in the daemon's arena, in their order. REQUIRES: it is resident.
  std::vector<core::Bytes> PagesOf(core::TensorNumber tensor) const {
    return memory_.PagesOf(tensor);
  }

  // Physical pages that are made, spares included, without those that are being destroyed; and
  // those with the ones that are being made.
  uint32_t made() const { return memory_.made(); }
  uint32_t held() const { return memory_.held(); }

  // Why the last page could not be made, unless the device had no memory for it.
  const std::optional<core::Error>& failure() const { return memory_.failure(); }

  // Where the unit's copy begins in its pool; 0 if it has none yet.
  core::Bytes CopyOffset(core::plan::Unit unit) const;
  // Copies in closed chunks of the pool move on to the host pool, or are dropped. Returns true if
  // some have to be looked at again.
  bool DrainPool(core::plan::PoolNumber pool) { return copies_.DrainPool(pool); }
  // The units whose copies in the pool are in lost chunks. Copies from there and to there that are
  // under way fail.
  std::vector<core::plan::Unit> LoseCopies(core::plan::PoolNumber pool) {
    return copies_.Lose(pool);
  }

  // The client's mapper has done an instruction for this device.
  void Ended(const MapOrders::Ended& ended) { memory_.Ended(ended); }

  // The client is gone: nothing of it is used any more. The owner keeps this until IsQuiet(). To be
  // called before the executor is retired.
  void Retire() { memory_.Retire(); }
  // No copy, no mapping and no work of a worker is under way.
  bool IsQuiet() const { return memory_.IsQuiet() && copies_.IsQuiet(); }

  void Retry() { memory_.Retry(); }

  // As StartMove of daemon/tensor_move.h.
  bool StartMove(core::TensorNumber tensor, ClientPages* to, const DeviceLink& link,
                 TransferLane::Done done) {
    return daemon::StartMove(tensor, Side(), to->Side(), link, std::move(done));
  }

  // ---- PageBackend.
  bool Revoke(core::TensorNumber tensor, uint32_t /*uses*/) override {
    return owner_->Revoke(this, tensor);
  }
  void Publish(core::TensorNumber tensor) override { owner_->Publish(this, tensor); }
  void Grant(core::TensorNumber tensor) override { owner_->Grant(this, tensor); }
  void Refuse(core::TensorNumber tensor) override { owner_->Refuse(this, tensor); }
  bool GrantEarly(core::TensorNumber tensor) override { return owner_->GrantEarly(this, tensor); }
  void Arrived(core::TensorNumber tensor) override { owner_->Arrived(this, tensor); }
  void Break(core::TensorNumber tensor) override { owner_->Break(this, tensor); }
  bool Map(const MapOrder& order) override { return memory_.Map(order); }
  void Unmap(core::plan::PhysicalPage page) override { memory_.Unmap(page); }
  uint32_t MapsMost() const override;
  void Release(const core::plan::PageSupply::Released& page) override { memory_.Release(page); }
  void CopyIn(const CopyOrder& order) override { copies_.CopyIn(order); }
  void CopyOut(const CopyOrder& order) override { copies_.CopyOut(order); }
  void FreeCopy(core::plan::Unit unit, core::plan::PoolNumber pool) override {
    copies_.Free(unit, pool);
  }
  void MoveSlot(const core::PageMemory::SlotMove& move, core::Bytes bytes) override;
  bool MoveCopy(const CopyMove& move) override { return copies_.MoveToSlot(move); }
  bool CanCopyIn(core::plan::PoolNumber pool, bool demanded) const override {
    return copies_.CanCopyIn(pool, demanded);
  }
  bool CanCopyOut(core::plan::PoolNumber pool) const override { return copies_.CanCopyOut(pool); }

 private:
  MoveSide Side() { return {executor_, &memory_, &copies_}; }

  const std::shared_ptr<device::Device> device_;
  Owner* const owner_;
  const core::PageExecutor* executor_ = nullptr;
  ClientMemory memory_;
  PageCopies copies_;
  device::Word moved_{0};
  uint64_t moves_ = 0;
  std::unique_ptr<device::Channel> mover_;  // of slots on the device; made for the first
};

}  // namespace ravenstore::daemon
