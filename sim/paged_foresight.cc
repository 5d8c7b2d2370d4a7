#include "sim/paged_foresight.h"

#include <algorithm>
#include <utility>

#include "core/check.h"
#include "core/plan/growth.h"
#include "core/plan/next_uses.h"
#include "core/plan/sequence_planner.h"
#include "core/tuned.h"
#include "sim/paged_packing.h"

namespace ravenstore::sim {

using core::Bytes;
using core::Duration;
using core::plan::CallHistory;
using core::plan::CallKind;
using core::plan::Place;
using core::plan::PlacedTensor;
using core::plan::PlannedCall;
using core::plan::Position;
using core::plan::ResidencyPlan;

PlanSource::PlanSource(const Trace& trace, const core::plan::PlanLimits& limits)
    : trace_(trace),
      places_({.page = limits.page}),
      neighbours_(limits.page, limits.page * limits.pages),
      tensors_(trace.tensors.size()) {}

void PlanSource::WatchUse(const Op& op) {
  if (op.kind == OpKind::kCreate)
    neighbours_.Created(op.tensor, SizeOf(op), places_.rule().IsSmall(SizeOf(op)));
  if (op.kind == OpKind::kGet) neighbours_.Got(op.tensor, SizeOf(op));
  if (op.kind == OpKind::kFree) neighbours_.Freed(op.tensor);
  places_.SetLargestSlot(neighbours_.LargestSlot());
}

Place PlanSource::PlaceFor(const Op& op) {
  return places_.Allocate(SizeOf(op));
}

void PlanSource::Free(const Op& op) {
  places_.Free(tensors_[op.tensor].place, SizeOf(op));
}

void PlanSource::After(const Op& op, core::PageBooks* /*books*/) {
  PlacedTensor& tensor = tensors_[op.tensor];
  tensor.lives = op.kind != OpKind::kFree;
  tensor.in_use = op.kind == OpKind::kCreate || op.kind == OpKind::kGet;
}

void PlanSource::SetCalls(std::vector<PlannedCall> calls) {
  calls_ = std::move(calls);
  position_ = begin_ = 0;
}

std::vector<PlannedCall> PlanSource::BeginPlan(bool made) {
  begin_ = std::min<Position>(position_ + (made ? 1 : 0), static_cast<Position>(calls_.size()));
  std::vector<PlannedCall> ahead(calls_.begin() + begin_, calls_.end());
  const Duration last = position_ > 0 ? calls_[static_cast<size_t>(position_) - 1].at : Duration{0};
  for (PlannedCall& call : ahead) call.at = std::max(Duration{0}, call.at - last);
  return ahead;
}

void PlanSource::MoveTo(Position position, core::PageBooks* books) {
  position_ = std::min(position, static_cast<Position>(calls_.size()));
  books->MoveTo(std::max<Position>(0, position - begin_));
}

void PlanSource::CountPlan(const ResidencyPlan& plan) {
  ++stats_.plans;
  stats_.over_budget += plan.over_budget();
}

PagedStats PlanSource::stats() const {
  PagedStats stats = stats_;
  stats.range_end = places_.range_end();
  return stats;
}

namespace {

CallKind KindOf(const Op& op) {
  switch (op.kind) {
    case OpKind::kCreate: return CallKind::kCreate;
    case OpKind::kGet: return CallKind::kGet;
    case OpKind::kPut: return CallKind::kPut;
    default: break;
  }
  RAVEN_CHECK(op.kind == OpKind::kFree);
  return CallKind::kFree;
}

bool IsCall(const Op& op) {
  return op.kind != OpKind::kCompute && op.kind != OpKind::kStep;
}

// One plan over the whole trace.
class WholeTrace : public PlanSource {
 public:
  WholeTrace(const Trace& trace, const core::plan::PlanLimits& limits, bool packs)
      : PlanSource(trace, limits), packs_(packs), last_put_(trace.ops.size()) {
    FindLastPuts();
    for (const Op& op : trace.ops) WatchUse(op);
    if (packs_) {
      of_tensor_ = PackPlaces(trace, places_.rule());
    } else {
      PlaceInOrder();
    }
    FindCalls();
  }

