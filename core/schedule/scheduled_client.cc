#include "core/schedule/scheduled_client.h"

#include <algorithm>

#include "core/books/page_views.h"
#include "core/check.h"
#include "core/decide/page_admission.h"

namespace ravenstore::core {

using plan::CallKind;

namespace {

bool HasSlot(const PageExecutor& executor, TensorNumber tensor) {
  return executor.tensors()[tensor].units.is_slot();
}

// Where it begins in the range. REQUIRES: it has no slot.
Bytes OffsetOf(const PageExecutor& executor, TensorNumber tensor) {
  const PageTensors::Row& row = executor.tensors()[tensor];
  return executor.books().view().limits.page * (row.units.first / 2) + row.offset;
}

enum class Holding : uint8_t { kNone, kPages, kInPlace };

// How a create or a get of the tensor can hold it now.
Holding HoldingOf(const PageExecutor& executor, TensorNumber tensor, uint32_t may_hold) {
  const PageBooks& books = executor.books();
  const plan::UnitSpan& units = executor.tensors()[tensor].units;
  const auto fits = [&](bool in_place) {
    decide::PageCall needs = CallIn(books, units, in_place);
    needs.may_hold = may_hold;
    return decide::Admit(needs) == decide::Admission::kNow;
  };
  const bool fits_whole = fits(false);
  if (!books.view().limits.in_place) return fits_whole ? Holding::kPages : Holding::kNone;
  // A page that kernels use in place does not come. They may be of the same call.
  if (fits_whole && !IsUsedInPlace(books, units)) return Holding::kPages;
  const bool can = CanUseInPlace(books, executor.tensors(), tensor);
  return can && fits(true) ? Holding::kInPlace : Holding::kNone;
}

}  // namespace

ScheduledClient::ScheduledClient(Options options)
    : options_(std::move(options)),
      executor_(options_.books, options_.backend),
      planned_share_(options_.books.limits.pages),
      most_(options_.most) {
  RAVEN_CHECK(options_.foresight != nullptr);
}

// ---- Calls.

bool ScheduledClient::See(const ClientCall& call, bool fits) {
  ClientForesight& foresight = *options_.foresight;
  const PageBooks& books = executor_.books();
  peak_.Add(std::max(books.totals().occupied().pages(), PagesInUse(books)));
  foresight.SetFits(fits);
  foresight.MoveToSlots(&executor_);
  at_ = call.at;
  foresight.Before(call, &executor_.books());
  const bool had_plan = std::exchange(had_plan_, foresight.has_plan());
  return foresight.TakeRemake() || had_plan_ != had_plan;
}

void ScheduledClient::Place(const ClientCall& call, uint32_t most) {
  trims_ = false;
  options_.foresight->SetMost(most);
  const plan::Place place = options_.foresight->PlaceFor(call, in_use_);
  executor_.Place(call.tensor, foresight().UnitsOf(place, call.size), foresight().OffsetOf(place),
                  call.size);
  if (call.tensor >= dead_.size()) {
    dead_.resize(call.tensor + 1);
    streams_.resize(call.tensor + 1);
  }
  dead_[call.tensor] = false;
  streams_[call.tensor] = call.stream;
}

void ScheduledClient::Use(const ClientCall& call) {
  executor_.Pin(call.tensor);
  Done(call);
}

bool ScheduledClient::Hold(const ClientCall& call, std::optional<uint32_t> may_hold) {
  if (!may_hold) {
    if (!CanUseInPlace(executor_.books(), executor_.tensors(), call.tensor)) return false;
    executor_.in_place().Begin(call.tensor);
    Done(call);
    return true;
  }
  if (waiting_.empty() && TryHold(call, *may_hold)) return true;
  trims_ = false;  // a get of discarded bytes needs pages as a create does
  waiting_.push_back(call);
  peak_.Add(WaitsFor());
  return false;
}

std::optional<TensorNumber> ScheduledClient::HoldWaiting(uint32_t may_hold) {
  if (waiting_.empty() || !TryHold(waiting_.front(), may_hold)) return std::nullopt;
  const TensorNumber tensor = waiting_.front().tensor;
  waiting_.pop_front();
  return tensor;
}

bool ScheduledClient::TryHold(const ClientCall& call, uint32_t may_hold) {
  const Holding holding = HoldingOf(executor_, call.tensor, may_hold);
  if (holding == Holding::kNone) return false;
  if (holding == Holding::kInPlace) executor_.in_place().Begin(call.tensor);
  if (holding == Holding::kPages) executor_.Pin(call.tensor);
  if (options_.waits_for_stream) {
    open_ = call;
  } else {
    Done(call);
  }
  return true;
}

CallEnd ScheduledClient::End(const ClientCall& call) {
  const bool frees = call.kind == CallKind::kFree;
  CallEnd end{.tensor = call.tensor,
              .frees = frees,
              .unpins = executor_.tensors()[call.tensor].pinned,
              .modifies = call.modifies,
              .in_place = executor_.tensors()[call.tensor].in_place};
  end.dies = !dead_[call.tensor] && (frees || foresight().IsLastPut(call));
  if (end.dies) dead_[call.tensor] = true;
  if (end.unpins) executor_.Unpin(call.tensor, call.priority);
  if (options_.waits_for_stream) {
    open_ = call;
    return end;
  }
  Done(call);
  if (!frees || HasSlot(executor_, call.tensor) || call.stream == kNoStream ||
      call.stream != streams_[call.tensor] || !in_use_.HasRoomFor(call.stream))
    return end;
  end.place_of = call.stream;
  in_use_.Add(OffsetOf(executor_, call.tensor), executor_.tensors()[call.tensor].size, call.stream);
  options_.foresight->FreePlace(call.tensor);
  return end;
}

void ScheduledClient::BeginUse(TensorNumber tensor) {
  if (executor_.tensors()[tensor].life == PageTensors::Life::kBegins) {
    executor_.Begin(tensor);
    dead_[tensor] = false;
  }
  if (open_) Done(*open_);
  open_ = std::nullopt;
}

void ScheduledClient::EndUse(const CallEnd& end) {
  const bool lives = executor_.tensors()[end.tensor].lives();
  const bool modifies = lives && end.modifies && !end.dies;
  if (end.in_place) {
    executor_.in_place().End(end.tensor, modifies);
  } else if (modifies) {
    executor_.Modify(end.tensor);
  }
  if (lives && end.dies) executor_.End(end.tensor);
  if (end.unpins && !end.in_place) executor_.Reach(end.tensor);
  woken_ |= !waiting_.empty();
  if (open_) Done(*open_);
  open_ = std::nullopt;
  if (!end.frees) return;
  // An early grant was broken after the free.
  if (executor_.tensors()[end.tensor].pinned) {
    executor_.Unpin(end.tensor);
    executor_.Reach(end.tensor);
  }
  if (end.place_of != kNoStream) {
    in_use_.Remove(OffsetOf(executor_, end.tensor), executor_.tensors()[end.tensor].size,
                   end.place_of);
  } else {
    options_.foresight->FreePlace(end.tensor);
  }
  executor_.Remove(end.tensor);
}

void ScheduledClient::EndBytes(TensorNumber tensor) {
  executor_.End(tensor);
  dead_[tensor] = true;
}

bool ScheduledClient::Refuse(TensorNumber tensor) {
  const auto waits = std::find_if(waiting_.begin(), waiting_.end(),
                                  [&](const ClientCall& call) { return call.tensor == tensor; });
  if (waits != waiting_.end()) {
    const bool creates = waits->kind == CallKind::kCreate;
    waiting_.erase(waits);
    woken_ |= !waiting_.empty();
    if (creates) Forget(tensor);
    return true;
  }
  // The grant of a call whose bytes are there follows with the next Start().
  if (!executor_.Waits(tensor) || executor_.IsResident(tensor)) return false;
  executor_.Refuse(tensor);
  Refused(tensor);
  return true;
}

void ScheduledClient::Refused(TensorNumber tensor) {
  open_ = std::nullopt;
  woken_ |= !waiting_.empty();
  options_.foresight->Refused(tensor);
  // The first use, which is taken back, was the create.
  if (executor_.tensors()[tensor].uses == 0) Forget(tensor);
}

void ScheduledClient::Forget(TensorNumber tensor) {
  const ClientCall call{.kind = CallKind::kFree,
                        .tensor = tensor,
                        .size = executor_.tensors()[tensor].size,
                        .at = at_};
  options_.foresight->Before(call, &executor_.books());
  Done(call);
  options_.foresight->FreePlace(tensor);
  executor_.Remove(tensor);
}

// ---- Its plan.

PlanWork::Part ScheduledClient::BeginPlan() {
  PlanWork::Part part;
  part.client = id();
  part.calls = options_.foresight->BeginPlan(open_.has_value());
  part.version = foresight().version();
  part.units = executor_.Snapshot();
  return part;
}

void ScheduledClient::SetPlan(plan::ResidencyPlan plan, uint32_t pages, bool is_shared) {
  const uint32_t share = executor_.books().view().limits.pages;
  options_.foresight->SetPlan(&plan, is_shared);
  executor_.SetShare(pages);
  executor_.books().SetPlan(std::move(plan));
  executor_.SetShare(share);
}

void ScheduledClient::SetSharedPlan(plan::ResidencyPlan plan, uint32_t pages) {
  executor_.SetShare(pages);
  executor_.SetOwnerMakesRoom(true);
  planned_share_ = pages;
  SetPlan(std::move(plan), pages, true);
}

// ---- Its share of the device.

uint32_t ScheduledClient::WaitsFor() const {
  if (waiting_.empty()) return 0;
  return CallIn(executor_.books(), executor_.tensors()[waiting_.front().tensor].units).in_use;
}

void ScheduledClient::Start() {
  touched_ = false;
  // A page that comes ahead would delay a call that can use it in place.
  const bool maps_ahead = waiting_.empty() || !executor_.books().view().limits.in_place;
  woken_ |= executor_.Start(maps_ahead);
}

bool ScheduledClient::WakeIfFits(uint32_t may_hold) {
  const bool fits = !waiting_.empty() &&
                    HoldingOf(executor_, waiting_.front().tensor, may_hold) != Holding::kNone;
  woken_ |= fits;
  return fits;
}

decide::PageDemand ScheduledClient::Demand() const {
  const PageBooks& books = executor_.books();
  if (has_ended_) return {.held = 0};
  const auto at_most = [this](uint32_t pages) { return std::min(pages, most_); };
  return {.in_use = at_most(PagesInUse(books)),
          .waits_for = at_most(WaitsFor()),
          .expected = at_most(books.view().plan.pages_held()),
          .alive =
              at_most(std::max(books.view().plan.pages_alive(), books.totals().occupied().pages())),
          .held = at_most(books.memory().pages()),
          .most = most_};
}

bool ScheduledClient::SetShare(uint32_t pages) {
  pages = std::min(pages, most_);
  if (trims_) pages = std::min(pages, executor_.books().totals().occupied().pages());
  const uint32_t now = executor_.books().view().limits.pages;
  if (pages == now) return false;
  woken_ |= pages > now && !waiting_.empty();
  executor_.SetShare(pages);
  if (!decide::NeedsPlan(planned_share_, pages)) return true;
  planned_share_ = pages;
  options_.foresight->ShareChanged();
  return true;
}

void ScheduledClient::Retire() {
  waiting_.clear();
  has_ended_ = true;
  executor_.Retire();
  executor_.SetShare(0);
  executor_.SetOwnerMakesRoom(false);
}

}  // namespace ravenstore::core
