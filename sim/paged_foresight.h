// What the replay's plan knows of the calls to come, and where it places tensors.
//
// A PlanSource sees each call before and after it is made. It sets plans on the client's books and
// moves their position.
//
// Owns: the places, the tensors as they are now, and what was learned. Threads: one at a time.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "core/books/page_books.h"
#include "core/plan/call_forecast.h"
#include "core/plan/places.h"
#include "core/plan/residency_plan.h"
#include "core/types.h"
#include "sim/paged_replay.h"
#include "sim/trace.h"

namespace ravenstore::sim {

class PlanSource {
 public:
  // `trace` outlives it.
  PlanSource(const Trace& trace, const core::plan::SmallTensorRule& rule);
  virtual ~PlanSource() = default;
  PlanSource(const PlanSource&) = delete;
  PlanSource& operator=(const PlanSource&) = delete;

  virtual void Begin(core::PageBooks* /*books*/) {}
  // The client makes the call, at this time of its own.
  virtual void Before(const Op& op, core::Duration at, core::PageBooks* books) = 0;
  // The call is done.
  virtual void After(const Op& op, core::PageBooks* books);
  virtual void Step() {}
  // The client's share of the device is another: the next call makes a plan.
  virtual void ShareChanged() = 0;
  // Returns true for a put after which no known call uses the tensor's bytes.
  virtual bool IsLastPut(const Op& /*op*/) const { return false; }
  // The place of the created tensor.
  virtual core::plan::Place PlaceFor(const Op& op);
  virtual void Free(const Op& op);

  core::plan::UnitSpan UnitsOf(const core::plan::Place& place, core::Bytes size) const {
    return places_.UnitsOf(place, size);
  }
  core::Bytes BytesIn(const core::plan::Place& place, core::Bytes size, uint32_t i) const {
    return places_.BytesIn(place, size, i);
  }
  PagedStats stats() const;

 protected:
  void SetPlan(std::span<const core::plan::PlannedCall> calls, core::PageBooks* books);
  core::Bytes SizeOf(const Op& op) const { return trace_.tensors[op.tensor].bytes; }

  const Trace& trace_;
  core::plan::Places places_;
  std::vector<core::plan::PlacedTensor> tensors_;
  PagedStats stats_;
};

std::unique_ptr<PlanSource> MakePlanSource(const Trace& trace, Foresight foresight,
                                           const core::plan::SmallTensorRule& rule,
                                           const core::plan::PlanLimits& limits);

}  // namespace ravenstore::sim
