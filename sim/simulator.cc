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
#include "sim/harvest.h"
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
// From the end of a file's copy to its being known: of a disk behind a file system.
constexpr Duration kFileLatency = std::chrono::microseconds(100);
// Of the ring that moves over two links go through.
constexpr Bytes kStagingChunk = core::MiB(16);
constexpr core::PoolId kDevicePool = core::PoolOf(kDevice);
constexpr uint32_t kNone = ~0u;
// By which harvested memory comes and goes.
constexpr Bytes kHarvestChunk = core::MiB(256);
// The group of the links through which the device reaches harvested memory.
constexpr uint16_t kPort = 1;
// Within which the planner promises an answer; a client that waits for twice as long has none.
constexpr Duration kTimeout = std::chrono::seconds(30);
constexpr Duration kStuckAfter = 2 * kTimeout;
// Of one kernel: then its program gives up.
constexpr uint32_t kRefusalsMost = 256;
// Nobody else makes room for a client of one thread: it asks to be refused rather than to wait.
constexpr bool kFailsStuck = true;
constexpr Tick kBegin{std::chrono::seconds(1)};

Bytes HostCapacity(const Trace& trace, const Setup& setup) {
  return setup.host.value_or((trace.Footprint() * 2 + core::GiB(1)).RoundUp(core::MiB(64)));
}

// Its bytes reach the device over the host's link.
bool IsBehindHost(core::PoolKind kind) {
  return kind == core::PoolKind::kFile || kind == core::PoolKind::kRemote;
}

class Simulator {
 public:
  Simulator(const Trace& trace, const Setup& setup)
      : trace_(trace),
        setup_(setup),
        budget_(setup.budget.RoundDown(kBudgetUnit)),
        topology_(TopologyFor(trace, setup)),
        planner_(MakeOptions(trace, setup, topology_)),
        rows_(trace.tensors.size()),
        clients_(trace.clients) {
    for (uint32_t i = 0; i < trace.ops.size(); ++i) {
      clients_[trace.ops[i].client].program.push_back(i);
    }
    for (const core::Link& link : topology_.links()) {
      AddLane(link, link.a, link.b, link.a_to_b);
      AddLane(link, link.b, link.a, link.b_to_a);
    }
    const size_t first = topology_.pools().size() - setup.pools.size();
    for (size_t i = 0; i < setup.pools.size(); ++i) {
      const ExtraPool& extra = setup.pools[i];
      if (!extra.IsHarvested() && extra.kind != core::PoolKind::kRemote) continue;
      const core::PoolId id{static_cast<uint16_t>(first + i)};
      harvests_.try_emplace(
          id, extra.limits,
          extra.IsHarvested() ? setup.hardware.chunk_changed : extra.chunk_changed, now_);
      for (const ChunksTaken& taken : extra.taken) {
        Schedule(kBegin + taken.at, EventKind::kTaken, takings_.size());
        takings_.emplace_back(id, taken);
      }
    }
  }

  Outcome Run();

