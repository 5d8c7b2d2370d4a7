#include "device/host_stream.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <iterator>
#include <thread>
#include <vector>

#include "tests/device/testing.h"

namespace ravenstore::device {
namespace {

TEST(HostStreamTest, WorkIsDoneInOrderOnAnotherThread) {
  std::vector<int> done;
  std::thread::id worker;
  HostStream stream;
  for (int i = 0; i < 1000; ++i) stream.Run([&, i] { done.push_back(i); });
  stream.Run([&] { worker = std::this_thread::get_id(); });
  stream.Synchronize();
  ASSERT_EQ(done.size(), 1000u);
  for (int i = 0; i < 1000; ++i) EXPECT_EQ(done[static_cast<size_t>(i)], i);
  EXPECT_NE(worker, std::this_thread::get_id());
}

TEST(HostStreamTest, ItsThreadIsThereFromTheBeginning) {
  const auto threads = [] {
    return std::distance(std::filesystem::directory_iterator("/proc/self/task"), {});
  };
  const auto without = threads();
  HostStream stream;
  EXPECT_EQ(threads(), without + 1);
  stream.Run([] {});
  stream.Synchronize();
  EXPECT_EQ(threads(), without + 1);
}

TEST(HostStreamTest, TheEndOfItWaitsForTheQueue) {
  int done = 0;
  {
    HostStream stream;
    for (int i = 0; i < 100; ++i) stream.Run([&] { ++done; });
  }
  EXPECT_EQ(done, 100);
}

TEST(HostStreamTest, AnUnusedStreamEndsAndSynchronizes) {
  HostStream stream;
  stream.Synchronize();
}

TEST(HostStreamTest, ManyThreadsMayEnqueue) {
  int done = 0;  // the stream's thread alone counts
  HostStream stream;
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (int j = 0; j < 500; ++j) stream.Run([&] { ++done; });
      stream.Synchronize();
    });
  }
  for (auto& thread : threads) thread.join();
  stream.Synchronize();
  EXPECT_EQ(done, 2000);
}

TEST(HostStreamTest, AWaitIsOverOnceTheWordIsThere) {
  HostStream queue;
  const auto stream = WrapHostStream(&queue);
  EXPECT_FALSE(stream->synchronous());
  Word gate{0};
  std::atomic<bool> passed{false};
  ASSERT_OK(stream->Wait(&gate, 3));
  queue.Run([&] { passed = true; });
  gate.store(2);
  EXPECT_FALSE(passed);
  gate.store(4, std::memory_order_release);
  ASSERT_OK(stream->Synchronize());
  EXPECT_TRUE(passed);
}

TEST(HostStreamTest, AStreamThatEndsIsWaitedForUntilItsWorkIsDone) {
  Word gate{0};
  Word passed{0};
  auto ending = std::make_unique<HostStream>();
  std::atomic<bool> began{false};
  ending->Run([&] {
    began = true;
    while (gate.load() == 0) std::this_thread::yield();
  });
  std::thread end([&] { ending.reset(); });
  ASSERT_TRUE(Eventually([&] { return began.load(); }));
  const auto all = WrapHostStream(AllStreams());
  ASSERT_OK(all->SignalAfter(&passed, 1));
  EXPECT_EQ(passed.load(), 0u);
  gate.store(1);
  EXPECT_TRUE(Eventually([&] { return passed.load() == 1; }));
  end.join();
}

TEST(CallerStreamTest, EverythingIsDoneWhenTheCallReturns) {
  const auto stream = WrapHostStream(nullptr);
  EXPECT_TRUE(stream->synchronous());
  char bytes[4] = {};
  ASSERT_OK(stream->Fill(bytes, 7, core::Bytes(2)));
  ASSERT_OK(stream->Copy(bytes + 2, bytes, core::Bytes(2)));
  EXPECT_EQ(bytes[3], 7);
  Word word{0};
  EXPECT_CODE(stream->Wait(&word, 1), core::ErrorCode::kWrongState);
  ASSERT_OK(stream->SignalAfter(&word, 5));
  EXPECT_EQ(word.load(), 5u);
  ASSERT_OK(stream->Wait(&word, 1));
}

}  // namespace
}  // namespace ravenstore::device
