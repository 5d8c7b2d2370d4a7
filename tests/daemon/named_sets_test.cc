// Named sets: tensors that a process hands over, and that others of its user open and read.
#include <errno.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "client/client.h"
#include "tests/daemon/daemon_process.h"
#include "tests/daemon/pattern.h"
#include "tests/daemon/stats_of.h"
#include "tests/ipc/child.h"
#include "tests/timing/timing.h"

namespace ravenstore::daemon {
namespace {

using std::chrono::milliseconds;

class NamedSetsTest : public testing::Test {
 protected:
  explicit NamedSetsTest(std::vector<std::string> flags = {}) : daemon_(WithSizes(flags)) {}

  static std::vector<std::string> WithSizes(std::vector<std::string> flags) {
    flags.insert(flags.end(),
                 {"--page", "2MiB", "--device-total", "32MiB", "--pool-size", "64MiB"});
    return flags;
  }
  Store Connect(const std::string& name) {
    return Store::connect({.socket = daemon_.socket(), .name = name, .fixed_addresses = true});
  }
  // A set of two tensors.
  Store Publish(const std::string& name, uint64_t seed, uint64_t load = 0,
                uint64_t second = MiB(1)) {
    Store store = Connect("set " + name);
    uint64_t sizes[] = {MiB(5) + 512, second};
    for (uint64_t i = 0; i < 2; ++i) {
      Tensor tensor = store.create(sizes[i]);
      FillPattern(tensor.data(), sizes[i], seed + i);
      store.put(tensor, nullptr);
      tensors_.push_back(std::move(tensor));
    }
    version_ = store.seal(name, load);
    tensors_.clear();
    return store;
  }
  static uint64_t WrongBytesOf(const NamedSet& set, uint64_t seed) {
    uint64_t wrong = 0;
    for (size_t i = 0; i < set.parts(); ++i)
      wrong += WrongBytes(set.part(i).address, set.part(i).bytes, seed + i);
    return wrong;
  }
  static void ExpectCode(ravenstore_code_t code, const std::string& words, const auto& call) {
    try {
      call();
      FAIL() << "it was not refused";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), code) << error.what();
      EXPECT_NE(std::string(error.what()).find(words), std::string::npos) << error.what();
    }
  }
  void AwaitHeld(uint64_t bytes) {
    TimeLimit limit(kTestPatience);
    while (HeldOfDevices(daemon_) != bytes && !limit.IsOver()) sched_yield();
    EXPECT_EQ(HeldOfDevices(daemon_), bytes);
  }

  DaemonProcess daemon_;
  std::vector<Tensor> tensors_;
  uint64_t version_ = 0;
};

TEST_F(NamedSetsTest, ThePublisherHasNoMemoryOfTheSet) {
  Store store = Connect("publisher");
  Tensor tensor = store.create(MiB(5));
  const void* const address = tensor.data();
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  EXPECT_EQ(write(ends[1], address, 1), 1);
  store.put(tensor, nullptr);
  store.seal("weights");
  EXPECT_EQ(write(ends[1], address, 1), -1) << "it is mapped here";
  EXPECT_EQ(errno, EFAULT);
  close(ends[0]);
  close(ends[1]);
}

TEST_F(NamedSetsTest, AnotherProcessReadsTheSameMemory) {
  const Store published = Publish("weights", 7);
  EXPECT_EQ(version_, 1u);
  Store reader = Connect("reader");
  NamedSet set = NamedSet::open(reader, "weights");
  EXPECT_EQ(set.version(), 1u);
  ASSERT_EQ(set.parts(), 2u);
  EXPECT_EQ(set.part(0).address, nullptr);
  set.use();
  EXPECT_EQ(set.part(0).bytes, MiB(5) + 512);
  EXPECT_EQ(WrongBytesOf(set, 7), 0u);
  // A second opener has its own addresses, and no other memory.
  NamedSet again = NamedSet::open(reader, "weights");
  again.use();
  EXPECT_NE(again.part(0).address, set.part(0).address);
  EXPECT_EQ(WrongBytesOf(again, 7), 0u);
}

