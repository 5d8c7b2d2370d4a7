#include "ipc/daemon_user.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

namespace ravenstore::ipc {
namespace {

constexpr uid_t kNobody = 65534;  // the kernel's default for users that it has no number for

// A user's number in decimal digits, and nothing else.
bool ParseUser(const char* text, uid_t* uid) {
  unsigned long long number = 0;
  if (*text == 0) return false;
  for (; *text != 0; ++text) {
    if (*text < '0' || *text > '9') return false;
    number = number * 10 + static_cast<unsigned>(*text - '0');
    if (number >= static_cast<uid_t>(-1)) return false;
  }
  *uid = static_cast<uid_t>(number);
  return true;
}

// The beginning of a small file, as a string.
void ReadSmall(const char* path, char* text, size_t room) {
  text[0] = 0;
  const int file = open(path, O_RDONLY | O_CLOEXEC);
  if (file < 0) return;
  const ssize_t size = read(file, text, room - 1);
  text[size > 0 ? size : 0] = 0;
  close(file);
}

// Whether `user` may stand for anybody whom this user namespace does not know.
bool IsUnmapped(uid_t user) {
  char text[64];
  ReadSmall("/proc/sys/kernel/overflowuid", text, sizeof(text));
  text[strcspn(text, "\n")] = 0;
  uid_t stand_in = kNobody;
  ParseUser(text, &stand_in);
  if (user != stand_in) return false;
  // The whole range: then it is a user like others.
  unsigned first = 1;
  unsigned outside = 1;
  unsigned count = 0;
  ReadSmall("/proc/self/uid_map", text, sizeof(text));
  const int numbers = sscanf(text, "%u %u %u", &first, &outside, &count);
  return numbers == 3 && count != static_cast<uid_t>(-1);
}

}  // namespace

bool FindUser(int users, const char* name, uid_t* uid) {
  char buffer[1024];
  int field = 0;  // of name:password:number:...
  size_t at = 0;
  bool ours = true;
  char number[16] = {};
  for (;;) {
    const ssize_t size = read(users, buffer, sizeof(buffer));
    if (size <= 0) return false;
    for (ssize_t i = 0; i < size; ++i) {
      const char c = buffer[i];
      if (c == '\n') {
        field = 0;
        at = 0;
        ours = true;
        continue;
      }
      if (c == ':') {
        if (field == 0) ours = ours && name[at] == 0;
        if (field == 2 && ours && ParseUser(number, uid)) return true;
        ++field;
        at = 0;
        number[0] = 0;
        continue;
      }
      if (field == 0) ours = ours && name[at] == c;
      if (field == 2 && at + 1 < sizeof(number)) {
        number[at] = c;
        number[at + 1] = 0;
      }
      if (field != 0 || ours) ++at;
    }
  }
}

bool MayBeTheDaemon(const Listening& listening) {
  if (listening.user == 0 || listening.user == listening.own) return true;
  if (listening.unmapped && listening.guarded) return true;
  const char* const wanted = listening.wanted == nullptr ? "" : listening.wanted;
  uid_t uid = 0;
  if (ParseUser(wanted, &uid)) {
    if (uid == listening.user) return true;
  } else if (*wanted != 0 && FindUser(listening.users, wanted, &uid) && uid == listening.user) {
    return true;
  }
  lseek(listening.users, 0, SEEK_SET);
  return FindUser(listening.users, kDaemonUserName, &uid) && uid == listening.user;
}

bool IsGuarded(const char* path, uid_t user) {
  char folder[4096];
  if (path[0] != '/' || strlen(path) >= sizeof(folder)) return false;
  for (size_t i = 0; path[i] != 0; ++i) {
    if (path[i] != '/') {
      folder[i] = path[i];
      continue;
    }
    // With the slash, so that the root is not the empty name; a link is not followed without.
    folder[i] = 0;
    struct stat status {};
    if (lstat(i == 0 ? "/" : folder, &status) != 0 || !S_ISDIR(status.st_mode)) return false;
    if (status.st_uid != 0 && status.st_uid != user) return false;
    if ((status.st_mode & (S_IWGRP | S_IWOTH)) != 0) return false;
    folder[i] = '/';
  }
  return true;
}

bool TrustsListener(int socket, const char* path, char* why, size_t room) {
  ucred listener{};
  socklen_t size = sizeof(listener);
  if (getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &listener, &size) != 0) {
    snprintf(why, room, "the kernel does not say who listens at '%s'", path);
    return false;
  }
  Listening listening{.user = listener.uid, .own = geteuid()};
  if (listening.user == 0 || listening.user == listening.own) return true;
  listening.wanted = getenv(kDaemonUserVariable);
  listening.unmapped = IsUnmapped(listening.user);
  listening.guarded = listening.unmapped && IsGuarded(path, listening.user);
  listening.users = open("/etc/passwd", O_RDONLY | O_CLOEXEC);
  const bool trusted = MayBeTheDaemon(listening);
  if (listening.users >= 0) close(listening.users);
  if (trusted) return true;
  snprintf(
      why, room,
      "user %u listens at '%s', who is neither root, nor the own user (%u), nor \"%s\": if that "
      "is the daemon, set %s=%u",
      listening.user, path, listening.own, kDaemonUserName, kDaemonUserVariable, listening.user);
  return false;
}

}  // namespace ravenstore::ipc
