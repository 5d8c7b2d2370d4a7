// Blocks of pinned memory, from clients' calls to the daemon's books.
#include "daemon/pinned.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <string>
#include <vector>

#include "client/client.h"
#include "tests/client/test_stream.h"
#include "tests/daemon/daemon_process.h"
#include "tests/daemon/faulty_server.h"
#include "tests/daemon/stats_of.h"
#include "tests/ipc/child.h"
#include "tests/timing/timing.h"

namespace ravenstore::daemon {
namespace {

using std::chrono::milliseconds;

constexpr uint64_t kMiB = uint64_t{1} << 20;

Store Connect(const DaemonProcess& daemon, uint64_t host_budget = 0) {
  return Store::connect(
      {.socket = daemon.socket(), .name = "pinned_test", .host_budget = host_budget});
}

std::vector<std::string> Pool(const std::string& size) {
  return {"--pool-size", size};
}

bool Holds(const void* data, int value, uint64_t bytes) {
  const auto* begin = static_cast<const unsigned char*>(data);
  return std::all_of(begin, begin + bytes, [value](unsigned char byte) { return byte == value; });
}

proto::TierStats HostTierOf(const DaemonProcess& daemon) {
  const proto::Stats stats = StatsOf(daemon);
  return stats.tiers(stats.tiers_size() - 1);
}

uint64_t Locked(Store& store) {
  return store.stats().pinned_locked;
}

TEST(PinnedTest, ABlockIsMemoryOfItsSizeAndCountsInTheLedger) {
  DaemonProcess daemon(Pool("1GiB"));
  Store store = Connect(daemon);
  PinnedBlock block = store.pinned(3 * kMiB + 1);
  std::memset(block.data(), 7, block.size());
  EXPECT_TRUE(Holds(block.data(), 7, block.size()));
  EXPECT_EQ(reinterpret_cast<uintptr_t>(block.data()) % 4096, 0u);
  const Stats stats = store.stats();
  EXPECT_EQ(stats.pinned_bytes, 3 * kMiB + 4096);
  EXPECT_EQ(stats.pinned_locked, 4 * kMiB);
  EXPECT_EQ(stats.host_bytes, 3 * kMiB + 4096);
  const proto::TierStats host = HostTierOf(daemon);
  EXPECT_EQ(host.used(), 3 * kMiB + 4096);
  EXPECT_GE(host.held(), 4 * kMiB);
  store.free(std::move(block));
  EXPECT_TRUE(Eventually([&] { return store.stats().pinned_bytes == 0; }));
}

TEST(PinnedTest, WhatWasFreedIsWarmForTheNextBlockOfAnyOfTheUsersProcesses) {
  DaemonProcess daemon(Pool("1GiB"));
  Store first = Connect(daemon);
  Store second = Connect(daemon);
  first.free(first.pinned(64 * kMiB));
  const PinnedBlock block = second.pinned(64 * kMiB);
  EXPECT_EQ(Locked(second), 64 * kMiB);
  EXPECT_EQ(first.stats().pinned_bytes, 0u);
  EXPECT_EQ(second.stats().pinned_bytes, 64 * kMiB);
}

TEST(PinnedTest, LittleIsLockedThatWasNotAskedFor) {
  DaemonProcess daemon(Pool("1GiB"));
  Store store = Connect(daemon);
  std::vector<PinnedBlock> blocks;
  uint64_t asked = 0;
  for (uint64_t i = 0; asked < 700 * kMiB; ++i) {
    const uint64_t bytes = 4096 + (i * 7919 * 4099) % (33 * kMiB);
    blocks.push_back(store.pinned(bytes));
    asked += bytes;
  }
  EXPECT_LE(static_cast<double>(Locked(store)), 1.01 * static_cast<double>(asked));
}

// Two ranks: the first enqueues copies out of its block and frees it immediately. The second must
// not get that block before the copies are done.
TEST(PinnedTest, ABlockIsUsedAgainOnlyOnceEveryStreamOfItsProcessPassedTheFree) {
  DaemonProcess daemon(Pool("64MiB"));
  std::array<int, 2> proceed{};
  std::array<int, 2> refused{};
  ASSERT_EQ(pipe(proceed.data()), 0);
  ASSERT_EQ(pipe(refused.data()), 0);
  ipc::Child rank1([&] {
    Store store = Connect(daemon);
    char byte = 0;
    if (read(proceed[0], &byte, 1) != 1) return 1;
    // All the memory that one user may have: it is the other rank's.
    try {
      store.pinned(40 * kMiB, {.timeout = milliseconds(100)});
      return 2;
    } catch (const OutOfMemory& full) {
      if (std::string(full.what()).find("pinned memory is exhausted") == std::string::npos)
        return 3;
    }
    if (write(refused[1], "x", 1) != 1) return 4;
    const PinnedBlock block = store.pinned(40 * kMiB);
    std::memset(block.data(), 9, block.size());
    return 0;
  });
  Store store = Connect(daemon);
  TestStream gate;
  TestStream idle;
  std::vector<char> to(40 * kMiB);
  bool torn = true;
  {
    PinnedBlock block = store.pinned(40 * kMiB);
    std::memset(block.data(), 5, block.size());
    gate.Block();
    gate.Run([&, from = block.data()] {
      std::memcpy(to.data(), from, to.size());
      torn = !Holds(to.data(), 5, to.size());
    });
    idle.Synchronize();
  }
  ASSERT_EQ(write(proceed[1], "x", 1), 1);
  char byte = 0;
  ASSERT_EQ(read(refused[0], &byte, 1), 1);
  gate.Open();
  EXPECT_EQ(rank1.Wait(), 0);
  gate.Synchronize();
  EXPECT_FALSE(torn);
  for (const int end : {proceed[0], proceed[1], refused[0], refused[1]}) close(end);
}

TEST(PinnedTest, AFreeThatNamesItsStreamsWaitsForNoOthers) {
  DaemonProcess daemon(Pool("64MiB"));
  Store store = Connect(daemon);
  TestStream held;
  TestStream own;
  held.Block();
  PinnedBlock block = store.pinned(40 * kMiB);
  const Stream streams[] = {own};
  store.free(std::move(block), streams);
  EXPECT_NE(store.pinned(40 * kMiB).data(), nullptr);
  held.Open();
}

TEST(PinnedTest, ExhaustionSaysSoWithWhoHoldsItAndOnlyWhatIsComingIsWaitedFor) {
  DaemonProcess daemon(Pool("128MiB"));
  Store holder = Connect(daemon);
  Store store = Connect(daemon);
  const PinnedBlock block = holder.pinned(100 * kMiB);
  TimeLimit limit(std::chrono::seconds(20));
  try {
    store.pinned(50 * kMiB);
    ADD_FAILURE() << "a block beyond the pool";
  } catch (const OutOfMemory& full) {
    const std::string words = full.what();
    EXPECT_NE(words.find("pinned memory is exhausted: no room for 50.0 MiB"), std::string::npos)
        << words;
    EXPECT_NE(words.find("client 1 holds 100.0 MiB pinned"), std::string::npos) << words;
  }
  EXPECT_FALSE(limit.IsOver());
  EXPECT_THROW(store.pinned(uint64_t{1} << 60), OutOfMemory);
}

// The slab's memory is gone for good, and no caller waits for it.
TEST(PinnedTest, ASlabThatCannotBeUnpinnedIsNotWaitedFor) {
  FaultyServer server({.host = core::MiB(72), .fault = [](device::HostStep step) {
                         return step.kind == device::HostStep::Kind::kUnpin
                                    ? device::HostFault::kRefused
                                    : device::HostFault::kNone;
                       }});
  server.SetFaults(true);
  Store store = Store::connect({.socket = server.socket(), .timeout = std::chrono::seconds(60)});
  PinnedBlock before = store.pinned(20 * kMiB);
  const PinnedBlock between = store.pinned(20 * kMiB);
  store.free(store.pinned(20 * kMiB));
  store.free(std::move(before));
  TimeLimit limit(std::chrono::seconds(20));
  EXPECT_THROW(store.pinned(30 * kMiB), OutOfMemory);  // which evicts both idle slabs
  EXPECT_FALSE(limit.IsOver());
  EXPECT_NE(store.pinned(kMiB).data(), nullptr);
}

TEST(PinnedTest, ItStaysWithinTheClientsHostBudget) {
  DaemonProcess daemon(Pool("1GiB"));
  Store store = Connect(daemon, 10 * kMiB);
  const PinnedBlock block = store.pinned(8 * kMiB);
  EXPECT_THROW(store.pinned(4 * kMiB), OutOfMemory);
  EXPECT_NE(store.pinned(2 * kMiB).data(), nullptr);
}

TEST(PinnedTest, TheDeathOfAProcessFreesItsBlocks) {
  DaemonProcess daemon(Pool("64MiB"));
  std::array<int, 2> has{};
  ASSERT_EQ(pipe(has.data()), 0);
  ipc::Child rank([&] {
    Store store = Connect(daemon);
    const PinnedBlock block = store.pinned(40 * kMiB);
    if (write(has[1], "x", 1) != 1) return 1;
    pause();
    return 0;
  });
  char byte = 0;
  ASSERT_EQ(read(has[0], &byte, 1), 1);
  Store store = Connect(daemon);
  EXPECT_THROW(store.pinned(40 * kMiB), OutOfMemory);
  kill(rank.pid(), SIGKILL);
  rank.Wait();
  EXPECT_TRUE(Eventually([&] {
    try {
      return store.pinned(40 * kMiB).data() != nullptr;
    } catch (const OutOfMemory&) {
      return false;
    }
  }));
  for (const int end : has) close(end);
}

TEST(PinnedTest, SlabsGoBackWhenTheLastProcessOfTheUserEnds) {
  DaemonProcess daemon(Pool("1GiB"));
  {
    Store store = Connect(daemon);
    store.pinned(32 * kMiB);
    EXPECT_EQ(StatsOf(daemon).pinned_locked(), 32 * kMiB);
  }
  EXPECT_TRUE(Eventually([&] { return StatsOf(daemon).pinned_locked() == 0; }));
}

TEST(PinnedTest, TrimGivesIdleSlabsBackWhileTheClientStays) {
  DaemonProcess daemon(Pool("1GiB"));
  Store store = Connect(daemon);
  const PinnedBlock kept = store.pinned(2 * kMiB);
  std::memset(kept.data(), 3, kept.size());
  store.free(store.pinned(32 * kMiB));
  ASSERT_TRUE(Eventually([&] { return store.stats().pinned_bytes == 2 * kMiB; }));
  EXPECT_EQ(Locked(store), 34 * kMiB);
  store.trim();
  EXPECT_TRUE(Eventually([&] { return Locked(store) == 2 * kMiB; }));
  EXPECT_TRUE(Holds(kept.data(), 3, kept.size()));
  EXPECT_NE(store.pinned(32 * kMiB).data(), nullptr);
}

TEST(PinnedTest, ABlockOutlivesItsDaemonAndItsFreeDoesNotFail) {
  DaemonProcess daemon(Pool("1GiB"));
  Store store = Connect(daemon);
  PinnedBlock block = store.pinned(4 * kMiB);
  std::memset(block.data(), 1, block.size());
  daemon.Kill(SIGKILL);
  EXPECT_TRUE(Holds(block.data(), 1, block.size()));
  EXPECT_TRUE(Eventually([&] {
    try {
      store.pinned(4096, {.timeout = milliseconds(50)});
      return false;
    } catch (const Lost&) {
      return true;
    } catch (const Error&) {
      return false;
    }
  }));
  EXPECT_NO_THROW(store.free(std::move(block)));
}

TEST(PinnedTest, WhatIsNoBlockIsRefused) {
  DaemonProcess daemon(Pool("1GiB"));
  Store store = Connect(daemon);
  int local = 0;
  EXPECT_EQ(ravenstore_pinned_free(store.handle(), &local, nullptr, 0),
            RAVENSTORE_INVALID_ARGUMENT);
  EXPECT_EQ(ravenstore_pinned_free(store.handle(), nullptr, nullptr, 0), RAVENSTORE_OK);
  EXPECT_THROW(store.pinned(0), Error);
  EXPECT_THROW(store.pinned(4096, {.device = 9}), Error);
}

TEST(PinnedTest, TensorsHaveTheRoomThatIdleSlabsHeld) {
  DaemonProcess daemon({"--pool-size", "128MiB", "--device-total", "64MiB"});
  Store store = Connect(daemon);
  store.free(store.pinned(100 * kMiB));
  std::vector<Tensor> tensors;
  for (int i = 0; i < 8; ++i) {
    tensors.push_back(store.create(16 * kMiB));
    std::memset(tensors.back().data(), i, 16 * kMiB);
    store.put(tensors.back(), nullptr);
  }
  for (int i = 0; i < 8; ++i) {
    void* data = store.get(tensors[static_cast<size_t>(i)], nullptr, {.blocking = true});
    EXPECT_TRUE(Holds(data, i, 16 * kMiB));
    store.put(tensors[static_cast<size_t>(i)], nullptr);
  }
}

}  // namespace
}  // namespace ravenstore::daemon