  void Before(const Op& /*op*/, Duration /*at*/, core::PageBooks* /*books*/) override {}
  void After(const Op& op, core::PageBooks* books) override {
    PlanSource::After(op, books);
    MoveTo(++position_, books);
  }
  bool has_plan() const override { return true; }
  void ShareChanged() override { remake_ = true; }
  Place PlaceFor(const Op& op) override { return of_tensor_[op.tensor]; }
  void Free(const Op& /*op*/) override {}
  bool IsLastPut(const Op& op) const override {
    return last_put_[static_cast<size_t>(&op - trace_.ops.data())];
  }

 private:
  void FindCalls() {
    std::vector<PlannedCall> calls;
    std::vector<bool> in_use(trace_.tensors.size());
    std::vector<bool> dead(trace_.tensors.size());
    Duration at{0};
    for (size_t i = 0; i < trace_.ops.size(); ++i) {
      const Op& op = trace_.ops[i];
      at += op.time;
      if (!IsCall(op)) continue;
      PlannedCall call{.kind = KindOf(op), .modifies = op.modified, .at = at};
      call.units = UnitsOf(of_tensor_[op.tensor], SizeOf(op));
      if (Pins(call.kind)) {
        in_use[op.tensor] = true;
      } else {
        call.unpins = in_use[op.tensor];
        in_use[op.tensor] = false;
        call.dies = !dead[op.tensor] && (op.kind == OpKind::kFree || last_put_[i]);
        dead[op.tensor] = dead[op.tensor] || call.dies;
      }
      calls.push_back(call);
    }
    SetCalls(std::move(calls));
    remake_ = true;
  }
  // Of a tensor that is not got afterwards.
  void FindLastPuts() {
    std::vector<bool> is_got(trace_.tensors.size());
    for (size_t i = trace_.ops.size(); i-- > 0;) {
      const Op& op = trace_.ops[i];
      if (op.kind == OpKind::kGet) is_got[op.tensor] = true;
      if (op.kind == OpKind::kPut) last_put_[i] = !is_got[op.tensor];
    }
  }
  void PlaceInOrder() {
    of_tensor_.resize(trace_.tensors.size());
    for (const Op& op : trace_.ops) {
      if (op.kind == OpKind::kCreate) of_tensor_[op.tensor] = places_.Allocate(SizeOf(op));
      if (op.kind == OpKind::kFree) places_.Free(of_tensor_[op.tensor], SizeOf(op));
    }
  }

  const bool packs_;
  std::vector<bool> last_put_;  // by op
  std::vector<Place> of_tensor_;
  Position position_ = 0;
};

// Plans of what followed the same calls before. Until the calls are followed, what the puts
// announce says which units leave and come.
class Learned : public PlanSource {
 public:
  Learned(const Trace& trace, const core::plan::PlanLimits& limits, bool hinted)
      : PlanSource(trace, limits),
        hinted_(hinted),
        growth_(limits.pools.front().OutOf(limits.page) * limits.pages / core::kWindowPart) {}

