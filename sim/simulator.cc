#include "sim/simulator.h"

#include <algorithm>
#include <deque>
#include <functional>
#include <map>
#include <queue>
#include <unordered_map>
#include <utility>

#include "core/check.h"
#include "core/size_text.h"
#include "sim/link.h"
#include "sim/plan_hash.h"

namespace ravenstore::sim {

using core::Bytes;
using core::ClientId;
using core::Duration;
using core::SlotId;
using core::TensorId;
using core::Tick;

namespace {

constexpr core::DeviceId kDevice{0};
constexpr uint32_t kNone = ~0u;
constexpr Duration kStuckAfter = std::chrono::seconds(10);
constexpr Tick kBegin{std::chrono::seconds(1)};

class Simulator {
 public:
  Simulator(const Trace& trace, const Setup& setup)
      : trace_(trace),
        setup_(setup),
        budget_(setup.budget.RoundDown(kBudgetUnit)),
        planner_(MakeOptions(trace, setup, budget_)),
        up_(setup.hardware.up, setup.hardware),
        down_(setup.hardware.down, setup.hardware),
        rows_(trace.tensors.size()),
        clients_(trace.clients) {
    for (uint32_t i = 0; i < trace.ops.size(); ++i) {
      clients_[trace.ops[i].client].program.push_back(i);
    }
  }

  Outcome Run();

 private:
  enum class State : uint8_t { kNone, kInUse, kIdle, kLeaving, kAway, kFetching, kFreed };
  enum class EventKind : uint8_t {
    kClient,
    kUpEnd,
    kDownEnd,
    kUpKnown,
    kDownKnown,
    kProgressKnown,
    kSlab,
    kWake
  };

  struct Row {
    TensorId id{};
    SlotId slot{};
    State state = State::kNone;
    bool irrevocable = false;  // it leaves beyond rescue
    bool arriving = false;     // its fetch is answered, and its copy is not known to be done
    uint64_t uses = 0;
    uint32_t writes = 0;
    Duration recompute{0};
  };
  struct Client {
    std::vector<uint32_t> program;  // indices of ops
    size_t next = 0;
    bool waiting = false;
    Tick since{};
    size_t iteration = 0;
    std::vector<SlotId> free_slots;
    uint32_t slots = 0;
    std::vector<uint32_t> row_of_slot;
    bool done = false;
  };
  struct Event {
    Tick at;
    uint64_t sequence;
    EventKind kind;
    uint32_t client;
    bool operator>(const Event& other) const {
      return std::pair(at, sequence) > std::pair(other.at, other.sequence);
    }
  };

  static core::PlannerOptions MakeOptions(const Trace& trace, const Setup& setup, Bytes budget) {
    core::PlannerOptions options;
    options.heuristics = setup.heuristics;
    options.policy = setup.policy;
    options.learn = setup.learn;
    options.prefetch = setup.prefetch;
    options.preclean = setup.preclean;
    if (!setup.incremental) options.incremental_from = core::kRangeMax;
    options.granularity = kBudgetUnit;
    options.device_capacity = {budget};
    options.arena = {core::ArenaFor(budget)};
    options.host_capacity = (trace.Footprint() * 2 + core::GiB(1)).RoundUp(core::MiB(64));
    options.host_step = options.host_capacity;  // all of it is pinned before the first call
    const core::LinkModel link{setup.hardware.latency, setup.hardware.up, setup.hardware.down};
    options.topology = core::DevicesAroundHost(options.device_capacity, options.host_capacity,
                                               options.granularity, {link})
                           .value();
    options.slab = std::max(options.slab, core::SlabFor(link));
    return options;
  }

  static ClientId IdOf(uint32_t client) { return ClientId{client + 1}; }
  void Schedule(Tick at, EventKind kind, uint32_t client = 0) {
    queue_.push({at, ++sequence_, kind, client});
  }
  uint32_t RowOf(TensorId tensor) const {
    return row_of_tensor_.at(static_cast<uint32_t>(core::ToInt(tensor)));
  }

