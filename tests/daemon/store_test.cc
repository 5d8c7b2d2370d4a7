// The store end to end: a real daemon, the real client library, the host backend.
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/resource.h>

#include <atomic>
#include <barrier>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <random>
#include <semaphore>
#include <string>
#include <thread>
#include <vector>

#include "client/client.h"
#include "core/check.h"
#include "ipc/clock.h"
#include "tests/daemon/daemon_process.h"
#include "tests/daemon/pattern.h"
#include "tests/daemon/stats_of.h"
#include "tests/ipc/short_directory.h"

namespace ravenstore::daemon {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::seconds;

// Binds this thread, and the threads that it starts, to one core. The destructor restores the
// cores.
class OnOneCore {
 public:
  OnOneCore() {
    RAVEN_CHECK(::sched_getaffinity(0, sizeof(before_), &before_) == 0);
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(::sched_getcpu(), &one);
    RAVEN_CHECK(::sched_setaffinity(0, sizeof(one), &one) == 0);
  }
  ~OnOneCore() { ::sched_setaffinity(0, sizeof(before_), &before_); }
  OnOneCore(const OnOneCore&) = delete;
  OnOneCore& operator=(const OnOneCore&) = delete;

 private:
  cpu_set_t before_;
};

// Limits this process to 256 open files. The destructor restores the limit.
class WithFewDescriptors {
 public:
  WithFewDescriptors() {
    RAVEN_CHECK(::getrlimit(RLIMIT_NOFILE, &before_) == 0);
    const rlimit few{.rlim_cur = 256, .rlim_max = before_.rlim_max};
    RAVEN_CHECK(::setrlimit(RLIMIT_NOFILE, &few) == 0);
  }
  ~WithFewDescriptors() { ::setrlimit(RLIMIT_NOFILE, &before_); }
  WithFewDescriptors(const WithFewDescriptors&) = delete;
  WithFewDescriptors& operator=(const WithFewDescriptors&) = delete;

