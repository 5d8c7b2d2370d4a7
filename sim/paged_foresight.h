// What the replay's plan knows of the calls to come, and where it places tensors.
//
// A PlanSource sees each call before and after it is made. It says which calls are ahead, and moves
// the position in the plan that its owner makes of them.
//
// Owns: the places, the tensors as they are now, and what was learned. Threads: one at a time.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "core/books/page_books.h"
#include "core/execution/page_executor.h"
#include "core/plan/call_forecast.h"
#include "core/plan/neighbour_use.h"
#include "core/plan/places.h"
#include "core/plan/residency_plan.h"
#include "core/types.h"
#include "sim/paged_replay.h"
#include "sim/trace.h"

namespace ravenstore::sim {

class PlanSource {
 public:
  // `trace` outlives it. `limits`: the client's first share of the device.
  PlanSource(const Trace& trace, const core::plan::PlanLimits& limits);
  virtual ~PlanSource() = default;
  PlanSource(const PlanSource&) = delete;
  PlanSource& operator=(const PlanSource&) = delete;

  // The client makes the call, at this time of its own.
  virtual void Before(const Op& op, core::Duration at, core::PageBooks* books) = 0;
  // The call is done.
  virtual void After(const Op& op, core::PageBooks* books);
  // Since the last time, the calls ahead have become others, or the share of the device: a plan is
  // to be made.
  bool TakeRemake() { return std::exchange(remake_, false); }
  // Calls are ahead. Else what the puts announce says which units leave and come.
  virtual bool has_plan() const = 0;
  // A plan begins with the first of the calls that are ahead; `made`: the client has made that one
  // already, and it waits: the plan begins after it. Times are from the last call.
  std::vector<core::plan::PlannedCall> BeginPlan(bool made);
  // How long the calls ahead of one pass take, and how long all that are known should.
  core::Duration pass() const { return pass_; }
  void SetLeast(core::Duration least) { least_ = least; }
  void CountPlan(const core::plan::ResidencyPlan& plan);
  virtual void Step() {}
  // The client's share of the device is another: the next call makes a plan.
  virtual void ShareChanged() = 0;
  // Returns true for a put after which no known call uses the tensor's bytes.
  virtual bool IsLastPut(const Op& /*op*/) const { return false; }
  // The place of the created tensor.
  virtual core::plan::Place PlaceFor(const Op& op);
  virtual void Free(const Op& op);
  // Before a call: the tensors of pages that are away move to slots, if small tensors are to have
  // slots.
  virtual void MoveToSlots(core::PageExecutor* /*executor*/) {}

  core::plan::UnitSpan UnitsOf(const core::plan::Place& place, core::Bytes size) const {
    return places_.UnitsOf(place, size);
  }
  core::Bytes BytesIn(const core::plan::Place& place, core::Bytes size, uint32_t i) const {
    return places_.BytesIn(place, size, i);
  }
  PagedStats stats() const;

 protected:
  // The calls that are ahead are the first and what follows.
  void SetCalls(std::vector<core::plan::PlannedCall> calls);
  // The client has come to this one of them.
  void MoveTo(core::plan::Position position, core::PageBooks* books);
  // Decides from the call whether small tensors that are created from now on have slots.
  void WatchUse(const Op& op);
  core::Bytes SizeOf(const Op& op) const { return trace_.tensors[op.tensor].bytes; }

  const Trace& trace_;
  core::plan::Places places_;
  core::plan::NeighbourUse neighbours_;
  std::vector<core::plan::PlacedTensor> tensors_;
  PagedStats stats_;
  bool remake_ = false;
  core::Duration pass_{0};
  core::Duration least_{0};

 private:
  std::vector<core::plan::PlannedCall> calls_;
  core::plan::Position position_ = 0;  // in these
  core::plan::Position begin_ = 0;     // where the plan begins
};

std::unique_ptr<PlanSource> MakePlanSource(const Trace& trace, Foresight foresight,
                                           const core::plan::PlanLimits& limits);

}  // namespace ravenstore::sim
