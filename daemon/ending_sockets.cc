#include "daemon/ending_sockets.h"

#include <sys/epoll.h>
#include <sys/socket.h>

#include <utility>

namespace ravenstore::daemon {

void EndingSockets::Close(ipc::UniqueFd socket, uid_t user, std::function<void()> closed) {
  if (!socket) {
    if (closed) closed();
    return;
  }
  ::epoll_ctl(epoll_, EPOLL_CTL_DEL, socket.get(), nullptr);
  ::shutdown(socket.get(), SHUT_RDWR);  // the peer need not wait for the close
  Ending& ending = ending_[user];
  ending.sockets.push_back(std::move(socket));
  if (closed) ending.closed.push_back(std::move(closed));
}

void EndingSockets::EndTurn() {
  for (auto& [user, ending] : std::exchange(ending_, {})) {
    closers_.Close(user, std::move(ending.sockets), [this, all = std::move(ending.closed)] {
      mailbox_->Post([this, all] {
        any_closed_();
        for (const auto& closed : all) closed();
      });
    });
  }
}

}  // namespace ravenstore::daemon
