#include "daemon/parent.h"

#include <poll.h>
#include <pthread.h>
#include <spdlog/spdlog.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <string>
#include <thread>
#include <utility>

#include "ipc/socket.h"
#include "ipc/unique_fd.h"

namespace ravenstore::daemon {

namespace {

bool IsAncestor(pid_t process) {
  core::Result<pid_t> above = ::getppid();
  while (above.ok() && *above > 1 && *above != process) above = ipc::ParentOf(*above);
  return above.ok() && *above == process && process > 0;
}

}  // namespace

core::Status EndWithAncestor(pid_t ancestor) {
  ipc::UniqueFd pidfd(static_cast<int>(syscall(SYS_pidfd_open, ancestor, 0)));
  if (!pidfd && errno == ENOSYS) {
    return core::Error{core::ErrorCode::kUnsupported,
                       "--parent: this kernel (before 5.3) has no pidfd_open"};
  }
  // The descriptor is the ancestor's if that is alive now: else its number may be another's.
  if (!pidfd || !IsAncestor(ancestor)) {
    return core::Error{core::ErrorCode::kUnavailable,
                       "--parent: process " + std::to_string(ancestor) +
                           " is no ancestor of this one, or has ended"};
  }
  std::thread([pidfd = std::move(pidfd), ancestor] {
    pthread_setname_np(pthread_self(), "raven-parent");
    pollfd ended{pidfd.get(), POLLIN, 0};
    while (::poll(&ended, 1, -1) < 0 && errno == EINTR) {
    }
    spdlog::info("process {}, to which this daemon belongs, has ended", ancestor);
    ::kill(::getpid(), SIGTERM);
  }).detach();
  return core::Ok();
}

}  // namespace ravenstore::daemon
