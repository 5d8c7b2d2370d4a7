#include "daemon/send_queue.h"

#include "daemon/packets.h"
#include "ipc/socket.h"

namespace ravenstore::daemon {

using core::Error;
using core::ErrorCode;

core::Status SendQueue::MayPush(size_t descriptors) {
  if (packets_.size() >= kPacketsMax)
    return Error{ErrorCode::kLimit, std::to_string(kPacketsMax) + " messages lie unread"};
  if (descriptors == 0) return core::Ok();
  RefundDescriptors();
  RAVEN_RETURN_IF_ERROR(descriptors_->Take(user_, descriptors));
  charged_ += descriptors;
  return core::Ok();
}

void SendQueue::RefundDescriptors() {
  if (socket_ && !ipc::IsDrained(socket_.get())) return;
  size_t waiting = 0;
  for (const Packet& next : packets_) waiting += next.descriptors.size();
  descriptors_->Give(user_, charged_ - waiting);
  charged_ = waiting;
}

core::Status SendQueue::Push(const proto::DaemonPacket& packet,
                             std::vector<ipc::UniqueFd> descriptors) {
  RAVEN_RETURN_IF_ERROR(MayPush(descriptors.size()));
  const bool unasked =
      packet.has_memory_ready() || packet.has_pinned_slab() || packet.has_release_pinned_slab();
  packets_.push_back({Encode(packet), std::move(descriptors), !unasked});
  if (!unasked) {
    ++answers_;
    answer_bytes_ += packets_.back().bytes.size();
  }
  return core::Ok();
}

void SendQueue::Flush(const std::function<void(const Error&)>& failed) {
  while (!packets_.empty()) {
    const Packet& next = packets_.front();
    std::vector<int> descriptors;
    for (const auto& descriptor : next.descriptors) descriptors.push_back(descriptor.get());
    const core::Status sent = ipc::Send(socket_.get(), next.bytes, descriptors);
    if (!sent.ok() && sent.error().code == ErrorCode::kTimedOut) return;
    if (!sent.ok() && sent.error().code != ErrorCode::kUnavailable) failed(sent.error());
    if (next.answer) {
      --answers_;
      answer_bytes_ -= next.bytes.size();
    }
    packets_.pop_front();
  }
}

ipc::UniqueFd SendQueue::Close() {
  packets_.clear();
  answers_ = 0;
  answer_bytes_ = 0;
  ipc::UniqueFd socket = std::move(socket_);
  RefundDescriptors();
  return socket;
}

}  // namespace ravenstore::daemon
