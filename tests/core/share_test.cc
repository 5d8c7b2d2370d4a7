#include "core/share.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <random>
#include <string>

namespace ravenstore::core {
namespace {

constexpr TenantId kGreedy{1000};

TenantId User(uint32_t number) {
  return TenantId{2000 + number};
}

// How many of the things a user gets one by one.
uint64_t TakeAll(Shares& shares, TenantId user) {
  uint64_t got = 0;
  while (shares.Take(user).ok()) ++got;
  return got;
}

TEST(ShareTest, OneUserTakesAllButTheLastEighthAndEightOthersA64thEach) {
  Shares clients("clients", 512);
  EXPECT_EQ(TakeAll(clients, kGreedy), 448);
  for (uint32_t i = 0; i < 8; ++i) EXPECT_EQ(TakeAll(clients, User(i)), 8) << i;
  EXPECT_EQ(TakeAll(clients, User(8)), 0);
  EXPECT_EQ(clients.taken(), 512);
}

TEST(ShareTest, WhatAUserHoldsCountsAgainstItsPartOfTheLastEighth) {
  Shares clients("clients", 512);
  ASSERT_TRUE(clients.Take(User(0), 5).ok());
  ASSERT_TRUE(clients.Take(kGreedy, 443).ok());
  EXPECT_EQ(TakeAll(clients, User(0)), 3);
  EXPECT_EQ(TakeAll(clients, kGreedy), 0);
  EXPECT_EQ(TakeAll(clients, User(1)), 8);
}

TEST(ShareTest, WhatIsReturnedMayBeTakenByAnyUser) {
  Shares clients("clients", 64);
  EXPECT_EQ(TakeAll(clients, kGreedy), 56);
  EXPECT_FALSE(clients.Fits(kGreedy));
  clients.Give(kGreedy, 6);
  EXPECT_EQ(clients.Held(kGreedy), 50);
  EXPECT_TRUE(clients.Take(User(0), 6).ok());
  EXPECT_FALSE(clients.Fits(kGreedy));
  clients.Give(User(0), 6);
  EXPECT_EQ(clients.Held(User(0)), 0);
  EXPECT_TRUE(clients.Fits(kGreedy, 6));
  EXPECT_FALSE(clients.Fits(kGreedy, 7));
}

TEST(ShareTest, FewThingsLeaveOneForAnother) {
  for (const uint64_t capacity : {2, 3, 7, 8, 9, 63, 65}) {
    Shares things("things", capacity);
    const uint64_t got = TakeAll(things, kGreedy);
    EXPECT_GE(got, capacity - capacity / 8 - 1) << capacity;
    EXPECT_EQ(TakeAll(things, User(0)), 1) << capacity;
  }
  Shares single("recordings", 1);
  EXPECT_EQ(TakeAll(single, kGreedy), 1);
}

TEST(ShareTest, NumbersFromStrangersDoNotOverflow) {
  constexpr uint64_t kMost = std::numeric_limits<uint64_t>::max();
  Shares bytes("bytes", kMost);
  ASSERT_TRUE(bytes.Take(kGreedy, 100).ok());
  EXPECT_FALSE(bytes.Take(kGreedy, kMost).ok());
  EXPECT_FALSE(bytes.Take(kGreedy, kMost - 99).ok());
  EXPECT_FALSE(bytes.Take(kGreedy, kMost - 100).ok());
  EXPECT_EQ(bytes.taken(), 100);
}

TEST(ShareTest, AnErrorNamesWhatRanOutAndTheUserWhoHoldsTheMost) {
  Shares clients("clients", 512);
  ASSERT_TRUE(clients.Take(kGreedy, 448).ok());
  ASSERT_TRUE(clients.Take(User(1), 8).ok());
  const Status refused = clients.Take(User(1));
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, ErrorCode::kLimit);
  EXPECT_EQ(refused.error().message,
            "clients ran out: 456 of 512 are taken, the most by user 1000; user 2001 holds 8, asks "
            "for 1, and may take the last eighth up to 8 of its own; release some, or ask that "
            "user to");
}

TEST(ShareTest, TheUserWhoHoldsTheMostLearnsOnlyOfItself) {
  Shares memory("bytes of the daemon's memory", GiB(1).count(), Shares::Unit::kBytes);
  ASSERT_TRUE(memory.Take(kGreedy, MiB(896).count()).ok());
  const Status refused = memory.Take(kGreedy, 4096);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().message,
            "bytes of the daemon's memory ran out: 896.0 MiB of 1.0 GiB are taken; user 1000 holds "
            "896.0 MiB, asks for 4.0 KiB, and may take the last eighth up to 16.0 MiB of its own; "
            "release some");
}

// Whatever some users do, each of eight others gets its 64th.
TEST(ShareTest, NoSequenceOfOneUserTakesWhatIsKeptForEightOthers) {
  std::mt19937 random(20261124);
  for (int round = 0; round < 200; ++round) {
    Shares things("things", 64 * (1 + random() % 32));
    for (int step = 0; step < 200; ++step) {
      const uint64_t n = random() % (things.capacity() / 2);
      if (random() % 3 != 0) {
        (void)things.Take(kGreedy, n).ok();
      } else if (n <= things.Held(kGreedy)) {
        things.Give(kGreedy, n);
      }
    }
    for (uint32_t i = 0; i < 8; ++i)
      EXPECT_TRUE(things.Take(User(i), things.reserved()).ok()) << round;
  }
}

}  // namespace
}  // namespace ravenstore::core