 private:
  rlimit before_{};
};

class StoreTest : public testing::Test {
 protected:
  Store Connect(const DaemonProcess& daemon, uint64_t device_budget = 0,
                Timeout timeout = std::nullopt) {
    return Store::connect({.socket = daemon.socket(),
                           .name = "store_test",
                           .device_budget = device_budget,
                           .timeout = timeout});
  }
};

TEST_F(StoreTest, BytesSurviveEvictionAndReturn) {
  DaemonProcess daemon;
  Store store = Connect(daemon, MiB(32));
  constexpr uint64_t kBytes = MiB(3) + 512;
  std::vector<Tensor> tensors;
  for (uint64_t i = 0; i < 40; ++i) {
    tensors.push_back(store.create(kBytes));
    FillPattern(tensors.back().data(), kBytes, i);
    store.put(tensors.back(), nullptr, {.order = -static_cast<int64_t>(i)});
  }
  for (uint64_t i = 40; i-- > 0;) {
    void* data = store.get(tensors[i], nullptr, {.access = Access::kReadOnly});
    EXPECT_TRUE(HoldsPattern(data, kBytes, i)) << "tensor " << i;
    store.put(tensors[i], nullptr, {.not_modified = true});
    store.free(std::move(tensors[i]), nullptr);
    // The room of the first that is freed is the next one's, if the client leaves the time.
    if (i == 39) {
      EXPECT_TRUE(Eventually([&] { return store.stats().prefetches > 0; }));
    }
  }
  const Stats stats = store.stats();
  EXPECT_GT(stats.bytes_out, kBytes * 25);
  EXPECT_GT(stats.bytes_in, kBytes * 25);
}

TEST_F(StoreTest, WhatHasAHighPriorityStaysAndWhatHasALowOneLeavesFirst) {
  DaemonProcess daemon;
  Store store = Connect(daemon, MiB(16));
  const auto make = [&store](const PutOptions& options) {
    Tensor tensor = store.create(MiB(2));
    FillPattern(tensor.data(), MiB(2), static_cast<uint64_t>(*options.order));
    store.put(tensor, nullptr, options);
    return tensor;
  };
  // A priority is a factor: needed last, this one counts as needed first, and enough so that it
  // stays where it is clean already and the others are not.
  const Tensor kept = make({.order = 10, .priority = Priority::kHigh});
  const Tensor spared = make({.order = 1, .priority = Priority::kLow});
  std::vector<Tensor> others;
  for (int i = 2; i < 8; ++i) others.push_back(make({.order = i}));
  EXPECT_TRUE(spared.ready());
  const Tensor first = store.create(MiB(2));
  EXPECT_FALSE(spared.ready()) << "needed first, and yet the first to leave";
  const Tensor second = store.create(MiB(2));
  const Tensor third = store.create(MiB(2));
  EXPECT_TRUE(kept.ready()) << "needed last, and yet there";
  EXPECT_FALSE(others.back().ready());
}

// Cheaper to make than to copy: the store may give dirty bytes up, and says which.
TEST_F(StoreTest, BytesThatWereDiscardedAreRecomputedAndTheOthersStay) {
  DaemonProcess daemon;
  Store store = Connect(daemon, MiB(16));
  std::vector<Tensor> tensors;
  for (uint64_t i = 0; i < 48; ++i) {
    tensors.push_back(store.create(MiB(1)));
    FillPattern(tensors[i].data(), MiB(1), i);
    store.put(tensors[i], nullptr, {.recompute = std::chrono::nanoseconds(i % 2 == 0 ? 1 : 0)});
  }
  uint64_t recomputed = 0;
  for (int round = 0; round < 3; ++round) {
    for (uint64_t i = 0; i < tensors.size(); ++i) {
      void* data = store.get(tensors[i], nullptr);
      if (tensors[i].must_recompute()) {
        EXPECT_EQ(i % 2, 0u) << "only those that may be";
        FillPattern(data, MiB(1), i);
        ++recomputed;
      }
      ASSERT_TRUE(HoldsPattern(data, MiB(1), i)) << "tensor " << i;
      store.put(tensors[i], nullptr, {.recompute = std::chrono::nanoseconds(i % 2 == 0 ? 1 : 0)});
    }
  }
  EXPECT_GT(recomputed, 0u);
  EXPECT_GE(StatsOf(daemon).recomputes(), recomputed);
  EXPECT_EQ(StatsOf(daemon).bad_requests(), 0u);
}

TEST_F(StoreTest, WritesAfterAReturnAreKept) {
  DaemonProcess daemon;
  Store store = Connect(daemon, MiB(16));
  std::vector<Tensor> tensors;
  std::vector<uint64_t> versions(48, 0);
  for (size_t i = 0; i < versions.size(); ++i) {
    tensors.push_back(store.create(MiB(1)));
    FillPattern(tensors[i].data(), MiB(1), i);
    store.put(tensors[i], nullptr);
  }
  std::mt19937_64 random(20261120);
  for (int step = 0; step < 2000; ++step) {
    const size_t i = random() % tensors.size();
    const bool write = random() % 3 == 0;
    void* data =
        store.get(tensors[i], nullptr, {.access = write ? Access::kReadWrite : Access::kReadOnly});
    ASSERT_TRUE(HoldsPattern(data, MiB(1), versions[i] * 1000 + i))
        << "step " << step << " tensor " << i;
    if (write) FillPattern(data, MiB(1), ++versions[i] * 1000 + i);
    store.put(tensors[i], nullptr);
  }
}

TEST_F(StoreTest, ThreadsShareAStore) {
  DaemonProcess daemon;
  Store store = Connect(daemon, MiB(32));
  // The daemon may place one thread's bytes where another's were. ThreadSanitizer sees only one
  // process, so `order` shows it the order of the two.
  std::atomic<int> order{0};
  std::vector<std::thread> threads;
  for (uint64_t t = 0; t < 4; ++t) {
    threads.emplace_back([&store, &order, t] {
      const auto put = [&](Tensor& tensor) {
        order.fetch_add(1);
        store.put(tensor, nullptr);
      };
      std::vector<Tensor> tensors;
      for (uint64_t i = 0; i < 20; ++i) {
        tensors.push_back(store.create(KiB(700)));
        order.fetch_add(1);
        FillPattern(tensors[i].data(), KiB(700), t * 100 + i);
        put(tensors[i]);
      }
      for (int round = 0; round < 5; ++round) {
        for (uint64_t i = 0; i < 20; ++i) {
          void* data = store.get(tensors[i], nullptr);
          order.fetch_add(1);
          EXPECT_TRUE(HoldsPattern(data, KiB(700), t * 100 + i));
          put(tensors[i]);
        }
      }
    });
  }
  for (auto& thread : threads) thread.join();
}

TEST_F(StoreTest, StreamsAreOrderedWithArrivals) {
  DaemonProcess daemon({"--link-bytes-per-second", "500000000"});
  Store store = Connect(daemon, MiB(8));
  ravenstore_host_stream_t stream = ravenstore_host_stream_create();
  std::vector<Tensor> tensors;
  struct Work {
    void* data;
    uint64_t seed;
    bool good;
  };
  std::vector<Work> works;
  works.reserve(64);
  for (uint64_t i = 0; i < 16; ++i) {
    tensors.push_back(store.create(MiB(1)));
    works.push_back({tensors[i].data(), i, false});
    ravenstore_host_stream_run(
        stream,
        [](void* argument) {
          auto* w = static_cast<Work*>(argument);
          FillPattern(w->data, MiB(1), w->seed);
        },
        &works.back());
    store.put(tensors[i], stream, {.order = static_cast<int64_t>(16 - i)});
  }
  for (uint64_t i = 16; i-- > 0;) {
    works.push_back({store.get(tensors[i], stream), i, false});
    ravenstore_host_stream_run(
        stream,
        [](void* argument) {
          auto* w = static_cast<Work*>(argument);
          w->good = HoldsPattern(w->data, MiB(1), w->seed);
        },
        &works.back());
    store.put(tensors[i], stream, {.not_modified = true});
  }
  ravenstore_host_stream_synchronize(stream);
  for (size_t i = 16; i < works.size(); ++i) EXPECT_TRUE(works[i].good) << i;
  store.check(stream);
  tensors.clear();
  ravenstore_host_stream_synchronize(stream);
  ravenstore_host_stream_destroy(stream);
}

TEST_F(StoreTest, AMoveToAnotherDeviceWaitsForTheLastPutNotAnOlderOne) {
  DaemonProcess daemon({"--devices", "2"});
  Store store = Connect(daemon, MiB(8));
  ravenstore_host_stream_t stream = ravenstore_host_stream_create();
  std::binary_semaphore first_gate{0};
  std::binary_semaphore second_gate{0};
  const auto wait = [](void* gate) { static_cast<std::binary_semaphore*>(gate)->acquire(); };
  Tensor tensor = store.create(MiB(1));
  Tensor between = store.create(MiB(1));
  FillPattern(tensor.data(), MiB(1), 1);

  ravenstore_host_stream_run(stream, wait, &first_gate);
  store.put(tensor, stream);
  StatsOf(daemon);  // before it answers, the daemon reads of the put
  store.free(std::move(between), stream);
  void* data = store.get(tensor, stream);
  ravenstore_host_stream_run(stream, wait, &second_gate);
  ravenstore_host_stream_run(
      stream, [](void* bytes) { FillPattern(bytes, MiB(1), 2); }, data);
  store.put(tensor, stream);

  void* moved = nullptr;
  std::thread mover([&] { moved = store.get(tensor, nullptr, {.device = 1}); });
  EXPECT_TRUE(Eventually([&] { return StatsOf(daemon).waiting() == 1; }));
  first_gate.release();
  // Once a free of the same moment is done, the tensor's first put is seen to be stream-complete.
  EXPECT_TRUE(Eventually([&] { return StatsOf(daemon).frees() == 1; }));
  second_gate.release();
  mover.join();
  EXPECT_TRUE(HoldsPattern(moved, MiB(1), 2));
  ravenstore_host_stream_synchronize(stream);
  ravenstore_host_stream_destroy(stream);
}

TEST_F(StoreTest, TensorsKeepTheirBytesOnEachDeviceThatTheyMoveTo) {
  DaemonProcess daemon({"--devices", "2"});
  Store store = Connect(daemon, MiB(16));
  std::mt19937_64 random(20261129);
  std::vector<Tensor> tensors;
  std::vector<uint64_t> sizes;
  std::vector<uint64_t> versions(24, 0);
  for (uint64_t i = 0; i < versions.size(); ++i) {
    sizes.push_back(KiB(1 + random() % 3000) + 512 * (random() % 2));
    tensors.push_back(store.create(sizes[i], {.device = static_cast<int>(i % 2)}));
    FillPattern(tensors[i].data(), sizes[i], i);
    store.put(tensors[i], nullptr);
  }
  for (int step = 0; step < 600; ++step) {
    const size_t i = random() % tensors.size();
    void* data = store.get(tensors[i], nullptr, {.device = static_cast<int>(random() % 2)});
    ASSERT_TRUE(HoldsPattern(data, sizes[i], versions[i] * 1000 + i))
        << "step " << step << " tensor " << i;
    if (random() % 2 == 0) FillPattern(data, sizes[i], ++versions[i] * 1000 + i);
    store.put(tensors[i], nullptr);
    if (random() % 8 != 0) continue;
    store.free(std::move(tensors[i]), nullptr);
    tensors[i] = store.create(sizes[i]);
    FillPattern(tensors[i].data(), sizes[i], ++versions[i] * 1000 + i);
    store.put(tensors[i], nullptr);
  }
  EXPECT_FALSE(daemon.Exited());
}

// As a network card does that has registered the address: without a get.
TEST_F(StoreTest, WhatIsKeptInPlaceStaysWhileOthersLeave) {
  DaemonProcess daemon({"--page", "2MiB", "--devices", "2"});
  Store store = Connect(daemon, MiB(16));
  Tensor registered = store.create(MiB(3));
  auto* data = static_cast<std::byte*>(registered.data());
  FillPattern(data, MiB(3), 1);
  store.keep_in_place(registered);
  store.put(registered, nullptr);
  EXPECT_THROW(store.get(registered, nullptr, {.device = 1}), Error);
  for (uint64_t i = 0; i < 20; ++i) {
    Tensor other = store.create(MiB(5));
    FillPattern(other.data(), MiB(5), i);
    store.put(other, nullptr);
    EXPECT_TRUE(registered.ready());
    EXPECT_TRUE(HoldsPattern(data, MiB(3), i + 1));
    FillPattern(data, MiB(3), i + 2);
  }
  EXPECT_EQ(store.get(registered, nullptr), data);
  EXPECT_TRUE(HoldsPattern(data, MiB(3), 21));
  store.put(registered, nullptr);
  store.end_keep_in_place(registered);
  EXPECT_THROW(store.keep_in_place(registered), Error) << "it is not in use";
  Tensor all = store.create(MiB(16));
  EXPECT_FALSE(registered.ready());
  store.free(std::move(all), nullptr);
  EXPECT_TRUE(HoldsPattern(store.get(registered, nullptr), MiB(3), 21));
  // A free ends it, too.
  store.keep_in_place(registered);
  store.free(std::move(registered), nullptr);
  EXPECT_NO_THROW(store.create(MiB(16)));
}

TEST_F(StoreTest, MisuseIsNamed) {
  DaemonProcess daemon;
  Store store = Connect(daemon, MiB(64));
  Tensor tensor = store.create(MiB(1), {.name = "layer3.mlp"});
  store.put(tensor, nullptr);
  EXPECT_THROW(tensor.data(), Error);
  try {
    store.put(tensor, nullptr);
    FAIL() << "a second put was taken";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), RAVENSTORE_WRONG_STATE);
    EXPECT_NE(std::string(error.what()).find("layer3.mlp"), std::string::npos) << error.what();
  }
  EXPECT_THROW(store.create(0), Error);
  EXPECT_THROW(store.create(MiB(65)), OutOfMemory);
}

