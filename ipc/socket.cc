#include "ipc/socket.h"

#include <fcntl.h>
#include <grp.h>
#include <linux/sockios.h>
#include <poll.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstddef>
#include <cstring>
#include <utility>

#include "ipc/clock.h"
#include "ipc/daemon_user.h"
#include "proto/packet.h"

namespace ravenstore::ipc {
namespace {

using core::Error;
using core::ErrorCode;
using core::Result;
using core::Status;

// Newer than Debian 12's headers (Linux 6.5).
constexpr int kSoPeerPidfd = 77;
constexpr int kBacklog = 128;
// A handful of the largest packets may be under way.
constexpr int kSendBufferBytes = 4 * static_cast<int>(proto::kControlPacketMax);
constexpr size_t kControlBytes = CMSG_SPACE(proto::kControlDescriptorsMax * sizeof(int));
// As many as the kernel lets anybody send: those that it found no room for it would close here.
constexpr size_t kReceivedBytes = CMSG_SPACE(253 * sizeof(int));

ErrorCode CodeOf(int error) {
  switch (error) {
    case EAGAIN: return ErrorCode::kTimedOut;
    case EPERM:
    case EACCES: return ErrorCode::kPermission;
    case EMFILE:
    case ENFILE:
    case ETOOMANYREFS: return ErrorCode::kLimit;
    case EPIPE:
    case ECONNRESET:
    case ENOTCONN:
    case ECONNREFUSED: return ErrorCode::kUnavailable;
    default: return ErrorCode::kSystem;
  }
}

Error SystemError(const std::string& what, int error) {
  return {CodeOf(error), what + ": " + std::strerror(error)};
}

Result<sockaddr_un> AddressOf(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.empty() || path.size() >= sizeof(address.sun_path) ||
      path.find('\0') != std::string::npos) {
    return Error{ErrorCode::kInvalidArgument, "socket path '" + path + "' must have 1 to " +
                                                  std::to_string(sizeof(address.sun_path) - 1) +
                                                  " bytes"};
  }
  std::memcpy(address.sun_path, path.data(), path.size());
  return address;
}

const sockaddr* Generic(const sockaddr_un& address) {
  return reinterpret_cast<const sockaddr*>(&address);
}

Result<UniqueFd> NewSocket(int flags) {
  UniqueFd made(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | flags, 0));
  if (!made) return SystemError("making a Unix socket", errno);
  return made;
}

void SetSendBuffer(int socket) {
  // Best effort: the system's default holds a packet of the largest size as well.
  setsockopt(socket, SOL_SOCKET, SO_SNDBUF, &kSendBufferBytes, sizeof(kSendBufferBytes));
}

std::string LockOf(const std::string& path) {
  return path + ".lock";
}

// Whether `path` still names the open file.
bool Names(const std::string& path, const struct stat& file) {
  struct stat there {};
  return lstat(path.c_str(), &there) == 0 && there.st_dev == file.st_dev &&
         there.st_ino == file.st_ino;
}

// Excludes a second daemon at the same path, from before it looks at the path until it is gone. The
// file is private, because any process that can open it can lock it.
Result<UniqueFd> Lock(const std::string& path) {
  constexpr int kAttempts = 100;
  const std::string name = LockOf(path);
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    UniqueFd held(open(name.c_str(), O_RDWR | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0600));
    if (!held) return SystemError("opening '" + name + "', the socket's lock", errno);
    struct stat file {};
    if (fstat(held.get(), &file) != 0) return SystemError("looking at '" + name + "'", errno);
    if (!S_ISREG(file.st_mode) || file.st_uid != geteuid()) {
      return Error{ErrorCode::kPermission,
                   "'" + name + "', the socket's lock, is not this user's own file (user " +
                       std::to_string(file.st_uid) + " has it): remove it if no daemon runs there"};
    }
    if (fchmod(held.get(), 0600) != 0)
      return SystemError("setting the mode of '" + name + "'", errno);
    if (flock(held.get(), LOCK_EX | LOCK_NB) != 0) {
      if (errno != EWOULDBLOCK) return SystemError("locking '" + name + "'", errno);
      return Error{ErrorCode::kUnavailable, "another daemon serves at '" + path +
                                                "', or begins or ends there (it holds '" + name +
                                                "')"};
    }
    // Its last holder removed it before we had it.
    if (Names(name, file)) return held;
  }
  return Error{ErrorCode::kUnavailable, "others begin and end at '" + path + "' all the time"};
}

