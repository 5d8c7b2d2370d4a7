// The pages of one client on one device: what the executor (core/execution/page_executor.h) begins
// is done here with the device, the pools for copies, and memory that is shared with the client.
//
// Addresses. The client's arena has two halves of equal size. A page of its range is at its number
// times the page size. The daemon's arena has each physical page at an index, for copies. A page of
// slots is at that index of the second half of the client's.
//
// Physical pages are made on workers, ahead of the first map that needs one: for all calls that
// wait, and a few more (spares). The client imports them meanwhile, so that such a map takes no
// longer than others. A spare is one of the pages that the client may have and has not used. If it
// may have fewer, spares are destroyed where they would be too many. If the device has no memory,
// making is tried again: the call that waits for it has a deadline.
//
// Owns: the physical pages, the pieces of the pools. The executor is the owner's. Units: bytes.
// Threads: the planner loop. Errors: a copy that fails is reported as such.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "core/execution/page_backend.h"
#include "core/execution/page_executor.h"
#include "core/types.h"
#include "daemon/attachment.h"
#include "daemon/mailbox.h"
#include "daemon/map_orders.h"
#include "daemon/move_checks.h"
#include "daemon/page_pool.h"
#include "daemon/threads.h"
#include "device/device.h"

namespace ravenstore::daemon {

class ClientPages final : public core::PageBackend {
 public:
  // What belongs to a client's lease words, and what is done for all its devices.
  class Owner {
   public:
    virtual ~Owner() = default;
    // As in PageBackend.
    virtual bool Revoke(ClientPages* pages, core::TensorNumber tensor) = 0;
    virtual void Publish(ClientPages* pages, core::TensorNumber tensor) = 0;
    virtual void Grant(ClientPages* pages, core::TensorNumber tensor) = 0;
    virtual void Refuse(ClientPages* pages, core::TensorNumber tensor) = 0;
    virtual bool Promise(ClientPages* pages, core::TensorNumber tensor) = 0;
    virtual void Arrived(ClientPages* pages, core::TensorNumber tensor) = 0;
    virtual void Break(ClientPages* pages, core::TensorNumber tensor) = 0;
    // For the executor.
    virtual void Mapped(ClientPages* pages, core::plan::Unit unit) = 0;
    virtual void Unmapped(ClientPages* pages, core::plan::PhysicalPage page) = 0;
    virtual void CopiedIn(ClientPages* pages, core::plan::Unit unit, bool ok) = 0;
    virtual void CopiedOut(ClientPages* pages, core::plan::Unit unit, bool ok) = 0;
    // There are instructions for the mapper.
    virtual void MapsQueued(ClientPages* pages) = 0;
    // The executor may have something to do.
    virtual void Progressed(ClientPages* pages) = 0;
    // A physical page that the executor released is destroyed.
    virtual void PageGone(ClientPages* pages) = 0;
    // The device had no memory for a page: Retry() is to be called then.
    virtual void RetryAt(ClientPages* pages, core::Tick at) = 0;
    // A copy that moved on is in the other pool now.
    virtual void CopyMoved(ClientPages* pages, core::plan::Unit unit,
                           core::plan::PoolNumber pool) = 0;
    // A copy of a resident unit is in memory that is wanted back.
    virtual void DropCopy(ClientPages* pages, core::plan::Unit unit) = 0;
    // The device has room for one more page of the client.
    virtual bool MayMakePage(ClientPages* pages) = 0;
    // The copies in the host pool take more or less than before, or the executor is about to choose
    // one: the room that the client has there is to be set (PageBooks::SetPool).
    virtual void UpdateRoom(ClientPages* pages) = 0;
    // The client has not used the tensor since its last put.
    virtual bool IsUnused(ClientPages* pages, core::TensorNumber tensor) const = 0;
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
  ~ClientPages() override;

  // REQUIRES: before anything else. It outlives this.
  void SetExecutor(const core::PageExecutor* executor) { executor_ = executor; }
  core::DeviceId device() const { return options_.device; }
  core::Bytes page() const { return options_.page; }
  // The executor's number of the host pool.
  core::plan::PoolNumber host() const { return host_; }

  // Where the tensor is in the client's arena. REQUIRES: it is placed; in a slot, it is resident.
  core::Bytes AddressOf(core::TensorNumber tensor) const;

  // Physical pages that are made, spares included, without those that are being destroyed; and
  // those with the ones that are being made.
  uint32_t made() const { return made_; }
  uint32_t held() const { return made_ + making_; }

  // Why the last page could not be made, unless the device had no memory for it.
  const std::optional<core::Error>& failure() const { return failure_; }

