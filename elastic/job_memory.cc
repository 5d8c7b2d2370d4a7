#include "elastic/job_memory.h"

#include <algorithm>
#include <utility>

#include "core/schedule/learned_foresight.h"

namespace ravenstore::elastic {

using core::Bytes;
using core::CallEnd;
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
      pages_({.begin = options.begin,
              .page = options.page,
              .client = kClient,
              .answer = [this](TensorNumber range, bool granted) { Answer(range, granted); },
              .ended = options.ended},
             parts, &scheduler_),
      ends_(streams) {
  core::plan::PlanLimits limits = LimitsOf(options);
  limits.pages = std::min(limits.pages, most_);
  core::plan::PlanLimits expected = limits;
  expected.pages = std::max(limits.pages, 1U);
  scheduler_.SetPages(limits.pages);
  scheduler_.Join(
      {.id = kClient,
       .backend = &pages_,
       .limits = limits,
       .foresight = std::make_unique<core::LearnedForesight>(
           expected, core::LearnedForesight::Options{.uses_hints = false, .has_slots = false}),
       .addresses = options.addresses});
}

CUdeviceptr JobMemory::AddressOf(TensorNumber range) const {
  const core::PageTensors::Row& row = RowOf(range);
  return options_.begin + (options_.page * (row.units.first / 2) + row.offset).count();
}

bool JobMemory::IsShort() const {
  const auto view = books().view();
  return std::max(view.plan.pages_alive(), books().totals().occupied().pages()) > view.limits.pages;
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
  const UnitSpan& units = RowOf(range).units;
  for (uint32_t i = 0; i < units.count; ++i) {
    if (!StateOf(units[i]).IsResident()) away += executor().tensors().BytesIn(range, i);
  }
  return away;
}

// ---- Calls.

CallResult JobMemory::Create(TensorNumber range, Bytes size, Duration at, uint32_t stream,
                             bool in_place) {
  if (range >= holds_.size()) holds_.resize(range + 1);
  holds_[range] = Hold::kNone;
  const CallResult result = scheduler_.Create(kClient, range, size, at, StreamId{stream}, in_place);
  if (result == CallResult::kHeld) Settle(range);
  if (result == CallResult::kWaits && !in_place) holds_[range] = Hold::kWaits;
  return result;
}

void JobMemory::EndCreate(TensorNumber range, Duration at, int64_t call) {
  scheduler_.BeginUse(kClient, range);
  const UnitSpan& units = RowOf(range).units;
  for (uint32_t i = 0; i < units.count; ++i) {
    if (StateOf(units[i]).live == 1) recent_.Created(units[i], call);
  }
  Put(range, at, {});
}

void JobMemory::Get(TensorNumber range, Duration at) {
  const CallResult result = scheduler_.Get(kClient, range, at);
  holds_[range] = Hold::kWaits;
  if (result == CallResult::kHeld) Settle(range);
}

bool JobMemory::Use(TensorNumber range, Duration at) {
  if (executor().IsResident(range)) {
    scheduler_.Use(kClient, range, at);
  } else if (scheduler_.UseInPlace(kClient, range, at) != CallResult::kHeld) {
    return false;
  }
  holds_[range] = Hold::kHeld;
  return true;
}

void JobMemory::Settle(TensorNumber range) {
  const bool is_there = RowOf(range).in_place || executor().IsResident(range);
  holds_[range] = is_there ? Hold::kHeld : Hold::kWaits;
}

void JobMemory::Answer(TensorNumber range, bool granted) {
  holds_[range] = granted ? Hold::kHeld : Hold::kNone;
}

void JobMemory::Refuse(TensorNumber range) {
  // Of bytes that are there the answer follows.
  if (scheduler_.Refuse(kClient, range)) holds_[range] = Hold::kNone;
}

void JobMemory::Put(TensorNumber range, Duration at, std::vector<Point> points) {
  holds_[range] = Hold::kNone;
  ends_.Add(scheduler_.Put(kClient, range, true, {}, at), RowOf(range).size, std::move(points));
}

void JobMemory::Free(TensorNumber range, Duration at, uint32_t stream, std::vector<Point> points) {
  holds_[range] = Hold::kNone;
  ends_.Add(scheduler_.Free(kClient, range, at, StreamId{stream}), RowOf(range).size,
            std::move(points));
}

void JobMemory::NoteUse(TensorNumber range, int64_t call) {
  const UnitSpan& units = RowOf(range).units;
  for (uint32_t i = 0; i < units.count; ++i)
    recent_.Used(units[i], call, !StateOf(units[i]).IsResident());
}

void JobMemory::ModifyAll() {
  const auto& redundant = books().copies().Redundant(0);
  const std::vector<Unit> units(redundant.begin(), redundant.end());
  for (const Unit unit : units) scheduler_.Moved(kClient).books().Modify(unit);
}

// ---- Work.

bool JobMemory::PassEnds() {
  return ends_.Pass([this](const CallEnd& end) {
    scheduler_.EndUse(kClient, end);
    if (end.frees) options_.removed(end.tensor);
  });
}

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
    recent_.Move(&books, call);
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
    executor.SetOthersMakeRoom(ends_.freed() >= books().totals()[core::UnitTotals::Sum::kAwaited] &&
                               ends_.freed() > Bytes{});
    scheduler_.Advance({});
    left_.clear();
    executor.TakeLeft(&left_);
    pages_.Left(left_);
    again = HoldWaiting() || makes_page_;
  }
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
