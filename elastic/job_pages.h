// The memory beneath an elastic job's allocations, as core's executor moves it.
//
// A unit is a page at a fixed address, and each physical page of the books is one part of device
// memory, taken when it is first mapped. A page that leaves is copied to a part of the host. It is
// then unmapped, so that a kernel that reaches it without an argument faults. A call that uses it
// in place has it mapped where the host's part is: Reach().
//
// An address never shows a part before that part has the page's bytes. So a page with bytes is
// mapped when its copy in has ended, not when the executor maps it.
//
// The mover (mover.h) executes orders: copies in pieces, and mappings. Report() passes their ends
// to the scheduler. Its thread changes a page's mapping only while the page is `changing`. At most
// one thread does so at a time: the mover's, or one that reaches the page.
//
// Owns: the parts. The parts' pools, the mover, the open ranges and the scheduler outlive it.
// Units: bytes. Threads: the owner's lock is held for all calls but FinishReach(). Errors:
// TakeFailure(); bytes are not lost.
#pragma once

#include <cuda.h>

#include <array>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "core/execution/page_backend.h"
#include "core/schedule/page_scheduler.h"
#include "elastic/mover.h"
#include "elastic/open_ranges.h"
#include "elastic/page_maps.h"
#include "elastic/parts.h"

namespace ravenstore::elastic {

class JobPages : public core::PageBackend {
 public:
  struct Options {
    CUdeviceptr begin = 0;  // the address of unit 0
    core::Bytes page;
    core::ClientId client{};
    OpenRanges* open = nullptr;
    // The call that waits for the tensor goes on, or else has failed.
    std::function<void(core::TensorNumber tensor, bool granted)> answer;
    // Report() has something to do. Called on the mover's thread, without the owner's lock.
    std::function<void()> ended;
  };
  struct Stats {
    core::Bytes moved_in;
    core::Bytes moved_out;
    core::Bytes dropped;  // taken from pages in which nothing lived
  };

  JobPages(Options options, Parts* parts, core::PageScheduler* scheduler);
  // REQUIRES: the mover has ended.
  ~JobPages() override;
  // Before the first call of the scheduler's client.
  void SetMover(Mover* mover) { mover_ = mover; }

  // Passes the ends of orders to the scheduler. Returns true if there were any.
  bool Report();
  // No order is under way.
  bool IsQuiet() const { return orders_ == 0; }
  // These pages have left (PageExecutor::TakeLeft).
  void Left(std::span<const core::plan::Unit> units);
  struct Mode {
    bool copies_out = true;
    // No copy begins, so that no page that lives moves.
    bool frozen = false;
    // Pages that leave are mapped where the host's part is.
    bool maps_away = false;
  };
  Mode& mode() { return mode_; }
  // A page could be copied out, and no part of the host was free. GiveHostPart() takes one.
  bool WantsHostPart() const;
  void GiveHostPart(Part* part);
  // The last order that has failed since the last time. kOutOfMemory: the device has no part for a
  // page that was to be mapped.
  std::optional<core::Error> TakeFailure() { return std::exchange(failure_, std::nullopt); }
  // Device parts that it holds.
  core::Bytes held() const;
  const Stats& stats() const { return stats_; }

  // ---- For a call that uses the unit, resident or in place.
  bool CanReach(core::plan::Unit unit) const;
  bool IsChanging(core::plan::Unit unit) const;
  // A change of the mapping beneath a unit, by the caller's thread.
  using Page = PageMaps::Page;
  using Memory = PageMaps::Memory;
  struct Reach {
    Page* page = nullptr;
    Memory* memory = nullptr;  // null: the unit is away
    Part* host = nullptr;
  };
  // REQUIRES: no thread changes the unit. EndReach() follows FinishReach().
  Reach BeginReach(core::plan::Unit unit);
  // Without the owner's lock. Errors: kDevice; kOutOfMemory: no part of the host for a new page.
  core::Status FinishReach(Reach* reach);
  static void EndReach(const Reach& reach);

  // ---- PageBackend.
  bool Revoke(core::TensorNumber tensor, uint32_t /*uses*/) override {
    return options_.open->Close(tensor);
  }
  bool RevokePage(core::plan::Unit page) override { return options_.open->ClosePage(page); }
  void Publish(core::TensorNumber tensor) override { options_.open->Open(tensor); }
  void Grant(core::TensorNumber tensor) override { options_.answer(tensor, true); }
  void Refuse(core::TensorNumber tensor) override { options_.answer(tensor, false); }
  bool Map(const MapOrder& order) override;
  void Unmap(core::plan::PhysicalPage page) override;
  uint32_t MapsMost() const override;
  void Release(const core::plan::PageSupply::Released& page) override;
  void CopyIn(const CopyOrder& order) override;
  void CopyOut(const CopyOrder& order) override;
  void FreeCopy(core::plan::Unit unit, core::plan::PoolNumber pool) override;
  void MoveSlot(const core::PageMemory::SlotMove& move, core::Bytes bytes) override;
  bool CanCopyIn(core::plan::PoolNumber pool, bool demanded) const override;
  bool CanCopyOut(core::plan::PoolNumber pool) const override;

 private:
  struct Order {
    std::array<Page*, 2> changes{};
    // On the mover's thread.
    std::function<core::Status(const core::Status& copied, bool is_written)> work;
    std::function<void(bool ok)> report = nullptr;
    core::Status status = core::Ok();
  };

  const core::PageExecutor& executor() const {
    return scheduler_->client(options_.client).executor();
  }
  const core::plan::UnitState& StateOf(core::plan::Unit unit) const {
    return executor().books()[unit];
  }
  Page& PageOf(core::plan::Unit unit);
  Memory* MemoryOf(core::plan::Unit unit) const;
  void Begin(Order order, Part* from = nullptr, Part* to = nullptr);
  void End(const std::shared_ptr<Order>& order);
  void NoteDropped(const Page* page);
  // A page could be copied out now.
  bool AnyLeaves() const;

  const Options options_;
  Parts* const parts_;
  const PageMaps maps_;
  core::PageScheduler* const scheduler_;
  Mover* mover_ = nullptr;
  std::deque<Page> pages_;  // by half the unit
  std::map<core::plan::PhysicalPage, std::unique_ptr<Memory>> memory_;
  size_t orders_ = 0;
  std::array<size_t, 2> copies_{};  // by the place to which they go
  mutable Part* spare_ = nullptr;   // of the host, for the next copy
  Mode mode_;
  std::optional<core::Error> failure_;
  Stats stats_;
  std::mutex mutex_;
  std::vector<std::shared_ptr<Order>> ended_;  // guarded by mutex_
};

}  // namespace ravenstore::elastic