  // Where the unit's copy begins in its pool; 0 if it has none yet.
  core::Bytes CopyOffset(core::plan::Unit unit) const {
    const auto copy = copies_.find(unit);
    const bool is_placed = copy != copies_.end() && !copy->second.piece.empty();
    return is_placed ? copy->second.piece.front().offset : core::Bytes{};
  }
  // Copies in closed chunks of the pool move on to the host pool, or are dropped. Returns true if
  // some have to be looked at again.
  bool Evacuate(core::plan::PoolNumber pool);
  // The units whose copies in the pool are in lost chunks. Copies from there and to there that are
  // under way fail.
  std::vector<core::plan::Unit> LoseCopies(core::plan::PoolNumber pool);

  // The client's mapper has done an instruction for this device.
  void Ended(const MapOrders::Ended& ended);

  // The client is gone: nothing of it is used any more. The owner keeps this until IsQuiet(). To be
  // called before the executor is retired.
  void Retire();
  // No copy, no mapping and no work of a worker is under way.
  bool IsQuiet() const { return working_ == 0 && copying_ == 0; }

  void Retry();

  // ---- The bytes of one tensor, on their way to another device.
  struct Stretch {
    const std::byte* from = nullptr;
    std::byte* to = nullptr;
    core::Bytes bytes;
  };
  // Copies all of them, and says when that has ended.
  using CopyStretches = std::function<void(const std::vector<Stretch>&, PagePool::Done)>;
  // Copies the tensor to `to`: resident units by `copy`, the others from their pools. `done` is
  // called when all copies have ended. REQUIRES: its client does not use it; it is resident in
  // `to`; its resident units here stay resident until the end, unless the client goes.
  // Returns false, and copies nothing, if a unit is being mapped or copied in, or if its pool has
  // no link to the other device that copies any part of a page.
  bool StartMove(core::TensorNumber tensor, ClientPages* to, const CopyStretches& copy,
                 PagePool::Done done);
  core::TurnOwner turn() const { return {attachment_->tenant, attachment_->id}; }

  // ---- PageBackend.
  bool Revoke(core::TensorNumber tensor, uint32_t uses) override;
  void Publish(core::TensorNumber tensor) override { owner_->Publish(this, tensor); }
  void Grant(core::TensorNumber tensor) override { owner_->Grant(this, tensor); }
  void Refuse(core::TensorNumber tensor) override { owner_->Refuse(this, tensor); }
  bool Promise(core::TensorNumber tensor) override { return owner_->Promise(this, tensor); }
  void Arrived(core::TensorNumber tensor) override { owner_->Arrived(this, tensor); }
  void Break(core::TensorNumber tensor) override { owner_->Break(this, tensor); }
  bool Map(const MapOrder& order) override;
  void Unmap(core::plan::PhysicalPage page) override;
  uint32_t MapsMost() const override;
  void Release(const core::plan::PageSupply::Released& page) override;
  void CopyIn(const CopyOrder& order) override;
  void CopyOut(const CopyOrder& order) override;
  void FreeCopy(core::plan::Unit unit, core::plan::PoolNumber pool) override;
  void MoveSlot(const core::PageMemory::SlotMove& move, core::Bytes bytes) override;
  bool MoveCopy(const CopyMove& move) override;
  bool CanCopyIn(core::plan::PoolNumber pool, bool demanded) const override;
  bool CanCopyOut(core::plan::PoolNumber pool) const override;

 private:
  struct Physical {
    uint32_t index = 0;                   // in the arenas
    uint32_t memory = 0;                  // the number that the client knows it by
    std::optional<core::Bytes> mapped{};  // in the client's arena
  };
  struct Copy {
    uint64_t version = 0;  // of these bytes in this place
    core::plan::PoolNumber pool = 0;
    PagePool::Piece piece{};
    std::vector<PagePool::Range> ranges{};
    bool moves_on = false;
    bool lost = false;
  };
  // A copy that moves on.
  struct MoveOn {
    core::plan::Unit unit = 0;
    uint64_t version = 0;
    core::plan::PoolNumber from = 0;
    PagePool::Piece source{};
    PagePool::Piece target{};
    std::vector<PagePool::Range> ranges{};  // in the target
  };
  // Copies on a link, and of those in the ones that calls wait for.
  struct LinkUse {
    uint32_t in = 0;
    uint32_t out = 0;
    uint32_t demanded = 0;
  };

