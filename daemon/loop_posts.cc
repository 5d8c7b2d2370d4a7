#include "daemon/loop_posts.h"

#include <utility>

namespace ravenstore::daemon {

void LoopPosts::Add(core::TenantId user, Post post) {
  users_[user].waiting.push_back(std::move(post));
  PostMore(user);
}

void LoopPosts::PostMore(core::TenantId user) {
  const auto found = users_.find(user);
  if (found == users_.end()) return;
  User& of_user = found->second;
  while (!of_user.waiting.empty() && of_user.with_loop < kWithLoopMax) {
    Post post = std::move(of_user.waiting.front());
    of_user.waiting.pop_front();
    if (!hooks_.is_wanted(post)) continue;
    of_user.with_loop += post.share;
    loop_->Post([this, user, post = std::move(post)] {
      post.work();
      // Behind the answer, if there is one.
      own_->Post([this, user, key = post.key, share = post.share] { OnRun(user, key, share); });
    });
  }
  if (of_user.waiting.empty() && of_user.with_loop == 0) users_.erase(found);
}

void LoopPosts::OnRun(core::TenantId user, uint64_t key, uint32_t share) {
  users_.at(user).with_loop -= share;
  PostMore(user);
  hooks_.done(key, share);
}

}  // namespace ravenstore::daemon
