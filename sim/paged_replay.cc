#include "sim/paged_replay.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "core/check.h"
#include "core/plan/places.h"
#include "sim/paged_foresight.h"

namespace ravenstore::sim {

using core::Bytes;
using core::Duration;
using core::plan::Place;
using core::plan::UnitSpan;

namespace {

core::plan::SmallTensorRule RuleFor(const Trace& trace, Bytes page) {
  core::plan::SmallTensorRule rule{.page = page};
  Bytes small, small_most;
  for (const Op& op : trace.ops) {
    if (op.kind != OpKind::kCreate && op.kind != OpKind::kFree) continue;
    const Bytes size = trace.tensors[op.tensor].bytes;
    if (!rule.IsSmall(size)) continue;
    if (op.kind == OpKind::kCreate) small += size;
    if (op.kind == OpKind::kFree) small -= size;
    small_most = std::max(small_most, small);
  }
  rule.slots = core::plan::SmallTensorRule::SlotsPay(small_most, trace.Footprint());
  return rule;
}

core::plan::PlanLimits LimitsFor(const PagedSetup& setup) {
  return {.page = setup.page,
          .pages = static_cast<uint32_t>(setup.budget.count() / setup.page.count()),
          .out_bytes_per_second = setup.hardware.down,
          .per_copy = setup.hardware.per_copy};
}

class PagedReplay {
 public:
  PagedReplay(const Trace& trace, const PagedSetup& setup)
      : trace_(trace),
        setup_(setup),
        rule_(RuleFor(trace, setup.page)),
        mover_(setup.hardware, setup.mapping, LimitsFor(setup)),
        plans_(MakePlanSource(trace, setup.foresight, rule_, LimitsFor(setup))),
        tensors_(trace.tensors.size()) {}

  PagedOutcome Run() {
    plans_->Begin(&mover_.units());
    while (!done_ && outcome_.failure.empty()) {
      const auto event = mover_.NextEvent();
      bool arrived = false;
      if (wakes_ && (!event || *wakes_ <= *event)) {
        now_ = *wakes_;
        wakes_.reset();
        RunClient();
        arrived = mover_.Start(now_);
      } else if (event) {
        now_ = *event;
        arrived = mover_.Advance();
      } else {
        outcome_.failure = "no room for what is in use at call " + std::to_string(next_);
      }
      if (arrived) Arrived();
      if (setup_.check) mover_.units().CheckPages();
    }
    return Finish();
  }

 private:
  struct ClientTensor {
    UnitSpan units;
    Place place;
    bool in_use = false;
    bool dead = false;  // its bytes are not used any more
  };

  // Until the client computes, waits or ends.
  void RunClient() {
    for (; next_ < trace_.ops.size(); ++next_) {
      const Op& op = trace_.ops[next_];
      if (op.kind == OpKind::kStep) {
        ++iteration_;
        plans_->Step();
      } else if (op.kind == OpKind::kCompute) {
        outcome_.compute += op.time;
        if (op.time == Duration{0}) continue;
        wakes_ = now_ + op.time;
        ++next_;
        return;
      } else if (!Call(op)) {
        return;
      }
    }
    done_ = true;
  }

  // Returns false if the call waits; it goes on when it is called again.
  bool Call(const Op& op) {
    ClientTensor& tensor = tensors_[op.tensor];
    const bool pins = op.kind == OpKind::kCreate || op.kind == OpKind::kGet;
    if (!held_) {
      plans_->Before(op, outcome_.compute, &mover_.units());
      if (op.kind == OpKind::kCreate) PlaceTensor(op);
      held_ = pins;
      if (pins && Pin(tensor.units) > 0) {
        waits_since_ = now_;
        return false;
      }
    }
    held_ = false;
    if (op.kind == OpKind::kCreate) Create(op);
    if (pins) {
      tensor.in_use = true;
    } else {
      Yield(op);
    }
    plans_->After(op, &mover_.units());
    return true;
  }

