// What the planner loop reads of the clients: access logs and requests, each turned into events.
#include <spdlog/spdlog.h>

#include <algorithm>
#include <utility>

#include "core/check.h"
#include "daemon/loop.h"

namespace ravenstore::daemon {

using core::Duration;
using core::SlotId;
using core::TensorId;
using core::ToInt;

namespace {

// Puts and frees of one client that wait for its streams: each of its tensors may have one of both.
constexpr size_t kTicketsMax = 2 * proto::kSlotCapacity;
constexpr uint64_t kFarthest = uint64_t{1} << 51;  // of a time hint: 2^61 ns

// Of a put that is read at `now`. A client says times of the clock.
core::NextUse NextUseOf(uint64_t packed, core::Tick now) {
  const proto::Hint hint = proto::UnpackHint(packed);
  switch (hint.kind) {
    case proto::HintKind::kNeededAt: {
      // The number may be wrong or hostile: it is bounded.
      const core::Tick at(Duration(static_cast<int64_t>(std::min(hint.value, kFarthest)) << 10));
      return {core::NextUse::Kind::kIn, std::max(at - now, Duration{0}), 0};
    }
    case proto::HintKind::kOrder:
      return {
          core::NextUse::Kind::kOrder, {}, static_cast<int64_t>(hint.value) - proto::kOrderBias};
    case proto::HintKind::kNotNeeded: return {core::NextUse::Kind::kNever, {}, 0};
    case proto::HintKind::kNone: break;
  }
  return {};
}

// Long past is past: a stranger's number is for subtracting from.
core::Tick DeadlineOf(const proto::Request& request) {
  return core::Tick(Duration(std::max<int64_t>(request.deadline_ns, 0)));
}

core::Priority PriorityOf(uint64_t packed) {
  switch (proto::UnpackHint(packed).priority) {
    case proto::HintPriority::kLow: return core::Priority::kLow;
    case proto::HintPriority::kHigh: return core::Priority::kHigh;
    case proto::HintPriority::kNormal: break;
  }
  return core::Priority::kNormal;
}

core::PutSeen PutOf(TensorId tensor, uint32_t writes, uint64_t hint, uint16_t recompute,
                    core::Tick now) {
  const auto cost = static_cast<int64_t>(proto::UnpackRecompute(recompute));
  return {tensor, writes, NextUseOf(hint, now), Duration(cost), PriorityOf(hint)};
}

// What the row says now.
core::PutSeen PutIn(const proto::LeaseSlot& row, TensorId tensor, core::Tick now) {
  return PutOf(tensor, row.writes.load(std::memory_order_acquire),
               row.hint.load(std::memory_order_acquire),
               row.recompute.load(std::memory_order_acquire), now);
}

}  // namespace

size_t Loop::PollLog(Session& session, size_t most) {
  const size_t read = ReadAccesses(session, most);
  Rescan(session, most);
  Execute();
  return read;
}

size_t Loop::ReadAccesses(Session& session, size_t most) {
  proto::Access access;
  size_t read = 0;
  for (; read < most && session.NextAccess(&access); ++read) {
    const SlotId slot{access.slot};
    const TensorId tensor = session.TensorAt(slot);
    if (tensor == core::kNoTensor) continue;
    if (!recorders_.empty()) RecordAccess(session, access);
    if (access.op == proto::AccessOp::kGet) {
      ApplyEvent(core::GetSeen{tensor});
      // The put that ended this use may have been read from the row already, at an earlier entry,
      // and its own entry may have been dropped: it is told again.
      session.RowOf(slot).ForgetPut();
    }
    HandlePut(session, slot);
  }
  turns_.Spend(session.attachment().tenant, static_cast<uint32_t>(read));
  Execute();
  return read;
}

// The row may have gone on since: then the trace has this put with the words of a later one.
void Loop::RecordAccess(Session& session, const proto::Access& access) {
  const TensorId tensor = session.RowOf(SlotId{access.slot}).tensor;
  const core::TensorView view = store_->views().View(tensor);
  const core::PutSeen put = PutIn(session.segment()->slots[access.slot], tensor, now_);
  Record(session, [&](Recorder& recorder) {
    if (access.op == proto::AccessOp::kGet) {
      recorder.Got(view, now_);
    } else {
      recorder.Put(view, put, now_);
    }
  });
}

// Where entries were dropped puts may be unknown, so the rows themselves are read, some in each
// pass and all once after the last drop: not from the first row each time, or else the last rows'
// turn might never come.
void Loop::Rescan(Session& session, size_t most) {
  if (session.LogWasDropped()) session.rescan_left = session.rows();
  const auto rows = static_cast<uint32_t>(std::min<size_t>(session.rescan_left, most));
  session.rescan_left -= rows;
  for (uint32_t i = 0; i < rows; ++i) {
    if (session.rescan >= session.rows()) session.rescan = 0;
    const SlotId slot{session.rescan++};
    if (session.TensorAt(slot) != core::kNoTensor) HandlePut(session, slot);
  }
}

void Loop::HandlePut(Session& session, SlotId slot) {
  Session::Row& row = session.RowOf(slot);
  PutRecord put;
  // A later get has taken it again: that use's put will be logged too.
  if (!session.LeaseOf(slot).ReadPut(&put) || row.Knows(put.word)) return;
  ApplyEvent(PutOf(row.tensor, put.writes, put.hint, put.recompute, now_));
  AwaitStreamComplete(session, slot, row.tensor, put.word, put.ticket);
}

// Tells the planner when the ticket of the put that left `idle_word` is reached.
void Loop::AwaitStreamComplete(Session& session, SlotId slot, TensorId tensor, uint64_t idle_word,
                               uint64_t packed) {
  const auto ticket = proto::UnpackWordValue(packed);
  if (Reached(*session.segment(), ticket)) {
    session.RowOf(slot).SetStreamComplete(idle_word);
    ApplyEvent(core::StreamComplete{tensor});
    return;
  }
  session.RowOf(slot).SetAwaited(idle_word);
  AwaitTicket(session, ticket, tensor, idle_word);
}

void Loop::AwaitTicket(Session& session, proto::WordValue ticket, TensorId tensor,
                       uint64_t idle_word) {
  if (session.tickets.size() >= kTicketsMax)
    return Expel(session, "more waits for the streams of this client than it can have tensors");
  // It is never reached.
  if (ticket.index >= proto::kTicketWords) return;
  if (const auto charged = Charge(session, TicketQueues::kMemory); !charged.ok())
    return Expel(session, charged.error().message);
  if (session.tickets.empty()) with_tickets_.push_back(session.id());
  session.tickets.Push(ticket, tensor, idle_word);
}

core::Status Loop::Charge(Session& session, uint64_t bytes) {
  RAVEN_RETURN_IF_ERROR(memory_.Take(session.attachment().tenant, bytes));
  session.charged += bytes;
  return core::Ok();
}

void Loop::Refund(Session& session, uint64_t bytes) {
  memory_.Give(session.attachment().tenant, bytes);
  session.charged -= bytes;
}

void Loop::RememberFailure(Session& session, SlotId slot, std::string message) {
  const bool charged = Charge(session, Session::CostOf(message)).ok();
  Refund(session, session.RememberFailure(slot, std::move(message), charged));
}

void Loop::HandleRequest(Session& session, const proto::Request& request) {
  if (request.slot >= proto::kSlotCapacity)
    return BadRequest(session, request, "slot out of range");
  switch (static_cast<proto::RequestOp>(request.op)) {
    case proto::RequestOp::kCreate: return HandleCreate(session, request);
    case proto::RequestOp::kFetch: return HandleFetch(session, request);
    case proto::RequestOp::kFree: return HandleFree(session, request);
    case proto::RequestOp::kStep: return HandleStep(session);
  }
  BadRequest(session, request, "unknown operation");
}

void Loop::BadRequest(Session& session, const proto::Request& request, const char* why) {
  // Answering is the client's own concern: a well-behaved library never gets here, and a row in a
  // state that expects no answer must not be touched.
  ++bad_requests_;
  spdlog::debug("client {}: request {} on slot {} ignored: {}", ToInt(session.id()), request.op,
                request.slot, why);
}

void Loop::Expel(Session& session, const std::string& why) {
  if (std::exchange(session.faulty, true)) return;
  ++bad_requests_;
  spdlog::warn("client {}: {}; its requests are no longer read", ToInt(session.id()), why);
  outbox_.expel(session.id(), why);
}

void Loop::HandleCreate(Session& session, const proto::Request& request) {
  const SlotId slot{request.slot};
  LeaseRow lease = session.LeaseOf(slot);
  if (session.IsTaken(slot) || lease.state() != proto::LeaseState::kRequested) {
    return BadRequest(session, request, "the slot is not free");
  }
  if (request.device >= devices_.size()) {
    RememberFailure(session, slot,
                    "no device " + std::to_string(request.device) + ": the daemon has " +
                        std::to_string(devices_.size()));
    lease.FailAlloc(core::ErrorCode::kNotFound);
    return;
  }
  if (auto charged = Charge(session, kTensorMemory + session.GrowthFor(slot)); !charged.ok()) {
    RememberFailure(session, slot, std::move(charged).error().message);
    lease.FailAlloc(core::ErrorCode::kLimit);
    return;
  }
  session.RowOf(slot).tensor = Session::kPending;
  Record(session, [&](Recorder& recorder) { recorder.Asked(session.id(), now_); });
  ApplyEvent(core::CreateRequested{
      session.id(), slot, core::Bytes(request.bytes), core::DeviceId{request.device},
      core::NameId{request.name}, DeadlineOf(request), (request.flags & proto::kFailFast) != 0,
      (request.flags & proto::kFailStuck) != 0, core::StreamId{request.stream}});
}

void Loop::HandleFetch(Session& session, const proto::Request& request) {
  const SlotId slot{request.slot};
  const TensorId tensor = session.TensorAt(slot);
  if (tensor == core::kNoTensor || ToInt(tensor) != request.id) {
    return BadRequest(session, request, "no such tensor");
  }
  if (session.LeaseOf(slot).state() != proto::LeaseState::kFetching) {
    return BadRequest(session, request, "no get is under way");
  }
  if (request.device >= devices_.size()) {
    RememberFailure(session, slot, "no device " + std::to_string(request.device));
    session.LeaseOf(slot).FailFetch(core::ErrorCode::kNotFound);
    return;
  }
  if (store_->views().View(tensor).residency == core::Residency::kOnDevice)
    CommitPut(session, request);
  Record(session, [&](Recorder& recorder) { recorder.Got(store_->views().View(tensor), now_); });
  ApplyEvent(core::FetchRequested{.tensor = tensor,
                                  .device = core::DeviceId{request.device},
                                  .deadline = DeadlineOf(request),
                                  .awaits = (request.flags & proto::kAwaits) != 0});
}

// A fetch of a tensor that is still on a device moves it to another one. The word no longer shows
// the put before it, so the log's entry says nothing: the row and the request do.
void Loop::CommitPut(Session& session, const proto::Request& request) {
  const TensorId tensor{request.id};
  ApplyEvent(PutIn(session.segment()->slots[request.slot], tensor, now_));
  const proto::WordValue ticket = proto::UnpackWordValue(request.ticket);
  if (Reached(*session.segment(), ticket)) {
    ApplyEvent(core::StreamComplete{tensor});
    return;
  }
  AwaitTicket(session, ticket, tensor, session.LeaseOf(SlotId{request.slot}).word());
}

void Loop::HandleStep(Session& session) {
  Record(session, [&](Recorder& recorder) { recorder.Stepped(session.id(), now_); });
  ApplyEvent(core::StepMarked{session.id()});
}

void Loop::HandleFree(Session& session, const proto::Request& request) {
  const SlotId slot{request.slot};
  const TensorId tensor = session.TensorAt(slot);
  if (tensor == core::kNoTensor || ToInt(tensor) != request.id) {
    return BadRequest(session, request, "no such tensor");
  }
  if (session.LeaseOf(slot).state() != proto::LeaseState::kFreeing) {
    return BadRequest(session, request, "no free is under way");
  }
  Record(session, [&](Recorder& recorder) { recorder.Freed(store_->views().View(tensor), now_); });
  const proto::WordValue ticket = proto::UnpackWordValue(request.ticket);
  if (Reached(*session.segment(), ticket)) {
    ApplyEvent(core::Freed{tensor});
    return;
  }
  ApplyEvent(core::FreeSeen{tensor, core::StreamId{ticket.index + 1U}});
  AwaitTicket(session, ticket, tensor, 0);
}

}  // namespace ravenstore::daemon