// Removes what a dead listener left at `path`.
Status ClearStale(const std::string& path, const sockaddr_un& address) {
  struct stat status {};
  if (lstat(path.c_str(), &status) != 0) {
    if (errno == ENOENT) return core::Ok();
    return SystemError("looking at '" + path + "'", errno);
  }
  if (!S_ISSOCK(status.st_mode)) {
    return Error{ErrorCode::kInvalidArgument,
                 "'" + path + "' exists and is not a socket; it was left alone"};
  }
  RAVEN_ASSIGN_OR_RETURN(UniqueFd probe, NewSocket(SOCK_NONBLOCK));
  if (connect(probe.get(), Generic(address), sizeof(address)) == 0 || errno == EAGAIN) {
    return Error{ErrorCode::kUnavailable, "another process already listens at '" + path + "'"};
  }
  if (errno == EPROTOTYPE) {
    return Error{ErrorCode::kUnavailable, "a listener of another kind already uses '" + path + "'"};
  }
  if (errno != ECONNREFUSED) return SystemError("probing '" + path + "'", errno);
  if (unlink(path.c_str()) != 0 && errno != ENOENT) {
    return SystemError("removing the stale socket '" + path + "'", errno);
  }
  return core::Ok();
}

Result<gid_t> GroupNamed(const std::string& group) {
  std::string buffer(1024, '\0');
  struct group entry {};
  struct group* found = nullptr;
  int error;
  while ((error = getgrnam_r(group.c_str(), &entry, buffer.data(), buffer.size(), &found)) ==
         ERANGE) {
    buffer.resize(buffer.size() * 2);
  }
  if (found == nullptr) {
    return Error{ErrorCode::kInvalidArgument, "there is no group '" + group + "'"};
  }
  return entry.gr_gid;
}

// Why `path` refuses to be connected to, and what lets the caller in.
Error NotPermitted(const std::string& path) {
  std::string words = "connecting to '" + path + "': permission denied";
  struct stat file {};
  if (stat(path.c_str(), &file) == 0) {
    char buffer[1024];
    struct group entry {};
    struct group* found = nullptr;
    getgrgid_r(file.st_gid, &entry, buffer, sizeof(buffer), &found);
    const std::string group = found != nullptr ? found->gr_name : std::to_string(file.st_gid);
    words += "; it serves the group " + group;
    words += file.st_gid == 0 ? ", which is root's: let the daemon serve another one (socket.group)"
                              : " (usermod -aG " + group + " USER, and log in again)";
  }
  return {ErrorCode::kPermission, words};
}

// Waits for `events`; a hang-up or an error counts, since the next call then reports it.
Status Await(int socket, short events, core::Tick deadline) {
  for (;;) {
    pollfd ready{socket, events, 0};
    timespec bound{};
    if (deadline != core::kNever) {
      const auto left = std::max(deadline - Now(), core::Duration(0));
      const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(left);
      bound = {.tv_sec = seconds.count(), .tv_nsec = (left - seconds).count()};
    }
    const int count = ppoll(&ready, 1, deadline == core::kNever ? nullptr : &bound, nullptr);
    if (count > 0) return core::Ok();
    if (count == 0) return Error{ErrorCode::kTimedOut, "the other side did not get ready in time"};
    if (errno != EINTR) return SystemError("poll", errno);
  }
}

