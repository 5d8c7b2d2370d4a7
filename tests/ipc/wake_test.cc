#include "ipc/wake.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <thread>

#include "ipc/clock.h"
#include "ipc/ring.h"
#include "ipc/segment.h"
#include "tests/ipc/child.h"

namespace ravenstore::ipc {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

bool Rings(int eventfd, int timeout_ms) {
  pollfd ready{eventfd, POLLIN, 0};
  return poll(&ready, 1, timeout_ms) == 1;
}

TEST(WakeTest, SleepsUntilTheDeadline) {
  std::atomic<uint64_t> word{5};
  const core::Tick deadline = Now() + milliseconds(5);
  Sleep slept;
  do {
    slept = SleepOnLowHalf(&word, 5, deadline);
  } while (slept == Sleep::kWoken);
  EXPECT_GE(Now(), deadline);
}

TEST(WakeTest, DoesNotSleepPastADeadlineGoneBy) {
  std::atomic<uint64_t> word{5};
  EXPECT_EQ(SleepOnLowHalf(&word, 5, Now() - seconds(1)), Sleep::kTimedOut);
  EXPECT_EQ(SleepOnLowHalf(&word, 5, core::Tick{}), Sleep::kTimedOut);
  EXPECT_EQ(SleepOnLowHalf(&word, 5, core::Tick::min()), Sleep::kTimedOut);
}

TEST(WakeTest, LooksAtTheLowHalfOnly) {
  std::atomic<uint64_t> word{uint64_t{9} << 32 | 5};
  EXPECT_EQ(SleepOnLowHalf(&word, 6, core::kNever), Sleep::kWoken);
  EXPECT_EQ(SleepOnLowHalf(&word, uint64_t{9} << 32 | 6, core::kNever), Sleep::kWoken);
  EXPECT_EQ(SleepOnLowHalf(&word, uint64_t{8} << 32 | 5, Now()), Sleep::kTimedOut);
}

// The waiting protocol of a lease slot, between processes, many times over: a lost wake-up would
// run into the deadline.
TEST(WakeTest, WakesAnotherProcessEveryTime) {
  auto segment = ControlSegment::Create(1);
  ASSERT_TRUE(segment.ok());
  constexpr uint64_t kRounds = 2000;
  const core::Tick deadline = Now() + seconds(60);
  // Waits until slot's word is `value`.
  const auto await = [deadline](proto::LeaseSlot* slot, uint64_t value) {
    for (;;) {
      uint64_t now = slot->word.load();
      if (now == value) return true;
      slot->waiters.store(1);
      now = slot->word.load();
      if (now == value) return true;
      if (SleepOnLowHalf(&slot->word, now, deadline) == Sleep::kTimedOut) return false;
    }
  };
  const auto publish = [](proto::LeaseSlot* slot, uint64_t value) {
    slot->word.store(value);
    if (slot->waiters.exchange(0) != 0) WakeLowHalf(&slot->word);
  };
  Child client([&] {
    auto mine = ControlSegment::Map(UniqueFd(dup(segment->fd())));
    if (!mine.ok()) return 1;
    for (uint64_t round = 1; round <= kRounds; ++round) {
      publish(&(*mine)->slots[0], round);
      if (!await(&(*mine)->slots[1], round)) return 2;
    }
    return 0;
  });
  for (uint64_t round = 1; round <= kRounds; ++round) {
    ASSERT_TRUE(await(&(*segment)->slots[0], round));
    publish(&(*segment)->slots[1], round);
  }
  EXPECT_EQ(client.Wait(), 0);
}

TEST(DoorbellTest, RingsUntilDrained) {
  auto bell = Doorbell::Create();
  ASSERT_TRUE(bell.ok());
  EXPECT_FALSE(Rings(bell->fd(), 0));
  bell->Ring();
  bell->Ring();
  EXPECT_TRUE(Rings(bell->fd(), 0));
  bell->Drain();
  EXPECT_FALSE(Rings(bell->fd(), 0));
  bell->Drain();
}

TEST(DoorbellTest, IsHeardByEveryProcessThatHoldsTheDescriptor) {
  auto bell = Doorbell::Create();
  ASSERT_TRUE(bell.ok());
  Child client([&] {
    Doorbell theirs{UniqueFd(dup(bell->fd()))};
    theirs.Ring();
    return 0;
  });
  EXPECT_TRUE(Rings(bell->fd(), 60'000));
  EXPECT_EQ(client.Wait(), 0);
}

TEST(DoorbellTest, NeverBlocksThoughTheOtherHolderMadeItBlocking) {
  auto bell = Doorbell::Create();
  ASSERT_TRUE(bell.ok());
  ASSERT_EQ(fcntl(bell->fd(), F_SETFL, 0), 0);
  bell->Drain();  // would hang
  bell->Ring();
  bell->Drain();
  EXPECT_FALSE(Rings(bell->fd(), 0));
}

TEST(DoorbellTest, RingingAFullOneDoesNotBlock) {
  auto bell = Doorbell::Create();
  ASSERT_TRUE(bell.ok());
  const uint64_t most = ~uint64_t{0} - 1;
  ASSERT_EQ(write(bell->fd(), &most, sizeof(most)), static_cast<ssize_t>(sizeof(most)));
  bell->Ring();
  EXPECT_TRUE(Rings(bell->fd(), 0));
}

TEST(AsleepTest, NoBellRingsForAThreadThatIsAwake) {
  auto bell = Doorbell::Create();
  ASSERT_TRUE(bell.ok());
  std::atomic<uint32_t> asleep{0};
  WakeIfAsleep(&asleep, bell->fd());
  EXPECT_FALSE(Rings(bell->fd(), 0));
}

TEST(AsleepTest, OneRingWakesASleeper) {
  auto bell = Doorbell::Create();
  ASSERT_TRUE(bell.ok());
  std::atomic<uint32_t> asleep{0};
  ASSERT_TRUE(GoToSleep(&asleep, [] { return false; }));
  WakeIfAsleep(&asleep, bell->fd());
  EXPECT_TRUE(Rings(bell->fd(), 0));
  bell->Drain();
  WakeIfAsleep(&asleep, bell->fd());
  EXPECT_FALSE(Rings(bell->fd(), 0));
}

TEST(AsleepTest, StaysAwakeWhenWorkArrivedMeanwhile) {
  std::atomic<uint32_t> asleep{0};
  EXPECT_FALSE(GoToSleep(&asleep, [] { return true; }));
  EXPECT_EQ(asleep.load(), 0u);
}

// Takes `count` requests, asleep whenever there is none. False when a wake-up was lost.
bool TakeAsleep(RequestConsumer* consumer, std::atomic<uint32_t>* asleep, Doorbell* bell,
                uint64_t count) {
  for (uint64_t taken = 0; taken < count;) {
    proto::Request request;
    switch (consumer->Pop(&request)) {
      case Take::kCorrupt: return false;
      case Take::kEntry: ++taken; continue;
      case Take::kEmpty: break;
    }
    if (!GoToSleep(asleep, [&] { return consumer->HasWork(); })) continue;
    if (!Rings(bell->fd(), 60'000)) return false;
    StayAwake(asleep);
    bell->Drain();
  }
  return true;
}

bool PushAndWake(RequestProducer* producer, std::atomic<uint32_t>* asleep, int eventfd,
                 uint64_t count) {
  const core::Tick deadline = Now() + seconds(120);
  for (uint64_t pushed = 0; pushed < count;) {
    if (producer->Push(proto::Request{})) {
      ++pushed;
      WakeIfAsleep(asleep, eventfd);
    } else if (Now() > deadline) {
      return false;
    }
  }
  return true;
}

TEST(AsleepTest, NoWakeUpIsLostBetweenThreads) {
  auto segment = ControlSegment::Create(1);
  auto bell = Doorbell::Create();
  ASSERT_TRUE(segment.ok());
  ASSERT_TRUE(bell.ok());
  std::atomic<uint32_t>* asleep = &(*segment)->header.daemon_asleep;
  std::thread producer([&] {
    RequestProducer requests(&(*segment)->requests);
    EXPECT_TRUE(PushAndWake(&requests, asleep, bell->fd(), 20'000));
  });
  RequestConsumer consumer(&(*segment)->requests);
  EXPECT_TRUE(TakeAsleep(&consumer, asleep, &*bell, 20'000));
  producer.join();
}

TEST(AsleepTest, NoWakeUpIsLostBetweenProcesses) {
  auto segment = ControlSegment::Create(1);
  auto bell = Doorbell::Create();
  ASSERT_TRUE(segment.ok());
  ASSERT_TRUE(bell.ok());
  Child client([&] {
    auto mine = ControlSegment::Map(UniqueFd(dup(segment->fd())));
    if (!mine.ok()) return 1;
    RequestProducer requests(&(*mine)->requests);
    return PushAndWake(&requests, &(*mine)->header.daemon_asleep, bell->fd(), 20'000) ? 0 : 2;
  });
  RequestConsumer consumer(&(*segment)->requests);
  EXPECT_TRUE(TakeAsleep(&consumer, &(*segment)->header.daemon_asleep, &*bell, 20'000));
  EXPECT_EQ(client.Wait(), 0);
}

}  // namespace
}  // namespace ravenstore::ipc