  void Before(const Op& op, Duration at, core::PageBooks* books) override {
    now_ = at;
    WatchUse(op);
    const auto guidance =
        planner_.Observe(CallOf(op, at), SizeOf(op), hinted_ && next_uses_.KnowsAll());
    if (guidance.remake) {
      const auto& forecast = planner_.Remake(places_, tensors_, least_);
      pass_ = forecast.pass;
      SetCalls(forecast.calls);
      remake_ = true;
    } else if (guidance.discard) {
      books->SetPlan({});
      for (core::plan::Unit unit = 0; unit < books->units().size(); ++unit)
        books->Announce(unit, next_uses_.Of(unit));
    } else if (planner_.has_plan()) {
      MoveTo(guidance.position, books);
    }
    if (op.kind == OpKind::kGet) next_uses_.Got(op.tensor, at);
    if (op.kind == OpKind::kFree) {
      next_uses_.Freed(op.tensor);
      growth_.Freed(op.tensor);
    }
    if (op.kind != OpKind::kCreate) Announce(op, books);
  }
  void After(const Op& op, core::PageBooks* books) override {
    PlanSource::After(op, books);
    planner_.Done(CallOf(op, {}));
    if (planner_.has_plan()) MoveTo(planner_.position(), books);
    stats_.creates = planner_.stats().creates;
    stats_.elsewhere = planner_.stats().elsewhere;
    stats_.compared = planner_.follower().compared();
    stats_.found = planner_.follower().found();
    if (op.kind == OpKind::kCreate) growth_.Created(op.tensor, SizeOf(op), now_);
    if (op.kind == OpKind::kPut && hinted_) {
      const Place& place = tensors_[op.tensor].place;
      tensors_[op.tensor].unneeded = IsLastPut(op);
      next_uses_.Put(op.tensor, UnitsOf(place, SizeOf(op)), op.next_use, now_);
    }
    Announce(op, books);
  }
  void Step() override { planner_.Step(); }
  bool has_plan() const override { return planner_.has_plan(); }
  void ShareChanged() override { planner_.RequestPlan(); }
  bool IsLastPut(const Op& op) const override {
    return hinted_ && op.next_use.kind == core::NextUse::Kind::kNever;
  }
  Place PlaceFor(const Op& op) override {
    Place& place = tensors_[op.tensor].place;
    const auto expected = planner_.ExpectedPlace();
    // A slot is known by its name; addresses follow from the order of the calls alone.
    if (expected && expected->slots_per_page > 0 && places_.AllocateAt(*expected, SizeOf(op))) {
      place = *expected;
    } else {
      place = places_.Allocate(SizeOf(op));
    }
    tensors_[op.tensor].size = SizeOf(op);
    planner_.Placed(place);
    return place;
  }
  void MoveToSlots(core::PageExecutor* executor) override {
    if (places_.rule().largest_slot == Bytes{}) return;
    left_.clear();
    executor->TakeLeft(&left_);
    for (const core::plan::Unit page : left_) {
      const auto in_page = executor->tensors().In(page);
      const std::vector<core::TensorNumber> tensors(in_page.begin(), in_page.end());
      for (const core::TensorNumber tensor : tensors) {
        if (tensors_[tensor].lives) MoveToSlot(tensor, executor);
      }
    }
  }

 private:
  static CallHistory::Call CallOf(const Op& op, Duration at) {
    return {.kind = KindOf(op), .modifies = op.modified, .tensor = op.tensor, .at = at};
  }
  void MoveToSlot(core::TensorNumber number, core::PageExecutor* executor) {
    auto& [place, size, lives, in_use, unneeded] = tensors_[number];
    if (places_.rule().SlotsPerPage(size) == 0) return;
    const Place slot = places_.Allocate(size);
    const core::plan::UnitSpan units = UnitsOf(slot, size);
    const Bytes offset(place.at % places_.page().count());
    if (!executor->MoveToSlot(number, units, offset)) return places_.Free(slot, size);
    const core::plan::UnitSpan pages = UnitsOf(place, size);
    places_.Free(std::exchange(place, slot), size);
    planner_.Moved();
    next_uses_.Moved(number, units);
    if (planner_.has_plan()) return;
    core::PageBooks& books = executor->books();
    books.Announce(units.first, next_uses_.Of(units.first));
    for (uint32_t i = 0; i < pages.count; ++i) books.Announce(pages[i], next_uses_.Of(pages[i]));
  }
  void Announce(const Op& op, core::PageBooks* books) {
    if (planner_.has_plan()) return;
    const core::plan::UnitSpan span = UnitsOf(tensors_[op.tensor].place, SizeOf(op));
    for (uint32_t i = 0; i < span.count; ++i) books->Announce(span[i], next_uses_.Of(span[i]));
    books->SetGrowth({.bytes = growth_.At(now_),
                      .from = next_uses_.At(now_),
                      .until = next_uses_.At(now_ + growth_.window())});
  }

  const bool hinted_;
  core::plan::SequencePlanner planner_;
  core::plan::NextUses next_uses_;
  core::plan::Growth growth_;
  std::vector<core::plan::Unit> left_;  // pages that have left; kept for its memory
  Duration now_{0};
};

}  // namespace

std::unique_ptr<PlanSource> MakePlanSource(const Trace& trace, Foresight foresight,
                                           const core::plan::PlanLimits& limits) {
  switch (foresight) {
    case Foresight::kLives: return std::make_unique<WholeTrace>(trace, limits, true);
    case Foresight::kCalls: return std::make_unique<WholeTrace>(trace, limits, false);
    case Foresight::kHints: return std::make_unique<Learned>(trace, limits, true);
    case Foresight::kLearned: break;
  }
  return std::make_unique<Learned>(trace, limits, false);
}

}  // namespace ravenstore::sim