void TakeDescriptors(msghdr* message, std::vector<UniqueFd>* descriptors) {
  for (cmsghdr* part = CMSG_FIRSTHDR(message); part != nullptr; part = CMSG_NXTHDR(message, part)) {
    if (part->cmsg_level != SOL_SOCKET || part->cmsg_type != SCM_RIGHTS) continue;
    const size_t count = (part->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < count; ++i) {
      int descriptor;
      std::memcpy(&descriptor, CMSG_DATA(part) + i * sizeof(int), sizeof(int));
      descriptors->emplace_back(descriptor);
    }
  }
}

// The time of `pid` and its pidfd belong to one process if it was alive between the two looks.
bool Alive(int pidfd) {
  pollfd ready{pidfd, POLLIN, 0};
  return poll(&ready, 1, 0) == 0;
}

Error PeerIsDead(pid_t pid) {
  return {ErrorCode::kUnavailable, "the peer, process " + std::to_string(pid) + ", is dead"};
}

// For kernels that do not hand out the peer's pidfd. The number may have been given to another
// process since the peer connected. Then the peer is dead, and the socket says so unless the peer
// left it to a fork. A successor of another user is recognised too. The remaining case is the same
// user's doing: a fork of the dead peer, and a process of that user under its number.
Result<UniqueFd> OpenPidfd(int socket, const ucred& credentials) {
  if (credentials.pid == 0) {
    return Error{ErrorCode::kUnsupported,
                 "the peer lives in a PID namespace that this one does not see, and this kernel "
                 "(before 6.5) cannot follow it: share the PID namespace"};
  }
  UniqueFd pidfd(static_cast<int>(syscall(SYS_pidfd_open, credentials.pid, 0)));
  if (!pidfd && errno == ESRCH) return PeerIsDead(credentials.pid);
  if (!pidfd && errno == ENOSYS) {
    return Error{ErrorCode::kUnsupported, "this kernel (before 5.3) has no pidfd_open"};
  }
  if (!pidfd) return SystemError("pidfd_open of the peer", errno);
  struct stat owner {};
  const std::string directory = "/proc/" + std::to_string(credentials.pid);
  if (stat(directory.c_str(), &owner) != 0) return PeerIsDead(credentials.pid);
  // A process that may not be dumped belongs to root in /proc, whatever user runs it.
  if (owner.st_uid != credentials.uid && owner.st_uid != 0) return PeerIsDead(credentials.pid);
  pollfd hang_up{socket, 0, 0};
  if (poll(&hang_up, 1, 0) > 0) return PeerIsDead(credentials.pid);
  return pidfd;
}

}  // namespace

Listener& Listener::operator=(Listener&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(socket_, other.socket_);
  std::swap(lock_, other.lock_);
  std::swap(device_, other.device_);
  std::swap(inode_, other.inode_);
  return *this;
}

Listener::~Listener() {
  Close();
  // Still held: who takes it next looks whether it is still there.
  if (lock_) unlink(LockOf(path_).c_str());
}

void Listener::Close() {
  if (!socket_) return;
  struct stat own {};
  own.st_dev = device_;
  own.st_ino = inode_;
  if (Names(path_, own)) unlink(path_.c_str());
  socket_.reset();
}

Result<Listener> Listen(const std::string& path, mode_t mode, const std::string& group) {
  RAVEN_ASSIGN_OR_RETURN(const sockaddr_un address, AddressOf(path));
  gid_t gid = static_cast<gid_t>(-1);
  if (!group.empty()) {
    RAVEN_ASSIGN_OR_RETURN(gid, GroupNamed(group));
  }
  Listener listener;
  listener.path_ = path;
  RAVEN_ASSIGN_OR_RETURN(listener.lock_, Lock(path));
  RAVEN_RETURN_IF_ERROR(ClearStale(path, address));
  RAVEN_ASSIGN_OR_RETURN(UniqueFd made, NewSocket(SOCK_NONBLOCK));
  if (bind(made.get(), Generic(address), sizeof(address)) != 0) {
    return SystemError("binding '" + path + "'", errno);
  }
  struct stat file {};
  if (lstat(path.c_str(), &file) != 0) return SystemError("looking at '" + path + "'", errno);
  listener.socket_ = std::move(made);
  listener.device_ = file.st_dev;
  listener.inode_ = file.st_ino;
  // No client can connect before listen(), so none slips through the mode that bind() gave.
  const auto fail = [&path](const std::string& what) {
    return SystemError(what + " '" + path + "'", errno);
  };
  if (!group.empty() && chown(path.c_str(), static_cast<uid_t>(-1), gid) != 0) {
    return fail("giving group '" + group + "' the socket");
  }
  if (chmod(path.c_str(), mode) != 0) return fail("setting the mode of");
  if (listen(listener.get(), kBacklog) != 0) return fail("listening at");
  return listener;
}

