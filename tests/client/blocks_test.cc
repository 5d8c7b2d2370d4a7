#include "client/blocks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "tests/client/test_stream.h"
#include "tests/daemon/daemon_process.h"
#include "tests/timing/timing.h"

namespace ravenstore {
namespace {

using daemon::DaemonProcess;
using std::chrono::milliseconds;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

// Remembers what was ordered; host streams in these tests have no work of their own.
class Orders : public StreamOrder {
 public:
  void Order(Stream earlier, Stream later, int) noexcept override {
    said_.emplace_back(earlier, later);
  }
  std::vector<std::pair<Stream, Stream>> Take() { return std::exchange(said_, {}); }

 private:
  std::vector<std::pair<Stream, Stream>> said_;
};

class BlocksTest : public testing::Test {
 protected:
  static constexpr uint64_t kBudget = MiB(64);

  explicit BlocksTest(std::vector<std::string> flags = {}, uint64_t budget = kBudget)
      : daemon_(std::move(flags)),
        store_(std::make_shared<Store>(Store::connect({.socket = daemon_.socket(),
                                                       .name = "blocks_test",
                                                       .device_budget = budget,
                                                       .timeout = std::chrono::seconds(5)}))),
        blocks_(std::make_unique<BlockAllocator>(store_, &orders_, budget)) {}

  Block* Allocate(uint64_t bytes, Stream stream = nullptr) {
    return blocks_->Allocate(bytes, 0, stream);
  }
  // As a training step does: `count` blocks of 4 MiB, of which the last is read first.
  void ParkAndRead(int count) {
    std::vector<Block*> saved;
    for (int i = 0; i < count; ++i) {
      saved.push_back(Allocate(MiB(4)));
      blocks_->Save(saved.back(), {.order = -i});
      blocks_->Release(saved.back());
    }
    for (auto at = saved.rbegin(); at != saved.rend(); ++at) {
      blocks_->Open(*at, nullptr);
      blocks_->Close(*at, nullptr, {});
      blocks_->Unsave(*at);
    }
  }
  static void Fill(void* at, uint64_t bytes, int value) { std::memset(at, value, bytes); }
  static bool Holds(const void* at, uint64_t bytes, int value) {
    const auto* begin = static_cast<const unsigned char*>(at);
    return std::all_of(begin, begin + bytes, [&](unsigned char byte) { return byte == value; });
  }
  BlocksStats stats() const { return blocks_->stats(0); }

  static std::pair<Stream, Stream> Pair(Stream a, Stream b) { return {a, b}; }

  DaemonProcess daemon_;
  Orders orders_;
  TestStream side_;  // outlives the blocks that are freed in its order
  std::shared_ptr<Store> store_;
  std::unique_ptr<BlockAllocator> blocks_;
};

TEST_F(BlocksTest, WhatIsReleasedServesTheNextOfItsSizeAndStreamWithoutTheDaemon) {
  Block* block = Allocate(MiB(3));
  void* address = block->address();
  blocks_->Release(block);
  EXPECT_EQ(stats().idle, MiB(3));
  block = Allocate(MiB(3));
  EXPECT_EQ(block->address(), address);
  EXPECT_EQ(stats().created, 1u);
  EXPECT_EQ(stats().allocations, 2u);
  blocks_->Release(block);
}

// A budget in which everything fits; no test touches the bytes.
class RoomyBlocksTest : public BlocksTest {
 protected:
  static constexpr uint64_t kRoomyBudget = MiB(2048);

  RoomyBlocksTest() : BlocksTest({"--device-total", "4GiB"}, kRoomyBudget) {}