TEST_F(NamedSetsTest, ASetTakesNoMoreMemoryForMoreReaders) {
  const Store published = Publish("weights", 7);
  const uint64_t held = HeldOfDevices(daemon_);
  Store reader = Connect("reader");
  std::vector<NamedSet> sets;
  for (int i = 0; i < 5; ++i) {
    sets.push_back(NamedSet::open(reader, "weights"));
    sets.back().use();
  }
  EXPECT_EQ(HeldOfDevices(daemon_), held);
}

TEST_F(NamedSetsTest, AWriteFaults) {
#ifdef __SANITIZE_THREAD__
  GTEST_SKIP() << "ThreadSanitizer knows no threads in a child of a process with threads";
#endif
  const Store published = Publish("weights", 7);
  Store reader = Connect("reader");
  NamedSet set = NamedSet::open(reader, "weights");
  set.use();
  EXPECT_DEATH(*static_cast<volatile char*>(set.part(0).address) = 1, "");
  EXPECT_EQ(WrongBytesOf(set, 7), 0u);
}

TEST_F(NamedSetsTest, ASetOutlivesItsPublisherWhileAProcessHasItOpen) {
  Store reader = Connect("reader");
  NamedSet set;
  {
    const Store published = Publish("weights", 7);
    set = NamedSet::open(reader, "weights");
  }
  NamedSet second = NamedSet::open(reader, "weights");
  second.use();
  EXPECT_EQ(WrongBytesOf(second, 7), 0u);
  second = NamedSet();
  set = NamedSet();
  AwaitHeld(0);
  ExpectCode(RAVENSTORE_NOT_FOUND, "'weights'",
             [&] { NamedSet::open(reader, "weights", {.fail_fast = true}); });
  ExpectCode(RAVENSTORE_TIMED_OUT, "'weights' did not come",
             [&] { NamedSet::open(reader, "weights", {.timeout = milliseconds(1)}); });
}

TEST_F(NamedSetsTest, WhatIsNotInUseMakesWayAndComesBackToItsAddresses) {
  const Store published = Publish("weights", 7);
  Store reader = Connect("reader");
  NamedSet set = NamedSet::open(reader, "weights");
  void* address = nullptr;
  for (int i = 0; i < 10; ++i) {
    set.use();
    if (i > 0) {
      EXPECT_EQ(set.part(0).address, address);
    }
    address = set.part(0).address;
    ASSERT_EQ(WrongBytesOf(set, 7), 0u);
    // In use it stays.
    ExpectCode(RAVENSTORE_OUT_OF_MEMORY, "client 1 holds",
               [&] { reader.create(MiB(26), {.fail_fast = true}); });
    set.end_use();
    Tensor all = reader.create(MiB(30));
    FillPattern(all.data(), all.size(), 100);
    ExpectCode(RAVENSTORE_OUT_OF_MEMORY, "client 2 holds", [&] { set.use(milliseconds(1)); });
    reader.free(std::move(all), nullptr);
  }
}