Result<UniqueFd> Accept(int listener) {
  for (;;) {
    UniqueFd accepted(accept4(listener, nullptr, nullptr, SOCK_CLOEXEC));
    if (accepted) {
      SetSendBuffer(accepted.get());
      return accepted;
    }
    // A peer that gave up while it was queued is not an error.
    if (errno != EINTR && errno != ECONNABORTED) return SystemError("accept", errno);
  }
}

Result<UniqueFd> Connect(const std::string& path, core::Tick deadline) {
  RAVEN_ASSIGN_OR_RETURN(const sockaddr_un address, AddressOf(path));
  RAVEN_ASSIGN_OR_RETURN(UniqueFd made, NewSocket(0));
  SetSendBuffer(made.get());
  for (;;) {
    timeval bound{};  // zero: unbounded
    if (deadline != core::kNever) {
      const auto left = std::max<int64_t>((deadline - Now()).count() / 1000, 1);
      bound = {.tv_sec = left / 1000000, .tv_usec = left % 1000000};
    }
    // The wait for room in the listener's queue obeys the send time-out.
    setsockopt(made.get(), SOL_SOCKET, SO_SNDTIMEO, &bound, sizeof(bound));
    if (connect(made.get(), Generic(address), sizeof(address)) == 0) break;
    if (errno == EINTR) continue;
    if (errno == EAGAIN) {
      return Error{ErrorCode::kTimedOut, "the listener at '" + path + "' takes no connections"};
    }
    if (errno == ENOENT || errno == ECONNREFUSED || errno == ENOTDIR) {
      return Error{ErrorCode::kUnavailable, "no daemon listens at '" + path + "'"};
    }
    if (errno == EACCES) return NotPermitted(path);
    return SystemError("connecting to '" + path + "'", errno);
  }
  const timeval unbounded{};
  setsockopt(made.get(), SOL_SOCKET, SO_SNDTIMEO, &unbounded, sizeof(unbounded));
  return made;
}

Result<UniqueFd> ConnectToDaemon(const std::string& path, core::Tick deadline) {
  RAVEN_ASSIGN_OR_RETURN(UniqueFd made, Connect(path, deadline));
  char why[512];
  if (!TrustsListener(made.get(), path.c_str(), why, sizeof(why))) {
    return Error{ErrorCode::kUnavailable, why};
  }
  return made;
}

Status Send(int socket, std::string_view bytes, std::span<const int> descriptors) {
  if (bytes.empty() || bytes.size() > proto::kControlPacketMax ||
      descriptors.size() > proto::kControlDescriptorsMax) {
    return Error{ErrorCode::kInvalidArgument,
                 "a control packet of " + std::to_string(bytes.size()) + " bytes and " +
                     std::to_string(descriptors.size()) + " descriptors is out of bounds"};
  }
  iovec body{const_cast<char*>(bytes.data()), bytes.size()};
  alignas(cmsghdr) char control[kControlBytes] = {};
  msghdr message{};
  message.msg_iov = &body;
  message.msg_iovlen = 1;
  if (!descriptors.empty()) {
    message.msg_control = control;
    message.msg_controllen = CMSG_SPACE(descriptors.size_bytes());
    cmsghdr* part = CMSG_FIRSTHDR(&message);
    part->cmsg_level = SOL_SOCKET;
    part->cmsg_type = SCM_RIGHTS;
    part->cmsg_len = CMSG_LEN(descriptors.size_bytes());
    std::memcpy(CMSG_DATA(part), descriptors.data(), descriptors.size_bytes());
  }
  while (sendmsg(socket, &message, MSG_NOSIGNAL | MSG_DONTWAIT) < 0) {
    if (errno != EINTR) return SystemError("sending a control packet", errno);
  }
  return core::Ok();
}

