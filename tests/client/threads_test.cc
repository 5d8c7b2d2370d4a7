// Many threads on one store. Under ThreadSanitizer this is where a race of the library shows.
#include <atomic>
#include <random>

#include "tests/client/store_test.h"

namespace ravenstore {
namespace {

constexpr uint64_t kBytes = 1024;

using ThreadsTest = StoreTest;

void RunThreads(int count, const std::function<void(int)>& body) {
  std::vector<std::thread> threads;
  for (int i = 0; i < count; ++i) threads.emplace_back(body, i);
  for (std::thread& thread : threads) thread.join();
}

TEST_F(ThreadsTest, PutsAndGetsHandTheBytesOn) {
  constexpr int kThreads = 4;
  constexpr int kTurns = 200;
  Tensor tensor = Idle(kBytes, 0);
  std::atomic<int> turn{0};
  // Only the lease word orders the accesses to the bytes: `turn` is relaxed.
  RunThreads(kThreads, [&](int self) {
    while (true) {
      const int now = turn.load(std::memory_order_relaxed);
      if (now >= kTurns) return;
      if (now % kThreads != self) {
        std::this_thread::yield();
        continue;
      }
      void* address = nullptr;
      ASSERT_EQ(ravenstore_get(store_.handle(), tensor.handle(), nullptr, nullptr, &address),
                RAVENSTORE_OK);
      auto* const counter = static_cast<int*>(address);
      ++*counter;
      ASSERT_EQ(ravenstore_put(store_.handle(), tensor.handle(), nullptr, nullptr), RAVENSTORE_OK);
      turn.store(now + 1, std::memory_order_relaxed);
    }
  });
  EXPECT_EQ(*static_cast<int*>(store_.get(tensor, nullptr)), kTurns);
}

TEST_F(ThreadsTest, TensorsSurviveEvictionsUnderLoad) {
  constexpr int kThreads = 4;
  constexpr int kTensors = 8;
  constexpr int kTurns = 300;
  std::vector<Tensor> tensors;
  std::vector<uint64_t> ids;
  for (int i = 0; i < kTensors; ++i) {
    tensors.push_back(Idle(kBytes, i));
    ids.push_back(tensors.back().id());
  }
  std::atomic<bool> done{false};
  std::thread evictor([&] {
    for (size_t i = 0; !done.load(); ++i) {
      if (!daemon_.Evict(ids[i % ids.size()])) std::this_thread::yield();
    }
  });
  // Readers share tensors, so gets overlap, fetches collide and rescues happen.
  RunThreads(kThreads, [&](int self) {
    std::mt19937 random(static_cast<uint32_t>(self) + 1);
    for (int turn = 0; turn < kTurns; ++turn) {
      const size_t i = random() % kTensors;
      ravenstore_get_options_t options{};
      options.struct_size = sizeof(options);
      options.flags = RAVENSTORE_READ_ONLY;
      void* address = nullptr;
      ASSERT_EQ(ravenstore_get(store_.handle(), tensors[i].handle(), nullptr, &options, &address),
                RAVENSTORE_OK)
          << ravenstore_last_error();
      ASSERT_TRUE(Holds(address, static_cast<int>(i), kBytes));
      ravenstore_code_t put = RAVENSTORE_OK;
      put = ravenstore_put(store_.handle(), tensors[i].handle(), nullptr, nullptr);
      ASSERT_EQ(put, RAVENSTORE_OK) << ravenstore_last_error();
    }
  });
  done.store(true);
  evictor.join();
  for (Tensor& tensor : tensors) EXPECT_EQ(LeaseOf(tensor).holders, 0);
}

TEST_F(ThreadsTest, CreatesAndFreesOfManyThreadsDoNotMix) {
  constexpr int kThreads = 4;
  RunThreads(kThreads, [&](int self) {
    TestStream stream;
    for (int turn = 0; turn < 60; ++turn) {
      Tensor tensor = store_.create(kBytes, {.name = turn % 2 ? "odd" : "even"});
      Fill(tensor.data(), self + 1, kBytes);
      store_.put(tensor, turn % 3 ? static_cast<Stream>(stream) : nullptr);
      ASSERT_TRUE(Holds(store_.get(tensor, nullptr), self + 1, kBytes));
      if (turn % 2) store_.put(tensor, nullptr);
      store_.free(std::move(tensor), stream);
    }
  });
  EXPECT_TRUE(Eventually([&] { return daemon_.tensors() == 0; }));
  // Threads that meet a name together each ask for it, once.
  EXPECT_GE(daemon_.counts().interns, 2u);
  EXPECT_LE(daemon_.counts().interns, 2u * kThreads);
}

TEST_F(ThreadsTest, OneStreamMayBeSharedByThreads) {
  constexpr int kThreads = 4;
  TestStream stream;
  RunThreads(kThreads, [&](int self) {
    Tensor tensor = store_.create(kBytes);
    Fill(tensor.data(), self, kBytes);
    for (int turn = 0; turn < 60; ++turn) {
      store_.put(tensor, stream);
      ASSERT_TRUE(Holds(store_.get(tensor, nullptr), self, kBytes));
    }
  });
}

}  // namespace
}  // namespace ravenstore
