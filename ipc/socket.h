// The control socket: packets with descriptors over a Unix SOCK_SEQPACKET socket.
//
// Threads: any; concurrent Sends on one socket do not mix, and neither do concurrent Receives.
// Every descriptor made here is close-on-exec.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/result.h"
#include "core/types.h"
#include "ipc/unique_fd.h"

namespace ravenstore::ipc {

// One packet as it arrived: at most proto::kControlPacketMax bytes and kControlDescriptorsMax
// descriptors. Nothing about either was checked but their number.
struct Packet {
  std::string bytes;
  std::vector<UniqueFd> descriptors;
};

// The process at the other end, as the kernel says (the process that connected or listened; a fork
// of it may hold the socket too).
struct Peer {
  pid_t pid = 0;  // 0: it lives in a PID namespace that this process cannot see
  uid_t uid = 0;
  gid_t gid = 0;
  UniqueFd pidfd;           // readable once the process has exited
  uint64_t start_time = 0;  // clock ticks since boot; 0 when pid is. With pid it names a process
};

// A socket that listens at a path, and the right to do so there: as long as this lives no other
// process's Listen has it.
class Listener {
 public:
  Listener() = default;
  Listener(Listener&&) noexcept = default;
  Listener& operator=(Listener&& other) noexcept;
  ~Listener();

  // Does not block: await it with poll or epoll. Negative once closed.
  int get() const { return socket_.get(); }
  explicit operator bool() const { return static_cast<bool>(socket_); }
  // Accepts no more connections. Removes the socket's file, if it still is this listener's.
  void Close();

 private:
  friend core::Result<Listener> Listen(const std::string& path, mode_t mode,
                                       const std::string& group);
  std::string path_;
  UniqueFd socket_;
  UniqueFd lock_;
  dev_t device_ = 0;  // with inode_: of the socket's file
  ino_t inode_ = 0;
};

// Listens at `path` with the file mode `mode` and, unless empty, the group named `group`. Replaces
// a socket file at which no process listens (a daemon was killed). Meanwhile there is a file next
// to it, `path`.lock, that only this user can open. Errors: kUnavailable (another process listens
// there, or is starting or ending there), kInvalidArgument (the path is too long or is no socket,
// or there is no such group), kPermission (also a lock file of another user's), kSystem.
core::Result<Listener> Listen(const std::string& path, mode_t mode, const std::string& group);

// The next connection. Errors: kTimedOut (none is waiting), kLimit (out of descriptors), kSystem.
core::Result<UniqueFd> Accept(int listener);

// Connects to `path`; waits until `deadline` only while the listener is too busy to queue us.
// Errors: kUnavailable (no daemon listens), kPermission, kTimedOut, kInvalidArgument, kSystem.
core::Result<UniqueFd> Connect(const std::string& path, core::Tick deadline);
// The same for clients, which talk only to a daemon (ipc/daemon_user.h). Errors: also kUnavailable
// if the client does not trust the listener; the message says what to do.
core::Result<UniqueFd> ConnectToDaemon(const std::string& path, core::Tick deadline);

// Sends one packet, without blocking. The descriptors stay the caller's.
// Errors: kTimedOut (the peer's queue is full just now: await it with WaitWritable or epoll),
// kUnavailable (the peer is gone), kInvalidArgument (empty, or over a bound of proto/packet.h),
// kLimit (too many descriptors under way), kSystem.
core::Status Send(int socket, std::string_view bytes, std::span<const int> descriptors = {});

// The next packet; nullopt once the peer has hung up and its packets are read (an empty packet
// counts as hanging up). With `wait` it blocks until either.
// Errors: kTimedOut (none there; only without `wait`), kCorrupt (a packet over a bound of
// proto/packet.h, or this process could not take its descriptors; it is consumed and what came of
// its descriptors is closed), kSystem.
core::Result<std::optional<Packet>> Receive(int socket, bool wait);
// The same without waiting, for a reader of untrusted senders, which may send fewer of them
// (proto::kClientDescriptorsMax): what came of descriptors is in `*descriptors`, also next to an
// error. Its sender decides how long closing one takes.
core::Result<std::optional<Packet>> Receive(int socket, std::vector<UniqueFd>* descriptors);
// The same without waiting, for the only reader of the socket. A packet stays in the queue while
// this process has no descriptor numbers for it. Errors: also kLimit in that case.
core::Result<std::optional<Packet>> ReceiveOrLeave(int socket);

// Whether the next packet, if one is there, brings descriptors. Takes none, and closes none.
bool BringsDescriptors(int socket);
// Whether the next that Receive says is that the peer has hung up. Takes nothing.
bool HasLeft(int socket);
// Whether the peer has read all that was sent to it.
bool IsDrained(int socket);

// Waits until Receive or Accept would have something to say. Errors: kTimedOut, kSystem.
core::Status WaitReadable(int socket, core::Tick deadline);
// Waits until Send would not be refused for want of room. Errors: kTimedOut, kSystem.
core::Status WaitWritable(int socket, core::Tick deadline);

// Errors: kUnavailable (the peer is already dead), kUnsupported (this kernel cannot say for sure
// which process it is), kSystem.
core::Result<Peer> PeerOf(int socket);

// When the process `pid` started, in clock ticks since boot. Errors: kNotFound, kSystem.
core::Result<uint64_t> StartTimeOf(pid_t pid);
// 0: it has none that this PID namespace shows. Errors: kNotFound, kSystem.
core::Result<pid_t> ParentOf(pid_t pid);

}  // namespace ravenstore::ipc