TEST_F(StoreTest, FullBudgetNamesItsHolders) {
  DaemonProcess daemon;
  Store store = Connect(daemon, MiB(16), milliseconds(200));
  Tensor held = store.create(MiB(12));
  try {
    Tensor second = store.create(MiB(8));
    FAIL() << "more than the budget was granted";
  } catch (const OutOfMemory& error) {
    const std::string words = error.what();
    EXPECT_NE(words.find("16.0 MiB"), std::string::npos) << words;
    EXPECT_NE(words.find("12.0 MiB in use"), std::string::npos) << words;
  }
  EXPECT_THROW(store.create(MiB(8), {.fail_fast = true}), OutOfMemory);
  store.put(held, nullptr);
  Tensor second = store.create(MiB(8), {.timeout = seconds(60)});  // a copy away
  EXPECT_TRUE(second.data() != nullptr);
}

TEST_F(StoreTest, TwoClientsThatWaitForEachOtherBothGetAnAnswer) {
  DaemonProcess daemon({"--device-budget", "32MiB"});
  std::barrier both_hold(2);
  auto one = [&] {
    Store store = Connect(daemon, 0, milliseconds(500));
    Tensor held = store.create(MiB(14));
    both_hold.arrive_and_wait();
    EXPECT_THROW(
        {
          Tensor more = store.create(MiB(14));
          Tensor even_more = store.create(MiB(14));
        },
        OutOfMemory);
  };
  std::thread other(one);
  one();
  other.join();
}

