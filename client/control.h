// The session's control socket: the handshake, requests with their answers, and the watcher thread.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "client/phase.h"
#include "client/wire.h"
#include "core/result.h"
#include "core/types.h"
#include "ipc/unique_fd.h"

namespace ravenstore::client {

// A packet from the daemon with the descriptors that it carried.
struct Incoming {
  wire::DaemonPacket packet;
  std::vector<ipc::UniqueFd> descriptors;
};

// Owns: the socket and the watcher thread. The watcher reads the socket, hands answers to the
//   callers that wait for them, and the rest to `on_packet`. It calls `on_missed` with the reason
//   when a packet could not be taken. It calls `on_hangup` once the other end is closed, or when an
//   exception (no memory) kept it from reading or `on_packet` from its work.
// Threads: any, but Start and Stop by the owner. The callbacks run on the watcher; `on_hangup` must
//   not throw.
class ControlLink {
 public:
  // Connects and greets; the answer is a Welcome with its descriptors.
  // Errors: kUnavailable, kVersionMismatch, kPermission, kTimedOut, whatever the daemon answers.
  static core::Result<std::unique_ptr<ControlLink>> Connect(const std::string& path,
                                                            const wire::ClientPacket& hello,
                                                            core::Tick deadline, Incoming* welcome);
  ~ControlLink();

  // Notifies the daemon that the attachment is not used any more: after a mere hang-up the daemon
  // would keep it until the process ends. Waits for nothing.
  void Withdraw();

  struct Callbacks {
    std::function<void(Incoming)> on_packet;
    std::function<void(const core::Error&)> on_missed;
    std::function<void()> on_hangup;
  };
  core::Status Start(Callbacks callbacks);
  // Ends the watcher and fails the requests that still wait.
  void Stop();
  // True once Stop was asked for. For callbacks that wait: see WaitForStop.
  bool WaitForStop(core::Duration bound);

  // Sends `request` and waits for its answer.
  // Errors: the daemon's Failure, kTimedOut, kLost, kUnavailable.
  core::Result<Incoming> Call(wire::ClientPacket request, core::Tick deadline,
                              const PhaseWord& phase);
  // Sends without expecting an answer; waits until `deadline` for room in the socket.
  core::Status Send(const wire::ClientPacket& packet, core::Tick deadline);
  // Fails the threads that wait in Call, as the session's phase says.
  void WakeCallers();

  void LockForFork() { mutex_.lock(); }
  void UnlockAfterFork() { mutex_.unlock(); }
  // In a forked child: closes the descriptors. The watcher is not there, so this object must never
  // be destroyed.
  void DropInChild();

 private:
  explicit ControlLink(ipc::UniqueFd socket);
  core::Status AwaitWelcome(const std::string& path, core::Tick deadline, Incoming* welcome);
  void Watch();
  // False once the peer has hung up.
  bool ReadUntilStopped();
  bool ReadAll();
  void Dispatch(Incoming incoming);

  ipc::UniqueFd socket_;
  ipc::UniqueFd stop_event_;
  Callbacks callbacks_;
  std::thread watcher_;

  std::mutex mutex_;
  std::condition_variable changed_;
  bool stopping_ = false;      // guarded by mutex_
  uint64_t last_request_ = 0;  // guarded by mutex_
  // Requests under way; empty until the answer is there. Guarded by mutex_.
  std::map<uint64_t, std::optional<Incoming>> calls_;
};

}  // namespace ravenstore::client