 private:
  enum class State : uint8_t { kNone, kInUse, kIdle, kLeaving, kAway, kFetching, kFreed };
  enum class EventKind : uint8_t {
    kClient,
    kPieceEnd,
    kPieceKnown,
    kProgressKnown,
    kLater,
    kLimit,
    kTaken,
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
    Tick harvested{};  // since then it lies in harvested memory, if it lies there
  };
  struct Client {
    std::vector<uint32_t> program;  // indices of ops
    size_t next = 0;
    std::deque<uint32_t> again;  // of the ops before `next`, those that it does first
    // Since it last computed: its gets of what is in use, and how often it was refused.
    std::vector<uint32_t> gets;
    uint32_t refusals = 0;
    bool waiting = false;
    Tick since{};
    size_t iteration = 0;
    std::vector<SlotId> free_slots;
    uint32_t slots = 0;
    std::vector<uint32_t> row_of_slot;
    bool done = false;
  };
  // A move under way, over the one or two links of its route.
  struct UnderWay {
    core::Move move;
    core::Route route;
    Bytes left;        // not there yet
    uint64_t use = 0;  // the row's count of uses when it began
  };
  // One direction of a link.
  struct Lane {
    Link link;
    Duration latency;
    uint16_t group = 0;  // the link's
    bool in = false;     // it leads to the device
    bool out = false;    // it leads from there
    Tick piece_begin{};
    uint64_t began = 0;  // which of all pieces its last one was
    // Done, but not yet known to be: whose bytes, and how many of them go on over another link.
    struct Known {
      TensorId tensor;
      Bytes staged;
    };
    std::deque<Known> known{};
    std::deque<core::MoveProgressed> progress_known{};
  };
  struct Event {
    Tick at;
    uint64_t sequence;
    EventKind kind;
    uint32_t index;  // the client's, the lane's, the pool's or that in takings_
    bool operator>(const Event& other) const {
      return std::pair(at, sequence) > std::pair(other.at, other.sequence);
    }
  };

  static core::PlannerOptions MakeOptions(const Trace& trace, const Setup& setup,
                                          const core::Topology& topology) {
    core::PlannerOptions options;
    options.heuristics = setup.heuristics;
    options.policy = setup.policy;
    options.learn = setup.learn;
    options.prefetch = setup.prefetch;
    options.preclean = setup.preclean;
    if (!setup.incremental) options.incremental_from = core::kRangeMax;
    options.granularity = kBudgetUnit;
    for (const core::Pool& pool : topology.pools()) {
      if (pool.kind != core::PoolKind::kDevice) continue;
      options.device_capacity.push_back(pool.capacity);
      options.arena.push_back(core::ArenaFor(pool.capacity));
    }
    options.host_capacity = HostCapacity(trace, setup);
    options.host_step = options.host_capacity;  // all of it is pinned before the first call
    options.topology = topology;
    options.slab = std::max(options.slab,
                            core::SlabFor(core::LinkBetween(topology, kDevice, core::kHostPool)));
    return options;
  }

