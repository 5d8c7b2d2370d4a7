#include "daemon/mailbox.h"

#include <gtest/gtest.h>
#include <poll.h>

#include <thread>
#include <vector>

namespace ravenstore::daemon {
namespace {

bool Readable(const Mailbox& mailbox, int timeout_ms = 0) {
  pollfd entry{.fd = mailbox.descriptor(), .events = POLLIN, .revents = 0};
  return ::poll(&entry, 1, timeout_ms) == 1;
}

TEST(MailboxTest, RunsWhatWasPostedInOrder) {
  Mailbox mailbox;
  std::vector<int> ran;
  for (int i = 0; i < 5; ++i) mailbox.Post([&ran, i] { ran.push_back(i); });
  EXPECT_FALSE(mailbox.empty());
  EXPECT_EQ(mailbox.RunSome(100), 5u);
  EXPECT_EQ(ran, (std::vector<int>{0, 1, 2, 3, 4}));
  EXPECT_TRUE(mailbox.empty());
  EXPECT_EQ(mailbox.RunSome(100), 0u);
}

TEST(MailboxTest, TheLimitLeavesTheRestAndItsBell) {
  Mailbox mailbox;
  int ran = 0;
  for (int i = 0; i < 5; ++i) mailbox.Post([&ran] { ++ran; });
  EXPECT_EQ(mailbox.RunSome(2), 2u);
  EXPECT_EQ(ran, 2);
  EXPECT_FALSE(mailbox.empty());
  EXPECT_TRUE(Readable(mailbox));
  EXPECT_EQ(mailbox.RunSome(100), 3u);
  EXPECT_EQ(ran, 5);
}

// Otherwise the thread that waits for the bell is woken for nothing, again and again.
TEST(MailboxTest, ALimitThatIsJustEnoughSilencesTheBell) {
  Mailbox mailbox;
  mailbox.Post([] {});
  mailbox.Post([] {});
  EXPECT_EQ(mailbox.RunSome(mailbox.size()), 2u);
  EXPECT_TRUE(mailbox.empty());
  EXPECT_FALSE(Readable(mailbox));
}

TEST(MailboxTest, TheDescriptorIsReadableWhileSomethingWaits) {
  Mailbox mailbox;
  EXPECT_FALSE(Readable(mailbox));
  mailbox.Post([] {});
  EXPECT_TRUE(Readable(mailbox));
  mailbox.RunSome(100);
  EXPECT_FALSE(Readable(mailbox));
  mailbox.Post([] {});
  EXPECT_TRUE(Readable(mailbox));
}

TEST(MailboxTest, WorkMayPostMore) {
  Mailbox mailbox;
  int ran = 0;
  mailbox.Post([&] { mailbox.Post([&] { ++ran; }); });
  EXPECT_EQ(mailbox.RunSome(100), 2u);
  EXPECT_EQ(ran, 1);
}

TEST(MailboxTest, NothingPostedFromManyThreadsIsMissed) {
  Mailbox mailbox;
  constexpr int kThreads = 4;
  constexpr int kEach = 1000;
  int ran = 0;
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < kEach; ++i) mailbox.Post([&ran] { ++ran; });
    });
  }
  // As the control thread does: waits for the bell, then runs what is there.
  while (ran < kThreads * kEach) {
    ASSERT_TRUE(Readable(mailbox, 20000)) << ran << " ran";
    mailbox.RunSome(7);
  }
  for (auto& thread : threads) thread.join();
  mailbox.RunSome(1);
  EXPECT_TRUE(mailbox.empty());
}

}  // namespace
}  // namespace ravenstore::daemon
