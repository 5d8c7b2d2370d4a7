#include "daemon/access_logs.h"

#include <algorithm>

namespace ravenstore::daemon {

using core::SlotId;
using core::TensorId;

size_t AccessLogs::Read(Session& session, size_t most) {
  const size_t read = ReadEntries(session, most);
  Rescan(session, most);
  actions_.Execute();
  return read;
}

size_t AccessLogs::ReadEntries(Session& session, size_t most) {
  proto::Access access;
  size_t read = 0;
  for (; read < most && session.NextAccess(&access); ++read) {
    const SlotId slot{access.slot};
    const TensorId tensor = session.TensorAt(slot);
    if (tensor == core::kNoTensor) continue;
    if (!recorders_.empty()) RecordAccess(session, access);
    if (access.op == proto::AccessOp::kGet) {
      state_.Apply(core::GetSeen{tensor});
      // The put that ended this use may have been read from the row already, at an earlier entry,
      // and its own entry may have been dropped. It is applied again.
      session.RowOf(slot).ForgetPut();
    }
    HandlePut(session, slot);
  }
  state_.Spend(session, read);
  actions_.Execute();
  return read;
}

void AccessLogs::ReadCold() {
  // A put of any client may be what a request waits for. With many clients that is many cache
  // lines, so not at every wake.
  const bool waited_for =
      state_.views().stats().waiting > 0 && state_.now - last_sweep_ >= kWarmPoll;
  const auto read = [this](Session& session) { return ReadLane(session) > 0; };
  if (!waited_for && recorders_.empty()) return sessions_.ReadWarm(read);
  last_sweep_ = state_.now;
  sessions_.ReadCold(
      [&](const Session& session) { return waited_for || recorders_.IsRecorded(session); }, read);
}

void AccessLogs::ReadAll() {
  for (const auto& [id, session] : sessions_.all()) {
    if (!session->departed) ReadLane(*session);
  }
}

void AccessLogs::ReadOf(core::ClientId client) {
  if (Session* session = sessions_.FindPresent(client)) ReadLane(*session);
}

size_t AccessLogs::ReadLane(Session& session) {
  const size_t most = std::min<size_t>(proto::kLogLaneEntries, state_.UnitsLeft(session));
  return most == 0 ? 0 : Read(session, most);
}

// The row may have changed since. Then the trace has this put with the values of a later one.
void AccessLogs::RecordAccess(Session& session, const proto::Access& access) const {
  const SlotId slot{access.slot};
  const TensorId tensor = session.RowOf(slot).tensor;
  const core::TensorView view = state_.views().View(tensor);
  const core::PutSeen put = PutSeenOf(tensor, session.LeaseOf(slot).ReadFields(), state_.now);
  recorders_.Record(session, [&](Recorder& recorder) {
    if (access.op == proto::AccessOp::kGet) {
      recorder.Got(view, state_.now);
    } else {
      recorder.Put(view, put, state_.now);
    }
  });
}

// Where entries were dropped puts may be unknown, so the rows themselves are read, some in each
// pass and all once after the last drop. It goes on where it stopped, or else the last rows might
// never be read.
void AccessLogs::Rescan(Session& session, size_t most) {
  if (session.LogWasDropped()) session.rescan_left = session.rows();
  const auto rows = static_cast<uint32_t>(std::min<size_t>(session.rescan_left, most));
  session.rescan_left -= rows;
  for (uint32_t i = 0; i < rows; ++i) {
    if (session.rescan >= session.rows()) session.rescan = 0;
    const SlotId slot{session.rescan++};
    if (session.TensorAt(slot) != core::kNoTensor) HandlePut(session, slot);
  }
}

void AccessLogs::HandlePut(Session& session, SlotId slot) {
  Session::Row& row = session.RowOf(slot);
  PutRecord put;
  // After a later get the row shows none: the put of that use will be logged, too.
  if (!session.LeaseOf(slot).ReadPut(&put) || row.Knows(put.word)) return;
  state_.Apply(PutSeenOf(row.tensor, put, state_.now));
  waits_.AwaitPut(session, slot, row.tensor, put.word, put.ticket);
}

}  // namespace ravenstore::daemon
