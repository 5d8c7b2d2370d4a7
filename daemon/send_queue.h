// Packets to send on a connection: those that its socket does not take immediately wait here, in
// order.
//
// A peer that reads too little is detected here. Unread answers are counted, so that no more
// requests of it are read, and descriptors are charged to its user until it has read them.
//
// Owns: the socket. Threads: one at a time.
#pragma once

#include <cstddef>
#include <deque>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "core/result.h"
#include "core/share.h"
#include "core/types.h"
#include "ipc/unique_fd.h"
#include "proto/control.pb.h"

namespace ravenstore::daemon {

class SendQueue {
 public:
  // A peer with this many unread packets is taken to have stopped reading. Further packets are
  // dropped. Requests for the memory in them fail until the client reads again or is killed.
  static constexpr size_t kPacketsMax = 4096;
  // At most this many answers may be unread, and at most this many bytes of them.
  static constexpr size_t kAnswersMax = 16;
  static constexpr size_t kAnswerBytesMax = size_t{64} << 10;

  // `descriptors`: the daemon's, of which the user takes some while they wait. Outlives this.
  SendQueue(ipc::UniqueFd socket, core::TenantId user, core::Shares* descriptors)
      : socket_(std::move(socket)), user_(user), descriptors_(descriptors) {}

  // Negative once closed.
  int socket() const { return socket_.get(); }
  bool empty() const { return packets_.empty(); }
  size_t size() const { return packets_.size(); }
  bool HasRoomForAnswers() const {
    return answers_ < kAnswersMax && answer_bytes_ < kAnswerBytesMax;
  }

  // The packet waits behind those before it. Errors: kLimit, and the packet is dropped.
  core::Status Push(const proto::DaemonPacket& packet, std::vector<ipc::UniqueFd> descriptors);
  // Sends what the socket takes. A packet that fails for another reason than the peer's end is
  // dropped, and `failed` is called with the error.
  void Flush(const std::function<void(const core::Error&)>& failed);
  // Forgets what waits, and gives the socket away.
  ipc::UniqueFd Close();

 private:
  struct Packet {
    std::string bytes;
    std::vector<ipc::UniqueFd> descriptors;
    bool answer;  // to something that the peer said
  };
  core::Status MayPush(size_t descriptors);
  // Those that the peer has read by now count no more.
  void RefundDescriptors();

  ipc::UniqueFd socket_;
  const core::TenantId user_;
  core::Shares* const descriptors_;
  std::deque<Packet> packets_;
  size_t answers_ = 0;  // of packets_, and their bytes
  size_t answer_bytes_ = 0;
  size_t charged_ = 0;  // descriptors of packets_, and those sent that the peer may not have read
};

}  // namespace ravenstore::daemon
