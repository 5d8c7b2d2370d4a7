// Which pages of a job's memory should be on the device, learned from the job's calls.
//
// The job's calls (launches, copies, memsets) come one by one with the pages that each uses. Steps
// of training, and passes of inference, repeat them. The plan follows the sequence (follower.h) and
// expects the calls of the last step again. The decisions are those of the core: which page leaves
// and when (core/plan/residency_plan.h), and what moves next (core/plan/move_chooser.h). It is
// never needed for correctness: a page that is on the host is used in place, slowly.
//
// A freed page is dead until it is allocated again: its bytes are worth nothing then, and its next
// use needs room on the device, but no copy.
//
// The core's pages have one size. Those of a job may be smaller: each counts as the mean of those
// that live.
//
// A plan is made of a copy of the last step, so that no lock is held: Copy(),
// KernelForecast::Make() on any thread, Set().
//
// Threads: one at a time. Cost of Used(): 0.4 to 1 microsecond for two pages, amortised; Copy()
// 20 bytes for each record of a step. Memory bounded by PlanOptions. No clock is read here.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "core/plan/copy_pools.h"
#include "core/plan/deadlines.h"
#include "core/plan/move_chooser.h"
#include "core/plan/move_queues.h"
#include "core/plan/page_supply.h"
#include "core/plan/residency_plan.h"
#include "core/plan/slot_pages.h"
#include "core/plan/unit_state.h"
#include "core/types.h"
#include "elastic/call_times.h"
#include "elastic/follower.h"
#include "elastic/kernel_forecast.h"
#include "elastic/range_id.h"

namespace ravenstore::elastic {



struct PlanOptions {
  core::Bytes device;                   // what may be on the device
  core::Bytes part = core::MiB(32);     // the most of a page
  double bytes_per_second = 50e9;       // of the link, each way
  size_t most_calls = size_t{1} << 20;  // that are remembered
};

class Plan {
 public:
  using Skip = std::function<bool(RangeId)>;
  // A page that comes to the device.
  struct Wanted {
    RangeId page;
    bool needs_copy;              // false: nothing lives there until then
    std::optional<RangeId> dead;  // whose memory it takes; nullopt: free memory
  };

  explicit Plan(const PlanOptions& options);
  Plan(const Plan&) = delete;
  Plan& operator=(const Plan&) = delete;

  // ---- What the job does, in order.
  // Something lives on the page of `size` bytes from now on, none of it worth a copy yet.
  void Allocated(RangeId page, core::Bytes size);
  void Freed(RangeId page);
  // A call uses `pages`, each once. `identity` is the same for the same call in each step.
  void Used(uint64_t identity, std::span<const RangeId> pages, core::Tick now);
  // The number of the next call.
  int64_t position() const { return static_cast<int64_t>(follower_.calls()); }
  CallTimes& times() { return times_; }
  const CallTimes& times() const { return times_; }

  // ---- What the engine does.
  // The page is on the device from now on, or not. Ends a move of it.
  void SetResident(RangeId page, bool resident);
  // A move of the page to the device begins, or away from it.
  void BeginMove(RangeId page);
  void SetDevice(core::Bytes device);
  // A call waits for the page, or does not any more.
  void SetAwaited(RangeId page, bool awaited);

  // ---- The plan.
  // A plan is to be made.
  bool NeedsPlan() const { return remake_ && next_ && *next_ < end_; }
  // REQUIRES: NeedsPlan().
  KernelForecast Copy();
  // The plan that was made of a copy. One of another sequence than the present one is dropped.
  // `made` has the plan before instead, to be destroyed without a lock.
  void Set(KernelForecast* made);

  // ---- What should be done. `skip(page)`: it cannot be moved now.
  // The page that comes next, if there is room for it until its use.
  std::optional<Wanted> NextIn(const Skip& skip);
  // The page that is copied out next.
  std::optional<RangeId> NextOut(const Skip& skip);
  // The page that leaves for an allocation: one that is dead; else one that is needed last, if the
  // allocated page would be used more slowly on the host.
  std::optional<RangeId> Victim(const Skip& skip);
  // The dead page that is needed last.
  std::optional<RangeId> Dead(const Skip& skip);
  // The page that leaves first where less may be held.
  std::optional<RangeId> Surplus(const Skip& skip);