TEST_F(StoreTest, AGetThatOnlyALaterPutCouldServeFailsInBound) {
  DaemonProcess daemon;
  Store store = Connect(daemon, MiB(8), milliseconds(300));
  Tensor first = store.create(MiB(6));
  store.put(first, nullptr);
  Tensor second = store.create(MiB(6));  // pushes the first out
  EXPECT_THROW(store.get(first, nullptr), OutOfMemory);
  store.put(second, nullptr);
  EXPECT_NE(store.get(first, nullptr), nullptr);
}

TEST_F(StoreTest, WithOneCoreTheSpinnerLeavesItToTheOther) {
  const ipc::ShortDirectory directory;
  const std::string path = directory / "config";
  std::ofstream(path) << "[loop]\nspin_us = 50000\n";
  const OnOneCore pinned;
  const DaemonProcess daemon({"--config", path});
  Store store = Connect(daemon);
  // A daemon in the way is there until its time slice is over, some milliseconds, every time; other
  // work of the machine is not.
  constexpr int kCreates = 20;
  constexpr auto kNotLong = microseconds(500);
  std::vector<Tensor> tensors;
  EXPECT_TRUE(Eventually([&] {
    const core::Tick begin = ipc::Now();
    for (int i = 0; i < kCreates; ++i) tensors.push_back(store.create(MiB(1)));
    tensors.clear();
    return ipc::Now() - begin < kCreates * kNotLong;
  }));
}