  static ClientId IdOf(uint32_t client) { return ClientId{client + 1}; }
  void Schedule(Tick at, EventKind kind, size_t index = 0) {
    queue_.push({at, ++sequence_, kind, static_cast<uint32_t>(index)});
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
    TellAt(now_ + setup_.hardware.slab_made, added);
  }
  void Do(const core::RemoveSlab& action) {
    const Hardware& hardware = setup_.hardware;
    const auto slab = slabs_.extract({action.client, action.offset});
    const auto bytes = static_cast<double>(slab.mapped().count());
    TellAt(now_ + hardware.slab_unmapped + core::FromSeconds(bytes / hardware.slab_cleared),
           core::SlabRemoved{action.client, action.device, action.offset});
  }
  void Do(const core::GrowPool& action) {
    const core::PoolGrown grown{action.pool, action.offset, action.size};
    if (HarvestedPool* pool = HarvestOf(action.pool))
      return TellAt(pool->Grow(action.size, now_), grown);
    Later(grown);
  }
  void Do(const core::ReclaimPinned&) {}
  void Do(const core::ShrinkPool& action) {
    chunks_.erase({action.pool, action.offset});
    TellAt(HarvestOf(action.pool)->Shrink(action.size, now_),
           core::PoolShrunk{action.pool, action.offset, action.size});
  }
  void Do(const core::AllocReply& action);
  void Do(const core::AllocError& action);
  void Do(const core::FetchReply& action);
  void Do(const core::FetchError& action);
  void Do(const core::Release& action);
  void Do(const core::Drop& action);
  void Do(const core::Move& action);
  void Do(const core::Prioritize& action);
  void Do(const core::DeferDestroy&) {}
  void Later(core::Event event) { pending_events_.push_back(std::move(event)); }
  void TellAt(Tick at, core::Event event) {
    later_events_.emplace(at, std::move(event));
    Schedule(at, EventKind::kLater);
  }
  // Null: the pool does not come and go.
  HarvestedPool* HarvestOf(core::PoolId pool) {
    const auto found = harvests_.find(pool);
    return found == harvests_.end() ? nullptr : &found->second;
  }
  void ScheduleLimit(core::PoolId pool) {
    const Tick at = harvests_.at(pool).NextChange();
    if (at != core::kNever) Schedule(at, EventKind::kLimit, core::ToInt(pool));
  }
  void ChangeLimit(core::PoolId pool) {
    const Bytes most = harvests_.at(pool).Change(now_);
    ScheduleLimit(pool);
    Tell(core::PoolLimit{pool, most});
  }
  void TellLater() {
    const core::Event event = later_events_.extract(later_events_.begin()).mapped();
    if (const auto* shrunk = std::get_if<core::PoolShrunk>(&event)) {
      harvests_.at(shrunk->pool).Shrunk(shrunk->size, now_);
      lost_.erase({shrunk->pool, shrunk->offset});
    }
    if (const auto* grown = std::get_if<core::PoolGrown>(&event))
      chunks_.insert({{grown->pool, grown->offset}, grown->size});
    Tell(event);
  }
  void Take(core::PoolId pool, const ChunksTaken& taken);
  // Whether bytes there were lost with a chunk.
  bool IsLost(const core::Place& place, Bytes size) const {
    return std::ranges::any_of(lost_, [&](const auto& chunk) {
      const auto& [pool, offset] = chunk.first;
      return pool == place.pool && place.offset < offset + chunk.second &&
             offset < place.offset + size;
    });
  }
  void Fail(const std::string& why) {
    if (outcome_.failure.empty()) outcome_.failure = why;
  }

  void WaitsForEver(const std::string& why) {
    outcome_.endless |= outcome_.failure.empty();
    Fail(why);
  }

  // The next op of the client, or the one that it waits for.
  uint32_t Current(const Client& client) const {
    return client.again.empty() ? client.program[client.next] : client.again.front();
  }
  void Advance(uint32_t index);
  void Done(Client& client);
  // The op that the client waits for found no room: it puts what it got since it last computed, so
  // that it can move, and takes it again, after what was refused.
  void Refused(uint32_t index, const core::Error& error);
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
    return moves_.empty() && later_events_.empty() &&
           std::all_of(clients_.begin(), clients_.end(), [this](const Client& client) {
             return client.done || (client.waiting && now_ - client.since > kStuckAfter);
           });
  }
  std::string DescribeWaiters() const;
  void AddLane(const core::Link& link, core::PoolId from, core::PoolId to, double rate);
  Lane& LaneOf(const core::Hop& hop) {
    const bool forth = topology_.links()[core::ToInt(hop.link)].a == hop.from;
    return lanes_[core::ToInt(hop.link) * 2 + (forth ? 0 : 1)];
  }
  // What of its move is not on a link yet goes among the demands of `behalf`.
  void Promote(TensorId tensor, ClientId behalf);
  void Submit(const core::Hop& hop, const core::Move& move, Bytes bytes);
  void PumpLinks();
  // Whether the other links of its group leave it its turn.
  bool HasTurn(size_t index) const;
  void PieceEnded(size_t index);
  void PieceKnown(size_t index);
  void MoveKnown(const UnderWay& done);
  void CountHarvest(const core::Move& move, bool done);
  void LeaveIrrevocably(Row& row);
  void KeepSpan(Span::Kind kind, uint32_t client, Tick begin, Tick end, uint32_t tensor = kNone) {
    if (setup_.timeline && begin < end)
      outcome_.spans.push_back({kind, client, begin, end, tensor});
  }
  void KeepMemory();

  const Trace& trace_;
  const Setup& setup_;
  const Bytes budget_;
  const core::Topology topology_;
  core::Planner planner_;
  core::Plan plan_;
  std::deque<core::Event> pending_events_;
  std::vector<Lane> lanes_;  // two a link
  std::map<TensorId, UnderWay> moves_;
  Bytes grown_;                                        // slabs made so far
  std::map<std::pair<ClientId, Bytes>, Bytes> slabs_;  // their sizes, by offset
  std::multimap<Tick, core::Event> later_events_;      // by when they happen
  std::map<core::PoolId, HarvestedPool> harvests_;
  // Of these pools the chunks that are there, with their sizes, and those that are lost, until they
  // are gone.
  using Chunks = std::map<std::pair<core::PoolId, Bytes>, Bytes>;
  Chunks chunks_;
  Chunks lost_;
  std::vector<std::pair<core::PoolId, ChunksTaken>> takings_;
  std::vector<Row> rows_;
  std::vector<Client> clients_;
  std::vector<uint32_t> row_of_tensor_;  // by the row of the planner's catalog
  std::priority_queue<Event, std::vector<Event>, std::greater<>> queue_;
  std::unordered_map<std::string, core::NameId> names_;
  uint64_t sequence_ = 0;
  Tick now_ = kBegin;
  Tick wake_ = core::kNever;
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
  Promote(action.tensor, IdOf(client));
}

