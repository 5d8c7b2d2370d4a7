// A job's ranges as tensors of core's scheduler, in the job's process: one client of one device.
//
// A call holds its ranges from Begin to End. The last call that holds a range puts it, and its
// pages stay until the streams have passed what was enqueued. A range keeps its address for life.
//
// Owns: the scheduler, the pages, the calls seen, the open ranges. Units:
// bytes; the job's virtual time for `at`. Threads: one at a time (the scheduler's lock), with that
// of calls where it says so. Errors: CallResult.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "core/schedule/page_scheduler.h"
#include "elastic/job_calls.h"
#include "elastic/job_pages.h"
#include "elastic/job_share.h"
#include "elastic/open_ranges.h"
#include "elastic/parts.h"
#include "elastic/streams.h"

namespace ravenstore::elastic {

class JobMemory : private core::PageMaker {
 public:
  struct Options {
    CUdeviceptr begin = 0;
    core::Bytes addresses;
    core::Bytes page;
    core::Bytes device;
    core::Bytes host;
    std::function<void()> ended;                      // as JobPages
    std::function<void()> plan_due;                   // TakePlanWork() has something
    std::function<void(core::TensorNumber)> removed;  // the number may be used again
  };
  using Hold = JobCalls::Hold;

  // The parts and the streams outlive it.
  JobMemory(const Options& options, Parts* parts, Streams* streams);

  JobPages& pages() { return pages_; }
  const JobPages& pages() const { return pages_; }
  const core::PageExecutor& executor() const { return scheduler_.client(kClient).executor(); }
  const core::PageBooks& books() const { return executor().books(); }
  const core::PageTensors::Row& RowOf(core::TensorNumber range) const {
    return executor().tensors()[range];
  }
  // What calls do without the scheduler's lock.
  OpenRanges& open() { return open_; }
  JobCalls& calls() { return calls_; }
  const JobCalls& calls() const { return calls_; }
  const core::plan::UnitState& StateOf(core::plan::Unit unit) const { return books()[unit]; }
  // The plan expects the calls.
  bool HasPlan() const { return !books().view().plan.empty(); }
  bool IsLearned() const { return scheduler_.client(kClient).foresight().has_plan(); }
  // More pages live, or will live, than the device may hold.
  bool IsShort() const;
  // The demand of its ranges, and the job's other memory on the device.
  struct OtherMemory {
    core::Bytes segments;  // on the device, or waiting for room there
    core::Bytes held;      // of the device, in all
  };
  JobShare::Demand Demand(const OtherMemory& other) const;
  // Pages in which something lives that are on the host and mapped nowhere else.
  core::Bytes Away() const;
  bool IsAnyAway() const;
  // In pages of the range that are away.
  core::Bytes AwayOf(core::TensorNumber range) const;

  // There are ranges up to before this number. With the lock of calls.
  void Grow(core::TensorNumber end);

  // ---- Calls. kWaits: Advance() follows until HoldOf() is another; or Refuse().
  Hold HoldOf(core::TensorNumber range) const { return calls_.HoldOf(range); }
  // It has a place, and all calls before it have been seen. If it fails, or is refused, the place
  // is to be forgotten.
  core::CallResult Create(core::TensorNumber range, core::Bytes size, core::Duration at,
                          uint32_t stream, bool in_place);
  // The created range lives, and no call holds it.
  void EndCreate(core::TensorNumber range, core::Duration at, int64_t call);
  void Get(core::TensorNumber range, core::Duration at);
  // Without waiting. Returns false if a page of it is on its way.
  bool Use(core::TensorNumber range, core::Duration at);
  void Refuse(core::TensorNumber range);
  // Calls may use it immediately, if it is resident.
  void Open(core::TensorNumber range) {
    if (executor().IsResident(range)) open_.Open(range);
  }
  // A call that may write any page is about to be enqueued. REQUIRES: IsQuiet().
  void ModifyAll();

  // ---- Work.
  bool IsQuiet() const { return pages_.IsQuiet(); }
  // Begins what there is to do. `call`: the number of the next call, for pages without a plan.
  void Advance(int64_t call);
  // The device pages that it may hold.
  void SetDevice(uint32_t pages);
  // Moves no page any more.
  void Stop();
  // Copies that are not needed make room on the host.
  void DropCopies(core::Bytes bytes) { scheduler_.Moved(kClient).DropCopies(0, bytes); }
  std::shared_ptr<core::PlanWork> TakePlanWork() { return std::exchange(plan_work_, nullptr); }
  bool HasPlanWork() const { return plan_work_ != nullptr; }
  void PlanMade(const std::shared_ptr<core::PlanWork>& work) {
    if (!is_stopped_) scheduler_.PlanMade(work);
  }

 private:
  static constexpr core::ClientId kClient{1};

  void MakePage(core::ClientId /*client*/) override { makes_page_ = true; }
  std::shared_ptr<core::PlanWork> MakePlan(core::DeviceId device,
                                           std::shared_ptr<core::PlanWork> work) override;
  void Answer(core::TensorNumber range, bool granted);
  // The call holds its pages: whether it waits for their bytes.
  void Settle(core::TensorNumber range);
  bool HoldWaiting();
  void DemandAway(int64_t call);

  const Options options_;
  const uint32_t most_;  // pages
  core::PageScheduler scheduler_;
  OpenRanges open_;
  JobPages pages_;
  JobCalls calls_;
  std::shared_ptr<core::PlanWork> plan_work_;
  bool makes_page_ = false;
  bool is_stopped_ = false;
  std::vector<core::plan::Unit> left_;  // kept for its memory
};

}  // namespace ravenstore::elastic