TEST_F(StoreTest, BatchesWork) {
  DaemonProcess daemon;
  Store store = Connect(daemon, MiB(64));
  const std::vector<uint64_t> sizes(1500, 4096);
  for (int round = 0; round < 3; ++round) {
    std::vector<Tensor> tensors = store.create(sizes);
    for (auto& tensor : tensors) EXPECT_NE(tensor.data(), nullptr);
    store.free(std::move(tensors), nullptr);
  }
}

TEST_F(StoreTest, ManyTensorsAreForgotten) {
  DaemonProcess daemon;
  Store store = Connect(daemon, MiB(64));
  for (int i = 0; i < 20000; ++i) store.free(store.create(KiB(4)), nullptr);
  EXPECT_TRUE(Eventually([&] { return store.stats().tensors == 0; }));
}

TEST_F(StoreTest, ATrimGivesTheDeviceBack) {
  DaemonProcess daemon;
  Store store = Connect(daemon, MiB(16));
  const auto held = [&] { return StatsOf(daemon).tiers(0).held(); };
  Tensor tensor = store.create(MiB(16));
  EXPECT_EQ(held(), MiB(16));
  store.trim();
  store.free(std::move(tensor), nullptr);
  EXPECT_TRUE(Eventually([&] { return held() == 0; }));
  store.free(store.create(MiB(1)), nullptr);
  EXPECT_GE(held(), MiB(2)) << "kept for the next";
}

// Each page comes as a descriptor, which the client closes once it is imported.
TEST_F(StoreTest, AClientWithFewDescriptorsHasMorePagesThanThese) {
  constexpr uint64_t kPage = MiB(2);
  constexpr uint64_t kPages = 300;
  DaemonProcess daemon({"--device-total", "1GiB", "--page", "2MiB"});
  const WithFewDescriptors few;
  Store store = Connect(daemon, kPage * (kPages + 8));
  std::vector<Tensor> tensors;
  for (uint64_t i = 0; i < kPages; ++i) {
    tensors.push_back(store.create(kPage));
    FillPattern(tensors.back().data(), KiB(4), i);
  }
  EXPECT_GE(StatsOf(daemon).tiers(0).held(), kPage * kPages);
  for (uint64_t i = 0; i < kPages; ++i)
    EXPECT_TRUE(HoldsPattern(tensors[i].data(), KiB(4), i)) << "tensor " << i;
}

TEST_F(StoreTest, UnneededTensorsAreDroppedUncopied) {
  DaemonProcess daemon;
  Store store = Connect(daemon, MiB(8));
  std::vector<Tensor> tensors;
  for (int i = 0; i < 30; ++i) {
    tensors.push_back(store.create(MiB(1)));
    store.put(tensors.back(), nullptr, {.not_needed = true});
  }
  EXPECT_EQ(store.stats().bytes_out, 0u);
  EXPECT_THROW(store.get(tensors[0], nullptr), Lost);
}