TEST_F(NamedSetsTest, ANewVersionComesToTheSameAddresses) {
  std::vector<Store> published;
  published.push_back(Publish("weights", 7));
  Store reader = Connect("reader");
  NamedSet set = NamedSet::open(reader, "weights");
  set.use();
  void* const address = set.part(1).address;
  for (uint64_t version = 2; version < 6; ++version) {
    published.push_back(Publish("weights", version * 10));
    EXPECT_EQ(version_, version);
    // Until the reader says so it has the old bytes.
    EXPECT_EQ(WrongBytesOf(set, version == 2 ? 7 : version * 10 - 10), 0u);
    set.advance(version);
    EXPECT_EQ(set.version(), version);
    EXPECT_EQ(set.part(1).address, address);
    EXPECT_EQ(WrongBytesOf(set, version * 10), 0u);
    published.erase(published.begin());
  }
  ExpectCode(RAVENSTORE_TIMED_OUT, "did not come", [&] { set.advance(6, milliseconds(1)); });
  const Store other = Publish("weights", 1000, 0, MiB(3));
  ExpectCode(RAVENSTORE_INVALID_ARGUMENT, "another layout", [&] { set.advance(6); });
  EXPECT_EQ(set.version(), 5u);
  EXPECT_EQ(WrongBytesOf(set, 50), 0u);
  NamedSet old = NamedSet::open(reader, "weights", {.version = 5});
  old.use();
  EXPECT_EQ(WrongBytesOf(old, 50), 0u);
}

TEST_F(NamedSetsTest, AWaitEndsWhenTheVersionComes) {
  Store reader = Connect("reader");
  std::thread opener([&] {
    NamedSet set = NamedSet::open(reader, "weights", {.least_version = 2});
    set.use();
    EXPECT_EQ(set.version(), 2u);
    EXPECT_EQ(WrongBytesOf(set, 70), 0u);
  });
  const Store first = Publish("weights", 7);
  const Store second = Publish("weights", 70);
  opener.join();
}

TEST_F(NamedSetsTest, OneOfManyLoadsAndTheNextTakesOver) {
  Store failing = Connect("failing");
  uint64_t load = 0;
  EXPECT_FALSE(NamedSet::open_or_load(failing, "file", &load));
  ASSERT_NE(load, 0u);
  std::atomic<int> loads{0};
  std::vector<std::thread> others;
  std::mutex publishing;
  std::vector<Store> published;
  for (int i = 0; i < 6; ++i) {
    others.emplace_back([&] {
      Store store = Connect("other");
      uint64_t own = 0;
      NamedSet set = NamedSet::open_or_load(store, "file", &own);
      if (own != 0) {
        ++loads;
        const std::lock_guard lock(publishing);
        published.push_back(Publish("file", 3, own));
        set = NamedSet::open(store, "file");
      }
      set.use();
      EXPECT_EQ(WrongBytesOf(set, 3), 0u);
    });
  }
  ExpectCode(RAVENSTORE_WRONG_STATE, "another process loads", [&] { Publish("file", 9); });
  tensors_.clear();
  // Its load ends with it.
  failing = Store();
  for (std::thread& other : others) other.join();
  EXPECT_EQ(loads.load(), 1);
  ExpectCode(RAVENSTORE_WRONG_STATE, "has ended", [&] { Publish("file", 9, load); });
  tensors_.clear();
}

TEST_F(NamedSetsTest, AStoreWithATensorInUseIsNotSealed) {
  Store store = Connect("set weights");
  Tensor tensor = store.create(MiB(1));
  FillPattern(tensor.data(), MiB(1), 1);
  ExpectCode(RAVENSTORE_WRONG_STATE, "in use", [&] { store.seal("weights"); });
  store.put(tensor, nullptr);
  EXPECT_EQ(store.seal("weights"), 1u);
  ExpectCode(RAVENSTORE_WRONG_STATE, "named set", [&] { store.get(tensor, nullptr); });
  ExpectCode(RAVENSTORE_WRONG_STATE, "named set", [&] { store.create(MiB(1)); });
  ExpectCode(RAVENSTORE_WRONG_STATE, "named set", [&] { store.seal("weights"); });
  Store empty = Connect("set empty");
  ExpectCode(RAVENSTORE_WRONG_STATE, "no tensors", [&] { empty.seal("weights"); });
  ExpectCode(RAVENSTORE_INVALID_ARGUMENT, "bytes", [&] { empty.seal(std::string(256, 'n')); });
  ExpectCode(RAVENSTORE_INVALID_ARGUMENT, "name", [&] { empty.seal(""); });
}

