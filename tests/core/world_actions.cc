// The world's executor: mirrors daemon/loop_actions.cc.
#include <algorithm>
#include <sstream>
#include <utility>

#include "core/check.h"
#include "tests/core/world.h"

namespace ravenstore::core {

using proto::LeaseState;

void World::ApplyEvent(const Event& event) {
  RAVEN_CHECK(++events_at_once_ < 20000);  // else proposals and answers feed each other for ever
  const size_t before = plan_.size();
  planner_->Apply(event, now_, &plan_);
  ClearOwnersOfDropped();
  for (size_t i = before; i < plan_.size(); ++i) {
    const std::string text = Describe(plan_[i]);
    transcript_ += text + "\n";
    Trace(text);
  }
  if (options_.check_invariants) planner_->CheckInvariants();
  CheckBudgets();
  robbed_ += CountRobbed(before);
  if (options_.check_invariants) RAVEN_CHECK(robbed_ == 0);
}

size_t World::CountRobbed(size_t first) const {
  const auto tenant_of = [this](ClientId client) { return sessions_.at(client)->tenant; };
  using Key = std::pair<TenantId, DeviceId>;
  std::set<Key> taken;           // from whom, by others
  std::map<Key, Bytes> empty;    // slabs that go, which anybody may have
  std::set<TenantId> by_itself;  // something leaves for its own clients, or may
  for (size_t i = first; i < plan_.size(); ++i) {
    if (const auto* drop = std::get_if<Drop>(&plan_[i])) {
      by_itself.insert(tenant_of(drop->client));
    } else if (const auto* slab = std::get_if<RemoveSlab>(&plan_[i])) {
      empty[{tenant_of(slab->client), slab->device}] +=
          slab_sizes_.at({slab->client, slab->device, slab->offset});
    } else if (const auto* move = std::get_if<Move>(&plan_[i])) {
      const bool leaves =
          move->source == Move::Source::kLeaves || move->source == Move::Source::kLeavesIrrevocably;
      if (!leaves) continue;
      const TenantId tenant = tenant_of(move->client);
      if (tenant_of(move->behalf) == tenant) {
        by_itself.insert(tenant);
      } else {
        taken.emplace(tenant, planner_->View(move->tensor).device);
      }
    }
  }
  return static_cast<size_t>(std::count_if(taken.begin(), taken.end(), [&](const Key& key) {
    const TenantView view = planner_->View(key.first, key.second);
    return view.held + empty[key] < view.guarantee && !by_itself.contains(key.first);
  }));
}

void World::Execute() {
  for (size_t i = 0; i < plan_.size(); ++i) {
    const Action action = plan_[i];
    std::visit([this](const auto& one) { Do(one); }, action);
  }
  plan_.clear();
}

// No ledger grows while it is above its budget (a lowered budget leaves it there for a while).
void World::CheckBudgets() {
  for (const auto& [id, session] : sessions_) {
    if (session->gone) continue;
    const Bytes used = planner_->View(id).host_used;
    if (used > host_used_[id]) RAVEN_CHECK(used <= session->budgets.host);
    host_used_[id] = used;
  }
}

void World::Do(const AddSlab& action) {
  Session* session = FindSession(action.client);
  if (session == nullptr || session->gone) return;
  auto& units = session->memory.at(ToInt(action.device)).units;
  for (size_t unit = UnitsOf(action.offset); unit < UnitsOf(action.offset + action.size); ++unit) {
    RAVEN_CHECK(units.at(unit) == Unit::kAbsent);
    units[unit] = Unit::kAdding;
  }
  Bytes tenant;
  for (const auto& [id, other] : sessions_) {
    if (other->gone) continue;
    const Bytes held = HeldBy(id, action.device);
    if (other->tenant == session->tenant) tenant += held;
  }
  RAVEN_CHECK(HeldBy(action.client, action.device) <= session->budgets.device);
  RAVEN_CHECK(tenant <= tenants_.at(session->tenant).device);
  CheckDevice(action.device);
  slab_sizes_[{action.client, action.device, action.offset}] = action.size;
  slab_jobs_.push_back(
      {SlabJob::Kind::kAdd, action.client, action.device, action.offset, action.size});
}

void World::Do(const RemoveSlab& action) {
  Session* session = FindSession(action.client);
  if (session == nullptr || session->gone) return;
  Memory& memory = session->memory.at(ToInt(action.device));
  const TierView before = planner_->DeviceTier(action.device);
  RAVEN_CHECK(before.held >= before.used);
  const size_t first = UnitsOf(action.offset);
  size_t end = first;
  // The slab's size is what was added there.
  const auto size = slab_sizes_.find({action.client, action.device, action.offset});
  RAVEN_CHECK(size != slab_sizes_.end());
  for (; end < first + UnitsOf(size->second); ++end) {
    RAVEN_CHECK(memory.units.at(end) == Unit::kPresent);
    RAVEN_CHECK(memory.owners[end] == kNoTensor);  // nothing lives in what is given back
    memory.units[end] = Unit::kRemoving;
  }
  slab_jobs_.push_back(
      {SlabJob::Kind::kRemove, action.client, action.device, action.offset, size->second});
  slab_sizes_.erase(size);
}

void World::Do(const GrowPool& action) {
  std::vector<Unit>& units = away_.at(action.pool).units;
  for (size_t unit = UnitsOf(action.offset); unit < UnitsOf(action.offset + action.size); ++unit) {
    RAVEN_CHECK(units.at(unit) == Unit::kAbsent);
    units[unit] = Unit::kAdding;
  }
  slab_jobs_.push_back(
      {SlabJob::Kind::kPoolGrows, {}, {}, action.offset, action.size, action.pool});
  CheckPinned();
  if (action.pool == kHostPool) return;
  const Pool& pool = options_.planner.topology.pools()[ToInt(action.pool)];
  if (pool.kind == PoolKind::kPeer) CheckDevice(DeviceId{pool.number});
  if (pool.kind == PoolKind::kRemote) RAVEN_CHECK(action.size == pool.chunk);
}

void World::Do(const ReclaimPinned& action) {
  reclaim_ = action;
}

void World::Do(const ShrinkPool& action) {
  std::vector<Unit>& units = away_.at(action.pool).units;
  for (size_t unit = UnitsOf(action.offset); unit < UnitsOf(action.offset + action.size); ++unit) {
    RAVEN_CHECK(units.at(unit) == Unit::kPresent);
    units[unit] = Unit::kRemoving;
  }
  for (const Copy& copy : copies_) {  // none reads or writes what goes
    const auto is_apart = [&](const Place& place) {
      return place.pool != action.pool || place.offset + copy.size <= action.offset ||
             place.offset >= action.offset + action.size;
    };
    RAVEN_CHECK(is_apart(copy.away));
    RAVEN_CHECK(copy.kind != CopyKind::kOn || is_apart(copy.on));
  }
  slab_jobs_.push_back(
      {SlabJob::Kind::kPoolShrinks, {}, {}, action.offset, action.size, action.pool});
}

void World::Do(const AllocReply& action) {
  Session* session = FindSession(action.client);
  if (session == nullptr || session->gone) return;
  Row& row = session->rows.at(ToInt(action.slot));
  RAVEN_CHECK(row.state == LeaseState::kRequested);
  RAVEN_CHECK(std::exchange(row.pending, false));
  SetOwner(session->memory.at(ToInt(action.device)), action.offset, row.size, action.tensor);
  row.tensor = action.tensor;
  row.complete_word = 0;
  row.device = action.device;
  row.place = action.offset;
  row.arriving = false;
  row.answer = Answer::kGranted;
  MoveLease(row, LeaseState::kInUse);
}

void World::Do(const AllocError& action) {
  Session* session = FindSession(action.client);
  if (session == nullptr || session->gone) return;
  Row& row = session->rows.at(ToInt(action.slot));
  RAVEN_CHECK(row.state == LeaseState::kRequested);
  RAVEN_CHECK(std::exchange(row.pending, false));
  row.tensor = kNoTensor;
  row.answer = Answer::kRefused;
  row.error = action.error;
  MoveLease(row, LeaseState::kFree);  // the client takes note and gives the row back
}

void World::Do(const FetchReply& action) {
  Session* session = nullptr;
  SlotId slot{};
  Row* row = Locate(action, &session, &slot);
  if (row == nullptr) return;
  RAVEN_CHECK(row->state == LeaseState::kFetching);
  if (action.arriving) {
    const auto copy = std::find_if(copies_.begin(), copies_.end(), [&](const Copy& one) {
      return one.kind == CopyKind::kIn && one.tensor == action.tensor;
    });
    RAVEN_CHECK(copy != copies_.end());
    copy->promised = true;
    row->arriving = true;
  }
  if (action.recompute) {
    RAVEN_CHECK(!action.arriving);
    RAVEN_CHECK(row->recompute > Duration{0});  // nobody else allowed the bytes to be given up
    SetOwner(session->memory.at(ToInt(action.device)), action.offset, row->size, action.tensor);
    row->stamp = 0;  // the client finds nothing there
  }
  row->complete_word = 0;
  row->device = action.device;
  row->place = action.offset;
  row->answer = Answer::kReplied;
  row->ops.push_back({false, row->stamp});
  MoveLease(*row, LeaseState::kInUse);
}

void World::Do(const FetchError& action) {
  Session* session = nullptr;
  SlotId slot{};
  Row* row = Locate(action, &session, &slot);
  if (row == nullptr) return;
  // The copy of the get before it failed, which is an answer as well; the client may have freed it.
  if (row->state == LeaseState::kLost || row->state == LeaseState::kFreeing) return;
  RAVEN_CHECK(row->state == LeaseState::kFetching);
  row->answer = Answer::kDenied;
  row->error = action.error;
  if (action.error.code == ErrorCode::kLost) {
    RAVEN_CHECK(row->may_be_lost);  // nobody allowed these bytes to be lost
    MoveLease(*row, LeaseState::kLost);
    row->ops.clear();
  } else if (const TensorView view = planner_->View(action.tensor);
             view.residency == Residency::kOnDevice) {
    // It stays where it is, which its row does not say when it was brought there unasked.
    row->device = view.device;
    row->place = view.device_offset;
    MoveLease(*row, LeaseState::kIdle);
    AwaitStreamComplete(*session, slot);
  } else {
    MoveLease(*row, LeaseState::kAway);
  }
}

void World::Do(const Release& action) {
  Session* session = FindSession(action.client);
  if (session == nullptr || session->gone) return;
  Row& row = session->rows.at(ToInt(action.slot));
  RAVEN_CHECK(row.state == LeaseState::kFreeing);
  RAVEN_CHECK(row.tensor == action.tensor);
  ClearOwner(*session, row);
  row.tensor = kNoTensor;
  row.complete_word = 0;
  row.answer = Answer::kNone;
  MoveLease(row, LeaseState::kFree);
}

void World::Do(const Drop& action) {
  Session* session = nullptr;
  SlotId slot{};
  Row* row = Locate(action, &session, &slot);
  if (row == nullptr) return;
  const bool taken = row->complete_word != 0 && row->word == row->complete_word;
  row->complete_word = 0;
  if (taken) {
    RAVEN_CHECK(row->state == LeaseState::kIdle);
    MoveLease(*row, LeaseState::kAway);
  }
  ApplyEvent(Dropped{action.tensor, taken});
  // A use that it learnt of only after the proposal makes the planner keep the bytes.
  if (taken && planner_->View(action.tensor).residency != Residency::kOnDevice) {
    ClearOwner(*session, *row);
  }
}

void World::Do(const Move& action) {
  if (away_.contains(action.to.pool) && away_.contains(action.from.pool)) {
    StartCopyOn(action);
  } else if (away_.contains(action.to.pool)) {
    StartCopyOut(action);
  } else {
    StartCopyIn(action);
  }
}

void World::Do(const Prioritize& action) {
  // Copies end in any order here, and one that could not begin is known to have ended only later.
  for (auto& copy : copies_) {
    if (copy.tensor != action.tensor) continue;
    RAVEN_CHECK(copy.kind == CopyKind::kClean);
    if (!action.irrevocable || RowOf(copy.handle).word != copy.word) continue;
    copy.kind = CopyKind::kOut;
    LeaveIrrevocably(copy);
  }
}

void World::LeaveIrrevocably(Copy& copy) {
  Row& row = RowOf(copy.handle);
  MoveLease(row, LeaseState::kAway);
  row.complete_word = 0;
  copy.irrevocable = true;
  ApplyEvent(MoveProgressed{copy.tensor, Bytes{0}});
}

// False: it has, or it is too small.
bool World::ReleaseHalf(Copy& copy) {
  const size_t half = UnitsOf(copy.size) / 2;
  if (!copy.irrevocable || copy.half_released || half == 0) return false;
  copy.half_released = true;
  Session& session = SessionOf(copy.handle.client);
  if (!session.gone) {
    Memory& memory = session.memory[ToInt(copy.device)];
    for (size_t unit = UnitsOf(copy.on_device); unit < UnitsOf(copy.on_device) + half; ++unit) {
      if (memory.owners[unit] == copy.tensor) memory.owners[unit] = kNoTensor;
    }
  }
  ApplyEvent(MoveProgressed{copy.tensor, kExtentAlignment * half});
  return true;
}

void World::StartCopyOut(const Move& action) {
  Session* session = nullptr;
  SlotId slot{};
  Row* row = Locate(action, &session, &slot);
  if (row == nullptr) return;
  using Source = Move::Source;
  const DeviceId device = core::DeviceOf(action.from.pool);
  const bool held = action.source == Source::kIsHeld;
  const bool stays = action.source == Source::kStays;
  const bool stream_complete =
      row->complete_word != 0 && row->state == LeaseState::kIdle && row->word == row->complete_word;
  const bool begun = held ? row->state == LeaseState::kFetching : stream_complete;
  if (!held && !stays) row->complete_word = 0;
  if (!begun) return ApplyEvent(Moved{action.tensor, Moved::Outcome::kNotBegun});
  // What was brought while its client began to fetch it could not be published: then the row does
  // not say where it is.
  if (!held) RAVEN_CHECK(row->device == device);
  if (!held) RAVEN_CHECK(row->place == action.from.offset);
  RAVEN_CHECK(row->size == action.size);
  CheckAwayRoom(action.tensor, action.to, action.size);
  if (action.source == Source::kLeaves) MoveLease(*row, LeaseState::kLeaving);
  row->away = action.to;
  copies_.push_back({stays ? CopyKind::kClean : CopyKind::kOut,
                     {session->id, slot},
                     action.tensor,
                     device,
                     action.from.offset,
                     action.to,
                     action.size,
                     row->word,
                     held});
  ++session->copies;
  MoveStamps(copies_.back(), false);
  if (action.source == Source::kLeavesIrrevocably) LeaveIrrevocably(copies_.back());
}

void World::StartCopyIn(const Move& action) {
  const DeviceId device = core::DeviceOf(action.to.pool);
  Session* session = nullptr;
  SlotId slot{};
  Row* row = Locate(action, &session, &slot);
  if (row == nullptr) return;
  RAVEN_CHECK(row->size == action.size);
  SetOwner(session->memory.at(ToInt(device)), action.to.offset, action.size, action.tensor);
  copies_.push_back({CopyKind::kIn,
                     {session->id, slot},
                     action.tensor,
                     device,
                     action.to.offset,
                     action.from,
                     action.size});
  ++session->copies;
  MoveStamps(copies_.back(), false);
}

// The tensor's client notices nothing.
void World::StartCopyOn(const Move& action) {
  Session* session = nullptr;
  SlotId slot{};
  Row* row = Locate(action, &session, &slot);
  if (row == nullptr) return;
  RAVEN_CHECK(row->size == action.size);
  RAVEN_CHECK(planner_->View(action.tensor).residency == Residency::kAway);
  CheckAwayRoom(action.tensor, action.to, action.size);
  copies_.push_back({.kind = CopyKind::kOn,
                     .handle = {session->id, slot},
                     .tensor = action.tensor,
                     .device = row->device,
                     .on_device = Bytes{},
                     .away = action.from,
                     .size = action.size,
                     .on = action.to});
  ++session->copies;
  MoveStamps(copies_.back(), false);
}

void World::FailPool(PoolId pool) {
  failed_.insert(pool);
  for (auto& [id, session] : sessions_) {
    if (session->gone) continue;
    for (Row& row : session->rows) {
      if (row.tensor == kNoTensor || !planner_->Knows(row.tensor)) continue;
      const TensorView view = planner_->View(row.tensor);
      row.may_be_lost |=
          view.away == pool && view.has_copy &&
          (view.residency == Residency::kAway || view.residency == Residency::kArriving);
    }
  }
  ApplyEvent(PoolFailed{pool});
  Execute();
}

void World::LoseChunk(PoolId pool, Bytes offset) {
  Memory& memory = away_.at(pool);
  const Bytes size = options_.planner.topology.pools()[ToInt(pool)].chunk;
  if (memory.units.at(UnitsOf(offset)) == Unit::kPresent) {
    lost_[{pool, offset}] = size;
    std::fill_n(memory.stamps.begin() + static_cast<ptrdiff_t>(UnitsOf(offset)), UnitsOf(size),
                ~uint64_t{0});
  }
  for (auto& [id, session] : sessions_) {
    if (session->gone) continue;
    for (Row& row : session->rows) {
      if (row.tensor == kNoTensor || !planner_->Knows(row.tensor)) continue;
      const TensorView view = planner_->View(row.tensor);
      if (view.away != pool || !view.has_copy || !IsLost(row.away, row.size)) continue;
      const bool alone = view.residency == Residency::kAway;
      lost_with_chunks_ += alone ? 1 : 0;
      row.may_be_lost |= alone || view.residency == Residency::kArriving;
    }
  }
  ApplyEvent(ChunkLost{pool, offset});
  Execute();
}

bool World::IsLost(const Place& place, Bytes size) const {
  return std::any_of(lost_.begin(), lost_.end(), [&](const auto& chunk) {
    const auto& [pool, offset] = chunk.first;
    return pool == place.pool && place.offset < offset + chunk.second &&
           offset < place.offset + size;
  });
}

void World::FinishCopy(size_t index, bool ok) {
  ok = ok && !failed_.contains(copies_.at(index).away.pool);
  // What is copied into a chunk that is lost may seem to go well.
  const bool reads =
      copies_.at(index).kind == CopyKind::kIn || copies_.at(index).kind == CopyKind::kOn;
  ok = ok && !(reads && IsLost(copies_.at(index).away, copies_.at(index).size));
  if (ok && ReleaseHalf(copies_.at(index))) return Execute();
  const Copy copy = copies_.at(index);
  MoveStamps(copy, true);
  copies_.erase(copies_.begin() + static_cast<ptrdiff_t>(index));
  --SessionOf(copy.handle.client).copies;
  if (copy.kind == CopyKind::kIn) {
    FinishIn(copy, ok);
  } else if (copy.kind == CopyKind::kOn) {
    moved_on_ += ok ? 1 : 0;
    if (ok && !SessionOf(copy.handle.client).gone) RowOf(copy.handle).away = copy.on;
    ApplyEvent(Moved{copy.tensor, ok ? Moved::Outcome::kDone : Moved::Outcome::kFailed});
  } else {
    FinishOut(copy, ok);
  }
  Execute();
  ReleaseIfGone(SessionOf(copy.handle.client));
}

void World::FinishOut(const Copy& copy, bool ok) {
  Session& session = SessionOf(copy.handle.client);
  Row& row = RowOf(copy.handle);
  const bool same = row.word == copy.word;
  row.may_be_lost |= ok && copy.kind == CopyKind::kOut && IsLost(copy.away, copy.size);
  using Outcome = Moved::Outcome;
  if (copy.irrevocable) {
    const bool stays = !ok && !copy.half_released;
    row.may_be_lost |= !ok && copy.half_released;
    if (!session.gone && !stays) ClearOwner(session, row);
    const Outcome outcome = ok ? Outcome::kDone : Outcome::kFailed;
    ApplyEvent(Moved{copy.tensor, session.gone ? Outcome::kRescued : outcome});
  } else if (copy.kind == CopyKind::kClean) {
    ApplyEvent(Moved{copy.tensor, !same ? Outcome::kRescued
                                  : ok  ? Outcome::kDone
                                        : Outcome::kFailed});
  } else if (ok) {
    const bool committed = !session.gone && same;
    if (committed) {
      ClearOwner(session, row);
      if (!copy.held) MoveLease(row, LeaseState::kAway);
    }
    ApplyEvent(Moved{copy.tensor, committed ? Outcome::kDone : Outcome::kRescued});
  } else {
    const bool stays = !session.gone && (copy.held || same);
    if (stays && !copy.held) {
      MoveLease(row, LeaseState::kIdle);
      row.complete_word = row.word;
    }
    ApplyEvent(Moved{copy.tensor, stays ? Outcome::kFailed : Outcome::kRescued});
  }
}

void World::FinishIn(const Copy& copy, bool ok) {
  Session& session = SessionOf(copy.handle.client);
  Row& row = RowOf(copy.handle);
  if (!session.gone) {
    if (ok) {
      if (copy.promised) {
        row.arriving = false;
      } else if (row.state == LeaseState::kAway) {
        row.device = copy.device;
        row.place = copy.on_device;
        MoveLease(row, LeaseState::kIdle);
        row.complete_word = row.word;
      }
    } else {
      Memory& memory = session.memory[ToInt(copy.device)];
      for (size_t unit = UnitsOf(copy.on_device); unit < UnitsOf(copy.on_device + copy.size);
           ++unit) {
        memory.owners[unit] = kNoTensor;
      }
      if (copy.promised) {
        row.arriving = false;
        row.ops.clear();
        row.ticket_reached = row.ticket;
        row.may_be_lost = true;
        if (row.state == LeaseState::kFetching) row.answer = Answer::kDenied;
        // A row that is being freed goes on to be free.
        if (row.state != LeaseState::kFreeing) MoveLease(row, LeaseState::kLost);
      }
    }
  }
  ApplyEvent(Moved{copy.tensor, ok ? Moved::Outcome::kDone : Moved::Outcome::kFailed});
}

void World::ReleaseIfGone(Session& session) {
  if (session.gone && session.copies == 0) sessions_.erase(session.id);
}

// ---- Memory.

void World::SetOwner(Memory& memory, Bytes offset, Bytes size, TensorId tensor) {
  for (size_t unit = UnitsOf(offset); unit < UnitsOf(offset + size); ++unit) {
    RAVEN_CHECK(memory.units.at(unit) == Unit::kPresent);
    RAVEN_CHECK(memory.owners[unit] == kNoTensor);  // else two tensors overlap
    memory.owners[unit] = tensor;
  }
}

// A clean tensor that is fetched on another device leaves the first without an action: its lease is
// Fetching, so there is nobody to ask.
void World::ClearOwnersOfDropped() {
  for (auto& [id, session] : sessions_) {
    if (session->gone) continue;
    for (const Row& row : session->rows) {
      if (row.state != LeaseState::kFetching) continue;
      const TensorView view = planner_->View(row.tensor);
      const bool comes = view.residency == Residency::kArriving &&
                         OwnsBytes(session->memory[ToInt(view.device)], row.tensor);
      const bool left =
          view.residency == Residency::kAway || (view.residency == Residency::kArriving && !comes);
      if (left) ClearOwner(*session, row);
    }
  }
}

bool World::OwnsBytes(const Memory& memory, TensorId tensor) {
  return std::count(memory.owners.begin(), memory.owners.end(), tensor) > 0;
}

void World::ClearOwner(Session& session, const Row& row) {
  // No copy may be reading or writing what is given up.
  for (const Copy& copy : copies_)
    RAVEN_CHECK(copy.tensor != row.tensor || copy.kind == CopyKind::kOn);
  for (Memory& memory : session.memory) {
    std::replace(memory.owners.begin(), memory.owners.end(), row.tensor, kNoTensor);
  }
}

// A copy moves the first half of its units as it begins and the rest as it ends: what is written
// meanwhile tears it.
void World::MoveStamps(const Copy& copy, bool second_half) {
  Session& session = SessionOf(copy.handle.client);
  if (session.gone) return;  // it goes on, but nobody will read what it brings
  Memory& device = session.memory[ToInt(copy.device)];
  Memory& away = away_.at(copy.away.pool);
  const size_t units = UnitsOf(copy.size);
  const size_t begin = second_half ? units / 2 : 0;
  const size_t end = second_half ? units : units / 2;
  if (copy.kind == CopyKind::kOn) return MoveStampsOn(copy, begin, end);
  for (size_t unit = begin; unit < end; ++unit) {
    const size_t here = UnitsOf(copy.on_device) + unit;
    const size_t there = UnitsOf(copy.away.offset) + unit;
    RAVEN_CHECK(device.units.at(here) == Unit::kPresent);
    RAVEN_CHECK(away.units.at(there) == Unit::kPresent);
    if (copy.kind == CopyKind::kIn) {
      device.stamps[here] = away.stamps[there];
    } else {
      away.stamps[there] = device.stamps[here];
    }
  }
}

void World::MoveStampsOn(const Copy& copy, size_t begin, size_t end) {
  const Memory& from = away_.at(copy.away.pool);
  Memory& to = away_.at(copy.on.pool);
  for (size_t unit = begin; unit < end; ++unit) {
    const size_t here = UnitsOf(copy.away.offset) + unit;
    const size_t there = UnitsOf(copy.on.offset) + unit;
    RAVEN_CHECK(from.units.at(here) == Unit::kPresent);
    RAVEN_CHECK(to.units.at(there) == Unit::kPresent);
    to.stamps[there] = from.stamps[here];
  }
}

// What a copy will write in another pool is no copy's that is under way.
void World::CheckAwayRoom(TensorId tensor, const Place& to, Bytes size) const {
  const Bytes end = to.offset.RoundUp(kExtentAlignment) + size.RoundUp(kExtentAlignment);
  for (const Copy& copy : copies_) {
    RAVEN_CHECK(copy.tensor != tensor);  // one copy of a tensor at a time
    const Bytes room = copy.size.RoundUp(kExtentAlignment);
    const auto is_apart = [&](const Place& place) {
      return place.pool != to.pool || end <= place.offset || place.offset + room <= to.offset;
    };
    RAVEN_CHECK(is_apart(copy.away));
    RAVEN_CHECK(copy.kind != CopyKind::kOn || is_apart(copy.on));
  }
}

std::string Describe(const Action& action) {
  std::ostringstream text;
  struct Visitor {
    std::ostringstream& out;
    void operator()(const AddSlab& a) const {
      out << "AddSlab client " << ToInt(a.client) << " device " << ToInt(a.device) << " at "
          << a.offset.count() << " size " << a.size.count();
    }
    void operator()(const RemoveSlab& a) const {
      out << "RemoveSlab client " << ToInt(a.client) << " device " << ToInt(a.device) << " at "
          << a.offset.count();
    }
    void operator()(const GrowPool& a) const {
      out << "GrowPool " << ToInt(a.pool) << " at " << a.offset.count() << " size "
          << a.size.count();
    }
    void operator()(const ReclaimPinned& a) const {
      out << "ReclaimPinned" << (a.tenant ? " of tenant " + std::to_string(ToInt(*a.tenant)) : "");
    }
    void operator()(const ShrinkPool& a) const {
      out << "ShrinkPool " << ToInt(a.pool) << " at " << a.offset.count() << " size "
          << a.size.count();
    }
    void operator()(const AllocReply& a) const {
      out << "AllocReply client " << ToInt(a.client) << " slot " << ToInt(a.slot) << " tensor "
          << ToInt(a.tensor) << " at " << a.offset.count();
    }
    void operator()(const AllocError& a) const {
      out << "AllocError client " << ToInt(a.client) << " slot " << ToInt(a.slot) << " "
          << Describe(a.error);
    }
    void operator()(const FetchReply& a) const {
      out << "FetchReply tensor " << ToInt(a.tensor) << " at " << a.offset.count()
          << (a.arriving ? " arriving" : "") << (a.recompute ? " recompute" : "");
    }
    void operator()(const FetchError& a) const {
      out << "FetchError tensor " << ToInt(a.tensor) << " " << Describe(a.error);
    }
    void operator()(const Release& a) const {
      out << "Release client " << ToInt(a.client) << " slot " << ToInt(a.slot) << " tensor "
          << ToInt(a.tensor);
    }
    void operator()(const Drop& a) const { out << "Drop tensor " << ToInt(a.tensor); }
    void operator()(const Move& a) const {
      out << "Move tensor " << ToInt(a.tensor) << " from " << a.from.offset.count() << " of pool "
          << ToInt(a.from.pool) << " to " << a.to.offset.count() << " of pool " << ToInt(a.to.pool)
          << (a.source == Move::Source::kStays ? "" : " leaves") << (a.demand ? " demand" : "");
    }
    void operator()(const Prioritize& a) const { out << "Prioritize tensor " << ToInt(a.tensor); }
    void operator()(const DeferDestroy&) const { out << "DeferDestroy"; }
    static std::string Describe(const Error& error) { return core::Describe(error); }
  };
  std::visit(Visitor{text}, action);
  return text.str();
}

}  // namespace ravenstore::core
