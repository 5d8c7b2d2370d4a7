#include "sim/paged_client.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "core/check.h"
#include "core/schedule/learned_foresight.h"
#include "sim/paged_foresight.h"

namespace ravenstore::sim {

using core::Bytes;
using core::CallResult;
using core::Duration;

namespace {

// A job has one.
constexpr core::StreamId kStream{1};

std::unique_ptr<core::ClientForesight> ForesightOf(const ReplaySetup& setup, const Trace& trace,
                                                   const core::plan::PlanLimits& limits) {
  const bool has_slots = !setup.addresses_stay;
  const bool packs = setup.foresight == Foresight::kLives;
  if (packs || setup.foresight == Foresight::kCalls)
    return ForesightOfTrace(trace, limits, {.packs = packs, .has_slots = has_slots});
  const bool hints = setup.foresight == Foresight::kHints;
  return std::make_unique<core::LearnedForesight>(
      limits, core::LearnedForesight::Options{
                  .uses_hints = hints, .ends_at_never = hints, .has_slots = has_slots});
}

}  // namespace

PagedClient::PagedClient(Trace trace, const ReplaySetup& setup, core::ClientId id,
                         PagedDevice* device, const core::plan::PlanLimits& limits,
                         core::PageScheduler* scheduler)
    : id_(id),
      scheduler_(*scheduler),
      device_(*device),
      trace_(std::move(trace)),
      runs_ahead_(setup.run_ahead != RunAhead::kNone),
      creates_block_(setup.run_ahead == RunAhead::kCreatesBlock),
      timeline_(setup.timeline),
      in_slowdown_(setup.hardware.up / setup.in_place),
      out_slowdown_(setup.hardware.down / setup.in_place) {
  scheduler_.Join({.id = id,
                   .backend = device->AddClient(id),
                   .limits = limits,
                   .foresight = ForesightOf(setup, trace_, limits),
                   .waits_for_stream = !runs_ahead_});
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
  scheduler_.TakeWoken(id_);  // it has tried all that it waits for
  done_ = next_ == trace_.ops.size() && stream_.empty() && stream_until_ <= now_;
  if (done_) scheduler_.EndCalls(id_);
  scheduler_.Moved(id_);
}

PagedStats PagedClient::stats() const {
  PagedStats stats;
  stats.ForesightStats::Add(scheduler_.client(id_).foresight().stats());
  stats.moves = executor().stats();
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
  outcome->spans.insert(outcome->spans.end(), outcome_.spans.begin(), outcome_.spans.end());
  outcome->steps.insert(outcome->steps.end(), outcome_.steps.begin(), outcome_.steps.end());
  outcome->in_place += outcome_.in_place;
  outcome->up += executor().stats().in;
  outcome->down += executor().stats().out;
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
  switch (op.kind) {
    case OpKind::kCompute:
      computed_ += op.time;
      stream_.push_back({&op, {}});
      return true;
    case OpKind::kStep:
      scheduler_.Step(id_);
      stream_.push_back({&op, {}});
      return true;
    case OpKind::kPut:
      stream_.push_back({&op, scheduler_.Put(id_, op.tensor, op.modified, op.next_use, computed_)});
      return true;
    case OpKind::kFree:
      stream_.push_back({&op, scheduler_.Free(id_, op.tensor, computed_, kStream)});
      return true;
    default: return MakeUse(op);
  }
}

bool PagedClient::MakeUse(const Op& op) {
  if (progress_ != Progress::kHeld) {
    if (Call(op) != CallResult::kHeld) return false;
    stream_.push_back({&op, {}, executor().tensors()[op.tensor].in_place});
    progress_ = Progress::kHeld;
  }
  const bool blocks = creates_block_ && op.kind == OpKind::kCreate;
  const bool in_place = executor().tensors()[op.tensor].in_place;
  if (blocks && !in_place && !executor().IsResident(op.tensor)) return false;
  progress_ = Progress::kNone;
  return true;
}

CallResult PagedClient::Call(const Op& op) {
  if (progress_ == Progress::kWaits)
    return scheduler_.HoldWaiting(id_) ? CallResult::kHeld : CallResult::kWaits;
  const CallResult result = op.kind == OpKind::kCreate
                                ? scheduler_.Create(id_, {.tensor = op.tensor,
                                                          .size = trace_.tensors[op.tensor].bytes,
                                                          .at = computed_,
                                                          .stream = kStream})
                                : scheduler_.Get(id_, op.tensor, computed_);
  progress_ = Progress::kWaits;
  return result;
}

// ---- The stream. Returns true if it has executed something.
bool PagedClient::RunStream() {
  if (stream_until_ > now_ || stream_.empty()) return false;
  const Enqueued next = stream_.front();
  const Op& op = *next.op;
  const bool uses = op.kind == OpKind::kCreate || op.kind == OpKind::kGet;
  if (uses && !next.in_place && !executor().IsResident(op.tensor)) return false;
  if (op.kind == OpKind::kCompute && !UseInPlace()) return false;
  CountStall(op);
  stream_.pop_front();
  if (op.kind == OpKind::kCompute) {
    outcome_.compute += op.time;
    stream_until_ = now_ + op.time;
    if (timeline_)
      outcome_.spans.push_back(
          {Span::Kind::kCompute, core::ToInt(id_), now_, stream_until_, ~uint32_t{0}});
  } else if (op.kind == OpKind::kStep) {
    ++iteration_;
    if (timeline_) outcome_.steps.push_back({core::ToInt(id_), now_});
  } else if (uses) {
    scheduler_.BeginUse(id_, op.tensor);
    if (next.in_place) in_place_[op.tensor] = InPlaceOf(op);
  } else {
    in_place_.erase(op.tensor);
    scheduler_.EndUse(id_, next.end);
  }
  return true;
}

// A get reads the tensor, and writes it unless it is for reading only. A create writes it.
PagedClient::InPlace PagedClient::InPlaceOf(const Op& op) const {
  Bytes away;
  const core::plan::UnitSpan& units = executor().tensors()[op.tensor].units;
  for (uint32_t i = 0; i < units.count; ++i) {
    if (!executor().books()[units[i]].IsResident())
      away += executor().tensors().BytesIn(op.tensor, i);
  }
  return {.in = op.kind == OpKind::kGet ? away : Bytes{}, .out = op.read_only ? Bytes{} : away};
}

bool PagedClient::UseInPlace() {
  if (in_place_.empty()) return true;
  if (!std::exchange(is_in_place_, true)) {
    InPlace sum;
    for (const auto& [tensor, of] : in_place_) {
      sum.in += of.in;
      sum.out += of.out;
    }
    outcome_.in_place += sum.in + sum.out;
    const auto on_link = [](Bytes bytes, double slowdown) {
      return Bytes(static_cast<uint64_t>(static_cast<double>(bytes.count()) * slowdown));
    };
    device_.UseInPlace(id_, on_link(sum.in, in_slowdown_), on_link(sum.out, out_slowdown_));
  }
  if (device_.UsesInPlace(id_)) return false;
  is_in_place_ = false;
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
  if (timeline_)
    outcome_.spans.push_back({Span::Kind::kStall, core::ToInt(id_), now_ - stall, now_,
                              op.kind == OpKind::kCompute ? ~uint32_t{0} : op.tensor});
  if (op.kind == OpKind::kCreate) outcome_.create_stall += stall;
}

}  // namespace ravenstore::sim
