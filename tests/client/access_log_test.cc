#include "client/access_log.h"

#include <gtest/gtest.h>

#include <set>
#include <thread>
#include <vector>

#include "ipc/ring.h"
#include "ipc/segment.h"

namespace ravenstore::client {
namespace {

class AccessLogTest : public testing::Test {
 protected:
  AccessLogTest() : segment_(*ipc::ControlSegment::Create(1)), log_(segment_.get()) {}

  // Entries of every lane the daemon would look at.
  std::vector<proto::Access> ReadAll() {
    std::vector<proto::Access> entries;
    for (uint32_t lane = 0; lane < segment_->header.log_lanes.load(); ++lane) {
      ipc::LogConsumer consumer(&segment_->log[lane]);
      proto::Access access;
      while (consumer.Pop(&access) == ipc::Take::kEntry) entries.push_back(access);
    }
    return entries;
  }

  ipc::ControlSegment segment_;
  AccessLog log_;
};

TEST_F(AccessLogTest, UnusedLanesAreNotAnnounced) {
  EXPECT_EQ(segment_->header.log_lanes.load(), 0u);
  log_.Append(5, proto::AccessOp::kPut);
  EXPECT_EQ(segment_->header.log_lanes.load(), ThreadIndex() % proto::kLogLanes + 1);
  const auto entries = ReadAll();
  ASSERT_EQ(entries.size(), 1u);
  EXPECT_EQ(entries[0].slot, 5u);
  EXPECT_EQ(entries[0].op, proto::AccessOp::kPut);
}

TEST_F(AccessLogTest, LivingThreadsHaveIndexesOfTheirOwn) {
  constexpr int kThreads = 6;
  std::atomic<int> waiting{0};
  std::vector<uint32_t> indexes(kThreads);
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&, i] {
      indexes[i] = ThreadIndex();
      waiting.fetch_add(1);
      while (waiting.load() < kThreads) std::this_thread::yield();
      EXPECT_EQ(ThreadIndex(), indexes[i]);
    });
  }
  for (auto& thread : threads) thread.join();
  const std::set<uint32_t> different(indexes.begin(), indexes.end());
  EXPECT_EQ(different.size(), static_cast<size_t>(kThreads));
  EXPECT_LE(*different.rbegin(), static_cast<uint32_t>(kThreads)) << "the lowest free ones";
}

TEST_F(AccessLogTest, IndexOfADeadThreadIsUsedAgain) {
  std::set<uint32_t> indexes;
  for (int i = 0; i < 100; ++i) {
    std::thread([&] { indexes.insert(ThreadIndex()); }).join();
  }
  EXPECT_EQ(indexes.size(), 1u);
}

TEST_F(AccessLogTest, ManyThreadsShareLanesWithoutLosingEntries) {
  constexpr uint32_t kThreads = 2 * proto::kLogLanes;
  constexpr uint32_t kEach = 100;  // a few threads to a lane do not fill it
  std::atomic<uint32_t> waiting{0};
  std::vector<std::thread> threads;
  for (uint32_t i = 0; i < kThreads; ++i) {
    threads.emplace_back([&, i] {
      static_cast<void>(ThreadIndex());
      waiting.fetch_add(1);
      while (waiting.load() < kThreads) std::this_thread::yield();
      for (uint32_t n = 0; n < kEach; ++n) log_.Append(i, proto::AccessOp::kGet);
    });
  }
  for (auto& thread : threads) thread.join();
  std::vector<uint32_t> seen(kThreads);
  for (const proto::Access& access : ReadAll()) ++seen[access.slot];
  for (uint32_t i = 0; i < kThreads; ++i) EXPECT_EQ(seen[i], kEach) << i;
}

TEST_F(AccessLogTest, FullLaneDropsAndCounts) {
  for (uint32_t i = 0; i < proto::kLogLaneEntries + 10; ++i) {
    log_.Append(i, proto::AccessOp::kGet);
  }
  EXPECT_EQ(ReadAll().size(), proto::kLogLaneEntries);
  EXPECT_EQ(segment_->log[ThreadIndex() % proto::kLogLanes].dropped.load(), 10u);
}

}  // namespace
}  // namespace ravenstore::client