  core::Bytes AddressOf(core::plan::Unit unit, const Physical& physical) const;
  // In this process: where it begins, and the copies' page or slot.
  std::byte* Arena() const { return attachment_->arenas[core::ToInt(options_.device)]->base(); }
  std::byte* Memory(const core::PageMemory::Place& place) const;
  // Pages that the client may have and that were never mapped.
  uint32_t NeverMapped() const;
  // Of these, those that are made or in making.
  uint32_t Ahead() const { return static_cast<uint32_t>(spares_.size()) + making_ - owed_; }
  // That should be.
  uint32_t AheadWanted() const;
  // Begins to make pages until AheadWanted() are made or in making.
  void MakeAhead();
  void Make();
  // The device has no memory for one more.
  void NoteShort();
  void Made(uint32_t index, core::Result<ipc::UniqueFd> descriptor);
  void AddSpare(uint32_t index, ipc::UniqueFd descriptor);
  void UseSpare(const MapOrder& order);
  void QueueMap(const MapOrder& order, Physical* physical);
  // Returns false if it is mapped nowhere.
  bool QueueUnmap(Physical* physical);
  void Destroy(uint32_t index);
  // `work` in the next pass of the loop.
  void Later(std::function<void()> work);
  // Of the tensors that live in the unit. Ranges with less than `granularity` between them are one.
  std::vector<PagePool::Range> LiveRanges(core::plan::Unit unit, core::Bytes granularity) const;
  // Physical pages that the executor releases are destroyed after that.
  void HoldMemory();
  void UnholdMemory();
  // Of a part of the tensor, in the daemon's arena. REQUIRES: it is resident.
  PagePool::Range ArenaRange(core::TensorNumber tensor, uint32_t part) const;
  struct Crossing;
  // Null where StartMove returns false.
  std::shared_ptr<Crossing> CrossingOf(core::TensorNumber tensor, const ClientPages& to) const;
  // Its copies have ended.
  core::Status EndMove(const Crossing& crossing, const ClientPages& to);
  void StartOut(const CopyOrder& order, const std::vector<PagePool::Range>& ranges,
                PagePool::Piece piece);
  void StartMoveOn(core::plan::Unit unit, uint64_t version, PagePool::Piece target);
  void EndMoveOn(const MoveOn& move, const core::Status& outcome);
  bool IsLost(core::plan::Unit unit) const;
  // Counts a comparison of a copy's bytes. If they are not the `same`, `counts` returns true for a
  // fault of the copy.
  bool Checked(bool same, const std::function<bool()>& counts);
  // Of a copy that has ended well.
  bool IsRight(const CopyOrder& order, const std::function<bool()>& counts);
  void EndOut(const CopyOrder& order, const core::Status& outcome);
  void EndIn(const CopyOrder& order, const core::Status& outcome);

  const Options options_;
  const std::shared_ptr<Attachment> attachment_;
  const std::shared_ptr<device::Device> device_;
  const std::vector<PagePool*> pools_;
  const core::plan::PoolNumber host_;
  MapOrders* const maps_;
  WorkerPool* const workers_;
  Mailbox* const mailbox_;
  Owner* const owner_;
  const core::PageExecutor* executor_ = nullptr;
  std::map<core::plan::PhysicalPage, Physical> physical_;   // those that are made
  std::map<uint32_t, core::plan::PhysicalPage> by_memory_;  // the client's numbers of these
  std::map<core::Bytes, core::plan::PhysicalPage> at_;      // by Physical::mapped
  std::map<uint32_t, uint32_t> releasing_;                  // index by memory
  std::vector<uint32_t> indexes_;                           // that are free again
  uint32_t next_index_ = 0;
  uint32_t made_ = 0;
  uint32_t making_ = 0;
  std::optional<core::Error> failure_;
  std::deque<Physical> spares_;  // not mapped yet
  uint32_t owed_ = 0;            // of those in making, pages that the client may not have any more
  bool has_arena_ = false;       // the daemon's, so that pages may be made in parallel
  bool is_short_ = false;        // the device had no memory for the last one: no spare is made
  bool retries_ = false;         // Retry() is to be called
  std::map<core::plan::PhysicalPage, core::plan::Unit> mapping_;  // the client's mapper does
  std::deque<MapOrder> unmade_;                                   // that wait for a page to be made
  std::optional<core::plan::PhysicalPage> unmapping_;             // the executor's, one at a time
  std::map<core::plan::Unit, Copy> copies_;
  uint64_t version_ = 0;                    // of the last copy
  uint32_t moving_on_ = 0;                  // copies
  std::vector<LinkUse> links_;              // by pool
  std::unique_ptr<device::Channel> mover_;  // of slots on the device; made for the first
  device::Word moved_{0};
  uint64_t moves_ = 0;
  bool gone_ = false;
  uint32_t working_ = 0;  // jobs of workers
  uint32_t copying_ = 0;
  uint32_t moving_ = 0;           // of these, copies to and from other devices
  std::vector<uint32_t> doomed_;  // indexes of pages that are destroyed after these
};

}  // namespace ravenstore::daemon
