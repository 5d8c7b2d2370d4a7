#include "sim/paged_client.h"

#include <algorithm>
#include <utility>

#include "core/plan/places.h"

namespace ravenstore::sim {

using core::Bytes;
using core::Duration;
using core::plan::Place;

PagedClient::PagedClient(Trace trace, const PagedSetup& setup, core::PageExecutor* executor,
                         PagedHost* host, bool is_alone)
    : host_(host),
      trace_(std::move(trace)),
      runs_ahead_(setup.run_ahead != RunAhead::kNone),
      creates_block_(setup.run_ahead == RunAhead::kCreatesBlock),
      asks_for_room_(runs_ahead_ || !is_alone),
      executor_(*executor),
      plans_(MakePlanSource(trace_, setup.foresight, executor->books().view().limits)),
      tensors_(trace_.tensors.size()),
      planned_share_(executor_.books().view().limits.pages) {}

// ---- Its plan.
std::vector<core::plan::PlannedCall> PagedClient::BeginPlan() {
  return plans_->BeginPlan(!runs_ahead_ && !stream_.empty());
}

void PagedClient::SetPlan(core::plan::ResidencyPlan plan) {
  plans_->CountPlan(plan);
  executor_.books().SetPlan(std::move(plan));
}

void PagedClient::MakeOwnPlan() {
  const core::plan::PlanLimits& limits = executor_.books().view().limits;
  SetPlan(core::plan::ResidencyPlan::Make(BeginPlan(), executor_.Snapshot(), limits));
}

std::optional<Duration> PagedClient::NextOwn() const {
  if (wakes_) return now_;
  std::optional<Duration> next;
  for (const Duration until : {cpu_until_, stream_until_}) {
    if (until > now_ && (!next || until < *next)) next = until;
  }
  return next;
}

void PagedClient::SetTime(Duration now) {
  // Another client may go on at the same time, before this one.
  for (const Duration until : {cpu_until_, stream_until_}) wakes_ |= until > now_ && until <= now;
  now_ = now;
}

void PagedClient::Run() {
  wakes_ = false;
  while (RunStream() || RunCpu()) {
  }
  done_ = next_ == trace_.ops.size() && stream_.empty() && stream_until_ <= now_;
}

// ---- Its share of the device.
core::decide::PageDemand PagedClient::Demand() const {
  const core::PageBooks& books = executor_.books();
  if (done_) return {.held = 0};
  return {.in_use = core::PagesInUse(books),
          .waits_for = waits_for_room_,
          .expected = books.view().plan.pages_held(),
          .alive = std::max(books.view().plan.pages_alive(), books.totals().occupied().pages()),
          .held = books.memory().pages()};
}

void PagedClient::SetShare(uint32_t pages) {
  const uint32_t now = executor_.books().view().limits.pages;
  if (pages == now) return;
  wakes_ |= pages > now && waits_for_room();
  executor_.SetShare(pages);
  if (!core::decide::NeedsPlan(planned_share_, pages)) return;
  planned_share_ = pages;
  plans_->ShareChanged();
}

PagedStats PagedClient::stats() const {
  PagedStats stats = plans_->stats();
  stats.moves = executor_.stats();
  return stats;
}

void PagedClient::AddTo(Outcome* outcome) const {
  outcome->compute += outcome_.compute;
  outcome->stall += outcome_.stall;
  outcome->create_stall += outcome_.create_stall;
  outcome->client_stall.push_back(outcome_.stall);
  auto& stalls = outcome->iteration_stall;
  const auto& own = outcome_.iteration_stall;
  stalls.resize(std::max(stalls.size(), own.size()));
  for (size_t i = 0; i < own.size(); ++i) stalls[i] += own[i];
  outcome->up += executor_.stats().in;
  outcome->down += executor_.stats().out;
}

// ---- The CPU. Returns true if it has made a call.
bool PagedClient::RunCpu() {
  if (next_ == trace_.ops.size() || cpu_until_ > now_) return false;
  if (!runs_ahead_ && (!stream_.empty() || stream_until_ > now_)) return false;
  const Op& op = trace_.ops[next_];
  if (runs_ahead_ && !std::exchange(has_computed_, true) && op.program > Duration{0}) {
    cpu_until_ = now_ + op.program;
    return false;
  }
  if (!Make(op)) return false;
  has_computed_ = false;
  ++next_;
  return true;
}

// Returns false if the CPU waits; it is called again.
bool PagedClient::Make(const Op& op) {
  if (op.kind == OpKind::kCompute) {
    computed_ += op.time;
    stream_.push_back({&op});
  } else if (op.kind == OpKind::kStep) {
    plans_->Step();
    stream_.push_back({&op});
  } else if (op.kind == OpKind::kCreate || op.kind == OpKind::kGet) {
    return MakeUse(op);
  } else {
    MakeEnd(op);
  }
  return true;
}

bool PagedClient::MakeUse(const Op& op) {
  ClientTensor& tensor = tensors_[op.tensor];
  if (!made_) {
    See(op);
    if (op.kind == OpKind::kCreate) PlaceTensor(op);
    made_ = true;
  }
  if (!held_) {
    if (asks_for_room_) {
      core::decide::PageCall call =
          core::CallIn(executor_.books(), executor_.tensors()[op.tensor].units);
      call.may_hold = host_->MayHold(*this);
      waits_for_room_ = call.in_use;
      if (core::decide::Admit(call) != core::decide::Admission::kNow) return false;
      waits_for_room_ = 0;
    }
    executor_.Pin(op.tensor);
    tensor.in_use = true;
    stream_.push_back({&op});
    held_ = true;
    if (runs_ahead_) plans_->After(op, &executor_.books());
  }
  const bool blocks = creates_block_ && op.kind == OpKind::kCreate;
  if (blocks && !executor_.IsResident(op.tensor)) return false;
  made_ = held_ = false;
  return true;
}

void PagedClient::See(const Op& op) {
  plans_->MoveToSlots(&executor_);
  const bool had_plan = has_plan();
  plans_->Before(op, computed_, &executor_.books());
  if (plans_->TakeRemake() || has_plan() != had_plan) host_->PlansChanged(this);
}

// A put or a free.
void PagedClient::MakeEnd(const Op& op) {
  See(op);
  ClientTensor& tensor = tensors_[op.tensor];
  Enqueued ends{.op = &op, .unpins = std::exchange(tensor.in_use, false)};
  ends.dies = !tensor.dead && (op.kind == OpKind::kFree || plans_->IsLastPut(op));
  tensor.dead |= ends.dies;
  if (ends.unpins) executor_.Unpin(op.tensor);
  stream_.push_back(ends);
  // The stream's own order lets a later create have the addresses immediately.
  if (op.kind == OpKind::kFree && !IsSlot(op.tensor)) plans_->Free(op);
  if (runs_ahead_) plans_->After(op, &executor_.books());
}

void PagedClient::PlaceTensor(const Op& op) {
  const Bytes size = trace_.tensors[op.tensor].bytes;
  const Place place = plans_->PlaceFor(op);
  executor_.Place(op.tensor, plans_->UnitsOf(place, size), plans_->BytesIn(place, size, 0), size);
}

// ---- The stream. Returns true if it has executed something.
bool PagedClient::RunStream() {
  if (stream_until_ > now_ || stream_.empty()) return false;
  const Enqueued next = stream_.front();
  const Op& op = *next.op;
  const bool uses = op.kind == OpKind::kCreate || op.kind == OpKind::kGet;
  if (uses && !executor_.IsResident(op.tensor)) return false;
  CountStall(op);
  stream_.pop_front();
  if (op.kind == OpKind::kCompute) {
    outcome_.compute += op.time;
    stream_until_ = now_ + op.time;
  } else if (op.kind == OpKind::kStep) {
    ++iteration_;
  } else if (uses) {
    if (op.kind == OpKind::kCreate) executor_.Begin(op.tensor);
  } else {
    Yield(next);
  }
  const bool is_call = op.kind != OpKind::kCompute && op.kind != OpKind::kStep;
  if (is_call && !runs_ahead_) plans_->After(op, &executor_.books());
  return true;
}

// The stream was idle since it ended what it did last.
void PagedClient::CountStall(const Op& op) {
  const Duration stall = now_ - std::exchange(stream_until_, now_);
  if (stall == Duration{0}) return;
  auto& stalls = outcome_.iteration_stall;
  stalls.resize(std::max(stalls.size(), iteration_ + 1));
  stalls[iteration_] += stall;
  outcome_.stall += stall;
  if (op.kind == OpKind::kCreate) outcome_.create_stall += stall;
}

void PagedClient::Yield(const Enqueued& ends) {
  const Op& op = *ends.op;
  if (op.kind == OpKind::kPut && op.modified && !ends.dies) executor_.Modify(op.tensor);
  if (ends.dies) executor_.End(op.tensor);
  if (ends.unpins) executor_.Reach(op.tensor);
  if (op.kind == OpKind::kFree && IsSlot(op.tensor)) plans_->Free(op);
}

}  // namespace ravenstore::sim
