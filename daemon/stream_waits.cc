#include "daemon/stream_waits.h"

#include <algorithm>

namespace ravenstore::daemon {

using core::SlotId;
using core::TensorId;

namespace {

// Puts and frees of one client that wait for its streams: each of its tensors may have one of both.
constexpr size_t kTicketsMax = 2 * proto::kSlotCapacity;
// Of one client in a pass, so that other clients need not wait long.
constexpr size_t kTicketsPerPass = 256;

}  // namespace

void StreamWaits::AwaitPut(Session& session, SlotId slot, TensorId tensor, uint64_t idle_word,
                           uint64_t packed) {
  const auto ticket = proto::UnpackWordValue(packed);
  if (Reached(*session.segment(), ticket)) {
    session.RowOf(slot).SetStreamComplete(idle_word);
    state_.Apply(core::StreamComplete{tensor});
    return;
  }
  session.RowOf(slot).SetAwaited(idle_word);
  Await(session, ticket, tensor, idle_word);
}

void StreamWaits::Await(Session& session, proto::WordValue ticket, TensorId tensor,
                        uint64_t idle_word) {
  if (session.tickets.size() >= kTicketsMax)
    return sessions_.Expel(session,
                           "more waits for the streams of this client than it can have tensors");
  // It is never reached.
  if (ticket.index >= proto::kTicketWords) return;
  if (const auto charged = charges_.Charge(session, TicketQueues::kMemory); !charged.ok())
    return sessions_.Expel(session, charged.error().message);
  if (session.tickets.empty()) clients_.push_back(session.id());
  session.tickets.Push(ticket, tensor, idle_word);
}

bool StreamWaits::Poll() {
  bool busy = false;
  for (size_t i = 0; i < clients_.size();) {
    Session* session = sessions_.Find(clients_[i]);
    if (session != nullptr) {
      const size_t before = session->tickets.size();
      const auto most = std::min<size_t>(kTicketsPerPass, state_.UnitsLeft(*session));
      if (most > 0) {
        session->tickets.Poll(*session->segment(), most, [&](const TicketQueues::Waiting& waiting) {
          busy = true;
          Reach(*session, waiting);
        });
      }
      charges_.Refund(*session, (before - session->tickets.size()) * TicketQueues::kMemory);
    }
    if (session == nullptr || session->tickets.empty()) {
      clients_[i] = clients_.back();
      clients_.pop_back();
    } else {
      ++i;
    }
  }
  return busy;
}

void StreamWaits::Reach(Session& session, const TicketQueues::Waiting& waiting) {
  state_.Spend(session, 1);
  if (!state_.views().Knows(waiting.tensor)) return;
  if (waiting.idle_word == 0) return state_.Apply(core::Freed{waiting.tensor});
  const SlotId slot = state_.views().View(waiting.tensor).slot;
  // An older put's ticket says nothing of the last one's.
  if (session.LeaseOf(slot).word() != waiting.idle_word) return;
  // A get on another device that waits for this ticket leaves no put to complete later.
  const bool idle = proto::UnpackLease(waiting.idle_word).state != proto::LeaseState::kFetching;
  if (idle) session.RowOf(slot).SetStreamComplete(waiting.idle_word);
  state_.Apply(core::StreamComplete{waiting.tensor});
}

}  // namespace ravenstore::daemon