void Simulator::Do(const core::AllocError& action) {
  const uint32_t index = core::ToInt(action.client) - 1;
  clients_[index].free_slots.push_back(action.slot);
  Refused(index, action.error);
}

void Simulator::Do(const core::FetchError& action) {
  Row& row = rows_[RowOf(action.tensor)];
  row.state = action.stays ? State::kIdle : State::kAway;
  Refused(trace_.tensors[RowOf(action.tensor)].client, action.error);
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

void Simulator::Do(const core::Move& action) {
  Row& row = rows_[RowOf(action.tensor)];
  const bool leaves = action.from.pool == kDevicePool;
  if (leaves && row.state != State::kIdle)
    return Later(core::Moved{action.tensor, core::Moved::Outcome::kNotBegun});
  if (leaves && action.source != core::Move::Source::kStays) {
    row.state = State::kLeaving;
    if (action.source == core::Move::Source::kLeavesIrrevocably) LeaveIrrevocably(row);
  }
  const core::Route& route = topology_.Best(action.from.pool, action.to.pool, action.size);
  moves_.emplace(action.tensor, UnderWay{action, route, action.size, row.uses});
  if (HarvestedPool* pool = HarvestOf(action.to.pool)) pool->BeginCopy(action.size);
  if (HarvestedPool* pool = HarvestOf(action.from.pool)) {
    if (action.to.pool == kDevicePool) {
      pool->BeginCopy(action.size);
    } else {
      pool->BeginMoveOn(action.size);
    }
  }
  Submit(route.first, action, action.size);
}

void Simulator::Submit(const core::Hop& hop, const core::Move& move, Bytes bytes) {
  LaneOf(hop).link.Submit({move.tensor, RowOf(move.tensor), bytes, move.behalf},
                          move.demand ? Link::Urgency::kDemand : Link::Urgency::kBackground);
}

void Simulator::Promote(TensorId tensor, ClientId behalf) {
  const auto found = moves_.find(tensor);
  if (found == moves_.end()) return;
  found->second.move.demand = true;
  found->second.move.behalf = behalf;
  for (Lane& lane : lanes_) lane.link.Promote(tensor, behalf);
}

void Simulator::Do(const core::Prioritize& action) {
  Promote(action.tensor, action.behalf);
  Row& row = rows_[RowOf(action.tensor)];
  if (action.irrevocable && row.state == State::kIdle) LeaveIrrevocably(row);
}

void Simulator::LeaveIrrevocably(Row& row) {
  row.state = State::kAway;
  row.irrevocable = true;
  Later(core::MoveProgressed{row.id, Bytes{0}});
}

void Simulator::CountStall(Client& client, uint32_t index, Tick begin, Tick end) {
  outcome_.stall += end - begin;
  const Op& op = trace_.ops[Current(client)];
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
  Done(client);
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
                                 NameOf(op.tensor), now_ + kTimeout, false, kFailsStuck});
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
      Tell(core::FetchRequested{row.id, kDevice, now_ + kTimeout, kFailsStuck});
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
    const Op& op = trace_.ops[Current(client)];
    if (!Perform(index, op)) return;  // Resume moves on
    Done(client);
    if (op.kind == OpKind::kCompute && op.time > Duration{0})
      return Schedule(now_ + op.time, EventKind::kClient, index);
  }
  client.done = client.next >= client.program.size();
}

