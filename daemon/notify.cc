#include "daemon/notify.h"

#include <sys/socket.h>
#include <sys/un.h>

#include <chrono>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <string>

#include "ipc/clock.h"
#include "ipc/unique_fd.h"

namespace ravenstore::daemon {

bool NotifyServiceManager(std::string_view state) {
  const char* path = std::getenv("NOTIFY_SOCKET");
  if (path == nullptr || (path[0] != '/' && path[0] != '@')) return false;
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const size_t length = std::strlen(path);
  if (length >= sizeof(address.sun_path)) return false;
  std::memcpy(address.sun_path, path, length);
  if (path[0] == '@') address.sun_path[0] = '\0';  // an abstract socket
  ipc::UniqueFd socket(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  if (!socket) return false;
  const auto address_length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + length);
  return ::sendto(socket.get(), state.data(), state.size(), MSG_NOSIGNAL,
                  reinterpret_cast<const sockaddr*>(&address),
                  address_length) == static_cast<ssize_t>(state.size());
}

bool NotifyReloading() {
  // The manager uses the time to recognize an answer to its own request.
  const auto now =
      std::chrono::duration_cast<std::chrono::microseconds>(ipc::Now().time_since_epoch());
  return NotifyServiceManager("RELOADING=1\nMONOTONIC_USEC=" + std::to_string(now.count()));
}

}  // namespace ravenstore::daemon