  // Takes the event to the planner and does what it proposes, and what that leads to.
  void Tell(const core::Event& event);
  void Do(const core::AddSlab& action) {
    const core::SlabAdded added{action.client, action.device, action.offset, action.size};
    grown_ += action.size;
    slabs_[{action.client, action.offset}] = action.size;
    if (grown_ <= budget_) return Later(added);
    SlabAfter(setup_.hardware.slab_made, added);
  }
  void Do(const core::RemoveSlab& action) {
    const Hardware& hardware = setup_.hardware;
    const auto slab = slabs_.extract({action.client, action.offset});
    const auto bytes = static_cast<double>(slab.mapped().count());
    SlabAfter(hardware.slab_unmapped + core::FromSeconds(bytes / hardware.slab_cleared),
              core::SlabRemoved{action.client, action.device, action.offset});
  }
  void Do(const core::GrowHost& action) { Later(core::HostGrown{action.offset, action.size}); }
  void Do(const core::ReclaimPinned&) {}
  void Do(const core::ShrinkHost& action) { Later(core::HostShrunk{action.offset, action.size}); }
  void Do(const core::AllocReply& action);
  void Do(const core::AllocError& action) { Fail(action.error.message); }
  void Do(const core::FetchReply& action);
  void Do(const core::FetchError& action) { Fail(action.error.message); }
  void Do(const core::Release& action);
  void Do(const core::Drop& action);
  void Do(const core::CopyOut& action);
  void Do(const core::Clean& action);
  void Do(const core::Prioritize& action);
  void Do(const core::CopyIn& action);
  void Do(const core::DeferDestroy&) {}
  void Later(core::Event event) { pending_events_.push_back(std::move(event)); }
  void SlabAfter(core::Duration duration, core::Event event) {
    slab_events_.emplace(now_ + duration, std::move(event));
    Schedule(now_ + duration, EventKind::kSlab);
  }
  void Fail(const std::string& why) {
    if (outcome_.failure.empty()) outcome_.failure = why;
  }

  void WaitsForEver(const std::string& why) {
    outcome_.endless |= outcome_.failure.empty();
    Fail(why);
  }

  void Advance(uint32_t index);
  // False: the client waits.
  bool Perform(uint32_t index, const Op& op);
  core::NameId NameOf(uint32_t tensor) {
    const std::string& name = trace_.tensors[tensor].name;
    if (name.empty()) return core::kNoName;
    return names_.emplace(name, core::NameId{static_cast<uint32_t>(names_.size() + 1)})
        .first->second;
  }
  void Wait(Client& client) {
    client.waiting = true;
    client.since = now_;
  }
  void Resume(uint32_t index, Duration more = Duration{0});
  void CountStall(Client& client, uint32_t index, Tick begin, Tick end);
  // All wait, nothing moves, and for so long that no retry will help.
  bool Stuck() const {
    const bool told = up_known_.empty() && down_known_.empty() && progress_known_.empty();
    return !up_.busy() && !down_.busy() && told && slab_events_.empty() &&
           std::all_of(clients_.begin(), clients_.end(), [this](const Client& client) {
             return client.done || (client.waiting && now_ - client.since > kStuckAfter);
           });
  }
  std::string DescribeWaiters() const;
  void PumpLinks();
  core::ClientId OwnerOf(uint32_t row) const { return IdOf(trace_.tensors[row].client); }
  void PieceEnded(Link& link, bool up);
  void CopyKnown(const Link::Job& job);
  void LeaveIrrevocably(Row& row);
  void OutKnown(const Link::Job& job, Row& row);
  void KeepSpan(Span::Kind kind, uint32_t client, Tick begin, Tick end, uint32_t tensor = kNone) {
    if (setup_.timeline && begin < end)
      outcome_.spans.push_back({kind, client, begin, end, tensor});
  }
  void KeepMemory();

