// Closures that users' connections have the planner loop run: of each user a few are with the loop
// at a time, in the order in which they came; the others wait here.
//
// Threads: the control thread; the closures run in the loop's.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>

#include "core/types.h"
#include "daemon/mailbox.h"

namespace ravenstore::daemon {

class LoopPosts {
 public:
  // The shares of one user that are with the loop at a time.
  static constexpr uint32_t kWithLoopMax = 256;

  struct Post {
    uint64_t key = 0;  // of the connection
    uint32_t share = 0;
    std::function<void()> work;
  };
  struct Hooks {
    // Asked when its turn has come: false, and it is dropped.
    std::function<bool(const Post&)> is_wanted;
    // In the control thread: it has run, and what it posted there before.
    std::function<void(uint64_t key, uint32_t share)> done;
  };

  // Both mailboxes outlive this; `own` is the control thread's.
  LoopPosts(Mailbox* loop, Mailbox* own, Hooks hooks)
      : loop_(loop), own_(own), hooks_(std::move(hooks)) {}

  void Add(core::TenantId user, Post post);

 private:
  struct User {
    uint32_t with_loop = 0;  // shares
    std::deque<Post> waiting;
  };
  void PostMore(core::TenantId user);
  void OnRun(core::TenantId user, uint64_t key, uint32_t share);

  Mailbox* const loop_;
  Mailbox* const own_;
  const Hooks hooks_;
  std::map<core::TenantId, User> users_;  // with something here or there
};

}  // namespace ravenstore::daemon
