#include "daemon/tickets.h"

namespace ravenstore::daemon {

bool Reached(const proto::Segment& segment, proto::WordValue ticket) {
  if (ticket.value == 0) return true;
  if (ticket.index >= proto::kTicketWords) return false;
  return segment.tickets[ticket.index].load(std::memory_order_acquire) >= ticket.value;
}

void TicketQueues::Push(proto::WordValue ticket, core::TensorId tensor, uint64_t idle_word) {
  if (ticket.index >= proto::kTicketWords) return;
  if (queues_.size() <= ticket.index) queues_.resize(ticket.index + 1u);
  auto& queue = queues_[ticket.index];
  if (queue.empty()) active_.push_back(ticket.index);
  queue.push({ticket.value, tensor, idle_word});
  ++size_;
}

}  // namespace ravenstore::daemon