void Simulator::Done(Client& client) {
  const uint32_t done = Current(client);
  const Op& op = trace_.ops[done];
  if (client.again.empty()) {
    ++client.next;
  } else {
    client.again.pop_front();
  }
  switch (op.kind) {
    case OpKind::kGet: client.gets.push_back(done); break;
    case OpKind::kPut:
    case OpKind::kFree:
      std::erase_if(client.gets, [&](uint32_t get) { return trace_.ops[get].tensor == op.tensor; });
      break;
    case OpKind::kCompute:
    case OpKind::kStep:
      client.gets.clear();
      client.refusals = 0;
      break;
    case OpKind::kCreate: break;
  }
}

void Simulator::Refused(uint32_t index, const core::Error& error) {
  Client& client = clients_[index];
  const bool moves = error.code == core::ErrorCode::kOutOfMemory && !client.gets.empty();
  if (!moves || ++client.refusals > kRefusalsMost) return Fail(error.message);
  ++outcome_.refusals;
  client.waiting = false;
  CountStall(client, index, client.since, now_);
  const uint32_t refused = Current(client);
  if (client.again.empty()) {
    ++client.next;
  } else {
    client.again.pop_front();
  }
  const std::vector<uint32_t> gets = std::exchange(client.gets, {});
  client.again.insert(client.again.begin(), gets.begin(), gets.end());
  client.again.push_front(refused);
  for (const uint32_t get : gets) {
    Row& row = rows_[trace_.ops[get].tensor];
    row.state = State::kIdle;
    Later(core::PutSeen{row.id, row.writes, {}, row.recompute, core::Priority::kNormal});
    Later(core::StreamComplete{row.id});
  }
  Schedule(now_, EventKind::kClient, index);
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

void Simulator::AddLane(const core::Link& link, core::PoolId from, core::PoolId to, double rate) {
  const core::PoolId other = from == core::kHostPool ? to : from;
  const bool of_host = std::min(from, to) == core::kHostPool &&
                       !IsBehindHost(topology_.pools()[core::ToInt(other)].kind);
  lanes_.push_back(
      {.link = Link(rate, of_host ? setup_.hardware.duplex : 1.0, setup_.hardware.per_copy),
       .latency = link.latency,
       .group = link.group,
       .in = to == kDevicePool,
       .out = from == kDevicePool});
}

bool Simulator::HasTurn(size_t index) const {
  const Lane& lane = lanes_[index];
  if (lane.group == 0) return true;
  for (size_t i = index % 2; i < lanes_.size(); i += 2) {  // those of the same direction
    const Lane& other = lanes_[i];
    if (i == index || other.group != lane.group) continue;
    if (other.link.busy() || (other.link.HasWork() && other.began < lane.began)) return false;
  }
  return true;
}

void Simulator::PumpLinks() {
  for (size_t i = 0; i < lanes_.size(); ++i) {
    if (!HasTurn(i)) continue;
    if (const auto took = lanes_[i].link.Begin(lanes_[i ^ 1].link.busy())) {
      lanes_[i].piece_begin = now_;
      lanes_[i].began = sequence_;
      Schedule(now_ + *took, EventKind::kPieceEnd, i);
    }
  }
}

void Simulator::PieceEnded(size_t index) {
  Lane& lane = lanes_[index];
  const auto [job, piece] = lane.link.End();
  if (lane.in || lane.out)
    KeepSpan(lane.in ? Span::Kind::kUp : Span::Kind::kDown, 0, lane.piece_begin, now_, job.row);
  UnderWay& under_way = moves_.at(job.tensor);
  const auto& second = under_way.route.second;
  const bool goes_on = second && &LaneOf(*second) != &lane;
  if (!goes_on) under_way.left -= piece;
  if (!goes_on && under_way.left > Bytes{0} && rows_[job.row].irrevocable) {
    lane.progress_known.push_back({job.tensor, under_way.move.size - under_way.left});
    Schedule(now_ + lane.latency, EventKind::kProgressKnown, index);
  }
  if (goes_on || under_way.left == Bytes{0}) {
    lane.known.push_back({job.tensor, goes_on ? piece : Bytes{0}});
    Schedule(now_ + lane.latency, EventKind::kPieceKnown, index);
  }
  PumpLinks();
}

void Simulator::PieceKnown(size_t index) {
  const Lane::Known known = lanes_[index].known.front();
  lanes_[index].known.pop_front();
  if (known.staged > Bytes{0}) {
    const UnderWay& under_way = moves_.at(known.tensor);
    Submit(*under_way.route.second, under_way.move, known.staged);
    return PumpLinks();
  }
  MoveKnown(moves_.extract(known.tensor).mapped());
}

void Simulator::MoveKnown(const UnderWay& done) {
  using Result = core::Moved::Outcome;
  const uint32_t index = RowOf(done.move.tensor);
  Row& row = rows_[index];
  core::Moved moved{done.move.tensor, Result::kDone};
  if (IsLost(done.move.from, done.move.size)) {
    moved.outcome = Result::kFailed;
    if (row.arriving) Fail("a tensor was lost with its chunk while it was read");
  } else if (done.move.to.pool == kDevicePool) {
    if (row.state == State::kAway) row.state = State::kIdle;
  } else if (done.move.from.pool == kDevicePool) {
    const bool stays = done.move.source == core::Move::Source::kStays && !row.irrevocable;
    const bool touched =
        row.uses != done.use || row.state != (stays ? State::kIdle : State::kLeaving);
    if (!std::exchange(row.irrevocable, false) && touched) moved.outcome = Result::kRescued;
    if (!stays && !touched) row.state = State::kAway;
  }
  CountHarvest(done.move, moved.outcome == Result::kDone);
  Tell(moved);
  if (done.move.to.pool == kDevicePool && std::exchange(row.arriving, false))
    Resume(trace_.tensors[index].client);
}

void Simulator::Take(core::PoolId id, const ChunksTaken& taken) {
  uint32_t left = taken.chunks;
  for (const auto& [chunk, size] : Chunks(chunks_)) {
    if (chunk.first != id || left == 0) continue;
    --left;
    if (!taken.lost) {
      Tell(core::ChunkRecalled{id, chunk.second});
      continue;
    }
    lost_.insert({chunk, size});
    Tell(core::ChunkLost{id, chunk.second});
  }
}

void Simulator::CountHarvest(const core::Move& move, bool done) {
  Row& row = rows_[RowOf(move.tensor)];
  if (HarvestedPool* pool = HarvestOf(move.to.pool)) {
    pool->EndCopy(move.size);
    if (done) row.harvested = now_;
  }
  if (HarvestedPool* pool = HarvestOf(move.from.pool)) {
    if (move.to.pool == kDevicePool) {
      pool->EndCopy(move.size);
      pool->Read(move.size, std::exchange(row.harvested, now_), now_);
    } else {
      pool->EndMoveOn(move.size);
    }
  }
}

Outcome Simulator::Run() {
  for (const auto& [pool, harvest] : harvests_) ScheduleLimit(pool);
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
        Advance(event.index);
        last = now_;
        break;
      case EventKind::kPieceEnd: PieceEnded(event.index); break;
      case EventKind::kPieceKnown: PieceKnown(event.index); break;
      case EventKind::kProgressKnown: {
        auto& known = lanes_[event.index].progress_known;
        const core::MoveProgressed part = known.front();
        known.pop_front();
        Tell(part);
        break;
      }
      case EventKind::kLater: TellLater(); break;
      case EventKind::kLimit: ChangeLimit(core::PoolId{static_cast<uint16_t>(event.index)}); break;
      case EventKind::kTaken:
        Take(takings_[event.index].first, takings_[event.index].second);
        break;
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
  for (const Lane& lane : lanes_) {
    if (lane.in) outcome_.up += lane.link.bytes();
    if (lane.out) outcome_.down += lane.link.bytes();
  }
  for (auto& [id, pool] : harvests_) outcome_.harvests.push_back(pool.End(now_));
  outcome_.plans_hash = hash_.value();
  return std::move(outcome_);
}

}  // namespace