  // The sequence is known and holds.
  bool IsLearned() const { return next_ && follower_.IsTrusted(); }
  // By the plan, more pages will live together than the device holds.
  bool IsShort() const { return plan_.pages_alive() > limits_.pages; }

 private:
  using Unit = core::plan::Unit;
  using Queue = core::plan::MoveQueues::Queue;
  enum class Moving : uint8_t { kNo, kIn, kOut };
  struct Page {
    RangeId id{};
    core::Bytes size;
    bool live = false;
    bool resident = false;
    Moving moving = Moving::kNo;
    int64_t last_use = 0;  // a call
    int64_t gap = 0;       // calls between its last two uses; 0: not known
  };

  Unit UnitOf(RangeId id);
  Page& PageOf(Unit unit) { return pages_[unit / 2]; }
  RangeId IdOf(Unit unit) const { return pages_[unit / 2].id; }
  PageRecord& At(uint64_t number) { return records_[number & mask_]; }
  uint64_t& EndOf(uint64_t call) { return ends_[call & end_mask_]; }

  // ---- What happened.
  void Happened(PageRecord::Kind kind, Unit unit);
  void Append(PageRecord::Kind kind, Unit unit);
  void Follow(std::span<const RangeId> pages, std::optional<uint64_t> twin_before);
  bool Advance(uint64_t call, std::span<const RangeId> pages);
  void Forget();
  // The sequence has come further. The plan follows when it is asked.
  void Passed();
  void Move();

  // ---- What is where.
  core::Bytes FreeBytes() const { return core::Minus(device_, held_); }
  // The number of pages of mean size that fit into `bytes`.
  uint32_t PagesIn(core::Bytes bytes) const;
  void Update(Unit unit);
  // The plan has the live page on the device, but it is not there.
  void Release(Unit unit);
  core::plan::MoveView View();
  // No answer has the unit until the next question.
  void Hide(Unit unit);
  void Unhide();
  // The first answer that is not skipped.
  std::optional<RangeId> First(const std::function<std::optional<Unit>()>& ask, const Skip& skip);
  // How long the page is not used, in calls.
  int64_t RestOf(Unit unit) {
    return std::max({PageOf(unit).gap, position() - PageOf(unit).last_use, int64_t{1}});
  }
  std::optional<Unit> Recent(const Skip& skip);
  std::optional<Wanted> NextRecent(const Skip& skip);
  std::optional<Unit> RecentExchange(const Skip& skip);
  std::optional<Unit> FirstOf(Queue queue) const;
  bool PaysToWait() const;

  Follower follower_;
  CallTimes times_;
  const uint64_t mask_;
  std::unique_ptr<PageRecord[]> records_;
  uint64_t end_ = 0;  // the next record
  const uint64_t end_mask_;
  std::unique_ptr<uint64_t[]> ends_;  // by call: the record after its own
  std::optional<uint64_t> next_;      // the first record that is expected; nullopt: none is
  uint64_t version_ = 0;              // of what is expected

  std::vector<Page> pages_;                 // by unit / 2
  std::vector<std::optional<Unit>> units_;  // by page
  std::vector<core::plan::UnitState> states_;
  core::Bytes held_;      // pages on the device, or on the way
  uint32_t leaving_ = 0;  // of these
  uint32_t away_ = 0;     // live pages that are not on the device
  uint32_t live_ = 0;     // pages
  core::Bytes live_bytes_;
  std::vector<Unit> recent_;       // used where they were, not on the device; the last ones
  std::optional<Unit> allocated_;  // last
  std::vector<Unit> hidden_;
  std::vector<Unit> passed_;  // kept for its memory

  core::Bytes device_;
  core::plan::PlanLimits limits_;
  core::plan::ResidencyPlan plan_;
  core::plan::MoveQueues queues_;
  core::plan::Deadlines deadlines_;
  core::plan::PageSupply supply_;
  core::plan::SlotPages slot_pages_;
  core::plan::CopyPools copies_;
  uint64_t base_ = 0;                            // the first record of the plan
  std::vector<core::plan::Position> positions_;  // of the plan, by record
  bool behind_ = false;                          // the plan, of the sequence
  bool outdated_ = false;                        // the job has left calls out, or inserted some
  bool remake_ = false;
};

}  // namespace ravenstore::elastic
