#include "core/copy_queue.h"

#include "core/check.h"

namespace ravenstore::core {

void CopyQueue::Submit(Job job, TurnOwner owner, Urgency urgency) {
  // In which order a user's clients' background copies are made is its own affair.
  if (urgency == Urgency::kBackground) owner.client = ClientId{};
  RAVEN_CHECK(queued_.emplace(job, Queued{owner, urgency}).second);
  QueueOf(urgency).Push(owner, job);
}

void CopyQueue::Promote(Job job, TurnOwner behalf) {
  const auto found = queued_.find(job);
  if (found == queued_.end() || found->second.urgency == Urgency::kDemand) return;
  RAVEN_CHECK(background_.Erase(found->second.owner, job));
  found->second = {behalf, Urgency::kDemand};
  demands_.Push(behalf, job);
}

std::optional<CopyQueue::Job> CopyQueue::Next() {
  if (queued_.empty()) return std::nullopt;
  return QueueOf(NextUrgency()).Front();
}

bool CopyQueue::MayBegin(Bytes bytes) const {
  if (in_flight_.empty()) return true;
  return in_flight_.size() < options_.in_flight_copies &&
         in_flight_bytes_ + bytes <= options_.InFlightOf(NextUrgency());
}

bool CopyQueue::Begin(Bytes bytes, bool whole) {
  if (!MayBegin(bytes)) return false;
  RoundRobinQueue<Job>& queue = QueueOf(NextUrgency());
  const Job job = queue.Front();
  in_flight_.push_back({job, bytes});
  in_flight_bytes_ += bytes;
  if (whole) queued_.erase(job);
  queue.Advance(bytes, whole);
  return true;
}

CopyQueue::Piece CopyQueue::End() {
  const Piece ended = in_flight_.front();
  in_flight_.pop_front();
  in_flight_bytes_ -= ended.bytes;
  return ended;
}

void CopyQueue::Clear() {
  demands_.Clear();
  background_.Clear();
  queued_.clear();
  in_flight_.clear();
  in_flight_bytes_ = Bytes{0};
}

}  // namespace ravenstore::core