  void PlaceTensor(const Op& op) {
    ClientTensor& tensor = tensors_[op.tensor];
    const Bytes size = trace_.tensors[op.tensor].bytes;
    tensor.place = plans_->PlaceFor(op);
    tensor.units = plans_->UnitsOf(tensor.place, size);
    mover_.units().Ensure(tensor.units);
  }

  uint32_t Pin(const UnitSpan& units) {
    missing_ = 0;
    for (uint32_t i = 0; i < units.count; ++i) missing_ += mover_.units().Pin(units[i]) ? 1 : 0;
    return missing_;
  }

  void Create(const Op& op) {
    const ClientTensor& tensor = tensors_[op.tensor];
    const Bytes size = trace_.tensors[op.tensor].bytes;
    for (uint32_t i = 0; i < tensor.units.count; ++i)
      mover_.units().AddTensor(tensor.units[i], plans_->BytesIn(tensor.place, size, i));
  }

  // A put or a free.
  void Yield(const Op& op) {
    ClientTensor& tensor = tensors_[op.tensor];
    const Bytes size = trace_.tensors[op.tensor].bytes;
    const bool unpins = std::exchange(tensor.in_use, false);
    const bool dies = !tensor.dead && (op.kind == OpKind::kFree || plans_->IsLastPut(op));
    tensor.dead |= dies;
    PagedUnits& units = mover_.units();
    for (uint32_t i = 0; i < tensor.units.count; ++i) {
      const auto unit = tensor.units[i];
      if (op.kind == OpKind::kPut && op.modified && !dies) units.Modify(unit);
      if (dies) units.RemoveTensor(unit, plans_->BytesIn(tensor.place, size, i));
      if (unpins) units.Unpin(unit);
    }
    if (op.kind == OpKind::kFree) plans_->Free(op);
  }

  // A unit that the client waits for is resident.
  void Arrived() {
    const ClientTensor& tensor = tensors_[trace_.ops[next_].tensor];
    for (uint32_t i = 0; i < tensor.units.count; ++i) {
      if (mover_.units()[tensor.units[i]].demanded) return;
    }
    if (!waits_since_) return;
    const Duration stall = now_ - *std::exchange(waits_since_, std::nullopt);
    auto& stalls = outcome_.iteration_stall;
    stalls.resize(std::max(stalls.size(), iteration_ + 1));
    stalls[iteration_] += stall;
    outcome_.stall += stall;
    if (trace_.ops[next_].kind == OpKind::kCreate) outcome_.create_stall += stall;
    wakes_ = now_;
  }

  PagedOutcome Finish() {
    mover_.units().CheckPages();
    PagedOutcome result;
    outcome_.time = now_;
    outcome_.client_stall = {outcome_.stall};
    result.stats = plans_->stats();
    result.stats.moves = mover_.stats();
    outcome_.up = result.stats.moves.in;
    outcome_.down = result.stats.moves.out;
    result.outcome = std::move(outcome_);
    return result;
  }

  const Trace& trace_;
  const PagedSetup setup_;
  const core::plan::SmallTensorRule rule_;
  PagedMover mover_;
  const std::unique_ptr<PlanSource> plans_;
  std::vector<ClientTensor> tensors_;
  Duration now_{0};
  std::optional<Duration> wakes_{Duration{0}};
  std::optional<Duration> waits_since_;
  size_t next_ = 0;
  size_t iteration_ = 0;
  bool held_ = false;  // the units of the next call are pinned
  uint32_t missing_ = 0;
  bool done_ = false;
  Outcome outcome_;
};

}  // namespace

PagedOutcome ReplayPaged(const Trace& trace, const PagedSetup& setup) {
  if (trace.clients != 1) {
    PagedOutcome outcome;
    outcome.outcome.failure = "the replay on pages is of one client";
    return outcome;
  }
  return PagedReplay(trace, setup).Run();
}

}  // namespace ravenstore::sim