Hardware WithAllLinks(Hardware hardware, const std::vector<ExtraPool>& pools) {
  for (const ExtraPool& pool : pools) {
    if (IsBehindHost(pool.kind)) continue;
    hardware.up += pool.in;
    hardware.down += pool.out;
    hardware.duplex = 1;
  }
  return hardware;
}

core::Topology TopologyFor(const Trace& trace, const Setup& setup) {
  const Hardware& hardware = setup.hardware;
  std::vector<core::Pool> pools = {
      {core::PoolKind::kHost, 0, HostCapacity(trace, setup), core::kExtentAlignment}};
  std::vector<core::Link> links;
  const auto add = [&](const core::Pool& pool) {
    const core::PoolId id{static_cast<uint16_t>(pools.size())};
    pools.push_back(pool);
    if (!IsBehindHost(pool.kind))
      links.push_back({core::kHostPool, id, hardware.latency, hardware.up, hardware.down});
    return id;
  };
  const auto add_device = [&](uint16_t number, Bytes capacity) {
    add({core::PoolKind::kDevice, number, capacity, kBudgetUnit, /*addressable=*/true});
  };
  add_device(0, setup.budget.RoundDown(kBudgetUnit));
  uint16_t owners = 0;
  for (const ExtraPool& extra : setup.pools) {
    if (extra.IsHarvested()) add_device(++owners, hardware.memory);
  }
  uint16_t owner = 0;
  for (const ExtraPool& extra : setup.pools) {
    const bool harvested = extra.IsHarvested();
    const auto number = harvested ? ++owner : static_cast<uint16_t>(pools.size() - 1);
    const Bytes chunk = harvested                               ? kHarvestChunk
                        : extra.kind == core::PoolKind::kRemote ? extra.chunk
                                                                : Bytes{};
    const core::PoolId id = add({extra.kind, number, extra.capacity, core::kExtentAlignment,
                                 /*addressable=*/false, chunk, /*covered=*/harvested});
    if (IsBehindHost(extra.kind)) {
      const bool file = extra.kind == core::PoolKind::kFile;
      links.push_back(
          {core::kHostPool, id, file ? kFileLatency : extra.latency, extra.out, extra.in});
    } else {
      links.push_back({id, kDevicePool, hardware.latency, extra.in, extra.out,
                       harvested ? kPort : uint16_t{0}});
    }
  }
  return core::Topology::Make(std::move(pools), std::move(links), kStagingChunk).value();
}

Outcome Simulate(const Trace& trace, const Setup& setup) {
  return Simulator(trace, setup).Run();
}

}  // namespace ravenstore::sim