TEST_F(StoreTest, GetIntoAndAdoptCopy) {
  DaemonProcess daemon;
  Store store = Connect(daemon, MiB(64));
  std::vector<uint64_t> source(KiB(8));
  FillPattern(source.data(), source.size() * 8, 7);
  Tensor tensor = store.adopt(source.data(), source.size() * 8, nullptr);
  store.put(tensor, nullptr);
  std::vector<uint64_t> target(source.size());
  store.get_into(tensor, target.data(), nullptr, {.blocking = true});
  EXPECT_EQ(source, target);
}

// More concurrent fetches than arrival words, requests in the ring or copies in flight.
TEST_F(StoreTest, ABatchOfManyAwayTensorsComesBackOverASlowLink) {
  ipc::ShortDirectory directory;
  const std::string config = directory / "config.toml";
  std::ofstream(config) << "[transfer]\nprefetch = false\npreclean = false\n";
  DaemonProcess daemon({"--config", config, "--link-bytes-per-second", "30000000"});
  Store store = Connect(daemon, MiB(8));
  constexpr uint64_t kCount = 1500;
  constexpr uint64_t kBytes = KiB(4);
  std::vector<Tensor> tensors = store.create(std::vector<uint64_t>(kCount, kBytes));
  store.free(store.create(MiB(2)), nullptr);  // so that every page is there
  std::vector<ravenstore_tensor_t*> handles;
  for (uint64_t i = 0; i < kCount; ++i) {
    FillPattern(tensors[i].data(), kBytes, i);
    store.put(tensors[i], nullptr);
    handles.push_back(tensors[i].handle());
  }
  store.free(store.create(MiB(8)), nullptr);  // pushes all of them out
  const auto asked = [&store] {
    const Stats stats = store.stats();
    return stats.misses + stats.late_hits;  // a page brings several of them
  };
  const uint64_t before = asked();
  std::vector<void*> addresses(kCount);
  ASSERT_EQ(ravenstore_get_batch(store.handle(), handles.data(), kCount, nullptr, nullptr,
                                 addresses.data()),
            RAVENSTORE_OK)
      << ravenstore_last_error();
  EXPECT_EQ(asked() - before, kCount);
  for (uint64_t i = 0; i < kCount; ++i) EXPECT_TRUE(HoldsPattern(addresses[i], kBytes, i)) << i;
  ASSERT_EQ(ravenstore_put_batch(store.handle(), handles.data(), kCount, nullptr, nullptr),
            RAVENSTORE_OK);
  EXPECT_FALSE(daemon.Exited());
}

// RAVENSTORE_DEBUG=poison is read when a store is connected.
class PoisonedStoreTest : public StoreTest {
 protected:
  PoisonedStoreTest() { ::setenv("RAVENSTORE_DEBUG", "poison", 1); }
  ~PoisonedStoreTest() override { ::unsetenv("RAVENSTORE_DEBUG"); }
};

TEST_F(PoisonedStoreTest, AWriteAfterThePutIsCorruptAtTheNextGet) {
  DaemonProcess daemon;
  Store store = Connect(daemon, MiB(16));
  Tensor tensor = store.create(MiB(1));
  auto* data = static_cast<char*>(tensor.data());
  FillPattern(data, MiB(1), 5);
  store.put(tensor, nullptr);
  data[4711] = 'x';
  try {
    store.get(tensor, nullptr);
    FAIL() << "the write was not seen";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), RAVENSTORE_CORRUPT);
    EXPECT_NE(std::string(error.what()).find("4711"), std::string::npos) << error.what();
  }
}

TEST_F(PoisonedStoreTest, AProgramThatKeepsToTheRulesNoticesNothing) {
  DaemonProcess daemon;
  Store store = Connect(daemon, MiB(8));
  std::vector<Tensor> tensors;
  for (uint64_t i = 0; i < 12; ++i) {  // more than fit
    tensors.push_back(store.create(MiB(1)));
    FillPattern(tensors[i].data(), MiB(1), i);
    store.put(tensors[i], nullptr);
  }
  for (uint64_t i = 0; i < 12; ++i) {
    EXPECT_TRUE(HoldsPattern(store.get(tensors[i], nullptr), MiB(1), i)) << i;
    store.put(tensors[i], nullptr);
  }
}

}  // namespace
}  // namespace ravenstore::daemon
