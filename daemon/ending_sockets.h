// Sockets that end. They may still hold what users sent, so they are closed on other threads
// (closers.h). One task closes all sockets of a user that end in one turn of this thread: to wake a
// thread for each would cost more than all else that a socket costs.
//
// Threads: that which runs the mailbox. Sockets that were not closed at the end are closed later,
// without a call of `closed`.
#pragma once

#include <sys/types.h>

#include <functional>
#include <map>
#include <utility>
#include <vector>

#include "daemon/closers.h"
#include "daemon/mailbox.h"
#include "ipc/unique_fd.h"

namespace ravenstore::daemon {

class EndingSockets {
 public:
  // `epoll` watches them no more; it and the mailbox outlive this. `any_closed`: in this thread,
  // when descriptors came free.
  EndingSockets(int epoll, Mailbox* mailbox, std::function<void()> any_closed)
      : epoll_(epoll), mailbox_(mailbox), any_closed_(std::move(any_closed)) {}

  // The peer sees the hang-up immediately. `closed` runs in this thread when the socket is closed,
  // or immediately if there is no socket.
  void Close(ipc::UniqueFd socket, uid_t user, std::function<void()> closed = {});
  void EndTurn();

 private:
  struct Ending {
    std::vector<ipc::UniqueFd> sockets;
    std::vector<std::function<void()>> closed;
  };

  const int epoll_;
  Mailbox* const mailbox_;
  const std::function<void()> any_closed_;
  std::map<uid_t, Ending> ending_;  // with this turn
  Closers closers_;                 // first to go: it posts to the mailbox
};

}  // namespace ravenstore::daemon
