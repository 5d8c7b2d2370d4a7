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

#include "ipc/unique_fd.h"

namespace ravenstore::daemon {

core::Status EndWithParent(pid_t parent) {
  ipc::UniqueFd pidfd(static_cast<int>(syscall(SYS_pidfd_open, parent, 0)));
  if (!pidfd && errno == ENOSYS) {
    return core::Error{core::ErrorCode::kUnsupported,
                       "--parent: this kernel (before 5.3) has no pidfd_open"};
  }
  // The descriptor is the parent's if the parent is alive now: else its number may be another's.
  if (!pidfd || ::getppid() != parent) {
    return core::Error{core::ErrorCode::kUnavailable,
                       "--parent: process " + std::to_string(parent) + " did not start this one, " +
                           "or has ended"};
  }
  std::thread([pidfd = std::move(pidfd), parent] {
    pthread_setname_np(pthread_self(), "raven-parent");
    pollfd ended{pidfd.get(), POLLIN, 0};
    while (::poll(&ended, 1, -1) < 0 && errno == EINTR) {
    }
    spdlog::info("process {}, to which this daemon belongs, has ended", parent);
    ::kill(::getpid(), SIGTERM);
  }).detach();
  return core::Ok();
}

}  // namespace ravenstore::daemon
