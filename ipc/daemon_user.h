// Whether who listens at the socket may be the daemon: a client hands over its tensors' names, and
// maps what it is sent.
//
// The C library only, no allocation and no look-up that loads a library: the interceptor, a guest
// in other people's processes, asks this, too. Users are known by name from /etc/passwd alone;
// another source's user can be given by number. Threads: any.
#pragma once

#include <sys/types.h>

#include <cstddef>

namespace ravenstore::ipc {

// Names one more user, or gives his number, who may run the daemon.
inline constexpr const char* kDaemonUserVariable = "RAVENSTORE_DAEMON_USER";
// The user that an installed daemon runs as.
inline constexpr const char* kDaemonUserName = "ravenstore";

// What speaks for and against a listener.
struct Listening {
  uid_t user = 0;                // who listens
  uid_t own = 0;                 // who asks
  const char* wanted = nullptr;  // kDaemonUserVariable's value; null: not set
  int users = -1;                // a file like /etc/passwd, at its beginning
  bool unmapped = false;         // `user` stands for users that this user namespace does not know
  bool guarded = false;          // only root and `user` can put a socket at the path
};
bool MayBeTheDaemon(const Listening& listening);

// Looks the user up. False: there is none of that name.
bool FindUser(int users, const char* name, uid_t* uid);

// True if every folder above `path`, an absolute one, is no link, belongs to root or to `user`, and
// cannot be written by other users.
bool IsGuarded(const char* path, uid_t user);

// The same of who listens where `socket` is connected, at `path`. `why` then says, in `room` bytes,
// who that is and what to do if it is the daemon.
bool TrustsListener(int socket, const char* path, char* why, size_t room);

}  // namespace ravenstore::ipc
