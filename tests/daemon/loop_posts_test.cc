#include "daemon/loop_posts.h"

#include <gtest/gtest.h>

#include <string>

namespace ravenstore::daemon {
namespace {

constexpr core::TenantId kUser{1};
constexpr core::TenantId kOther{2};
constexpr uint32_t kHalf = LoopPosts::kWithLoopMax / 2;

class LoopPostsTest : public testing::Test {
 protected:
  void Add(core::TenantId user, uint64_t key, uint32_t share) {
    posts_.Add(user, {key, share, [this, key] { ran_ += std::to_string(key); }});
  }
  // Runs the loop's posts, then the reports of them to the control thread.
  void Run() {
    loop_.RunSome(loop_.size());
    own_.RunSome(own_.size());
  }

  Mailbox loop_;
  Mailbox own_;
  uint64_t unwanted_ = 0;
  std::string ran_;
  std::string done_;
  LoopPosts posts_{&loop_,
                   &own_,
                   {.is_wanted = [this](const auto& post) { return post.key != unwanted_; },
                    .done = [this](uint64_t key, uint32_t) { done_ += std::to_string(key); }}};
};

TEST_F(LoopPostsTest, OfAUserSomeAreWithTheLoopAndTheOthersWait) {
  for (uint64_t key = 1; key <= 5; ++key) Add(kUser, key, kHalf);
  EXPECT_EQ(loop_.size(), 2u);
  Run();
  EXPECT_EQ(ran_, "12");
  EXPECT_EQ(done_, "12");
  Run();
  EXPECT_EQ(ran_, "1234");
  Run();
  EXPECT_EQ(ran_, "12345");
  EXPECT_EQ(done_, ran_);
}

TEST_F(LoopPostsTest, AnotherUserDoesNotWaitForThem) {
  for (uint64_t key = 1; key <= 5; ++key) Add(kUser, key, kHalf);
  Add(kOther, 9, kHalf);
  Run();
  EXPECT_EQ(ran_, "129");
}

TEST_F(LoopPostsTest, WhatIsNotWantedWhenItsTurnComesIsDropped) {
  for (uint64_t key = 1; key <= 4; ++key) Add(kUser, key, kHalf);
  unwanted_ = 3;
  Run();
  Run();
  EXPECT_EQ(ran_, "124");
  EXPECT_EQ(done_, "124");
}

TEST_F(LoopPostsTest, ItIsDoneBehindWhatTheWorkPosted) {
  posts_.Add(kUser, {1, kHalf, [this] { own_.Post([this] { done_ += "answer "; }); }});
  Run();
  EXPECT_EQ(done_, "answer 1");
}

}  // namespace
}  // namespace ravenstore::daemon