TEST_F(NamedSetsTest, ADroppedSetStaysForThoseWhoHaveIt) {
  Store published = Publish("weights", 7);
  Store reader = Connect("reader");
  NamedSet set = NamedSet::open(reader, "weights");
  set.use();
  reader.drop("weights");
  ExpectCode(RAVENSTORE_NOT_FOUND, "'weights'",
             [&] { NamedSet::open(reader, "weights", {.fail_fast = true}); });
  ExpectCode(RAVENSTORE_NOT_FOUND, "'weights'", [&] { reader.drop("weights"); });
  EXPECT_EQ(WrongBytesOf(set, 7), 0u);
  published = Store();
  set = NamedSet();
  AwaitHeld(0);
}

TEST_F(NamedSetsTest, ASetThatIsPutAwayIsPublishedToo) {
  Store store = Connect("set weights");
  Tensor tensor = store.create(MiB(20));
  FillPattern(tensor.data(), MiB(20), 5);
  store.put(tensor, nullptr);
  Store reader = Connect("reader");
  Tensor all = reader.create(MiB(30));
  store.seal("weights");
  reader.free(std::move(all), nullptr);
  NamedSet set = NamedSet::open(reader, "weights");
  set.use();
  EXPECT_EQ(WrongBytesOf(set, 5), 0u);
}

TEST_F(NamedSetsTest, AReaderThatIsKilledUsesNothingMore) {
#ifdef __SANITIZE_THREAD__
  GTEST_SKIP() << "ThreadSanitizer knows no threads in a child of a process with threads";
#endif
  const Store published = Publish("weights", 7);
  int ready[2];
  ASSERT_EQ(pipe(ready), 0);
  ipc::Child child([&] {
    Store reader = Connect("reader");
    NamedSet set = NamedSet::open(reader, "weights");
    set.use();
    if (write(ready[1], "x", 1) != 1) return 1;
    while (true) pause();
    return 0;
  });
  char byte = 0;
  ASSERT_EQ(read(ready[0], &byte, 1), 1);
  Store other = Connect("other");
  ExpectCode(RAVENSTORE_OUT_OF_MEMORY, "client 1 holds",
             [&] { other.create(MiB(30), {.fail_fast = true}); });
  kill(child.pid(), SIGKILL);
  EXPECT_EQ(child.Wait(), -SIGKILL);
  Tensor all = other.create(MiB(30));
  EXPECT_EQ(all.size(), MiB(30));
  close(ready[0]);
  close(ready[1]);
}

class KeptSetsTest : public NamedSetsTest {
 protected:
  KeptSetsTest() : NamedSetsTest({"--kept-sets", "14MiB"}) {}

  // There is such a set, with these bytes.
  void Expect(const std::string& name, uint64_t seed) {
    Store reader = Connect("reader");
    NamedSet set = NamedSet::open(reader, name, {.fail_fast = true});
    set.use();
    EXPECT_EQ(WrongBytesOf(set, seed), 0u) << name;
  }
  void ExpectNone(const std::string& name) {
    Store reader = Connect("reader");
    ExpectCode(RAVENSTORE_NOT_FOUND, name,
               [&] { NamedSet::open(reader, name, {.fail_fast = true}); });
  }
};

TEST_F(KeptSetsTest, TheLastOnesStayWithoutAProcess) {
  for (uint64_t i = 0; i < 4; ++i) Publish("set " + std::to_string(i), i);
  // Each has 6 MiB and some.
  ExpectNone("set 0");
  ExpectNone("set 1");
  Expect("set 2", 2);
  Expect("set 3", 3);
  // That was the order of their last uses, too.
  Publish("set 4", 4);
  ExpectNone("set 2");
  Expect("set 3", 3);
  // A new version takes the place of the old one alone.
  Publish("set 3", 33);
  Expect("set 3", 33);
  Expect("set 4", 4);
}

}  // namespace
}  // namespace ravenstore::daemon
