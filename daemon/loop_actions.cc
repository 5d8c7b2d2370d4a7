// The executor's half of the planner loop: what the planner proposes is done here, and what came of
// it is told back as events.
#include <spdlog/spdlog.h>

#include <algorithm>
#include <utility>

#include "core/check.h"
#include "daemon/loop.h"

namespace ravenstore::daemon {

using core::Bytes;
using core::DeviceId;
using core::SlotId;
using core::ToInt;

namespace {
// The slot's count of modifying uses, as its client says now.
uint32_t WritesOf(Session& session, SlotId slot) {
  return session.segment()->slots[ToInt(slot)].writes.load(std::memory_order_relaxed);
}
}  // namespace

void Loop::ApplyEvent(const core::Event& event) {
  planner_->Apply(event, now_, &plan_);
}

void Loop::Execute() {
  // By index and taken out: carrying out an action may feed events that append to the plan.
  for (size_t i = 0; i < plan_.size(); ++i) {
    core::Action action = std::move(plan_[i]);
    std::visit([this](auto& one) { Do(one); }, action);
  }
  plan_.clear();
}

Session* Loop::SessionOf(const core::TensorOfClient& tensor) {
  Session* session = FindSession(tensor.client);
  if (session == nullptr || session->gone) return nullptr;
  return session->RowOf(tensor.slot).tensor == tensor.tensor ? session : nullptr;
}

void Loop::Do(const core::AddSlab& action) {
  Session* session = FindSession(action.client);
  if (session == nullptr || session->gone) return;
  // A client that does not import could have the daemon hold any number of descriptors.
  if (!session->maps.MayImport(session->slabs_in_making))
    return session->slabs_to_make.push_back(action);
  ++session->slabs_in_making;
  workers_->Run(session->attachment().tenant, [this, attachment = session->shared(), action] {
    auto descriptor = std::make_shared<ipc::UniqueFd>();
    // Only one slab of an arena is made at a time.
    const core::Status made = MakeMemory(
        *attachment, *devices_[ToInt(action.device)], action.device,
        options_.planner.arena[ToInt(action.device)], action.offset, action.size, descriptor.get());
    if (!made.ok()) {
      spdlog::warn("client {}: no slab of {} bytes on device {}: {}", ToInt(action.client),
                   action.size.count(), ToInt(action.device), core::Describe(made.error()));
    }
    std::string limit;
    if (!made.ok() && made.error().code == core::ErrorCode::kLimit) limit = made.error().message;
    mailbox_.Post([this, action, ok = made.ok(), descriptor, limit = std::move(limit)] {
      Session* session = FindSession(action.client);
      if (session == nullptr || session->gone) return;
      const auto& [client, device, offset, size] = action;
      --session->slabs_in_making;
      if (ok) {
        const uint32_t memory = session->maps.Import(device, size, std::move(*descriptor));
        session->maps.Map(device, memory, offset, size);
        session->slab_memory[{ToInt(device), offset.count()}] = memory;
        SendMaps(*session);
        session->slabs[ToInt(device)].Add(offset, size);
        ApplyEvent(core::SlabAdded{client, device, offset, size});
      } else {
        ApplyEvent(core::SlabFailed{client, device, offset, limit});
      }
      Execute();
    });
  });
}

void Loop::Do(const core::RemoveSlab& action) {
  Session* session = FindSession(action.client);
  if (session == nullptr || session->gone) return;
  const auto [client, device, offset] = action;
  const Session::SlabKey key{ToInt(device), offset.count()};
  session->slabs[ToInt(device)].Remove(offset);
  session->unmapping[key] = {};
  const uint32_t memory = session->slab_memory.extract(key).mapped();
  session->maps.Unmap(device, memory, offset);
  session->maps.Release(device, memory);
  SendMaps(*session);
  // Nothing lives in it and nothing is copied there: we need not wait for the client.
  workers_->Run(session->attachment().tenant, [this, attachment = session->shared(), action] {
    const auto [client, device, offset] = action;
    if (auto status = attachment->arenas[ToInt(device)]->Unmap(offset); !status.ok()) {
      spdlog::error("client {}: slab not unmapped: {}", ToInt(client),
                    core::Describe(status.error()));
      return;
    }
    mailbox_.Post([this, action] {
      if (Session* session = FindSession(action.client); session != nullptr && !session->gone)
        Unmapped(*session, action, &Session::UnmapHandshake::daemon);
    });
  });
}

void Loop::SendMaps(Session& session) {
  MapOrders::Batch batch = session.maps.Send();
  if (batch.descriptors.empty()) return;
  outbox_.memory_ready(
      std::make_shared<MemoryForClient>(MemoryForClient{session.id(), std::move(batch)}));
}

bool Loop::PollMaps(Session& session) {
  if (session.faulty || !session.maps.HasWork()) return false;
  std::vector<MapOrders::Ended> ended;
  if (!session.maps.Poll(&ended)) Expel(session, "the map ring of this client is corrupt");
  turns_.Spend(session.attachment().tenant, static_cast<uint32_t>(ended.size()));
  if (pages_ != nullptr) pages_->MapsEnded(session.id(), ended);
  for (const MapOrders::Ended& one : ended) {
    // What is mapped still must not count as unmapped.
    if (one.op == proto::MapOp::kUnmap && one.ok) {
      Unmapped(session, {session.id(), one.device, one.offset}, &Session::UnmapHandshake::client);
    }
  }
  SendMaps(session);
  while (!session.slabs_to_make.empty() && session.maps.MayImport(session.slabs_in_making)) {
    const core::AddSlab next = session.slabs_to_make.front();
    session.slabs_to_make.pop_front();
    Do(next);
  }
  return true;
}

void Loop::Unmapped(Session& session, const core::RemoveSlab& slab,
                    bool Session::UnmapHandshake::*by) {
  const auto unmapping = session.unmapping.find({ToInt(slab.device), slab.offset.count()});
  if (unmapping == session.unmapping.end()) return;
  unmapping->second.*by = false;
  const auto [client, daemon] = unmapping->second;
  if (client || daemon) return;
  session.unmapping.erase(unmapping);
  ApplyEvent(core::SlabRemoved{slab.client, slab.device, slab.offset});
  Execute();
}

core::TenantId Loop::WorkOf(core::PoolId pool) const {
  if (pool == core::kHostPool) return kNoUser;
  const core::Pool& of = options_.planner.topology.pools()[ToInt(pool)];
  return of.kind == core::PoolKind::kRemote ? kOtherNodes : kNoUser;
}

void Loop::Do(const core::GrowPool& action) {
  const bool pins = action.pool == core::kHostPool;
  if (pins) pinned_->RoomComes();  // what nobody needs of it can be unpinned once it is pinned
  NoteChunk(action.pool, /*begins=*/true);
  workers_->Run(WorkOf(action.pool), [this, memory = away_.at(action.pool).get(), action, pins,
                                      name = planner_->NameOf(action.pool)] {
    const core::Status status = memory->Make(action.offset, action.size);
    if (!status.ok()) {
      spdlog::warn("{}: {} more bytes not had: {}", name, action.size.count(),
                   core::Describe(status.error()));
    }
    mailbox_.Post([this, memory, action, pins, ok = status.ok()] {
      NoteChunk(action.pool, /*begins=*/false);
      if (ok) {
        memory->slabs.Add(action.offset, action.size);
        ApplyEvent(core::PoolGrown{action.pool, action.offset, action.size});
      } else {
        ApplyEvent(core::PoolGrowFailed{action.pool});
      }
      Execute();
      if (pins) pinned_->RoomCame();
    });
  });
}

void Loop::Do(const core::ShrinkPool& action) {
  const bool pins = action.pool == core::kHostPool;
  AwayMemory* const memory = away_.at(action.pool).get();
  memory->slabs.Remove(action.offset);
  if (pins) pinned_->RoomComes();
  NoteChunk(action.pool, /*begins=*/true);
  workers_->Run(
      WorkOf(action.pool), [this, memory, action, pins, name = planner_->NameOf(action.pool)] {
        const core::Status gone = memory->Destroy(action.offset);
        if (!gone.ok())
          spdlog::error("{}: memory not released: {}", name, core::Describe(gone.error()));
        mailbox_.Post([this, action, pins, ok = gone.ok()] {
          NoteChunk(action.pool, /*begins=*/false);
          // What could not be released is not used again, nor is anything made in its place.
          if (ok) {
            ApplyEvent(core::PoolShrunk{action.pool, action.offset, action.size});
          } else {
            LoseHarvest(action.pool, action.size);
            ApplyEvent(core::PoolShrinkFailed{action.pool, action.size, action.offset});
          }
          Execute();
          if (pins) pinned_->RoomCame();
        });
      });
}

void Loop::Do(const core::ReclaimPinned& action) {
  pinned_->ReleaseIdle(action.tenant);
}

void Loop::Do(const core::AllocReply& action) {
  Session* session = FindSession(action.client);
  if (session == nullptr || session->gone) return;
  session->RowOf(action.slot) = {};
  session->RowOf(action.slot).tensor = action.tensor;
  LeaseRow lease = session->LeaseOf(action.slot);
  // Anything else and the client broke the protocol: its tensor stays in our books until it goes.
  if (lease.state() != proto::LeaseState::kRequested) return;
  lease.CompleteAlloc(action.tensor, ToInt(action.device), action.offset);
  Record(*session, [&](Recorder& recorder) {
    recorder.Answered(session->id(), now_);
    recorder.Created(planner_->View(action.tensor), now_);
  });
}

void Loop::Do(const core::AllocError& action) {
  Session* session = FindSession(action.client);
  if (session == nullptr || session->gone) return;
  session->RowOf(action.slot) = {};
  Refund(*session, kTensorMemory);
  RememberFailure(*session, action.slot, action.error.message);
  LeaseRow lease = session->LeaseOf(action.slot);
  if (lease.state() == proto::LeaseState::kRequested) lease.FailAlloc(action.error.code);
}

void Loop::Do(const core::FetchReply& action) {
  const SlotId slot = action.slot;
  Session* session = SessionOf(action);
  if (session == nullptr) return;
  LeaseRow lease = session->LeaseOf(slot);
  if (lease.state() != proto::LeaseState::kFetching) return;
  proto::WordValue arrival;
  Move* move = nullptr;
  if (action.arriving) {
    const auto [way, job] = arriving_.at(action.tensor);
    move = &lanes_.at(way).in_moves.at(job);
    // A get that was given up may have been promised it before.
    if (!move->promised && !TakeArrival(*session, action, move)) return;
    arrival = move->arrival;
  }
  session->RowOf(slot).ForgetPut();
  lease.CompleteFetch(ToInt(action.device), action.offset, arrival, action.recompute);
  Record(*session, [&](Recorder& recorder) { recorder.Answered(session->id(), now_); });
  if (move == nullptr || std::exchange(move->promised, true)) return;
  // Last: a lane that fails now marks the tensor lost, which must come after the promise.
  lanes_.at(move->way).in->Promote(move->job, OwnerOf(session->id(), *session),
                                   &session->segment()->arrivals[arrival.index], arrival.value);
}

// The word that the copy will arrive in; false: all are in use, and the promise waits for one.
bool Loop::TakeArrival(Session& session, const core::FetchReply& reply, Move* move) {
  const auto word = session.arrivals.Take();
  if (word) {
    move->arrival = *word;
  } else if (!std::exchange(move->waits_for_word, true)) {
    session.pending_replies.push_back(reply);
  }
  return word.has_value();
}

bool Loop::Promise(core::ClientId client, SlotId slot, core::DeviceId device, core::Bytes offset) {
  Session* const session = FindSession(client);
  if (session == nullptr || session->gone) return false;
  LeaseRow lease = session->LeaseOf(slot);
  if (lease.state() != proto::LeaseState::kFetching) return false;
  const auto arrival = session->arrivals.Take();
  if (!arrival) return false;
  session->promises[slot] = *arrival;
  session->RowOf(slot).ForgetPut();
  lease.CompleteFetch(ToInt(device), offset, *arrival, /*recompute=*/false);
  Record(*session, [&](Recorder& recorder) { recorder.Answered(session->id(), now_); });
  return true;
}

void Loop::EndPromise(Session& session, SlotId slot, const core::Status& outcome) {
  const proto::WordValue arrival = session.promises.extract(slot).mapped();
  Record(session, [&](Recorder& recorder) { recorder.Answered(session.id(), now_); });
  if (!outcome.ok()) MarkLost(session, slot, outcome.error().message);
  session.segment()->arrivals[arrival.index].store(arrival.value, std::memory_order_release);
  session.arrivals.GiveBack(arrival.index);
}

void Loop::MarkLost(Session& session, SlotId slot, const std::string& why) {
  RememberFailure(session, slot, why);
  // In this order: a client that begins to wait sees the one or the other.
  session.LeaseOf(slot).MarkLost();
  session.segment()->header.losses.fetch_add(1, std::memory_order_release);
}

void Loop::SendPendingReplies(Session& session) {
  while (!session.pending_replies.empty() && session.arrivals.any()) {
    core::FetchReply reply = session.pending_replies.front();
    session.pending_replies.pop_front();
    if (SessionOf(reply) != &session) continue;
    if (planner_->View(reply.tensor).residency == core::Residency::kLost) {
      Do(core::FetchError{reply, {core::ErrorCode::kLost, "a copy of them failed"}});
      continue;
    }
    // Meanwhile it may have come.
    reply.arriving = arriving_.contains(reply.tensor);
    Do(reply);
  }
}

void Loop::Do(const core::FetchError& action) {
  const SlotId slot = action.slot;
  Session* session = SessionOf(action);
  if (session == nullptr) return;
  RememberFailure(*session, slot, action.error.message);
  LeaseRow lease = session->LeaseOf(slot);
  if (lease.state() != proto::LeaseState::kFetching) return;
  if (!action.stays) return lease.FailFetch(action.error.code);
  const uint64_t idle_word = lease.FailFetchInPlace(
      action.error.code, ToInt(core::DeviceOf(action.stays->pool)), action.stays->offset);
  AwaitStreamComplete(
      *session, slot, action.tensor, idle_word,
      session->segment()->slots[ToInt(slot)].ticket.load(std::memory_order_acquire));
}

void Loop::Do(const core::Release& action) {
  Session* session = FindSession(action.client);
  if (session == nullptr || session->gone) return;
  session->RowOf(action.slot) = {};
  Refund(*session, kTensorMemory);
  LeaseRow lease = session->LeaseOf(action.slot);
  if (lease.state() == proto::LeaseState::kFreeing) lease.Release();
}

void Loop::Do(const core::Drop& action) {
  const SlotId slot = action.slot;
  Session* session = SessionOf(action);
  if (session == nullptr) return;
  Session::Row& row = session->RowOf(slot);
  const uint64_t idle_word = row.complete_word();
  const bool taken = idle_word != 0 && session->LeaseOf(slot).Drop(idle_word);
  if (idle_word != 0) row.ForgetPut();
  ApplyEvent(core::Dropped{action.tensor, taken});
}

void Loop::Do(const core::Move& action) {
  if (away_.contains(action.to.pool) && away_.contains(action.from.pool)) {
    StartCopyOn(action);
  } else if (away_.contains(action.to.pool)) {
    StartCopyOut(action);
  } else {
    StartCopyIn(action);
  }
}

void Loop::Do(const core::Prioritize& action) {
  Lanes& lanes = lanes_.at({action.device, action.pool});
  for (auto& [job, move] : lanes.out_moves) {
    if (move.tensor != action.tensor) continue;
    // It stays until its copies are done.
    lanes.out->Prioritize(job, OwnerOf(action.behalf, *FindSession(move.client)));
    if (action.irrevocable) LeaveIrrevocably(move);
    return;
  }
}

core::TurnOwner Loop::OwnerOf(core::ClientId client, Session& session) {
  Session* other = FindSession(client);
  return {(other == nullptr ? session : *other).attachment().tenant, client};
}

// A clean of what nobody touched since it began takes it out.
void Loop::LeaveIrrevocably(Move& move) {
  Session* session = FindSession(move.client);
  if (session == nullptr || session->gone || move.kind != MoveKind::kClean) return;
  if (!session->LeaseOf(move.slot).Drop(move.word)) return;
  session->RowOf(move.slot).ForgetPut();
  move.kind = MoveKind::kOut;
  move.irrevocable = true;
  ApplyEvent(core::MoveProgressed{move.tensor, Bytes{0}});
}

bool Loop::BeginLeave(Session& session, core::Move::Source source, Move* move) {
  using Source = core::Move::Source;
  LeaseRow lease = session.LeaseOf(move->slot);
  if (source == Source::kIsHeld) {
    move->word = lease.word();
    return move->held = proto::UnpackLease(move->word).state == proto::LeaseState::kFetching;
  }
  Session::Row& row = session.RowOf(move->slot);
  PutRecord put;
  if (row.complete_word() == 0 || !lease.ReadPut(&put) || put.word != row.complete_word())
    return false;
  move->word = put.word;
  if (source == Source::kStays) return true;
  move->irrevocable = source == Source::kLeavesIrrevocably && lease.Drop(row.complete_word());
  const bool leaves = move->irrevocable || (source == Source::kLeaves &&
                                            lease.BeginLeave(row.complete_word(), &move->word));
  row.ForgetPut();
  return leaves;
}

Bytes Loop::ChunkOf(TransferLane::Urgency urgency, const AwayMemory& memory) const {
  const Bytes unit = memory.granularity();
  return std::max(unit, options_.transfers.ChunkOf(urgency).RoundDown(unit));
}

std::vector<TransferLane::Chunk> Loop::ChunksOf(Session& session, const core::Move& action,
                                                TransferLane::Urgency urgency) {
  const bool leaves = away_.contains(action.to.pool);
  const core::Place& here = leaves ? action.from : action.to;
  const core::Place& there = leaves ? action.to : action.from;
  const DeviceId device = core::DeviceOf(here.pool);
  std::byte* const arena = session.attachment().arenas[ToInt(device)]->base();
  AwayMemory& memory = *away_.at(there.pool);
  const SlabMap whole(options_.planner.arena[ToInt(device)]);
  const SlabMap& slabs = memory.IsStaged(device) ? whole : session.slabs[ToInt(device)];
  const Bytes chunk = ChunkOf(urgency, memory);
  return leaves ? Cut(memory.TargetAt(Bytes{}), there.offset, memory.slabs, arena, here.offset,
                      slabs, action.size, chunk)
                : Cut(arena, here.offset, slabs, memory.SourceAt(Bytes{}), there.offset,
                      memory.slabs, action.size, chunk);
}

void Loop::StartCopyOut(const core::Move& action) {
  const SlotId slot = action.slot;
  Session* session = SessionOf(action);
  if (session == nullptr) return;
  Move move{.kind = action.source == core::Move::Source::kStays ? MoveKind::kClean : MoveKind::kOut,
            .client = session->id(),
            .slot = slot,
            .tensor = action.tensor,
            .way = {core::DeviceOf(action.from.pool), action.to.pool},
            .device_offset = action.from.offset};
  if (!BeginLeave(*session, action.source, &move))
    return ApplyEvent(core::Moved{action.tensor, core::Moved::Outcome::kNotBegun});
  MarkLeaving(*session, action, &move);
  ++session->copies;
  Lanes& lanes = lanes_.at(move.way);
  const auto urgency =
      action.demand ? TransferLane::Urgency::kDemand : TransferLane::Urgency::kBackground;
  move.job = lanes.out->Submit(ChunksOf(*session, action, urgency),
                               OwnerOf(action.behalf, *session), urgency, nullptr, 0);
  lanes.out_moves.emplace(move.job, move);
  if (move.irrevocable) ApplyEvent(core::MoveProgressed{action.tensor, Bytes{0}});
}

void Loop::OnProgress(Way way, JobId job, Bytes done) {
  const Move& move = lanes_.at(way).out_moves.at(job);
  if (move.irrevocable) ApplyEvent(core::MoveProgressed{move.tensor, done});
}

core::Moved::Outcome Loop::EndLeave(Session& session, const Move& move, bool ok) {
  using Outcome = core::Moved::Outcome;
  const Outcome untouched = ok ? Outcome::kDone : Outcome::kFailed;
  LeaseRow lease = session.LeaseOf(move.slot);
  if (move.kind == MoveKind::kClean)
    return lease.word() == move.word ? untouched : Outcome::kRescued;
  if (session.gone) return Outcome::kRescued;
  if (move.irrevocable) return untouched;
  if (move.held) return !ok || lease.word() == move.word ? untouched : Outcome::kRescued;
  if (ok) return lease.Commit(move.word) ? Outcome::kDone : Outcome::kRescued;
  uint64_t idle_word = 0;
  if (!lease.AbortLeave(move.word, &idle_word)) return Outcome::kRescued;
  session.RowOf(move.slot).SetStreamComplete(idle_word);
  return Outcome::kFailed;
}

void Loop::CopyEnded(Session& session) {
  if (--session.copies > 0 || !session.gone) return;
  // Not at once: the lane still writes the job's arrival word.
  mailbox_.Post([this, client = session.id()] {
    if (Session* gone = FindSession(client)) ReleaseIfGone(*gone);
  });
}

void Loop::MarkLeaving(Session& session, const core::Move& action, Move* move) {
  if (!options_.check_moves) return;
  const std::byte* const begin =
      session.attachment().arenas[ToInt(move->way.device)]->base() + action.from.offset.count();
  move->mark = {action.tensor, WritesOf(session, move->slot), action.size,
                Mark::SumOf(begin, action.size)};
  move->end = away_.at(action.to.pool)->TargetAt(action.to.offset).address();
}

void Loop::MarkComing(const Session& session, const core::Move& action, const std::byte* end,
                      Move* move) {
  if (!options_.check_moves) return;
  move->mark = session.marks.at(action.slot);
  RAVEN_CHECK(move->mark.tensor == action.tensor);
  RAVEN_CHECK(move->mark.bytes == action.size);
  move->end = end;
}

bool Loop::IsWrong(Session& session, const Move& move) {
  if (move.end == nullptr) return false;
  ++move_checks_.checked;
  // What is away is not written.
  const bool old = move.kind == MoveKind::kIn && move.mark.version != WritesOf(session, move.slot);
  return old || !move.mark.IsOf(move.end);
}

void Loop::TellWrong(const Move& move) {
  ++move_checks_.wrong;
  spdlog::error("client {}: slot {}: {} bytes of version {} came over wrong", ToInt(move.client),
                ToInt(move.slot), move.mark.bytes.count(), move.mark.version);
}

core::Status Loop::Checked(Session& session, const Move& move, core::Status copied) {
  if (!copied.ok() || !IsWrong(session, move)) return copied;
  TellWrong(move);
  return core::Error{core::ErrorCode::kCorrupt, "a copy of them came over wrong"};
}

void Loop::FinishOut(Way way, JobId job, bool ok) {
  using Outcome = core::Moved::Outcome;
  const Move move = lanes_.at(way).out_moves.extract(job).mapped();
  Session* session = FindSession(move.client);
  RAVEN_CHECK(session != nullptr);  // it stays until its copies are done
  const bool differs = ok && IsWrong(*session, move);
  const Outcome outcome = EndLeave(*session, move, ok && !differs);
  // What was used since it began may have been written.
  const bool wrong = differs && outcome == Outcome::kFailed;
  if (wrong) TellWrong(move);
  away_.at(way.pool)->Ended(ok && !wrong, now_);
  if (options_.check_moves && outcome == Outcome::kDone) session->marks[move.slot] = move.mark;
  ApplyEvent(core::Moved{move.tensor, outcome});
  CopyEnded(*session);
}

void Loop::StartCopyIn(const core::Move& action) {
  const SlotId slot = action.slot;
  Session* session = SessionOf(action);
  if (session == nullptr) return;
  ++session->copies;
  Move move{.kind = MoveKind::kIn,
            .client = session->id(),
            .slot = slot,
            .tensor = action.tensor,
            .way = {core::DeviceOf(action.to.pool), action.from.pool},
            .device_offset = action.to.offset};
  MarkComing(
      *session, action,
      session->attachment().arenas[ToInt(move.way.device)]->base() + action.to.offset.count(),
      &move);
  Lanes& lanes = lanes_.at(move.way);
  const auto urgency =
      action.demand ? TransferLane::Urgency::kDemand : TransferLane::Urgency::kBackground;
  move.job = lanes.in->Submit(ChunksOf(*session, action, urgency), OwnerOf(session->id(), *session),
                              urgency, nullptr, 0);
  lanes.in_moves.emplace(move.job, move);
  arriving_[action.tensor] = {move.way, move.job};
}

void Loop::FinishIn(Way way, JobId job, const core::Status& copied) {
  const Move move = lanes_.at(way).in_moves.extract(job).mapped();
  Session* session = FindSession(move.client);
  RAVEN_CHECK(session != nullptr);
  const core::Status outcome = Checked(*session, move, copied);
  away_.at(way.pool)->Ended(outcome.ok(), now_);
  arriving_.erase(move.tensor);
  if (move.promised) session->arrivals.GiveBack(move.arrival.index);
  if (!session->gone) {
    if (move.promised)
      Record(*session, [&](Recorder& recorder) { recorder.Answered(session->id(), now_); });
    LeaseRow lease = session->LeaseOf(move.slot);
    if (outcome.ok()) {
      uint64_t idle_word = 0;
      if (!move.promised && lease.Publish(ToInt(way.device), move.device_offset, &idle_word)) {
        session->RowOf(move.slot).SetStreamComplete(idle_word);
      }
    } else if (move.promised) {
      MarkLost(*session, move.slot, outcome.error().message);
    }
  }
  using Outcome = core::Moved::Outcome;
  ApplyEvent(core::Moved{move.tensor, outcome.ok() ? Outcome::kDone : Outcome::kFailed});
  SendPendingReplies(*session);
  CopyEnded(*session);
}

// The client notices nothing: its tensor is away before and after.
void Loop::StartCopyOn(const core::Move& action) {
  const SlotId slot = action.slot;
  Session* session = SessionOf(action);
  if (session == nullptr) return;
  ++session->copies;
  MovesOn& on = moves_on_.at(action.from.pool);
  AwayMemory& from = *away_.at(action.from.pool);
  AwayMemory& to = *away_.at(action.to.pool);
  const auto urgency = TransferLane::Urgency::kDemand;
  // What the CPU writes may run across slabs; cut there it might begin within a medium's unit.
  const SlabMap whole(options_.planner.host_capacity);
  auto chunks = Cut(to.TargetAt(Bytes{}), action.to.offset, from.owner() ? to.slabs : whole,
                    from.SourceAt(Bytes{}), action.from.offset, from.slabs, action.size,
                    ChunkOf(urgency, from));
  Move move{.kind = MoveKind::kOn, .client = session->id(), .slot = slot, .tensor = action.tensor};
  MarkComing(*session, action, to.TargetAt(action.to.offset).address(), &move);
  const JobId job =
      on.lane->Submit(std::move(chunks), OwnerOf(action.behalf, *session), urgency, nullptr, 0);
  on.moves.emplace(job, move);
}

void Loop::FinishOn(core::PoolId pool, JobId job, const core::Status& copied) {
  using Outcome = core::Moved::Outcome;
  const Move move = moves_on_.at(pool).moves.extract(job).mapped();
  Session* session = FindSession(move.client);
  RAVEN_CHECK(session != nullptr);
  const core::Status outcome = Checked(*session, move, copied);
  away_.at(pool)->Ended(outcome.ok(), now_);
  ApplyEvent(core::Moved{move.tensor, outcome.ok() ? Outcome::kDone : Outcome::kFailed});
  CopyEnded(*session);
}

void Loop::Do(core::DeferDestroy& action) {
  // The worker is the last to hold it. What the client left may be forgotten long after it went.
  workers_->Run(action.tenant, [this, remains = std::move(action.remains)]() mutable {
    remains.reset();
    mailbox_.Post([this] { give_back_timer_.Freed(now_); });
  });
}

}  // namespace ravenstore::daemon
