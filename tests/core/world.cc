#include "tests/core/world.h"

#include <algorithm>
#include <sstream>
#include <utility>

#include "core/check.h"

namespace ravenstore::core {

using proto::LeaseState;

namespace {

uint64_t Key(DeviceId device) {
  return ToInt(device);
}

}  // namespace

World::World(Options options)
    : options_(std::move(options)), planner_(std::make_unique<Planner>(options_.planner)) {
  const size_t units = UnitsOf(options_.planner.host_capacity);
  host_ = {std::vector<uint64_t>(units), std::vector<Unit>(units, Unit::kAbsent), {}};
  const std::vector<Pool>& pools = options_.planner.topology.pools();
  for (size_t i = 1 + options_.planner.device_capacity.size(); i < pools.size(); ++i) {
    const size_t there = UnitsOf(pools[i].capacity);
    away_[PoolId{static_cast<uint16_t>(i)}] = {
        std::vector<uint64_t>(there),
        std::vector<Unit>(there, pools[i].chunk > Bytes{0} ? Unit::kAbsent : Unit::kPresent),
        {}};
  }
}

void World::Trace(const std::string& text) const {
  if (options_.trace) options_.trace(text);
}

void World::SetTenant(TenantId tenant, Budgets budgets) {
  tenants_[tenant] = budgets;
  ApplyEvent(TenantLimits{tenant, budgets});
  Execute();
}

void World::SetClient(ClientId client, Budgets budgets) {
  SessionOf(client).budgets = budgets;
  ApplyEvent(ClientLimits{client, budgets});
  Execute();
}

void World::SetDevice(DeviceId device, Bytes capacity) {
  ApplyEvent(DeviceLimit{device, capacity});
  Execute();
}

void World::SetPool(PoolId pool, Bytes most) {
  ApplyEvent(PoolLimit{pool, most});
  Execute();
}

void World::RecallChunk(PoolId pool, Bytes offset) {
  ApplyEvent(ChunkRecalled{pool, offset});
  Execute();
}

void World::KeepChunk(PoolId pool, Bytes offset) {
  ApplyEvent(ChunkKept{pool, offset});
  Execute();
}

void World::SetPoolRate(PoolId pool, double bytes_per_second) {
  ApplyEvent(PoolRate{pool, bytes_per_second});
  Execute();
}

void World::Trim(ClientId client) {
  ApplyEvent(Trimmed{client});
  Execute();
}

ClientId World::Attach(TenantId tenant, Budgets budgets) {
  const ClientId id{++last_client_};
  auto session = std::make_unique<Session>();
  session->id = id;
  session->tenant = tenant;
  session->budgets = budgets;
  session->lanes.resize(kLanes);
  for (const Bytes range : options_.planner.arena) {
    const size_t units = UnitsOf(range);
    session->memory.push_back({std::vector<uint64_t>(units),
                               std::vector<Unit>(units, Unit::kAbsent),
                               std::vector<TensorId>(units, kNoTensor)});
  }
  sessions_.emplace(id, std::move(session));
  ApplyEvent(ClientAttached{id, tenant, budgets});
  Execute();
  return id;
}

void World::Kill(ClientId client) {
  Session& session = SessionOf(client);
  RAVEN_CHECK(!session.gone);
  session.gone = true;
  std::erase_if(slab_jobs_,
                [client](const SlabJob& job) { return !job.is_of_pool() && job.client == client; });
  // In each at least a slot or a request of it is forgotten.
  passes_of_the_gone_ += 1 + session.rows.size() + planner_->View(client).waiting;
  ApplyEvent(ClientGone{client});
  Execute();
  ReleaseIfGone(session);
}

// ---- Clients.

void World::MoveLease(Row& row, LeaseState state) {
  row.state = state;
  ++row.word;
}

void World::Append(Session& session, SlotId slot, bool put) {
  // Threads of the client, each with a lane of its own.
  auto& lane = session.lanes[session.next_lane++ % kLanes];
  if (lane.size() >= options_.lane_entries) {
    session.log_dropped = true;
    return;
  }
  lane.push_back({slot, put});
}

Handle World::Create(ClientId client, Bytes size, DeviceId device, Duration timeout, bool fail_fast,
                     bool fail_stuck, bool long_lived) {
  Session& session = SessionOf(client);
  size_t slot = 0;
  while (slot < session.rows.size() && session.rows[slot].state != LeaseState::kFree) ++slot;
  if (slot == session.rows.size()) session.rows.emplace_back();
  Row& row = session.rows[slot];
  MoveLease(row, LeaseState::kRequested);
  row.answer = Answer::kWaiting;
  row.deadline = now_ + timeout;
  row.size = size;
  row.stamp = 0;
  row.writes = 0;
  row.modified = false;
  row.recompute = {};
  row.may_be_lost = false;
  row.ops.clear();
  const SlotId id{static_cast<uint32_t>(slot)};
  session.requests.push_back({Request::Op::kCreate, id, kNoTensor, device, size, row.deadline,
                              fail_fast, 0, fail_stuck, long_lived});
  return {client, id};
}

bool World::Get(Handle handle, DeviceId device, Duration timeout) {
  Session& session = SessionOf(handle.client);
  Row& row = RowOf(handle);
  const bool here = row.device == device;
  const bool resident = row.state == LeaseState::kIdle || row.state == LeaseState::kLeaving;
  if (resident && here) {
    MoveLease(row, LeaseState::kInUse);
    Append(session, handle.slot, false);
    row.ops.push_back({false, row.stamp});
    return true;
  }
  const bool elsewhere = row.state == LeaseState::kIdle;
  if (row.state != LeaseState::kAway && !elsewhere) return false;
  MoveLease(row, LeaseState::kFetching);
  row.answer = Answer::kWaiting;
  row.deadline = now_ + timeout;
  session.requests.push_back({Request::Op::kFetch, handle.slot, row.tensor, device, row.size,
                              row.deadline, false, row.ticket});
  return true;
}

void World::Write(Handle handle) {
  Row& row = RowOf(handle);
  RAVEN_CHECK(row.state == LeaseState::kInUse);
  row.stamp = ++last_stamp_;
  row.modified = true;
  row.ops.push_back({true, row.stamp});
}

void World::Put(Handle handle, NextUse next_use, Duration recompute, Priority priority) {
  Row& row = RowOf(handle);
  RAVEN_CHECK(row.state == LeaseState::kInUse);
  if (std::exchange(row.modified, false)) ++row.writes;
  row.ticket += 1;
  row.hint = next_use;
  row.recompute = recompute;
  row.priority = priority;
  row.may_be_lost = next_use.kind == NextUse::Kind::kNever;
  MoveLease(row, LeaseState::kIdle);
  Append(SessionOf(handle.client), handle.slot, true);
}

void World::Step(ClientId client) {
  SessionOf(client).requests.push_back({Request::Op::kStep, {}, kNoTensor, {}, {}, {}, false, 0});
}

bool World::Free(Handle handle) {
  Row& row = RowOf(handle);
  switch (row.state) {
    case LeaseState::kInUse:
    case LeaseState::kIdle:
    case LeaseState::kLeaving:
    case LeaseState::kAway:
    case LeaseState::kLost: break;
    default: return false;
  }
  row.ticket += 1;
  MoveLease(row, LeaseState::kFreeing);
  row.answer = Answer::kWaiting;
  SessionOf(handle.client)
      .requests.push_back({Request::Op::kFree, handle.slot, row.tensor, row.device, row.size,
                           kNever, false, row.ticket});
  return true;
}

void World::RunStream(Handle handle) {
  Session& session = SessionOf(handle.client);
  Row& row = RowOf(handle);
  if (row.arriving) return;
  Memory& memory = session.memory[Key(row.device)];
  const size_t first = UnitsOf(row.place);
  for (const StreamOp& op : row.ops) {
    for (size_t unit = first; unit < first + UnitsOf(row.size); ++unit) {
      RAVEN_CHECK(memory.units[unit] == Unit::kPresent);
      RAVEN_CHECK(memory.owners[unit] == row.tensor);
      if (op.write) {
        memory.stamps[unit] = op.stamp;
      } else if (op.stamp != 0) {
        RAVEN_CHECK(memory.stamps[unit] == op.stamp);  // else bytes were lost, torn or mixed up
      }
    }
  }
  row.ops.clear();
  row.ticket_reached = row.ticket;
}

// ---- The daemon's loop.

World::Session* World::FindSession(ClientId client) {
  const auto found = sessions_.find(client);
  return found == sessions_.end() ? nullptr : found->second.get();
}

World::Row* World::Locate(const TensorOfClient& tensor, Session** session, SlotId* slot) {
  if (!planner_->Knows(tensor.tensor)) return nullptr;
  const TensorView view = planner_->View(tensor.tensor);
  RAVEN_CHECK(view.client == tensor.client && view.slot == tensor.slot);
  *slot = view.slot;
  *session = FindSession(view.client);
  if (*session == nullptr || (*session)->gone) return nullptr;
  return &(*session)->rows.at(ToInt(view.slot));
}

void World::PollLog(ClientId client, size_t entries) {
  Session& session = SessionOf(client);
  for (size_t i = 0; i < entries; ++i) {
    auto lane = std::find_if(session.lanes.begin(), session.lanes.end(),
                             [](const auto& one) { return !one.empty(); });
    if (lane == session.lanes.end()) break;
    const Access access = lane->front();
    lane->pop_front();
    Row& row = session.rows.at(ToInt(access.slot));
    if (row.tensor == kNoTensor || row.pending) continue;
    if (!access.put) {
      ApplyEvent(GetSeen{row.tensor});
      // The put that ended this use may have been read from the row already, at an earlier entry of
      // another lane, and its own entry may have been dropped: it is told again.
      row.complete_word = 0;
    }
    HandlePut(session, access.slot);
  }
  if (std::exchange(session.log_dropped, false)) session.rescan = true;
  if (std::exchange(session.rescan, false)) {
    for (size_t slot = 0; slot < session.rows.size(); ++slot) {
      const Row& row = session.rows[slot];
      if (row.tensor == kNoTensor || row.pending) continue;
      HandlePut(session, SlotId{static_cast<uint32_t>(slot)});
    }
  }
  Execute();
}

void World::HandlePut(Session& session, SlotId slot) {
  Row& row = session.rows.at(ToInt(slot));
  if (row.state != LeaseState::kIdle || row.word == row.complete_word) return;
  ApplyEvent(PutSeen{row.tensor, row.writes, row.hint, row.recompute, row.priority});
  AwaitStreamComplete(session, slot);
}

void World::AwaitStreamComplete(Session& session, SlotId slot) {
  Row& row = session.rows.at(ToInt(slot));
  if (row.ticket_reached >= row.ticket) {
    row.complete_word = row.word;
    ApplyEvent(StreamComplete{row.tensor});
    return;
  }
  session.tickets.push_back({row.ticket, row.tensor, slot, row.word});
}

void World::PollTickets() {
  for (auto& [id, session] : sessions_) {
    const size_t count = session->tickets.size();
    for (size_t i = 0; i < count; ++i) {
      const Ticket ticket = session->tickets.front();
      session->tickets.pop_front();
      if (session->rows.at(ToInt(ticket.slot)).ticket_reached < ticket.value) {
        session->tickets.push_back(ticket);
        continue;
      }
      if (!planner_->Knows(ticket.tensor)) continue;
      if (ticket.idle_word == 0) {
        ApplyEvent(Freed{ticket.tensor});
        continue;
      }
      Row& row = session->rows.at(ToInt(planner_->View(ticket.tensor).slot));
      // An older put's ticket says nothing of the last one's.
      if (row.word != ticket.idle_word) continue;
      // While a get on another device waits for just this there is no put to be found quiet later.
      if (row.state != LeaseState::kFetching) row.complete_word = ticket.idle_word;
      ApplyEvent(StreamComplete{ticket.tensor});
    }
  }
  Execute();
}

void World::PollRequests(ClientId client, size_t requests) {
  Session& session = SessionOf(client);
  // The log first: a request that needs room should find every put that came before it.
  PollLog(client);
  for (size_t i = 0; i < requests && !session.requests.empty(); ++i) {
    const Request request = session.requests.front();
    session.requests.pop_front();
    HandleRequest(session, request);
    Execute();
  }
}

void World::HandleRequest(Session& session, const Request& request) {
  if (request.op == Request::Op::kStep) return ApplyEvent(StepMarked{session.id});
  Row& row = session.rows.at(ToInt(request.slot));
  switch (request.op) {
    case Request::Op::kCreate:
      RAVEN_CHECK(row.tensor == kNoTensor);
      RAVEN_CHECK(row.state == LeaseState::kRequested);
      row.pending = true;
      ApplyEvent(CreateRequested{session.id, request.slot, request.size, request.device, kNoName,
                                 request.deadline, request.fail_fast, request.fail_stuck,
                                 request.long_lived});
      return;
    case Request::Op::kFetch:
      RAVEN_CHECK(row.tensor == request.tensor);
      // The copy of the get before it failed meanwhile: the client has its answer, and may have
      // freed the tensor since.
      if (row.state == LeaseState::kLost || row.state == LeaseState::kFreeing) return;
      RAVEN_CHECK(row.state == LeaseState::kFetching);
      if (planner_->View(request.tensor).residency == Residency::kOnDevice) {
        CommitPut(session, request);
      }
      ApplyEvent(FetchRequested{request.tensor, request.device, request.deadline});
      return;
    case Request::Op::kFree:
      RAVEN_CHECK(row.tensor == request.tensor);
      if (row.ticket_reached >= request.ticket) return ApplyEvent(Freed{request.tensor});
      session.tickets.push_back({request.ticket, request.tensor, request.slot, 0});
      return;
    case Request::Op::kStep: return;
  }
}

// A fetch of a tensor that is still on a device moves it to another one: the word no longer shows
// the put before it, so the log's entry says nothing.
void World::CommitPut(Session& session, const Request& request) {
  const Row& row = session.rows.at(ToInt(request.slot));
  ApplyEvent(PutSeen{request.tensor, row.writes, row.hint, row.recompute, row.priority});
  if (row.ticket_reached >= request.ticket) return ApplyEvent(StreamComplete{request.tensor});
  session.tickets.push_back({request.ticket, request.tensor, request.slot, row.word});
}

void World::PollAll() {
  for (const ClientId client : Clients()) PollRequests(client);
  PollTickets();
}

void World::Advance(Duration duration) {
  const Tick until = now_ + duration;
  events_at_once_ = 0;
  while (planner_->NextWake() <= until) {
    now_ = std::max(now_, planner_->NextWake());
    events_at_once_ = 0;
    ApplyEvent(TimePassed{});
    Execute();
    // Else the daemon would spin, or still forget those that are gone.
    RAVEN_CHECK(planner_->NextWake() > now_ || passes_of_the_gone_-- > 0);
  }
  now_ = until;
  for (const auto& [id, session] : sessions_) {
    if (session->gone || !session->requests.empty()) continue;
    for (const Row& row : session->rows) {
      const bool asked = row.answer == Answer::kWaiting && row.state != LeaseState::kFreeing;
      if (asked) RAVEN_CHECK(row.deadline > now_);  // every request is answered by its deadline
    }
  }
}

// ---- Slabs.

void World::FinishSlab(size_t index, bool ok) {
  const SlabJob job = slab_jobs_.at(index);
  slab_jobs_.erase(slab_jobs_.begin() + static_cast<ptrdiff_t>(index));
  auto& units = job.is_of_pool() ? away_.at(job.pool).units
                                 : SessionOf(job.client).memory[Key(job.device)].units;
  const bool leaves = job.kind == SlabJob::Kind::kRemove || job.kind == SlabJob::Kind::kPoolShrinks;
  const Unit after = leaves || !ok ? Unit::kAbsent : Unit::kPresent;
  std::fill_n(units.begin() + static_cast<ptrdiff_t>(UnitsOf(job.offset)), UnitsOf(job.size),
              after);
  switch (job.kind) {
    case SlabJob::Kind::kAdd:
      if (ok) {
        ApplyEvent(SlabAdded{job.client, job.device, job.offset, job.size});
      } else {
        slab_sizes_.erase({job.client, job.device, job.offset});
        ApplyEvent(SlabFailed{job.client, job.device, job.offset});
      }
      break;
    case SlabJob::Kind::kRemove: ApplyEvent(SlabRemoved{job.client, job.device, job.offset}); break;
    case SlabJob::Kind::kPoolGrows:
      if (ok) {
        ApplyEvent(PoolGrown{job.pool, job.offset, job.size});
      } else {
        ApplyEvent(PoolGrowFailed{job.pool});
      }
      break;
    case SlabJob::Kind::kPoolShrinks:
      if (ok) {
        lost_.erase({job.pool, job.offset});
        ApplyEvent(PoolShrunk{job.pool, job.offset, job.size});
      } else {
        ApplyEvent(PoolShrinkFailed{job.pool, job.size});
      }
      break;
  }
  Execute();
}

void World::Tell(const Event& event) {
  ApplyEvent(event);
  Execute();
}

void World::Pin(ClientId client, Bytes bytes) {
  const TenantId tenant = SessionOf(client).tenant;
  bytes = bytes.RoundUp(options_.planner.granularity);
  if (bytes == Bytes{0}) {
    pinned_[tenant] = Bytes{0};
  } else {
    Tell(PinnedWanted{client, bytes});
    if (!planner_->MayPin(client, bytes, bytes).ok()) return;
    pinned_[tenant] += bytes;
    CheckPinned();
  }
  Tell(PinnedHeld{tenant, pinned_[tenant]});
}

void World::UnpinAll() {
  for (auto& [tenant, bytes] : pinned_) {
    bytes = Bytes{0};
    Tell(PinnedHeld{tenant, bytes});
  }
}

void World::CheckPinned() const {
  Bytes all(kUnit *
            static_cast<uint64_t>(std::count_if(host_.units.begin(), host_.units.end(),
                                                [](Unit unit) { return unit != Unit::kAbsent; })));
  for (const auto& [tenant, bytes] : pinned_) all += bytes;
  RAVEN_CHECK(all <= options_.planner.host_capacity);
}

void World::CheckDevice(DeviceId device) const {
  Bytes all;
  for (const auto& [id, session] : sessions_) {
    if (!session->gone) all += HeldBy(id, device);
  }
  const auto& pools = options_.planner.topology.pools();
  for (const auto& [id, memory] : away_) {
    const Pool& pool = pools[ToInt(id)];
    if (pool.kind != PoolKind::kPeer || pool.chunk == Bytes{0} || DeviceId{pool.number} != device)
      continue;
    all += Bytes(kUnit * static_cast<uint64_t>(
                             std::count_if(memory.units.begin(), memory.units.end(),
                                           [](Unit unit) { return unit != Unit::kAbsent; })));
  }
  RAVEN_CHECK(all <= options_.planner.device_capacity[ToInt(device)]);
}

// ---- Looking.

std::vector<ClientId> World::Clients() const {
  std::vector<ClientId> ids;
  for (const auto& [id, session] : sessions_) {
    if (!session->gone) ids.push_back(id);
  }
  return ids;
}

std::vector<Handle> World::Handles(ClientId client) const {
  std::vector<Handle> handles;
  const auto& rows = sessions_.at(client)->rows;
  for (size_t slot = 0; slot < rows.size(); ++slot) {
    if (rows[slot].state == LeaseState::kFree) continue;
    handles.push_back({client, SlotId{static_cast<uint32_t>(slot)}});
  }
  return handles;
}

std::string World::TakeTranscript() {
  return std::exchange(transcript_, {});
}

Bytes World::HeldBy(ClientId client, DeviceId device) const {
  const auto& units = sessions_.at(client)->memory[Key(device)].units;
  const auto absent = std::count(units.begin(), units.end(), Unit::kAbsent);
  return Bytes((units.size() - static_cast<size_t>(absent)) * kUnit);
}

}  // namespace ravenstore::core