namespace {

// recvmsg with `flags`. The packet's descriptors come in `*descriptors`, of which it may bring
// `most`.
Result<std::optional<Packet>> Take(int socket, int flags, size_t most,
                                   std::vector<UniqueFd>* descriptors) {
  Packet packet;
  packet.bytes.resize(proto::kControlPacketMax);
  iovec body{packet.bytes.data(), packet.bytes.size()};
  alignas(cmsghdr) char control[kReceivedBytes];
  msghdr message{};
  ssize_t got;
  do {
    message.msg_iov = &body;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = sizeof(control);
    got = recvmsg(socket, &message, MSG_CMSG_CLOEXEC | flags);
    // A peer that closed with packets unread resets the connection, once; what it sent before is
    // still there to be read.
  } while (got < 0 && (errno == EINTR || errno == ECONNRESET));
  if (got < 0) return SystemError("receiving a control packet", errno);
  TakeDescriptors(&message, descriptors);
  if (message.msg_flags & MSG_TRUNC) {
    return Error{ErrorCode::kCorrupt,
                 "a control packet exceeds " + std::to_string(proto::kControlPacketMax) + " bytes"};
  }
  const bool short_of_numbers = (message.msg_flags & MSG_CTRUNC) != 0;
  if (short_of_numbers || descriptors->size() > most) {
    // While those that came are still open.
    const UniqueFd one_more(fcntl(socket, F_DUPFD_CLOEXEC, 0));
    if ((flags & MSG_PEEK) != 0 && short_of_numbers && !one_more) {
      return Error{ErrorCode::kLimit,
                   "this process has no descriptor left for what the daemon sent (RLIMIT_NOFILE)"};
    }
    return Error{ErrorCode::kCorrupt,
                 "a control packet brings more than " + std::to_string(most) +
                     " descriptors, or more than this process may still open (RLIMIT_NOFILE)"};
  }
  if (got == 0) return std::optional<Packet>();
  packet.bytes.resize(static_cast<size_t>(got));
  return std::optional<Packet>(std::move(packet));
}

Result<std::optional<Packet>> TakeWhole(int socket, int flags) {
  std::vector<UniqueFd> descriptors;
  auto packet = Take(socket, flags, proto::kControlDescriptorsMax, &descriptors);
  if (packet.ok() && packet->has_value()) (*packet)->descriptors = std::move(descriptors);
  return packet;
}

}  // namespace

Result<std::optional<Packet>> Receive(int socket, bool wait) {
  return TakeWhole(socket, wait ? 0 : MSG_DONTWAIT);
}

Result<std::optional<Packet>> Receive(int socket, std::vector<UniqueFd>* descriptors) {
  return Take(socket, MSG_DONTWAIT, proto::kClientDescriptorsMax, descriptors);
}

Result<std::optional<Packet>> ReceiveOrLeave(int socket) {
  auto packet = TakeWhole(socket, MSG_DONTWAIT | MSG_PEEK);
  const bool there = packet.ok() || packet.error().code == ErrorCode::kCorrupt;
  // A peek brings descriptors of its own: those of the packet are closed with it.
  if (there) static_cast<void>(recv(socket, nullptr, 0, MSG_DONTWAIT));
  return packet;
}

