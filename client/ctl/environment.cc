#include "client/ctl/environment.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <utility>

#include "client/ctl/session.h"
#include "ipc/segment.h"
#include "ipc/socket.h"
#include "ipc/unique_fd.h"

namespace ravenstore::client::ctl {
namespace {

using core::Error;
using core::ErrorCode;
using core::Result;
using core::Status;

// The files of /proc and /sys that the checks read are far smaller.
constexpr size_t kFileBytesMax = 64 * 1024;
constexpr int kSoPeerPidfd = 77;

Error SystemError(const std::string& what) {
  return {ErrorCode::kSystem, what + ": " + std::strerror(errno)};
}

}  // namespace

std::optional<std::string> SystemEnvironment::Variable(const std::string& name) {
  const char* value = std::getenv(name.c_str());
  if (value == nullptr) return std::nullopt;
  return value;
}

Result<std::string> SystemEnvironment::ReadFile(const std::string& path) {
  // Not to block on a pipe that stands where a file is expected.
  const ipc::UniqueFd file(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!file) return SystemError(path);
  std::string text(kFileBytesMax, '\0');
  size_t length = 0;
  while (length < text.size()) {
    const ssize_t got = read(file.get(), text.data() + length, text.size() - length);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return SystemError(path);
    if (got == 0) break;
    length += static_cast<size_t>(got);
  }
  text.resize(length);
  return text;
}

std::vector<std::string> SystemEnvironment::List(const std::string& directory) {
  std::vector<std::string> names;
  std::error_code error;
  for (std::filesystem::directory_iterator entry(directory, error), end; !error && entry != end;
       entry.increment(error)) {
    names.push_back(entry->path().filename());
  }
  std::sort(names.begin(), names.end());
  return names;
}

Result<core::Bytes> SystemEnvironment::Capacity(const std::string& path) {
  struct statvfs status {};
  if (statvfs(path.c_str(), &status) != 0) return SystemError(path);
  return core::Bytes(uint64_t{status.f_blocks} * status.f_frsize);
}

Result<DaemonView> SystemEnvironment::AskDaemon() const {
  RAVEN_ASSIGN_OR_RETURN(Session session, Session::Open(socket_, timeout_));
  DaemonView view;
  view.welcome = session.welcome();
  RAVEN_ASSIGN_OR_RETURN(view.stats, session.Stats());
  // A kernel that cannot say who it is, or a daemon of another PID namespace, leaves pid at 0.
  if (const auto peer = session.Peer(); peer.ok()) {
    view.pid = peer->pid;
    view.uid = peer->uid;
  }
  return view;
}

Result<DaemonView> SystemEnvironment::Daemon() {
  if (!daemon_) daemon_.emplace(AskDaemon());
  return *daemon_;
}

Result<std::vector<device::DeviceInfo>> SystemEnvironment::Gpus() {
  if (!gpus_) {
    const Result<device::Devices> devices = device::OpenCudaDevices();
    if (devices.ok()) {
      std::vector<device::DeviceInfo> infos;
      for (const auto& device : *devices) infos.push_back(device->info());
      gpus_.emplace(std::move(infos));
    } else {
      gpus_.emplace(devices.error());
    }
  }
  return *gpus_;
}

Status SystemEnvironment::TrySealedMemory() {
  RAVEN_ASSIGN_OR_RETURN(const ipc::ControlSegment made, ipc::ControlSegment::Create(1));
  ipc::UniqueFd copy(fcntl(made.fd(), F_DUPFD_CLOEXEC, 0));
  RAVEN_ASSIGN_OR_RETURN(const ipc::ControlSegment mapped,
                         ipc::ControlSegment::Map(std::move(copy)));
  return core::Ok();
}

Status SystemEnvironment::TryPidfd() {
  const ipc::UniqueFd pidfd(static_cast<int>(syscall(SYS_pidfd_open, getpid(), 0)));
  if (!pidfd) return SystemError("pidfd_open");
  return core::Ok();
}

Status SystemEnvironment::TryPeerPidfd() {
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) {
    return SystemError("socketpair");
  }
  const ipc::UniqueFd one(ends[0]);
  const ipc::UniqueFd two(ends[1]);
  int pidfd = -1;
  socklen_t size = sizeof(pidfd);
  if (getsockopt(one.get(), SOL_SOCKET, kSoPeerPidfd, &pidfd, &size) != 0) {
    return SystemError("SO_PEERPIDFD");
  }
  const ipc::UniqueFd close_it(pidfd);
  return core::Ok();
}

}  // namespace ravenstore::client::ctl