  void AllocateAndRelease(int count, uint64_t bytes) {
    std::vector<Block*> held;
    for (int i = 0; i < count; ++i) held.push_back(Allocate(bytes));
    for (Block* block : held) blocks_->Release(block);
  }
};

TEST_F(RoomyBlocksTest, WhatIsHeldIsLittleMoreThanWasEverNeededThoughEachSizeHasItsOwnPeak) {
  for (int phase = 0; phase < 4; ++phase) AllocateAndRelease(20, MiB(32 + phase));
  const uint64_t needed = 20 * MiB(35);
  EXPECT_EQ(stats().used_peak, needed);
  EXPECT_LE(stats().held_peak, needed / 16 * 17);
}

TEST_F(RoomyBlocksTest, WhatMayBeIdleGoesByTheMostThatWasEverNeededNotBySomebodysPeak) {
  AllocateAndRelease(20, MiB(32));
  blocks_->ResetPeaks(0);
  AllocateAndRelease(1, MiB(40));
  EXPECT_EQ(stats().idle, 20 * MiB(32) + MiB(40));
}

TEST_F(RoomyBlocksTest, OfIdleBlocksThatAreTooManyTheLargestGoBack) {
  Block* large = Allocate(MiB(160));
  AllocateAndRelease(20, MiB(8));
  blocks_->Release(large);
  Block* new_size = Allocate(MiB(60));
  EXPECT_EQ(blocks_->TakeIdle(MiB(160), 0, nullptr), nullptr);
  EXPECT_EQ(stats().idle, 20 * MiB(8));
  blocks_->Release(new_size);
}

TEST_F(BlocksTest, AnotherStreamDoesNotGetIt) {
  Block* block = Allocate(MiB(3));
  blocks_->Release(block);
  EXPECT_EQ(blocks_->TakeIdle(MiB(3), 0, side_), nullptr);
  Block* another = blocks_->Allocate(MiB(3), 0, side_);
  EXPECT_NE(another->address(), block->address());
  blocks_->Release(another);
}

TEST_F(BlocksTest, SizesThatDifferByLittleShareAMagazineAndAtMostA32ndIsRoundedUp) {
  std::mt19937_64 random(1);
  for (int i = 0; i < 200; ++i) {
    const uint64_t bytes = 1 + random() % MiB(1);
    Block* block = Allocate(bytes);
    EXPECT_GE(block->bytes(), bytes);
    EXPECT_LE(block->bytes(), bytes + std::max<uint64_t>(511, bytes / 32)) << bytes;
    EXPECT_EQ(reinterpret_cast<uintptr_t>(block->address()) % 512, 0u);
    blocks_->Release(block);
  }
  EXPECT_LT(stats().created, 180u);
}

TEST_F(BlocksTest, ASavedBlockIsParkedAtItsReleaseAndComesBack) {
  Block* block = Allocate(MiB(4));
  Fill(block->address(), MiB(4), 7);
  blocks_->Save(block, {.order = 1});
  blocks_->Release(block);
  EXPECT_EQ(stats().parked, MiB(4));
  EXPECT_EQ(stats().used, 0u);
  void* address = blocks_->Open(block, nullptr);
  EXPECT_TRUE(Holds(address, MiB(4), 7));
  EXPECT_EQ(stats().used, MiB(4));
  blocks_->Close(block, nullptr, {.not_modified = true});
  EXPECT_EQ(stats().parked, MiB(4));
  blocks_->Unsave(block);
  EXPECT_EQ(stats().parked, 0u);
  EXPECT_EQ(stats().idle, MiB(4)) << "its memory serves the next one";
}

TEST_F(BlocksTest, WhatIsParkedLeavesWhereTheBudgetIsNeededAndEveryByteReturns) {
  std::vector<Block*> saved;
  for (int i = 0; i < 40; ++i) {  // 160 MiB in a budget of 64
    Block* block = Allocate(MiB(4));
    Fill(block->address(), MiB(4), i);
    blocks_->Save(block, {.order = -i});
    blocks_->Release(block);
    saved.push_back(block);
  }
  EXPECT_EQ(stats().parked, 40 * MiB(4));
  EXPECT_GT(store_->stats().bytes_out, 80 * MiB(1));
  for (int i = 39; i >= 0; --i) {
    const void* address = blocks_->Open(saved[i], nullptr);
    EXPECT_TRUE(Holds(address, MiB(4), i)) << i;
    blocks_->Close(saved[i], nullptr, {.not_modified = true});
    blocks_->Unsave(saved[i]);
  }
  EXPECT_EQ(stats().parked, 0u);
  EXPECT_LE(stats().held_peak, kBudget);
}

TEST_F(BlocksTest, NothingMovesWhereEverythingFits) {
  for (int step = 0; step < 5; ++step) ParkAndRead(12);
  EXPECT_EQ(stats().created, 12u);
  EXPECT_EQ(store_->stats().misses, 0u);
}

TEST_F(BlocksTest, ABlockThatIsSavedAndStillUsedIsOneMemory) {
  Block* block = Allocate(MiB(2));
  blocks_->Save(block, {});
  void* opened = blocks_->Open(block, nullptr);
  EXPECT_EQ(opened, block->address());
  blocks_->Close(block, nullptr, {.not_modified = true});
  EXPECT_EQ(stats().parked, 0u);
  blocks_->Unsave(block);
  EXPECT_EQ(stats().used, MiB(2));
  blocks_->Release(block);
  EXPECT_EQ(stats().idle, MiB(2));
}

TEST_F(BlocksTest, WhatIsOpenOutlivesTheSaveAndTheRelease) {
  Block* block = Allocate(MiB(2));
  Fill(block->address(), MiB(2), 9);
  blocks_->Save(block, {});
  blocks_->Release(block);
  void* first = blocks_->Open(block, nullptr);
  void* second = blocks_->Open(block, nullptr);
  EXPECT_EQ(first, second);
  blocks_->Close(block, nullptr, {});
  blocks_->Unsave(block);
  EXPECT_TRUE(Holds(second, MiB(2), 9));
  EXPECT_EQ(stats().used, MiB(2));
  blocks_->Close(block, nullptr, {});
  EXPECT_EQ(stats().used, 0u);
  EXPECT_EQ(stats().idle, MiB(2));
}

TEST_F(BlocksTest, TheBlocksStreamWaitsForRecordedOnesBeforeItIsUsedAgain) {
  Block* block = Allocate(MiB(2));
  blocks_->Record(block, nullptr);  // its own: nothing to wait for
  blocks_->Record(block, side_);
  blocks_->Record(block, side_);
  EXPECT_THAT(orders_.Take(), IsEmpty());
  blocks_->Release(block);
  EXPECT_THAT(orders_.Take(), ElementsAre(Pair(side_, nullptr)));
  block = Allocate(MiB(2));
  blocks_->Release(block);
  EXPECT_THAT(orders_.Take(), IsEmpty()) << "of an earlier life";
}

TEST_F(BlocksTest, OpeningAUsedBlockOnAnotherStreamOrdersBothWays) {
  Block* block = Allocate(MiB(2));
  blocks_->Save(block, {});
  blocks_->Open(block, side_);
  EXPECT_THAT(orders_.Take(), ElementsAre(Pair(nullptr, side_)));
  blocks_->Close(block, side_, {});
  blocks_->Unsave(block);
  blocks_->Release(block);
  EXPECT_THAT(orders_.Take(), ElementsAre(Pair(side_, nullptr)));
}

TEST_F(BlocksTest, AParkedBlockBelongsToTheStreamThatOpensIt) {
  Block* block = Allocate(MiB(2));
  blocks_->Save(block, {});
  blocks_->Release(block);
  blocks_->Open(block, side_);
  EXPECT_EQ(block->stream(), static_cast<Stream>(side_));
  blocks_->Unsave(block);
  blocks_->Close(block, side_, {});
  EXPECT_EQ(blocks_->TakeIdle(MiB(2), 0, side_), block);
  blocks_->Release(block);
}

TEST_F(BlocksTest, IdleBlocksGiveWayToAnotherSize) {
  std::vector<Block*> small;
  for (int i = 0; i < 30; ++i) small.push_back(Allocate(MiB(2)));
  for (Block* block : small) blocks_->Release(block);
  EXPECT_EQ(stats().idle, MiB(60));
  Block* large = Allocate(MiB(40));
  EXPECT_LE(stats().idle + stats().used, kBudget);
  blocks_->Release(large);
}

TEST_F(BlocksTest, IdleBlocksGiveWayToOneThatComesBackThoughItsRoomLiesBetweenThem) {
  Block* away = Allocate(MiB(8));
  Fill(away->address(), MiB(8), 7);
  blocks_->Save(away, {});
  blocks_->Release(away);
  std::vector<Block*> halves;  // of slabs
  for (uint64_t i = 0; i < kBudget / MiB(1); ++i) halves.push_back(Allocate(MiB(1)));
  std::sort(halves.begin(), halves.end(),
            [](const Block* a, const Block* b) { return a->address() < b->address(); });
  // Of eight that lie together every other one comes free, and the rest is idle.
  for (size_t first : {16, 17})
    for (size_t i = first; i < 24; i += 2) blocks_->Release(halves[i]);
  ASSERT_EQ(stats().idle, store_->stats().page_bytes != 0 ? 0 : kBudget / 16);
  const void* address = blocks_->Open(away, nullptr);
  EXPECT_TRUE(Holds(address, MiB(8), 7));
  EXPECT_EQ(stats().idle, 0u);
  blocks_->Close(away, nullptr, {});
  blocks_->Unsave(away);
  halves.erase(halves.begin() + 16, halves.begin() + 24);
  for (Block* half : halves) blocks_->Release(half);
}

TEST_F(BlocksTest, WhereMoreWasNeededThanFitsLittleStaysIdleThoughThereIsRoom) {
  ParkAndRead(20);  // 80 MiB in a budget of 64
  EXPECT_EQ(stats().used + stats().parked, 0u);
  EXPECT_LE(stats().idle, store_->stats().page_bytes != 0 ? 0 : kBudget / 16);
}

TEST_F(BlocksTest, WithoutRoomTheErrorNamesWhatIsHeldAndByHowMuchTheBudgetIsTooSmall) {
  Block* block = Allocate(MiB(48));
  try {
    Allocate(MiB(32));
    FAIL() << "there is no room";
  } catch (const OutOfMemory& error) {
    EXPECT_THAT(error.what(), HasSubstr("this process uses 48.0 MiB in 1 blocks"));
    EXPECT_THAT(error.what(),
                HasSubstr("device_budget is too small for this by at least 16.0 MiB, and "
                          "later allocations may need more"));
  }
  EXPECT_EQ(stats().failures, 1u);
  blocks_->Release(block);
  blocks_->Release(Allocate(MiB(32)));
}

TEST_F(BlocksTest, WhereOthersHoldTheDeviceTheErrorNamesThemAndAsksForNoBudget) {
  Store other = Store::connect({.socket = daemon_.socket(), .name = "other"});
  const Tensor held = other.create(MiB(2000));  // of 2 GiB
  const auto store = std::make_shared<Store>(Store::connect(
      {.socket = daemon_.socket(), .device_budget = kBudget, .timeout = milliseconds(50)}));
  BlockAllocator blocks(store, &orders_, kBudget);
  try {
    blocks.Allocate(MiB(60), 0, nullptr);
    FAIL() << "there is no room";
  } catch (const OutOfMemory& error) {
    EXPECT_THAT(error.what(), HasSubstr("Its budget has room for that"));
    EXPECT_THAT(error.what(), Not(HasSubstr("device_budget is too small")));
    EXPECT_THAT(error.what(), HasSubstr("client 2 holds 2.0 GiB"));
  }
}

TEST_F(BlocksTest, ItsBudgetIsWhatTheDaemonGrants) {
  const BlockAllocator more(store_, &orders_, 2 * kBudget);
  EXPECT_EQ(more.device_budget(), kBudget);
  const BlockAllocator less(store_, &orders_, kBudget / 2);
  EXPECT_EQ(less.device_budget(), kBudget / 2);
}

TEST_F(BlocksTest, EmptiedMagazinesGiveTheMemoryBack) {
  blocks_->Release(Allocate(MiB(32)));
  EXPECT_EQ(store_->stats().tensors, 1u);
  blocks_->EmptyMagazines();
  EXPECT_EQ(stats().idle, 0u);
  EXPECT_TRUE(Eventually([&] { return store_->stats().tensors == 0; }));
}

TEST_F(BlocksTest, AChildOfForkTouchesNothing) {
  Block* block = Allocate(MiB(2));
  blocks_->Save(block, {});
  const pid_t child = ::fork();
  if (child == 0) {
    blocks_->Release(block);
    blocks_->Unsave(block);
    int code = 0;
    try {
      blocks_->Allocate(MiB(2), 0, nullptr);
    } catch (const Error& error) {
      code = error.code();
    }
    ::_exit(code == RAVENSTORE_IS_FORKED ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(stats().used, MiB(2));
  blocks_->Unsave(block);
  blocks_->Release(block);
}

TEST_F(BlocksTest, ALostStoreSaysSoAndReleasesDoNotThrow) {
  Block* used = Allocate(MiB(2));
  Block* parked = Allocate(MiB(2));
  blocks_->Save(parked, {});
  blocks_->Release(parked);
  daemon_.Kill(SIGKILL);
  ASSERT_TRUE(Eventually([&] {
    try {
      blocks_->Close(parked, nullptr, (blocks_->Open(parked, nullptr), PutOptions{}));
      return false;
    } catch (const Lost&) {
      return true;
    }
  }));
  EXPECT_THROW(Allocate(MiB(5)), Lost);
  blocks_->Release(used);
  blocks_->Unsave(parked);
}

// cuDNN asks for the room of one algorithm after the other.
TEST_F(BlocksTest, WhatOnlyTheProgramCouldMendFailsImmediately) {
  std::vector<Block*> blocks;
  for (int i = 0; i < 64; ++i) blocks.push_back(Allocate(MiB(1)));
  // Half of each slab.
  for (int i = 0; i < 64; i += 2) blocks_->Release(std::exchange(blocks[i], nullptr));
  TimeLimit limit(std::chrono::seconds(20));
  for (int i = 0; i < 20; ++i) EXPECT_THROW(Allocate(MiB(24)), OutOfMemory);
  EXPECT_FALSE(limit.IsOver());
  EXPECT_EQ(stats().failures, 20u);
  for (Block* block : blocks) {
    if (block != nullptr) blocks_->Release(block);
  }
  blocks_->Release(Allocate(MiB(24)));
}

TEST_F(BlocksTest, OfSeveralThreadsThatSaveOneWaitsForWhatAnotherFrees) {
  std::thread([&] {
    Block* block = Allocate(MiB(1));
    blocks_->Save(block, {});
    blocks_->Release(block);
    blocks_->Unsave(block);
  }).join();
  std::vector<Block*> blocks;
  for (int i = 0; i < 64; ++i) blocks.push_back(Allocate(MiB(1)));
  blocks_->Save(blocks[0], {});
  blocks_->Unsave(blocks[0]);
  for (int i = 0; i < 64; i += 2) blocks_->Release(std::exchange(blocks[i], nullptr));
  // Long after the daemon would have called it stuck.
  const auto until = std::chrono::steady_clock::now() + std::chrono::milliseconds(50);
  std::thread other([&] {
    while (std::chrono::steady_clock::now() < until) std::this_thread::yield();
    for (int i = 1; i < 64; i += 2) blocks_->Release(blocks[i]);
    blocks_->EmptyMagazines();
  });
  EXPECT_NO_THROW(blocks_->Release(Allocate(MiB(24))));
  other.join();
}

TEST_F(BlocksTest, WhatAStreamHasStillToFreeIsWaitedFor) {
  TestStream stream;
  Block* block = Allocate(MiB(48), stream);
  stream.Block();
  blocks_->Release(block);
  std::atomic<bool> asking{false};
  std::thread opens([&] {
    while (!asking.load()) std::this_thread::yield();
    stream.Open();
  });
  asking.store(true);
  blocks_->Release(Allocate(MiB(56)));
  opens.join();
}

// Every thread parks blocks of its own and reads some of others', under a budget that moves them.
TEST_F(BlocksTest, ManyThreadsParkAndReadAndNoByteIsWrong) {
  constexpr int kThreads = 4;
  std::vector<std::thread> threads;
  std::atomic<int> wrong{0};
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      std::mt19937 random(t);
      std::vector<std::tuple<Block*, uint64_t, int>> mine;
      for (int i = 0; i < 150; ++i) {
        const uint64_t bytes = KiB(256) * (1 + random() % 8);
        Block* block = Allocate(bytes);
        Fill(block->address(), bytes, t * 50 + i);
        blocks_->Save(block, {.order = -i});
        blocks_->Release(block);
        mine.emplace_back(block, bytes, (t * 50 + i) % 256);
        if (mine.size() < 24) continue;
        std::swap(mine[random() % mine.size()], mine.back());
        const auto [old, size, value] = mine.back();
        mine.pop_back();
        if (!Holds(blocks_->Open(old, nullptr), size, value)) ++wrong;
        const bool unsave_first = random() % 2 == 0;
        if (unsave_first) blocks_->Unsave(old);
        blocks_->Close(old, nullptr, {.not_modified = true});
        if (!unsave_first) blocks_->Unsave(old);
      }
      for (const auto& [block, bytes, value] : mine) blocks_->Unsave(block);
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_EQ(stats().used, 0u);
  EXPECT_EQ(stats().parked, 0u);
}

}  // namespace
}  // namespace ravenstore