bool BringsDescriptors(int socket) {
  char byte = 0;
  iovec body{&byte, 1};
  msghdr message{};
  message.msg_iov = &body;
  message.msg_iovlen = 1;
  // With no room for them the kernel says that there are some, and of a peek takes none away.
  if (recvmsg(socket, &message, MSG_PEEK | MSG_DONTWAIT) < 0) return false;
  return (message.msg_flags & MSG_CTRUNC) != 0;
}

bool HasLeft(int socket) {
  char byte = 0;
  return recv(socket, &byte, sizeof(byte), MSG_PEEK | MSG_DONTWAIT) == 0;
}

bool IsDrained(int socket) {
  int unread = 0;
  return ioctl(socket, SIOCOUTQ, &unread) == 0 && unread == 0;
}

Status WaitReadable(int socket, core::Tick deadline) {
  return Await(socket, POLLIN, deadline);
}
Status WaitWritable(int socket, core::Tick deadline) {
  return Await(socket, POLLOUT, deadline);
}

Result<Peer> PeerOf(int socket) {
  ucred credentials{};
  socklen_t size = sizeof(credentials);
  if (getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &credentials, &size) != 0) {
    return SystemError("SO_PEERCRED", errno);
  }
  Peer peer{
      .pid = credentials.pid, .uid = credentials.uid, .gid = credentials.gid, .pidfd = UniqueFd()};
  int pidfd = -1;
  size = sizeof(pidfd);
  if (getsockopt(socket, SOL_SOCKET, kSoPeerPidfd, &pidfd, &size) == 0) {
    peer.pidfd.reset(pidfd);
  } else if (errno == ENOPROTOOPT) {
    RAVEN_ASSIGN_OR_RETURN(peer.pidfd, OpenPidfd(socket, credentials));
  } else if (errno == ESRCH || errno == EINVAL || errno == ENODATA) {
    return PeerIsDead(peer.pid);
  } else {
    return SystemError("SO_PEERPIDFD", errno);
  }
  if (peer.pid != 0) {
    const Result<uint64_t> started = StartTimeOf(peer.pid);
    if (!started.ok() && started.error().code != ErrorCode::kNotFound) return started.error();
    if (!started.ok() || !Alive(peer.pidfd.get())) return PeerIsDead(peer.pid);
    peer.start_time = *started;
  }
  return peer;
}

namespace {

// A number of /proc/PID/stat: the `field`th after the program's name, which is the second of all.
Result<uint64_t> StatField(pid_t pid, int field) {
  const std::string path = "/proc/" + std::to_string(pid) + "/stat";
  UniqueFd file(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file && (errno == ENOENT || errno == ESRCH)) {
    return Error{ErrorCode::kNotFound, "there is no process " + std::to_string(pid)};
  }
  if (!file) return SystemError("opening " + path, errno);
  char text[1024];
  const ssize_t length = read(file.get(), text, sizeof(text));
  if (length < 0 && errno == ESRCH) {
    return Error{ErrorCode::kNotFound, "there is no process " + std::to_string(pid)};
  }
  if (length < 0) return SystemError("reading " + path, errno);
  std::string_view rest(text, static_cast<size_t>(length));
  // The name is in parentheses and may hold anything, parentheses and blanks too.
  rest.remove_prefix(std::min(rest.rfind(')') + 1, rest.size()));
  for (int i = 0; i < field; ++i) {
    rest.remove_prefix(std::min(rest.find(' '), rest.size()));
    rest.remove_prefix(std::min<size_t>(1, rest.size()));
  }
  uint64_t number = 0;
  const auto parsed = std::from_chars(rest.data(), rest.data() + rest.size(), number);
  if (parsed.ec != std::errc()) return Error{ErrorCode::kSystem, path + " has an unknown form"};
  return number;
}

}  // namespace

Result<uint64_t> StartTimeOf(pid_t pid) {
  return StatField(pid, 20);
}

Result<pid_t> ParentOf(pid_t pid) {
  RAVEN_ASSIGN_OR_RETURN(const uint64_t parent, StatField(pid, 2));
  return static_cast<pid_t>(parent);
}

}  // namespace ravenstore::ipc
