#include "daemon/client_requests.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <string>
#include <utility>

namespace ravenstore::daemon {

using core::SlotId;
using core::TensorId;
using core::ToInt;

namespace {

// A deadline in the past is zero: the store subtracts from it, and a client may send any number.
core::Tick DeadlineOf(const proto::Request& request) {
  return core::Tick(core::Duration(std::max<int64_t>(request.deadline_ns, 0)));
}

}  // namespace

void ClientRequests::Handle(Session& session, const proto::Request& request) {
  if (request.slot >= proto::kSlotCapacity) return Reject(session, request, "slot out of range");
  switch (static_cast<proto::RequestOp>(request.op)) {
    case proto::RequestOp::kCreate: return HandleCreate(session, request);
    case proto::RequestOp::kFetch: return HandleFetch(session, request);
    case proto::RequestOp::kFree: return HandleFree(session, request);
    case proto::RequestOp::kStep: return HandleStep(session);
  }
  Reject(session, request, "unknown operation");
}

void ClientRequests::Reject(const Session& session, const proto::Request& request,
                            const char* why) {
  // There is no answer: a well-behaved library never gets here, and a row in a state that expects
  // no answer must not be touched.
  sessions_.CountBadRequest();
  spdlog::debug("client {}: request {} on slot {} ignored: {}", ToInt(session.id()), request.op,
                request.slot, why);
}

void ClientRequests::HandleCreate(Session& session, const proto::Request& request) {
  const SlotId slot{request.slot};
  LeaseRow lease = session.LeaseOf(slot);
  if (session.IsTaken(slot) || lease.state() != proto::LeaseState::kRequested)
    return Reject(session, request, "the slot is not free");
  if (request.device >= devices_) {
    charges_.RememberFailure(session, slot,
                             "no device " + std::to_string(request.device) + ": the daemon has " +
                                 std::to_string(devices_));
    return lease.FailAlloc(core::ErrorCode::kNotFound);
  }
  const uint64_t memory = ClientCharges::kTensorMemory + session.GrowthFor(slot);
  if (auto charged = charges_.Charge(session, memory); !charged.ok()) {
    charges_.RememberFailure(session, slot, std::move(charged).error().message);
    return lease.FailAlloc(core::ErrorCode::kLimit);
  }
  session.RowOf(slot).tensor = Session::kPending;
  recorders_.Record(session, [&](Recorder& recorder) { recorder.Asked(session.id(), state_.now); });
  state_.Apply(core::CreateRequested{
      session.id(), slot, core::Bytes(request.bytes), core::DeviceId{request.device},
      core::NameId{request.name}, DeadlineOf(request), (request.flags & proto::kFailFast) != 0,
      (request.flags & proto::kFailStuck) != 0, core::StreamId{request.stream}});
}

void ClientRequests::HandleFetch(Session& session, const proto::Request& request) {
  const SlotId slot{request.slot};
  const TensorId tensor = session.TensorAt(slot);
  if (tensor == core::kNoTensor || ToInt(tensor) != request.id)
    return Reject(session, request, "no such tensor");
  if (session.LeaseOf(slot).state() != proto::LeaseState::kFetching)
    return Reject(session, request, "no get is under way");
  if (request.device >= devices_) {
    charges_.RememberFailure(session, slot, "no device " + std::to_string(request.device));
    return session.LeaseOf(slot).FailFetch(core::ErrorCode::kNotFound);
  }
  if (state_.views().View(tensor).residency == core::Residency::kOnDevice)
    CommitPut(session, request);
  recorders_.Record(
      session, [&](Recorder& recorder) { recorder.Got(state_.views().View(tensor), state_.now); });
  state_.Apply(core::FetchRequested{.tensor = tensor,
                                    .device = core::DeviceId{request.device},
                                    .deadline = DeadlineOf(request),
                                    .awaits = (request.flags & proto::kAwaits) != 0});
}

// A fetch of a tensor that is still on a device moves it to another one. The word no longer shows
// the put before it, so the log's entry says nothing: the row and the request do.
void ClientRequests::CommitPut(Session& session, const proto::Request& request) {
  const TensorId tensor{request.id};
  const LeaseRow lease = session.LeaseOf(SlotId{request.slot});
  state_.Apply(PutSeenOf(tensor, lease.ReadFields(), state_.now));
  const proto::WordValue ticket = proto::UnpackWordValue(request.ticket);
  if (Reached(*session.segment(), ticket)) return state_.Apply(core::StreamComplete{tensor});
  waits_.Await(session, ticket, tensor, lease.word());
}

void ClientRequests::HandleStep(const Session& session) {
  recorders_.Record(session,
                    [&](Recorder& recorder) { recorder.Stepped(session.id(), state_.now); });
  state_.Apply(core::StepMarked{session.id()});
}

void ClientRequests::HandleFree(Session& session, const proto::Request& request) {
  const SlotId slot{request.slot};
  const TensorId tensor = session.TensorAt(slot);
  if (tensor == core::kNoTensor || ToInt(tensor) != request.id)
    return Reject(session, request, "no such tensor");
  if (session.LeaseOf(slot).state() != proto::LeaseState::kFreeing)
    return Reject(session, request, "no free is under way");
  recorders_.Record(session, [&](Recorder& recorder) {
    recorder.Freed(state_.views().View(tensor), state_.now);
  });
  const proto::WordValue ticket = proto::UnpackWordValue(request.ticket);
  if (Reached(*session.segment(), ticket)) return state_.Apply(core::Freed{tensor});
  state_.Apply(core::FreeSeen{tensor, core::StreamId{ticket.index + 1U}});
  waits_.Await(session, ticket, tensor, 0);
}

}  // namespace ravenstore::daemon
