#include "core/schedule/learned_foresight.h"

#include <utility>

#include "core/check.h"
#include "core/tuned.h"

namespace ravenstore::core {

using plan::CallHistory;
using plan::CallKind;
using plan::PlacedTensor;
using plan::TensorIndex;
using plan::Unit;
using plan::UnitSpan;

namespace {

CallHistory::Call PastCall(const ClientCall& call, TensorIndex tensor) {
  return {.kind = call.kind, .modifies = call.modifies, .tensor = tensor, .at = call.at};
}

}  // namespace

LearnedForesight::LearnedForesight(const plan::PlanLimits& limits, const Options& options)
    : ClientForesight(limits, options.has_slots),
      options_(options),
      growth_(limits.pools.front().OutOf(limits.page) * limits.pages / kWindowPart) {}

void LearnedForesight::Before(const ClientCall& call, PageBooks* books) {
  now_ = call.at;
  const bool creates = call.kind == CallKind::kCreate;
  const TensorIndex tensor =
      creates ? indexes_.Add(call.tensor, planner_.follower().history()) : indexes_.Of(call.tensor);
  tensors_.GrowTo(tensor + 1);
  WatchUse(call.kind, tensor, call.size);
  const auto guidance = planner_.Observe(PastCall(call, tensor), call.size,
                                         options_.uses_hints && next_uses_.KnowsAll(), fits_);
  if (guidance.jumped || guidance.discard) DropPlan();
  if (guidance.remake) {
    const auto& forecast = planner_.Remake(places_, tensors_, least_);
    pass_ = forecast.pass;
    SetCalls(forecast.calls);
    remake_ = true;
  } else if (guidance.discard) {
    books->SetPlan({});
    for (Unit unit = 0; unit < books->view().units.size(); ++unit)
      books->Announce(unit, next_uses_.Of(unit));
  } else if (planner_.has_plan()) {
    MoveTo(guidance.position, books);
  }
  if (call.kind == CallKind::kGet) next_uses_.Got(tensor, call.at);
  if (call.kind == CallKind::kFree) {
    next_uses_.Freed(tensor);
    growth_.Freed(tensor);
  }
  if (!creates) Announce(call, books);
}

void LearnedForesight::After(const ClientCall& call, PageBooks* books) {
  const TensorIndex index = indexes_.Of(call.tensor);
  PlacedTensor& tensor = tensors_[index];
  tensor.lives = call.kind != CallKind::kFree;
  tensor.in_use = plan::Pins(call.kind);
  planner_.Done(PastCall(call, index));
  if (planner_.has_plan()) MoveTo(planner_.position(), books);
  stats_.creates = planner_.stats().creates;
  stats_.elsewhere = planner_.stats().elsewhere;
  stats_.compared = planner_.follower().compared();
  stats_.found = planner_.follower().found();
  if (call.kind == CallKind::kCreate) growth_.Created(index, call.size, now_);
  if (call.kind == CallKind::kPut && options_.uses_hints) {
    tensor.unneeded = IsLastPut(call);
    next_uses_.Put(index, UnitsOf(tensor.place, call.size), call.next_use, now_);
  }
  Announce(call, books);
}

void LearnedForesight::Refused(TensorNumber tensor) {
  Of(tensor).in_use = false;
}

bool LearnedForesight::IsLastPut(const ClientCall& call) const {
  return options_.ends_at_never && call.next_use.kind == NextUse::Kind::kNever;
}

plan::Place LearnedForesight::PlaceFor(const ClientCall& call, const plan::PlacesInUse& others) {
  PlacedTensor& tensor = Of(call.tensor);
  tensor = {.place = {}, .size = call.size};
  const auto expected = planner_.ExpectedPlace();
  // A slot is known by its name; addresses follow from the order of the calls alone.
  if (call.place) {
    RAVEN_CHECK(places_.AllocateInRange(*call.place, call.size));
    tensor.place = *call.place;
  } else if (expected && expected->slots_per_page > 0 && places_.AllocateAt(*expected, call.size)) {
    tensor.place = *expected;
  } else {
    tensor.place = places_.Allocate(call.size, &others, call.stream);
  }
  planner_.Placed(tensor.place);
  return tensor.place;
}

void LearnedForesight::FreePlace(TensorNumber tensor) {
  const PlacedTensor& of = Of(tensor);
  places_.Free(of.place, of.size);
  indexes_.Remove(tensor);
}

void LearnedForesight::MoveToSlots(PageExecutor* executor) {
  if (places_.rule().largest_slot == Bytes{}) return;
  left_.clear();
  executor->TakeLeft(&left_);
  for (const Unit page : left_) {
    const auto in_page = executor->tensors().In(page);
    const std::vector<TensorNumber> tensors(in_page.begin(), in_page.end());
    for (const TensorNumber tensor : tensors) {
      // The stream may not have come to the free of a tensor without a place.
      if (indexes_.Has(tensor)) MoveToSlot(tensor, executor);
    }
  }
}

void LearnedForesight::MoveToSlot(TensorNumber number, PageExecutor* executor) {
  PlacedTensor& tensor = Of(number);
  if (!tensor.lives || places_.rule().SlotsPerPage(tensor.size) == 0) return;
  const plan::Place slot = places_.Allocate(tensor.size);
  const UnitSpan units = UnitsOf(slot, tensor.size);
  if (!executor->MoveToSlot(number, units)) return places_.Free(slot, tensor.size);
  const UnitSpan pages = UnitsOf(tensor.place, tensor.size);
  places_.Free(std::exchange(tensor.place, slot), tensor.size);
  planner_.Moved();
  next_uses_.Moved(indexes_.Of(number), units);
  PageBooks& books = executor->books();
  if (!books.view().plan.empty()) return;
  books.Announce(units.first, next_uses_.Of(units.first));
  for (uint32_t i = 0; i < pages.count; ++i) books.Announce(pages[i], next_uses_.Of(pages[i]));
}

void LearnedForesight::Announce(const ClientCall& call, PageBooks* books) {
  if (!books->view().plan.empty()) return;
  const UnitSpan span = UnitsOf(Of(call.tensor).place, call.size);
  for (uint32_t i = 0; i < span.count; ++i) books->Announce(span[i], next_uses_.Of(span[i]));
  // The rest of the last page needs no more memory.
  const Bytes end = places_.range_end();
  books->SetGrowth({.bytes = Minus(growth_.At(now_), end.RoundUp(places_.page()) - end),
                    .from = next_uses_.At(now_),
                    .until = next_uses_.At(now_ + growth_.window())});
}

}  // namespace ravenstore::core
