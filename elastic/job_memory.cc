#include "elastic/job_memory.h"

#include <algorithm>
#include <utility>

#include "core/schedule/learned_foresight.h"

namespace ravenstore::elastic {

using core::Bytes;
using core::CallResult;
using core::Duration;
using core::PageBooks;
using core::StreamId;
using core::TensorNumber;
using core::plan::Unit;
using core::plan::UnitSpan;

namespace {

// Of the link, each way.
constexpr double kBytesPerSecond = 50e9;

core::plan::PlanLimits LimitsOf(const JobMemory::Options& options) {
  return {.page = options.page,
          .pages = static_cast<uint32_t>(options.device.count() / options.page.count()),
          .pools = {{.capacity = options.host,
                     .in_rate = kBytesPerSecond,
                     .out_rate = kBytesPerSecond,
                     .ahead = false}},
          .in_place = true};
}

}  // namespace

JobMemory::JobMemory(const Options& options, Parts* parts, Streams* streams)
    : options_(options),
      most_(static_cast<uint32_t>(options.addresses.count() / options.page.count())),
      scheduler_({.pages = most_}, this),
      open_({.begin = options.begin, .page = options.page, .addresses = options.addresses}),
      pages_({.begin = options.begin,
              .page = options.page,
              .client = kClient,
              .open = &open_,
              .answer = [this](TensorNumber range, bool granted) { Answer(range, granted); },
              .ended = options.ended},
             parts, &scheduler_),
      calls_({.client = kClient, .removed = options.removed}, &scheduler_, &open_, streams) {
  core::plan::PlanLimits limits = LimitsOf(options);
  limits.pages = std::min(limits.pages, most_);
  core::plan::PlanLimits expected = limits;
  expected.pages = std::max(limits.pages, 1U);
  SetDevice(limits.pages);
  scheduler_.Join(
      {.id = kClient,
       .backend = &pages_,
       .limits = limits,
       .foresight = std::make_unique<core::LearnedForesight>(
           expected, core::LearnedForesight::Options{.uses_hints = false, .has_slots = false}),
       .addresses = options.addresses});
}

bool JobMemory::IsShort() const {
  const auto view = books().view();
  return std::max(view.plan.pages_alive(), books().totals().occupied().pages()) > view.limits.pages;
}

JobShare::Demand JobMemory::Demand(const OtherMemory& other) const {
  const core::decide::PageDemand demand = scheduler_.client(kClient).Demand();
  const auto with_segments = [&](uint32_t pages) { return options_.page * pages + other.segments; };
  return {.in_use = with_segments(demand.in_use),
          .waits_for = demand.waits_for > 0 ? with_segments(demand.waits_for) : Bytes{},
          .expected = with_segments(demand.expected),
          .alive = with_segments(demand.alive),
          .held = other.held};
}

Bytes JobMemory::Away() const {
  Bytes away;
  for (Unit unit = 0; unit < books().view().units.size(); unit += 2) {
    const core::plan::UnitState& state = StateOf(unit);
    // One that has just left is mapped on the device still.
    const bool leaves = state.life == core::PageState::kAway && pages_.IsChanging(unit);
    if (state.live > 0 && !state.IsResident() && !leaves) away += options_.page;
  }
  return away;
}

bool JobMemory::IsAnyAway() const {
  const core::plan::CopyPools& pools = books().copies().pools();
  return pools.used(0) > pools.redundant(0);
}

Bytes JobMemory::AwayOf(TensorNumber range) const {
  Bytes away;
  // It is resident; the scheduler may not have seen it yet.
  if (open_.IsOpen(range)) return away;
  const UnitSpan& units = RowOf(range).units;
  for (uint32_t i = 0; i < units.count; ++i) {
    if (!StateOf(units[i]).IsResident()) away += executor().tensors().BytesIn(range, i);
  }
  return away;
}

// ---- Calls.

void JobMemory::Grow(TensorNumber end) {
  open_.Grow(end);
  calls_.Grow(end);
}

CallResult JobMemory::Create(TensorNumber range, Bytes size, Duration at, uint32_t stream,
                             bool in_place) {
  using Creates = core::PageScheduler::Creates;
  calls_.SetHold(range, Hold::kNone);
  const CallResult result = scheduler_.Create(kClient,
                                              {.tensor = range,
                                               .size = size,
                                               .at = at,
                                               .place = open_.PlaceOf(range),
                                               .stream = StreamId{stream}},
                                              in_place ? Creates::kInPlace : Creates::kOnDevice);
  if (result == CallResult::kHeld) Settle(range);
  if (result == CallResult::kWaits && !in_place) calls_.SetHold(range, Hold::kWaits);
  return result;
}

void JobMemory::EndCreate(TensorNumber range, Duration at, int64_t call) {
  calls_.Begin(range, call);
  open_.Hold(range);
  std::vector<LoggedCall> put = {{.kind = LoggedCall::Kind::kPut, .range = range, .at = at}};
  calls_.See(&put);
  Open(range);
  const UnitSpan& units = RowOf(range).units;
  for (uint32_t i = 0; i < units.count; ++i) {
    if (StateOf(units[i]).IsResident() && pages_.CanReach(units[i])) open_.OpenPage(units[i]);
  }
}

void JobMemory::Get(TensorNumber range, Duration at) {
  const CallResult result = scheduler_.Get(kClient, range, at);
  calls_.SetHold(range, Hold::kWaits);
  if (result == CallResult::kHeld) Settle(range);
}

bool JobMemory::Use(TensorNumber range, Duration at) {
  if (executor().IsResident(range)) {
    scheduler_.Use(kClient, range, at);
  } else if (scheduler_.UseInPlace(kClient, range, at) != CallResult::kHeld) {
    return false;
  }
  calls_.SetHold(range, Hold::kHeld);
  return true;
}

void JobMemory::Settle(TensorNumber range) {
  const bool is_there = RowOf(range).in_place || executor().IsResident(range);
  calls_.SetHold(range, is_there ? Hold::kHeld : Hold::kWaits);
}

void JobMemory::Answer(TensorNumber range, bool granted) {
  calls_.SetHold(range, granted ? Hold::kHeld : Hold::kNone);
}

void JobMemory::Refuse(TensorNumber range) {
  // Of bytes that are there the answer follows.
  if (scheduler_.Refuse(kClient, range)) calls_.SetHold(range, Hold::kNone);
}

void JobMemory::ModifyAll() {
  const auto& redundant = books().copies().Redundant(0);
  const std::vector<Unit> units(redundant.begin(), redundant.end());
  for (const Unit unit : units) scheduler_.Moved(kClient).books().Modify(unit);
}

// ---- Work.

bool JobMemory::HoldWaiting() {
  if (!scheduler_.TakeWoken(kClient)) return false;
  bool any = false;
  while (const auto range = scheduler_.HoldWaiting(kClient)) {
    Settle(*range);
    any = true;
  }
  return any;
}

// Without a plan: where all fits all comes, one page after the other. Else what was used lately.
void JobMemory::DemandAway(int64_t call) {
  PageBooks& books = scheduler_.Moved(kClient).books();
  if (HasPlan() || IsShort()) {
    calls_.recent().Move(&books, call);
    return;
  }
  for (Unit unit = 0; unit < books.view().units.size(); unit += 2) {
    const core::plan::UnitState& state = books[unit];
    if (state.live == 0 || state.IsResident() || state.in_place > 0) continue;
    if (state.life == core::PageState::kAway) books.Demand(unit);
    return;
  }
}

void JobMemory::Advance(int64_t call) {
  bool again = true;
  while (again) {
    core::PageExecutor& executor = scheduler_.Moved(kClient);
    if (!is_stopped_ && !pages_.mode().frozen && IsAnyAway()) DemandAway(call);
    if (std::exchange(makes_page_, false)) scheduler_.PageMade(kClient);
    // Freed memory comes soon, without a copy.
    executor.SetOwnerMakesRoom(calls_.freed() >=
                                   books().totals()[core::UnitTotals::Sum::kAwaited] &&
                               calls_.freed() > Bytes{});
    scheduler_.Advance({});
    left_.clear();
    executor.TakeLeft(&left_);
    pages_.Left(left_);
    again = HoldWaiting() || makes_page_;
  }
}

void JobMemory::SetDevice(uint32_t pages) {
  pages = std::min(pages, most_);
  open_.SetPages(pages);
  scheduler_.SetPages(pages);
}

void JobMemory::Stop() {
  is_stopped_ = true;
  plan_work_ = nullptr;
  pages_.mode().copies_out = false;
  scheduler_.Moved(kClient).books().SetPlan({});
}

std::shared_ptr<core::PlanWork> JobMemory::MakePlan(core::DeviceId /*device*/,
                                                    std::shared_ptr<core::PlanWork> work) {
  if (is_stopped_) return nullptr;
  plan_work_ = std::move(work);
  options_.plan_due();
  return nullptr;
}

}  // namespace ravenstore::elastic
