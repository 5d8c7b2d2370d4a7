#include "daemon/prepared_memory.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "cluster/lent_memory.h"
#include "core/types.h"

namespace ravenstore::daemon {
namespace {

using core::KiB;

// Memory of which a test sees who has how much, and on which thread it was made.
struct Seen {
  std::mutex mutex;
  std::condition_variable changed;
  // All guarded by mutex.
  size_t made = 0;
  size_t held = 0;
  size_t most = 100;  // is there
  std::set<std::thread::id> threads;

  // Whether that holds, or comes to hold.
  template <typename Condition>
  bool Eventually(Condition condition) {
    std::unique_lock lock(mutex);
    return changed.wait_for(lock, std::chrono::seconds(20), [&] { return condition(*this); });
  }
};

class CountedMemory final : public cluster::LentMemory {
 public:
  explicit CountedMemory(std::shared_ptr<Seen> seen) : seen_(std::move(seen)) {}

  core::Result<std::span<std::byte>> Make(core::Bytes bytes) override {
    std::lock_guard lock(seen_->mutex);
    seen_->threads.insert(std::this_thread::get_id());
    if (seen_->held == seen_->most) {
      return core::Error{core::ErrorCode::kOutOfMemory, "no memory to lend"};
    }
    ++seen_->made;
    ++seen_->held;
    seen_->changed.notify_all();
    return memory_.Make(bytes);
  }
  void Release(std::span<std::byte> memory) override {
    memory_.Release(memory);
    std::lock_guard lock(seen_->mutex);
    seen_->threads.insert(std::this_thread::get_id());
    --seen_->held;
    seen_->changed.notify_all();
  }

 private:
  const std::shared_ptr<Seen> seen_;
  cluster::AnonymousMemory memory_;
};

class PreparedMemoryTest : public testing::Test {
 protected:
  PreparedMemoryTest() { memory_->Start(ending_); }

  const std::atomic<bool> ending_{true};
  const std::shared_ptr<Seen> seen_ = std::make_shared<Seen>();
  std::unique_ptr<PreparedMemory> memory_ =
      std::make_unique<PreparedMemory>(std::make_unique<CountedMemory>(seen_));
};

TEST_F(PreparedMemoryTest, TheNextIsMadeAheadAndZero) {
  std::vector<std::span<std::byte>> slots;
  for (size_t i = 1; i <= 3; ++i) {
    const auto made = memory_->Make(KiB(64));
    ASSERT_TRUE(made.ok());
    EXPECT_EQ(made->size(), KiB(64).count());
    EXPECT_TRUE(std::ranges::all_of(*made, [](std::byte byte) { return byte == std::byte{}; }));
    std::ranges::fill(*made, std::byte{7});
    slots.push_back(*made);
    EXPECT_TRUE(seen_->Eventually([&](const Seen& seen) { return seen.made == i + 1; }));
  }
  for (const auto& slot : slots) memory_->Release(slot);
  EXPECT_TRUE(seen_->Eventually([](const Seen& seen) { return seen.held == 0; }))
      << "what was made ahead, too";
  std::lock_guard lock(seen_->mutex);
  EXPECT_EQ(seen_->threads.size(), 1u);
  EXPECT_FALSE(seen_->threads.contains(std::this_thread::get_id()));
}

TEST_F(PreparedMemoryTest, ASizeThatIsAnotherIsMade) {
  const auto small = memory_->Make(KiB(4));
  const auto large = memory_->Make(KiB(64));
  ASSERT_TRUE(small.ok() && large.ok());
  EXPECT_EQ(small->size(), KiB(4).count());
  EXPECT_EQ(large->size(), KiB(64).count());
  memory_->Release(*small);
  memory_->Release(*large);
}

TEST_F(PreparedMemoryTest, WhatFailedAheadOfNeedIsTriedAgain) {
  {
    std::lock_guard lock(seen_->mutex);
    seen_->most = 1;
  }
  const auto first = memory_->Make(KiB(64));
  ASSERT_TRUE(first.ok());
  const auto second = memory_->Make(KiB(64));
  ASSERT_FALSE(second.ok());
  EXPECT_EQ(second.error().code, core::ErrorCode::kOutOfMemory);
  {
    std::lock_guard lock(seen_->mutex);
    seen_->most = 2;
  }
  const auto third = memory_->Make(KiB(64));
  ASSERT_TRUE(third.ok());
  memory_->Release(*first);
  memory_->Release(*third);
}

TEST_F(PreparedMemoryTest, TheEndReleasesAll) {
  const auto made = memory_->Make(KiB(64));
  ASSERT_TRUE(made.ok());
  memory_->Release(*made);
  ASSERT_TRUE(memory_->Make(KiB(64)).ok());  // and is not given back
  memory_.reset();
  std::lock_guard lock(seen_->mutex);
  EXPECT_EQ(seen_->held, 1u) << "nothing that was made ahead";
}

}  // namespace
}  // namespace ravenstore::daemon