  const Trace& trace_;
  const Setup& setup_;
  const Bytes budget_;
  core::Planner planner_;
  core::Plan plan_;
  std::deque<core::Event> pending_events_;
  Link up_;
  Link down_;
  Bytes grown_;                                        // slabs made so far
  std::map<std::pair<ClientId, Bytes>, Bytes> slabs_;  // their sizes, by offset
  std::multimap<Tick, core::Event> slab_events_;       // by when they happen
  std::deque<core::CopyOutProgressed> progress_known_;
  std::deque<Link::Job> up_known_;  // done, but not yet known to be
  std::deque<Link::Job> down_known_;
  std::vector<Row> rows_;
  std::vector<Client> clients_;
  std::vector<uint32_t> row_of_tensor_;  // by the row of the planner's catalog
  std::priority_queue<Event, std::vector<Event>, std::greater<>> queue_;
  std::unordered_map<std::string, core::NameId> names_;
  uint64_t sequence_ = 0;
  Tick now_ = kBegin;
  Tick wake_ = core::kNever;
  Tick piece_begin_[2] = {};
  PlanHash hash_;
  Outcome outcome_;
};

void Simulator::Tell(const core::Event& event) {
  pending_events_.push_back(event);
  while (!pending_events_.empty()) {
    const core::Event next = std::move(pending_events_.front());
    pending_events_.pop_front();
    plan_.clear();
    planner_.Apply(next, now_, &plan_);
    ++outcome_.events;
    // A copy, because what is done may tell more; that waits its turn.
    const core::Plan plan = std::move(plan_);
    plan_ = {};
    for (const core::Action& action : plan) {
      hash_.Add(now_, action, [this](TensorId tensor) { return RowOf(tensor); });
      std::visit([this](const auto& one) { Do(one); }, action);
    }
  }
  PumpLinks();
  if (setup_.timeline) KeepMemory();
  const Tick wake = planner_.NextWake();
  if (wake < wake_) {
    wake_ = wake;
    Schedule(std::max(wake, now_), EventKind::kWake);
  }
}

void Simulator::KeepMemory() {
  const core::TierView tier = planner_.DeviceTier(kDevice);
  auto& points = outcome_.memory;
  if (!points.empty() && points.back().held == tier.held && points.back().used == tier.used) return;
  if (!points.empty() && points.back().at == now_) points.pop_back();
  points.push_back({now_, tier.held, tier.used});
}

void Simulator::Do(const core::AllocReply& action) {
  const uint32_t index = core::ToInt(action.client) - 1;
  Client& client = clients_[index];
  const uint32_t row = client.row_of_slot[core::ToInt(action.slot)];
  const auto catalog_row = static_cast<uint32_t>(core::ToInt(action.tensor));
  if (row_of_tensor_.size() <= catalog_row) row_of_tensor_.resize(catalog_row + 1, kNone);
  row_of_tensor_[catalog_row] = row;
  rows_[row].id = action.tensor;
  rows_[row].state = State::kInUse;
  Resume(index);
}

void Simulator::Do(const core::FetchReply& action) {
  Row& row = rows_[RowOf(action.tensor)];
  const uint32_t client = trace_.tensors[RowOf(action.tensor)].client;
  row.state = State::kInUse;
  if (action.recompute) return Resume(client, row.recompute);
  if (!action.arriving) return Resume(client);
  row.arriving = true;
  up_.Promote(action.tensor, IdOf(client));
}

void Simulator::Do(const core::Release& action) {
  clients_[core::ToInt(action.client) - 1].free_slots.push_back(action.slot);
}

void Simulator::Do(const core::Drop& action) {
  Row& row = rows_[RowOf(action.tensor)];
  const bool taken = row.state == State::kIdle;
  if (taken) row.state = State::kAway;
  Later(core::Dropped{action.tensor, taken});
}

void Simulator::Do(const core::CopyOut& action) {
  const uint32_t index = RowOf(action.tensor);
  Row& row = rows_[index];
  if (row.state != State::kIdle)
    return Later(core::CopiedOut{action.tensor, core::CopiedOut::Outcome::kNotBegun, 0});
  row.state = State::kLeaving;
  if (action.irrevocable) LeaveIrrevocably(row);
  down_.Submit(
      {Link::Kind::kOut, action.tensor, index, action.size, action.behalf, row.uses, row.writes},
      Link::Urgency::kDemand);
}

void Simulator::Do(const core::Clean& action) {
  const uint32_t index = RowOf(action.tensor);
  const Row& row = rows_[index];
  if (row.state != State::kIdle) return Later(core::Cleaned{action.tensor, false, 0});
  down_.Submit(
      {Link::Kind::kClean, action.tensor, index, action.size, OwnerOf(index), row.uses, row.writes},
      Link::Urgency::kBackground);
}

void Simulator::Do(const core::Prioritize& action) {
  down_.Promote(action.tensor, action.behalf);
  Row& row = rows_[RowOf(action.tensor)];
  if (action.irrevocable && row.state == State::kIdle) LeaveIrrevocably(row);
}

void Simulator::LeaveIrrevocably(Row& row) {
  row.state = State::kAway;
  row.irrevocable = true;
  Later(core::CopyOutProgressed{row.id, Bytes{0}});
}

void Simulator::Do(const core::CopyIn& action) {
  const uint32_t index = RowOf(action.tensor);
  up_.Submit({Link::Kind::kIn, action.tensor, index, action.size, OwnerOf(index)},
             action.demand ? Link::Urgency::kDemand : Link::Urgency::kBackground);
}

void Simulator::CountStall(Client& client, uint32_t index, Tick begin, Tick end) {
  outcome_.stall += end - begin;
  const Op& op = trace_.ops[client.program[client.next]];
  if (op.kind == OpKind::kCreate) outcome_.create_stall += end - begin;
  if (outcome_.iteration_stall.size() <= client.iteration)
    outcome_.iteration_stall.resize(client.iteration + 1);
  outcome_.iteration_stall[client.iteration] += end - begin;
  outcome_.client_stall.resize(trace_.clients);
  outcome_.client_stall[index] += end - begin;
  KeepSpan(Span::Kind::kStall, index, begin, end, op.tensor);
}

void Simulator::Resume(uint32_t index, Duration more) {
  Client& client = clients_[index];
  if (!client.waiting) return;
  client.waiting = false;
  if (now_ + more > kBegin + kReplayMax) return Fail(kTooLong);
  CountStall(client, index, client.since, now_ + more);
  ++client.next;
  Schedule(now_ + more, EventKind::kClient, index);
}

bool Simulator::Perform(uint32_t index, const Op& op) {
  Client& client = clients_[index];
  if (op.kind == OpKind::kCompute) {
    outcome_.compute += op.time;
    KeepSpan(Span::Kind::kCompute, index, now_, now_ + op.time);
    return true;
  }
  if (op.kind == OpKind::kStep) {
    ++client.iteration;
    if (setup_.timeline) outcome_.steps.push_back({index, now_});
    Tell(core::StepMarked{IdOf(index)});
    return true;
  }
  Row& row = rows_[op.tensor];
  switch (op.kind) {
    case OpKind::kCreate:
      if (client.free_slots.empty()) {
        client.free_slots.push_back(SlotId{client.slots++});
        client.row_of_slot.push_back(kNone);
      }
      row.slot = client.free_slots.back();
      client.free_slots.pop_back();
      client.row_of_slot[core::ToInt(row.slot)] = op.tensor;
      Wait(client);
      if (trace_.tensors[op.tensor].bytes > budget_) {
        Fail("a tensor of " + core::SizeText(trace_.tensors[op.tensor].bytes) +
             " is larger than the budget, which is " + core::SizeText(budget_) + " in units of " +
             core::SizeText(kBudgetUnit));
        return false;
      }
      Tell(core::CreateRequested{IdOf(index), row.slot, trace_.tensors[op.tensor].bytes, kDevice,
                                 NameOf(op.tensor), core::kNever, false});
      return false;
    case OpKind::kGet:
      ++row.uses;
      if (row.state == State::kIdle || row.state == State::kLeaving) {
        row.state = State::kInUse;
        Tell(core::GetSeen{row.id});
        return true;
      }
      row.state = State::kFetching;
      Wait(client);
      Tell(core::FetchRequested{row.id, kDevice, core::kNever});
      return false;
    case OpKind::kPut: {
      if (op.modified) ++row.writes;
      row.state = State::kIdle;
      row.recompute = op.recompute;
      core::NextUse next = op.next_use;
      if (next.kind == core::NextUse::Kind::kAt) next.at = now_ + next.at.time_since_epoch();
      Tell(core::PutSeen{row.id, row.writes, next, op.recompute, op.priority});
      Tell(core::StreamComplete{row.id});
      return true;
    }
    case OpKind::kFree:
      row.state = State::kFreed;
      Tell(core::Freed{row.id});
      return true;
    case OpKind::kCompute:
    case OpKind::kStep: break;
  }
  return true;
}

void Simulator::Advance(uint32_t index) {
  Client& client = clients_[index];
  while (client.next < client.program.size() && outcome_.failure.empty()) {
    const Op& op = trace_.ops[client.program[client.next]];
    if (!Perform(index, op)) return;  // Resume moves on
    ++client.next;
    if (op.kind == OpKind::kCompute && op.time > Duration{0})
      return Schedule(now_ + op.time, EventKind::kClient, index);
  }
  client.done = client.next >= client.program.size();
}

std::string Simulator::DescribeWaiters() const {
  std::string words;
  for (const core::ClientId id : planner_.Clients()) {
    const core::ClientView view = planner_.View(id);
    words += "client " + std::to_string(core::ToInt(id)) + " holds " +
             core::SizeText(view.device_held) + ", " + core::SizeText(view.in_use) +
             " of it in use; ";
  }
  return words + "raise the budget, of which " + core::SizeText(budget_) + " is given out";
}

void Simulator::PumpLinks() {
  if (const auto took = up_.Begin(down_.busy())) {
    piece_begin_[0] = now_;
    Schedule(now_ + *took, EventKind::kUpEnd);
  }
  if (const auto took = down_.Begin(up_.busy())) {
    piece_begin_[1] = now_;
    Schedule(now_ + *took, EventKind::kDownEnd);
  }
}

void Simulator::PieceEnded(Link& link, bool up) {
  KeepSpan(up ? Span::Kind::kUp : Span::Kind::kDown, 0, piece_begin_[up ? 0 : 1], now_,
           link.current().row);
  const Link::Job& part = link.current();
  if (!up && part.left > Bytes{0} && rows_[part.row].irrevocable) {
    progress_known_.push_back({part.tensor, trace_.tensors[part.row].bytes - part.left});
    Schedule(now_ + setup_.hardware.latency, EventKind::kProgressKnown);
  }
  if (const auto job = link.End()) {
    (up ? up_known_ : down_known_).push_back(*job);
    Schedule(now_ + setup_.hardware.latency, up ? EventKind::kUpKnown : EventKind::kDownKnown);
  }
  PumpLinks();
}

void Simulator::OutKnown(const Link::Job& job, Row& row) {
  using Result = core::CopiedOut::Outcome;
  const bool rescued = row.state != State::kLeaving || row.uses != job.use;
  const bool committed = std::exchange(row.irrevocable, false) || !rescued;
  if (committed && !rescued) row.state = State::kAway;
  Tell(core::CopiedOut{job.tensor, committed ? Result::kCommitted : Result::kRescued, job.writes});
}

void Simulator::CopyKnown(const Link::Job& job) {
  Row& row = rows_[job.row];
  switch (job.kind) {
    case Link::Kind::kOut: return OutKnown(job, row);
    case Link::Kind::kClean: {
      if (row.irrevocable) return OutKnown(job, row);
      const bool whole = row.state == State::kIdle && row.uses == job.use;
      return Tell(core::Cleaned{job.tensor, whole, job.writes});
    }
    case Link::Kind::kIn:
      if (row.state == State::kAway) row.state = State::kIdle;
      Tell(core::CopiedIn{job.tensor, true});
      if (std::exchange(row.arriving, false)) Resume(trace_.tensors[job.row].client);
  }
}

Outcome Simulator::Run() {
  for (uint32_t i = 0; i < clients_.size(); ++i) {
    const core::TenantId tenant{i + 1};
    const core::Budgets budgets{budget_, trace_.Footprint() * 2 + core::GiB(1)};
    Tell(core::TenantLimits{tenant, budgets});
    Tell(core::ClientAttached{IdOf(i), tenant, budgets});
    Schedule(now_, EventKind::kClient, i);
  }
  const Tick begin = now_;
  Tick last = now_;
  while (!queue_.empty() && outcome_.failure.empty()) {
    const Event event = queue_.top();
    queue_.pop();
    if (event.at > kBegin + kReplayMax) Fail(kTooLong);
    if (!outcome_.failure.empty()) break;
    now_ = event.at;
    switch (event.kind) {
      case EventKind::kClient:
        Advance(event.client);
        last = now_;
        break;
      case EventKind::kUpEnd: PieceEnded(up_, true); break;
      case EventKind::kDownEnd: PieceEnded(down_, false); break;
      case EventKind::kUpKnown:
      case EventKind::kDownKnown: {
        auto& known = event.kind == EventKind::kUpKnown ? up_known_ : down_known_;
        const Link::Job job = known.front();
        known.pop_front();
        CopyKnown(job);
        break;
      }
      case EventKind::kProgressKnown: {
        const core::CopyOutProgressed part = progress_known_.front();
        progress_known_.pop_front();
        Tell(part);
        break;
      }
      case EventKind::kSlab: {
        const core::Event done = slab_events_.extract(slab_events_.begin()).mapped();
        Tell(done);
        break;
      }
      case EventKind::kWake:
        if (event.at < wake_) break;
        wake_ = core::kNever;
        Tell(core::TimePassed{});
        break;
    }
    const bool all = std::all_of(clients_.begin(), clients_.end(),
                                 [](const Client& client) { return client.done; });
    if (all) break;
    if (Stuck())
      WaitsForEver("every client waits for room that nothing gives: " + DescribeWaiters());
  }
  for (const Client& client : clients_) {
    if (!client.done) WaitsForEver("a client waits for ever");
  }
  outcome_.time = last - begin;
  outcome_.stats = planner_.stats();
  outcome_.up = up_.bytes();
  outcome_.down = down_.bytes();
  outcome_.plans_hash = hash_.value();
  return std::move(outcome_);
}

}  // namespace

Outcome Simulate(const Trace& trace, const Setup& setup) {
  return Simulator(trace, setup).Run();
}

}  // namespace ravenstore::sim
