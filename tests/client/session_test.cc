#include "client/session.h"

#include <dirent.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <set>

#include "tests/client/store_test.h"

namespace ravenstore {
namespace {

using proto::LeaseState;
using std::chrono::milliseconds;
using testing::HasSubstr;

constexpr uint64_t kBytes = 4096;

std::set<int> OpenDescriptors() {
  std::set<int> open;
  DIR* directory = opendir("/proc/self/fd");
  while (const dirent* entry = readdir(directory)) {
    const int descriptor = std::atoi(entry->d_name);
    if (entry->d_name[0] != '.' && descriptor != dirfd(directory)) open.insert(descriptor);
  }
  closedir(directory);
  return open;
}

class SessionTest : public StoreTest {
 protected:
  explicit SessionTest(MiniDaemon::Options options = {}) : StoreTest(std::move(options)) {}
};

TEST_F(SessionTest, BackendIsTheDaemons) {
  EXPECT_EQ(store_.backend(), "host");
}

TEST_F(SessionTest, WithoutADaemonItIsUnavailable) {
  std::string words;
  EXPECT_EQ(CodeOf([] { Store::connect({.socket = "/nonexistent/ravenstore.sock"}); }, &words),
            RAVENSTORE_UNAVAILABLE);
  EXPECT_THAT(words, HasSubstr("/nonexistent/ravenstore.sock"));
}

TEST_F(SessionTest, SocketComesFromTheEnvironment) {
  setenv("RAVENSTORE_SOCKET", daemon_.socket().c_str(), 1);
  Store store = Store::connect();
  unsetenv("RAVENSTORE_SOCKET");
  EXPECT_TRUE(Eventually([&] { return daemon_.clients() == 2; }));
}

TEST_F(SessionTest, SilentDaemonTimesOut) {
  daemon_.IgnoreSocket(true);
  EXPECT_EQ(
      CodeOf([&] { Store::connect({.socket = daemon_.socket(), .timeout = milliseconds(30)}); }),
      RAVENSTORE_TIMED_OUT);
  daemon_.IgnoreSocket(false);
}

TEST_F(SessionTest, OtherProtocolIsRecognized) {
  MiniDaemon other({.version = 99});
  std::string words;
  EXPECT_EQ(CodeOf([&] { Store::connect({.socket = other.socket()}); }, &words),
            RAVENSTORE_VERSION_MISMATCH);
  EXPECT_THAT(words, HasSubstr("another protocol"));
}

TEST_F(SessionTest, UnknownBackendIsRefused) {
  MiniDaemon other({.backend = "abacus"});
  EXPECT_EQ(CodeOf([&] { Store::connect({.socket = other.socket()}); }),
            RAVENSTORE_INVALID_ARGUMENT);
  EXPECT_TRUE(Eventually([&] { return other.counts().hangups == 1; }));
  EXPECT_EQ(other.counts().detaches, 1u) << "a hang-up alone would keep its place";
}

TEST_F(SessionTest, NamesAreAskedForOnce) {
  for (int i = 0; i < 5; ++i) {
    store_.create(kBytes, {.name = "a"});
    store_.create(kBytes, {.name = "b"});
  }
  EXPECT_EQ(daemon_.counts().interns, 2u);
}

TEST_F(SessionTest, NoThreadWaitsForTheNameThatAnotherAskedFor) {
  daemon_.HoldNames(true);
  std::atomic<bool> named{false};
  std::thread patient([&] {
    store_.create(kBytes, {.name = "patient", .timeout = std::chrono::seconds(20)});
    named.store(true);
  });
  EXPECT_TRUE(Eventually([&] { return daemon_.counts().interns == 1; }));
  const auto hasty = [&] { store_.create(kBytes, {.name = "hasty", .timeout = milliseconds(1)}); };
  EXPECT_EQ(CodeOf(hasty), RAVENSTORE_TIMED_OUT);
  EXPECT_EQ(daemon_.counts().interns, 2u) << "it asked while the other waited";
  EXPECT_FALSE(named.load());
  daemon_.HoldNames(false);
  patient.join();
  EXPECT_TRUE(named.load());
}

TEST_F(SessionTest, ImpossibleNamesAreRefusedHere) {
  const std::string endless(1000, 'x');
  EXPECT_EQ(CodeOf([&] { store_.create(kBytes, {.name = endless.c_str()}); }),
            RAVENSTORE_INVALID_ARGUMENT);
  EXPECT_EQ(CodeOf([&] { store_.create(kBytes, {.name = "\xff\xfe"}); }),
            RAVENSTORE_INVALID_ARGUMENT);
  EXPECT_EQ(daemon_.counts().interns, 0u);
}

class FewNames : public SessionTest {
 protected:
  FewNames() : SessionTest({.names_max = 1}) {}
};

TEST_F(FewNames, DaemonsLimitReachesTheCaller) {
  Tensor tensor = store_.create(kBytes, {.name = "one"});
  EXPECT_EQ(CodeOf([&] { store_.create(kBytes, {.name = "two"}); }), RAVENSTORE_LIMIT);
  EXPECT_EQ(daemon_.tensors(), 1u);
}

TEST_F(SessionTest, StatsAreTheDaemonsAndOwnStalls) {
  Store store = Store::connect({.socket = daemon_.socket(), .device_budget = MiB(64)});
  Tensor tensor = store.create(kBytes);
  store.put(tensor, nullptr);
  ASSERT_TRUE(daemon_.Evict(tensor.id()));
  store.get(tensor, nullptr);
  const Stats stats = store.stats();
  EXPECT_EQ(stats.tensors, 1u);
  EXPECT_EQ(stats.misses, 1u);
  EXPECT_EQ(stats.device_bytes, kBytes);
  EXPECT_EQ(stats.device_budget, MiB(64));
  EXPECT_GT(stats.stall_ns, 0u);
}

TEST_F(SessionTest, GarbageFromTheDaemonIsSkipped) {
  daemon_.SendGarbage();
  Tensor tensor = store_.create(kBytes, {.name = "after"});
  Fill(tensor.data(), 1, kBytes);
}

TEST_F(SessionTest, DisconnectFreesAndLeavesHandlesOfLostTensors) {
  ravenstore_store_t* store = nullptr;
  ravenstore_connect_options_t options{};
  options.struct_size = sizeof(options);
  const std::string socket = daemon_.socket();
  options.socket = socket.c_str();
  ASSERT_EQ(ravenstore_connect(&options, &store), RAVENSTORE_OK);
  ravenstore_tensor_t* idle = nullptr;
  ravenstore_tensor_t* used = nullptr;
  ASSERT_EQ(ravenstore_create(store, kBytes, nullptr, &idle), RAVENSTORE_OK);
  ASSERT_EQ(ravenstore_create(store, kBytes, nullptr, &used), RAVENSTORE_OK);
  ASSERT_EQ(ravenstore_put(store, idle, nullptr, nullptr), RAVENSTORE_OK);
  ravenstore_disconnect(store);
  EXPECT_EQ(daemon_.counts().detaches, 1u);
  EXPECT_EQ(daemon_.tensors(), 0u);
  void* address = nullptr;
  EXPECT_EQ(ravenstore_get(store, idle, nullptr, nullptr, &address), RAVENSTORE_LOST);
  EXPECT_EQ(ravenstore_put(store, used, nullptr, nullptr), RAVENSTORE_LOST);
  EXPECT_EQ(ravenstore_data(used), nullptr);
  EXPECT_EQ(ravenstore_size(used), kBytes);
  EXPECT_LT(ravenstore_ready(idle), 0);
  EXPECT_EQ(ravenstore_free(store, idle, nullptr), RAVENSTORE_LOST);
  EXPECT_EQ(ravenstore_free(store, used, nullptr), RAVENSTORE_LOST);
}

TEST_F(SessionTest, DisconnectWaitsForTheStreams) {
  TestStream stream;
  auto store = std::make_unique<Store>(Connect());
  Tensor tensor = store->create(kBytes);
  Fill(tensor.data(), 1, kBytes);
  stream.Block();
  store->put(tensor, stream);
  std::atomic<bool> ended{false};
  std::thread leaver([&] {
    store.reset();
    ended.store(true);
  });
  EXPECT_FALSE(ended.load());
  EXPECT_EQ(daemon_.counts().detaches, 0u);
  stream.Open();
  leaver.join();
  EXPECT_EQ(daemon_.counts().detaches, 1u);
}

TEST_F(SessionTest, AttachingAndLeavingKeepsNoDescriptors) {
  { Store once = Connect(); }
  ASSERT_TRUE(Eventually([&] { return daemon_.clients() == 1; }));
  const auto leave = [&] {
    Store store = Connect();
    Tensor tensor = store.create(MiB(20));
    Fill(tensor.data(), 1, MiB(20));
  };
  leave();
  ASSERT_TRUE(Eventually([&] { return daemon_.clients() == 1; }));
  // The mini daemon keeps its segment, its doorbell and its slabs of every client there ever was.
  const size_t before = OpenDescriptors().size();
  leave();
  ASSERT_TRUE(Eventually([&] { return daemon_.clients() == 1; }));
  const size_t kept_by_daemon = 1 + 1 + 3;
  EXPECT_EQ(OpenDescriptors().size(), before + kept_by_daemon);
}

TEST_F(SessionTest, DeadDaemonIsLostForEveryCall) {
  Tensor away = Away(kBytes, 1);
  Tensor used = store_.create(kBytes);
  daemon_.Die();
  EXPECT_TRUE(
      Eventually([&] { return CodeOf([&] { store_.check(nullptr); }) == RAVENSTORE_LOST; }));
  std::string words;
  EXPECT_EQ(CodeOf([&] { store_.get(away, nullptr); }, &words), RAVENSTORE_LOST);
  EXPECT_THAT(words, HasSubstr("checkpoint"));
  EXPECT_EQ(CodeOf([&] { store_.put(used, nullptr); }), RAVENSTORE_LOST);
  EXPECT_EQ(CodeOf([&] { store_.create(kBytes); }), RAVENSTORE_LOST);
  EXPECT_EQ(CodeOf([&] { store_.stats(); }), RAVENSTORE_LOST);
  EXPECT_EQ(CodeOf([&] { static_cast<void>(used.ready()); }), RAVENSTORE_LOST);
  EXPECT_NE(used.data(), nullptr) << "work already queued may still use the address";
  EXPECT_EQ(CodeOf([&] { store_.free(std::move(used), nullptr); }), RAVENSTORE_LOST);
}

TEST_F(SessionTest, WaitsEndWhenTheDaemonDies) {
  TestStream stream;
  Tensor for_stream = Away(kBytes, 1);
  Tensor for_thread = Away(kBytes, 1);
  Tensor unanswered = Away(kBytes, 1);
  daemon_.HoldArrivals(true);
  store_.get(for_stream, stream);
  std::thread arriving(
      [&] { EXPECT_EQ(CodeOf([&] { store_.get(for_thread, nullptr); }), RAVENSTORE_LOST); });
  ASSERT_TRUE(Eventually([&] { return daemon_.counts().fetches == 2; }));
  daemon_.HoldRequests(true);
  std::thread fetching(
      [&] { EXPECT_EQ(CodeOf([&] { store_.get(unanswered, nullptr); }), RAVENSTORE_LOST); });
  std::thread creating([&] { EXPECT_EQ(CodeOf([&] { store_.create(kBytes); }), RAVENSTORE_LOST); });
  ASSERT_TRUE(Eventually([&] { return LeaseOf(unanswered).state == LeaseState::kFetching; }));
  daemon_.Die();
  arriving.join();
  fetching.join();
  creating.join();
  stream.Synchronize();
  EXPECT_EQ(CodeOf([&] { store_.check(stream); }), RAVENSTORE_LOST);
}

class SlowToGiveUp : public SessionTest {
 protected:
  SlowToGiveUp() : SessionTest({.restart_timeout_ms = 300}) {}
};

TEST_F(SlowToGiveUp, ResidentTensorsLiveOnUntilTheRestartTimeout) {
  Tensor tensor = Idle(kBytes, 1);
  daemon_.Die();
  EXPECT_TRUE(Holds(store_.get(tensor, nullptr), 1, kBytes));
  store_.put(tensor, nullptr);
  EXPECT_EQ(CodeOf([&] { store_.create(kBytes); }), RAVENSTORE_LOST) << "after the time-out";
  EXPECT_EQ(CodeOf([&] { store_.get(tensor, nullptr); }), RAVENSTORE_LOST);
}

TEST_F(SlowToGiveUp, DisconnectDoesNotWaitForTheRestartTimeout) {
  daemon_.Die();
  store_ = Store();
}

TEST_F(SlowToGiveUp, DisconnectLeavesNoStreamWaitingForADaemonThatEnded) {
  TestStream stream;
  {
    Tensor tensor = Away(kBytes, 1);
    daemon_.HoldArrivals(true);
    store_.get(tensor, stream);
    daemon_.Die();
    store_ = Store();
  }
  stream.Synchronize();
}

// What a child of fork() reports: 0, or the line at which it saw something wrong.
#define CHILD_EXPECT(condition) \
  if (!(condition)) _exit(__LINE__ & 0xff)

TEST_F(SessionTest, ForkedChildIsRefusedAndHarmsNothing) {
  TestStream stream;
  Tensor idle = Idle(kBytes, 1);
  Tensor used = store_.create(kBytes);
  void* address = nullptr;
  ASSERT_TRUE(Eventually([&] { return daemon_.asleep(); }));
  const pid_t child = fork();
  if (child == 0) {
    ravenstore_store_t* store = store_.handle();
    CHILD_EXPECT(ravenstore_get(store, idle.handle(), nullptr, nullptr, &address) ==
                 RAVENSTORE_IS_FORKED);
    CHILD_EXPECT(ravenstore_put(store, used.handle(), nullptr, nullptr) == RAVENSTORE_IS_FORKED);
    CHILD_EXPECT(ravenstore_create(store, kBytes, nullptr, &(ravenstore_tensor_t*&)address) ==
                 RAVENSTORE_IS_FORKED);
    CHILD_EXPECT(ravenstore_check(store, nullptr) == RAVENSTORE_IS_FORKED);
    CHILD_EXPECT(ravenstore_data(used.handle()) == nullptr);
    CHILD_EXPECT(ravenstore_size(used.handle()) == kBytes);
    CHILD_EXPECT(ravenstore_ready(idle.handle()) < 0);
    CHILD_EXPECT(ravenstore_free(store, idle.handle(), nullptr) == RAVENSTORE_IS_FORKED);
    ravenstore_disconnect(store);
    _exit(0);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
  EXPECT_TRUE(Holds(store_.get(idle, nullptr), 1, kBytes));
  store_.put(idle, nullptr);
  store_.put(used, nullptr);
  EXPECT_EQ(daemon_.counts().frees, 0u);
  EXPECT_EQ(daemon_.counts().hangups, 0u);
}

TEST_F(SessionTest, ForkedChildKeepsNoDescriptorOfTheStore) {
  Tensor tensor = store_.create(kBytes);  // a slab is under way or mapped
  const std::set<int> before = OpenDescriptors();
  Store second = Connect();
  ASSERT_TRUE(Eventually([&] { return daemon_.asleep(); }));
  const pid_t child = fork();
  if (child == 0) {
    // What the second store opened here is closed: its socket, stop event, doorbell and segment.
    // The mini daemon, in the same process, opened three of its own.
    size_t fresh = 0;
    for (const int descriptor : OpenDescriptors()) fresh += before.contains(descriptor) ? 0 : 1;
    _exit(fresh == 3 ? 0 : static_cast<int>(10 + fresh));
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

TEST_F(SessionTest, ForkedChildMayConnectAgain) {
#ifdef __SANITIZE_THREAD__
  GTEST_SKIP() << "ThreadSanitizer knows no threads in a child of a process with threads";
#endif
#ifdef __SANITIZE_ADDRESS__
  GTEST_SKIP()
      << "a thread may hold the lock of AddressSanitizer's allocator, and the child keeps it";
#endif
  Tensor tensor = Idle(kBytes, 1);
  const std::string socket = daemon_.socket();
  ASSERT_TRUE(Eventually([&] { return daemon_.asleep(); }));
  const pid_t child = fork();
  if (child == 0) {
    ravenstore_connect_options_t options{};
    options.struct_size = sizeof(options);
    options.socket = socket.c_str();
    ravenstore_store_t* store = nullptr;
    CHILD_EXPECT(ravenstore_connect(&options, &store) == RAVENSTORE_OK);
    ravenstore_tensor_t* mine = nullptr;
    CHILD_EXPECT(ravenstore_create(store, kBytes, nullptr, &mine) == RAVENSTORE_OK);
    Fill(ravenstore_data(mine), 2, kBytes);
    CHILD_EXPECT(ravenstore_put(store, mine, nullptr, nullptr) == RAVENSTORE_OK);
    ravenstore_disconnect(store);
    _exit(0);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(WEXITSTATUS(status), 0);
  EXPECT_TRUE(Holds(store_.get(tensor, nullptr), 1, kBytes));
}

}  // namespace
}  // namespace ravenstore
