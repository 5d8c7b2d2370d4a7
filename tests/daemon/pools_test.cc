// The store end to end with pools other than the host's: a real daemon, the real client library,
// the host backend.
#include <dirent.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "client/client.h"
#include "core/check.h"
#include "daemon/pools.h"
#include "daemon/server.h"
#include "ipc/clock.h"
#include "ipc/socket.h"
#include "proto/control.pb.h"
#include "proto/packet.h"
#include "tests/daemon/daemon_process.h"
#include "tests/daemon/ledger_page.h"
#include "tests/daemon/pattern.h"
#include "tests/daemon/stats_of.h"
#include "tests/device/fake_pieces.h"
#include "tests/ipc/child.h"
#include "tests/ipc/short_directory.h"

namespace ravenstore::daemon {
namespace {

// Across slabs, and no multiple of a file's unit.
constexpr uint64_t kBytes = MiB(3) + 3 * 512;

void Fill(void* data, uint64_t seed) {
  FillPattern(data, kBytes, seed);
}
bool Holds(const void* data, uint64_t seed) {
  return HoldsPattern(data, kBytes, seed);
}

proto::TierStats TierOf(const DaemonProcess& daemon, const std::string& name) {
  const proto::Stats stats = StatsOf(daemon);
  for (const proto::TierStats& tier : stats.tiers()) {
    if (tier.name() == name) return tier;
  }
  return {};
}

struct Held {
  Tensor tensor;
  uint64_t seed;
};

Store Connect(const DaemonProcess& daemon) {
  return Store::connect({.socket = daemon.socket(), .name = "pools_test"});
}

// Whether a get of the tensor says that it is lost. A store learns late that its daemon has ended.
bool IsLost(Store& store, Tensor& tensor) {
  try {
    store.get(tensor, nullptr);
    store.put(tensor, nullptr);
    return false;
  } catch (const Lost&) {
    return true;
  }
}

// `count` tensors on each device, needed in the order in which they were made.
std::vector<Held> Make(Store& store, uint64_t count, int devices = 2) {
  std::vector<Held> held;
  for (uint64_t i = 0; i < count; ++i) {
    for (int device = 0; device < devices; ++device) {
      held.push_back({store.create(kBytes, {.device = device}), held.size() + 1});
      Fill(held.back().tensor.data(), held.back().seed);
      store.put(held.back().tensor, nullptr, {.order = static_cast<int64_t>(i)});
    }
  }
  return held;
}
// Reads all of them twice; every other one is written in between.
void ExpectAllHold(Store& store, std::vector<Held>& held) {
  for (int round = 0; round < 2; ++round) {
    for (Held& one : held) {
      void* data = store.get(one.tensor, nullptr, {.blocking = true});
      ASSERT_TRUE(Holds(data, one.seed)) << "tensor " << one.seed << ", round " << round;
      if (one.seed % 2 == 0) Fill(data, one.seed += 1000);
      store.put(one.tensor, nullptr, {.order = static_cast<int64_t>(one.seed)});
    }
  }
}

// A process that runs `body` until it is killed or asked to end. Forks: before this process has
// threads.
class Process {
 public:
  // `body` gets two functions: one says that it is ready, the other asks whether it is to go on.
  using Say = std::function<void()>;
  using Ask = std::function<bool()>;
  explicit Process(const std::function<int(const Say&, const Ask&)>& body)
      : child_([&] {
          const auto say = [this] { RAVEN_CHECK(::write(ready_[1], "x", 1) == 1); };
          const auto ask = [this] {
            pollfd end{end_[0], POLLIN, 0};
            return ::poll(&end, 1, 0) == 0;
          };
          return body(say, ask);
        }) {
    ::close(ready_[1]);  // so that a child that fails is noticed
    ready_[1] = -1;
  }
  ~Process() {
    for (const int one : {ready_[0], ready_[1], end_[0], end_[1]}) ::close(one);
  }
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  bool AwaitReady() {
    char ready = 0;
    return ::read(ready_[0], &ready, 1) == 1;
  }
  // Stands still when this returns.
  void Stop() {
    ::kill(child_.pid(), SIGSTOP);
    RAVEN_CHECK(::waitpid(child_.pid(), nullptr, WUNTRACED) == child_.pid());
  }
  void Continue() { ::kill(child_.pid(), SIGCONT); }
  void Kill() {
    ::kill(child_.pid(), SIGKILL);
    EXPECT_EQ(child_.Wait(), -SIGKILL);
  }
  // What it asks for is false from now on.
  void Resume() { RAVEN_CHECK(::write(end_[1], "x", 1) == 1); }
  // The same; returns what `body` does.
  int End() {
    Resume();
    return child_.Wait();
  }

 private:
  struct Pipe {
    Pipe() { RAVEN_CHECK(::pipe2(ends, O_CLOEXEC) == 0); }
    int& operator[](size_t i) { return ends[i]; }
    int ends[2];
  };
  Pipe ready_;
  Pipe end_;
  ipc::Child child_;  // last: it has the pipes
};

// Reads its tensors again and again, and says at its end whether they held.
class BusyClient : public Process {
 public:
  BusyClient(const DaemonProcess& daemon, uint64_t count, int devices)
      : Process([&](const Say& say, const Ask& ask) {
          Store store = Connect(daemon);
          std::vector<Held> held = Make(store, count, devices);
          say();
          while (ask() && !testing::Test::HasFailure()) ExpectAllHold(store, held);
          return testing::Test::HasFailure() ? 1 : 0;
        }) {
    EXPECT_TRUE(AwaitReady());
  }
};

class PoolsTest : public testing::Test {
 protected:
  // Two devices of 32 MiB and a host pool of 8, or as much as said, and what `more` says.
  std::vector<std::string> With(const std::string& more, const std::string& host = "8MiB") {
    const std::string path = directory_ / "config";
    std::ofstream(path) << R"([host_pool]
size = ")" << host << R"("
step = "2MiB"
ahead = "2MiB"
[host_backend]
devices = 2
total = "32MiB"
)" << more;
    return {"--config", path};
  }
  static std::string PeerPool(const std::string& size) {
    return "peer_bytes_per_second = 2e10\n[peer_pool]\nsize = \"" + size + "\"\n";
  }
  std::string FilePool(const std::string& size) {
    std::filesystem::create_directory(directory_ / "pool");
    return "[file_pool]\npath = \"" + (directory_ / "pool") + "\"\nsize = \"" + size +
           "\"\nread_bytes_per_second = 7e9\nwrite_bytes_per_second = 5e9\n";
  }
  // Of each device all but 8 MiB is harvested while it is idle, looked at every 10 ms. The host's
  // link is slower than any memory.
  static std::string Harvest(const std::string& link = "2e8") {
    return "bytes_per_second = " + link +
           "\npeer_bytes_per_second = 2e10\n[harvest]\nsize = \"32MiB\"\nreserve = \"8MiB\"\n"
           "sample_ms = 10\nrise_s = 0\nstep = \"4MiB\"\n";
  }
  bool FolderIsEmpty() const { return std::filesystem::is_empty(directory_ / "pool"); }

  // One that reads its tensors, `count` on each device, again and again.
  static void KillABusyClient(const DaemonProcess& daemon, uint64_t count) {
    BusyClient(daemon, count, /*devices=*/2).Kill();
  }
  // The descriptor of the daemon's file of the pool, opened once more.
  ipc::UniqueFd FileOf(const DaemonProcess& daemon) const {
    const std::string folder = "/proc/" + std::to_string(daemon.pid()) + "/fd";
    for (const auto& entry : std::filesystem::directory_iterator(folder)) {
      std::error_code error;
      const std::string to = std::filesystem::read_symlink(entry.path(), error).string();
      if (to.starts_with(directory_ / "pool"))
        return ipc::UniqueFd(::open(entry.path().c_str(), O_RDWR | O_CLOEXEC));
    }
    return {};
  }

  ipc::ShortDirectory directory_;
};

TEST_F(PoolsTest, TensorsInAFileComeBackWhole) {
  DaemonProcess daemon(With(FilePool("96MiB")));
  struct stat file {};
  ASSERT_EQ(::fstat(FileOf(daemon).get(), &file), 0);
  EXPECT_EQ(file.st_mode & 0777, 0600u);
  EXPECT_EQ(file.st_nlink, 0u);
  EXPECT_TRUE(FolderIsEmpty());
  Store store = Connect(daemon);
  std::vector<Held> held = Make(store, 20);
  const proto::TierStats tier = TierOf(daemon, "file 0");
  EXPECT_EQ(tier.capacity(), MiB(96));
  EXPECT_GT(tier.used(), MiB(40)) << "the host has room for 8 of the 60 MiB that left";
  ExpectAllHold(store, held);
}

TEST_F(PoolsTest, AUserHasNoMoreInAFileThanItsBudget) {
  DaemonProcess daemon(With("[limits]\nfile_budget = \"8MiB\"\n" + FilePool("96MiB")));
  Store store = Store::connect({.socket = daemon.socket(), .name = "pools_test"});
  std::vector<Held> held;
  const CreateOptions not_for_long{.timeout = std::chrono::milliseconds(500)};
  EXPECT_THROW(
      for (int i = 0; i < 20; ++i) {
        held.push_back({store.create(kBytes, not_for_long), held.size() + 1});
        Fill(held.back().tensor.data(), held.back().seed);
        store.put(held.back().tensor, nullptr);
      },
      OutOfMemory);
  EXPECT_GT(TierOf(daemon, "file 0").used(), MiB(3));
  EXPECT_LE(TierOf(daemon, "file 0").used(), MiB(8));
  held.erase(held.end() - 3, held.end());  // so that there is room to bring others back
  for (Held& one : held) {
    ASSERT_TRUE(Holds(store.get(one.tensor, nullptr, {.blocking = true}), one.seed)) << one.seed;
    store.put(one.tensor, nullptr);
  }
}

TEST_F(PoolsTest, ABudgetOfAFileChangesWhileTheDaemonRuns) {
  DaemonProcess daemon(With(FilePool("96MiB")));
  auto session = client::ctl::Session::Open(daemon.socket(), std::chrono::seconds(30));
  ASSERT_TRUE(session.ok());
  const auto set = [&](uint64_t bytes) {
    proto::SetLimits limits;
    limits.set_uid(::geteuid());
    proto::PoolBudget* budget = limits.add_pool_budgets();
    budget->set_pool("file 0");
    budget->set_bytes(bytes);
    const auto answer = session->SetLimits(limits);
    RAVEN_CHECK(answer.ok());
    return answer->pool_budgets(0).bytes();
  };
  Store store = Connect(daemon);
  std::vector<Held> held = Make(store, 14);
  EXPECT_EQ(set(MiB(8)), MiB(8)) << "less than the tensors in the file take";
  // A copy may begin until the limit holds.
  const uint64_t before = TierOf(daemon, "file 0").used();
  EXPECT_GT(before, MiB(16));
  EXPECT_THROW(
      for (int i = 0; i < 20; ++i) {
        held.push_back(
            {store.create(kBytes, {.timeout = std::chrono::seconds(1)}), held.size() + 1});
        Fill(held.back().tensor.data(), held.back().seed);
        store.put(held.back().tensor, nullptr);
      },
      OutOfMemory);
  EXPECT_LE(TierOf(daemon, "file 0").used(), before);
  EXPECT_EQ(set(MiB(96)), MiB(96));
  for (int i = 0; i < 5; ++i) {
    held.push_back({store.create(kBytes), held.size() + 1});
    Fill(held.back().tensor.data(), held.back().seed);
    store.put(held.back().tensor, nullptr);
  }
  ExpectAllHold(store, held);
}

TEST_F(PoolsTest, ATensorInAFileIsFetchedOnTheOtherDevice) {
  DaemonProcess daemon(With(FilePool("96MiB")));
  Store store = Connect(daemon);
  std::vector<Held> held = Make(store, 20);
  for (Held& one : held) {
    const int other = one.seed % 2 == 0 ? 0 : 1;
    ASSERT_TRUE(
        Holds(store.get(one.tensor, nullptr, {.device = other, .blocking = true}), one.seed))
        << one.seed;
    store.put(one.tensor, nullptr);
  }
}

TEST_F(PoolsTest, WhatKilledClientsHadInAFileIsFreeForOthers) {
  DaemonProcess daemon(With(FilePool("96MiB")));
  for (int i = 0; i < 3; ++i) {
    KillABusyClient(daemon, 18);
    EXPECT_TRUE(Eventually([&] { return TierOf(daemon, "file 0").used() == 0; }));
  }
  Store store = Connect(daemon);
  std::vector<Held> held = Make(store, 20);
  ExpectAllHold(store, held);
}

TEST_F(PoolsTest, AFileThatFailsLosesWhatLiesThereAndTheDaemonServesOn) {
  DaemonProcess daemon(With(FilePool("96MiB")));
  Store store = Connect(daemon);
  std::vector<Held> held = Make(store, 20);
  ASSERT_GT(TierOf(daemon, "file 0").used(), MiB(40));
  ASSERT_EQ(::ftruncate(FileOf(daemon).get(), 0), 0);
  size_t lost = 0;
  size_t whole = 0;
  // On pages a get whose copy failed is to be tried again, until the file is given up.
  const auto get = [&store](Tensor& tensor) -> const void* {
    for (int tries = 0; tries < 20; ++tries) {
      try {
        return store.get(tensor, nullptr, {.blocking = true});
      } catch (const Lost& error) {
        EXPECT_NE(std::string(error.what()).find("file"), std::string::npos) << error.what();
        return nullptr;
      } catch (const Error&) {
      }
    }
    ADD_FAILURE() << "the file is not given up";
    return nullptr;
  };
  for (Held& one : held) {
    const void* data = get(one.tensor);
    if (data == nullptr) {
      ++lost;
      continue;
    }
    ASSERT_TRUE(Holds(data, one.seed)) << one.seed;
    // Else device and host are full, and what is on the host cannot change places.
    store.free(std::move(one.tensor), nullptr);
    ++whole;
  }
  EXPECT_GT(lost, 8u);
  EXPECT_GT(whole, 10u);
  // It is given up after some failures in a row: nothing goes there any more.
  EXPECT_EQ(TierOf(daemon, "file 0").capacity(), 0u);
  EXPECT_NE(daemon.Log().find("file 0 failed, what lies there alone is lost"), std::string::npos);
  held.clear();
  std::vector<Held> next = Make(store, 8);
  ExpectAllHold(store, next);
}

TEST_F(PoolsTest, TensorsOnAPeerComeBackWholeOnEitherDevice) {
  DaemonProcess daemon(With(PeerPool("12MiB") + FilePool("96MiB")));
  EXPECT_EQ(TierOf(daemon, "device 0").capacity(), MiB(20));
  EXPECT_EQ(TierOf(daemon, "peer 1").capacity(), MiB(12));
  Store store = Connect(daemon);
  std::vector<Held> held = Make(store, 16);
  for (const char* pool : {"peer 0", "peer 1", "file 0"}) {
    EXPECT_GT(TierOf(daemon, pool).used(), MiB(6)) << pool;
  }
  ExpectAllHold(store, held);
  // Also that of which the peer is the owner.
  for (Held& one : held) {
    const int other = one.seed % 4 < 2 ? 0 : 1;
    ASSERT_TRUE(
        Holds(store.get(one.tensor, nullptr, {.device = other, .blocking = true}), one.seed))
        << one.seed;
    store.put(one.tensor, nullptr);
  }
}

TEST_F(PoolsTest, WhatKilledClientsHadOnAPeerIsFreeForOthers) {
  DaemonProcess daemon(With(PeerPool("12MiB") + FilePool("96MiB")));
  KillABusyClient(daemon, 16);
  for (const char* pool : {"peer 0", "peer 1", "file 0"}) {
    EXPECT_TRUE(Eventually([&] { return TierOf(daemon, pool).used() == 0; })) << pool;
  }
  Store store = Connect(daemon);
  std::vector<Held> held = Make(store, 16);
  ExpectAllHold(store, held);
}

// Of what is harvested of device 1.
core::Result<proto::HarvestReturned> ReturnHarvested(const DaemonProcess& daemon, uint64_t bytes,
                                                     std::chrono::nanoseconds within) {
  auto session = client::ctl::Session::Open(daemon.socket(), std::chrono::seconds(30));
  RAVEN_CHECK(session.ok());
  proto::ReturnHarvest wanted;
  wanted.set_device(1);
  wanted.set_bytes(bytes);
  wanted.set_within_ns(static_cast<uint64_t>(within.count()));
  return session->ReturnHarvest(wanted);
}

// Both devices' tensors. Those of device 1 fit there in addition to its harvested memory.
class HarvestTest : public PoolsTest {
 protected:
  HarvestTest() : daemon_(With(Harvest(), "96MiB")), store_(Connect(daemon_)) {}

  proto::DeviceUse UseOf(int device) { return StatsOf(daemon_).devices(device); }
  // Makes enough tensors that some must leave device 0 for the harvested memory of device 1.
  void FillDevice0() {
    ASSERT_TRUE(Eventually([&] { return UseOf(1).peer_pool() > 0; }));
    held_ = Make(store_, 16, /*devices=*/1);
    ASSERT_GT(UseOf(1).harvest().used(), MiB(6));
  }
  proto::HarvestReturned Return(uint64_t bytes, std::chrono::nanoseconds within) {
    auto returned = ReturnHarvested(daemon_, bytes, within);
    if (!returned.ok()) refused_ = returned.error().message;
    return returned.ok() ? *returned : proto::HarvestReturned();
  }

  DaemonProcess daemon_;
  Store store_;
  std::vector<Held> held_;
  std::string refused_;
};

TEST_F(HarvestTest, TensorsInIdleMemoryOfThePeerComeBackWhole) {
  FillDevice0();
  ExpectAllHold(store_, held_);
}

TEST_F(HarvestTest, AnOperatorHasMemoryReturnedAndNothingIsLost) {
  FillDevice0();
  const uint64_t before = UseOf(1).peer_pool();
  const proto::HarvestReturned returned = Return(before, std::chrono::seconds(60));
  EXPECT_EQ(returned.late(), "");
  EXPECT_EQ(returned.bytes(), before);
  EXPECT_GT(returned.took_ns(), 0u);
  EXPECT_EQ(UseOf(1).harvest().returns(), 1u);
  EXPECT_EQ(UseOf(1).harvest().missed(), 0u);
  ExpectAllHold(store_, held_);
}

TEST_F(HarvestTest, AReturnThatCannotBeIsRefusedWithBothNumbers) {
  FillDevice0();
  Return(MiB(64), std::chrono::seconds(1));
  EXPECT_NE(refused_.find("less than the 64.0 MiB to give back"), std::string::npos) << refused_;
  Return(0, std::chrono::seconds(1));
  EXPECT_NE(refused_.find("of some bytes"), std::string::npos) << refused_;
  Return(MiB(1), std::chrono::seconds(0));
  EXPECT_NE(refused_.find("within some time"), std::string::npos) << refused_;
}

TEST_F(HarvestTest, TheDevicesOwnClientsComeFirst) {
  FillDevice0();
  Store own = Connect(daemon_);
  std::vector<Held> owned;
  for (int i = 0; i < 9; ++i) {  // 27 of its 32 MiB, all in use
    owned.push_back({own.create(kBytes, {.device = 1}), static_cast<uint64_t>(i) + 100});
    Fill(owned.back().tensor.data(), owned.back().seed);
  }
  EXPECT_LE(UseOf(1).peer_pool() + UseOf(1).store(), MiB(32));
  for (Held& one : owned) {
    EXPECT_TRUE(Holds(one.tensor.data(), one.seed));
    own.put(one.tensor, nullptr);
  }
  ExpectAllHold(store_, held_);
}

TEST_F(HarvestTest, MemoryThatComesAndGoesWhileItIsUsedHoldsNoWrongByte) {
  FillDevice0();
  std::atomic<bool> done{false};
  std::thread operator_thread([&] {
    while (!done.load()) Return(MiB(4), std::chrono::seconds(5));
  });
  for (int round = 0; round < 10 && !HasFailure(); ++round) ExpectAllHold(store_, held_);
  done.store(true);
  operator_thread.join();
  EXPECT_GT(UseOf(1).harvest().returns(), 0u);
}

// Forks before this process has threads.
TEST_F(PoolsTest, WhatAKilledClientHadInHarvestedMemoryIsFreeForOthers) {
  DaemonProcess daemon(With(Harvest(), "96MiB"));
  KillABusyClient(daemon, 12);
  EXPECT_TRUE(Eventually([&] { return StatsOf(daemon).devices(1).harvest().used() == 0; }));
  Store store = Connect(daemon);
  std::vector<Held> held = Make(store, 16);
  ExpectAllHold(store, held);
}

// The peers' link is fast and the host's is slow. The cap of a device that computes is in between.
class BusyOwnerTest : public PoolsTest {
 protected:
  static constexpr double kRate = 1e8;
  static constexpr uint64_t kBurst = MiB(2);
  // Copies count when they begin: two in each direction may be under way.
  static constexpr uint64_t kUnderWay = 4 * MiB(2);

  struct Moved {
    uint64_t bytes = 0;
    double seconds = 0;
    double least() const { return static_cast<double>(bytes - kBurst - kUnderWay) / kRate; }
  };
  // Reads and writes tensors of device 0, some of which are always on the peer. The peer's owner
  // computes `percent` percent of the time.
  Moved UseThePeer(int percent) {
    DaemonProcess daemon(
        With("utilization = " + std::to_string(percent) + "\nbytes_per_second = 2e7\n" +
             PeerPool("12MiB") +
             "[harvest]\nbusy_bytes_per_second = 1e8\n"
             "[transfer]\nchunk = \"1MiB\"\nprefetch = false\npreclean = false\n"));
    Store store = Connect(daemon);
    std::vector<Held> held = Make(store, 8, /*devices=*/1);
    const Stats before = store.stats();
    const auto begin = std::chrono::steady_clock::now();
    for (int round = 0; round < 3; ++round) ExpectAllHold(store, held);
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
    const Stats after = store.stats();
    // On pages the ends of tensors may go there: so few bytes are as soon back from the host.
    EXPECT_LT(TierOf(daemon, "host").used(), KiB(64)) << "all that left went to the peer";
    const proto::DeviceUse owner = StatsOf(daemon).devices(1);
    EXPECT_EQ(owner.busy(), percent > 0);
    EXPECT_EQ(owner.utilization(), static_cast<uint32_t>(percent));
    return {after.bytes_in + after.bytes_out - before.bytes_in - before.bytes_out, took.count()};
  }
};

TEST_F(BusyOwnerTest, OthersCopiesKeepToTheRateWhileItComputes) {
  const Moved busy = UseThePeer(100);
  EXPECT_GT(busy.bytes, MiB(50));
  EXPECT_GE(busy.seconds, busy.least());
  const Moved idle = UseThePeer(0);
  EXPECT_GT(idle.bytes, MiB(50));
  EXPECT_LT(idle.seconds / Stretch(), idle.least()) << "an idle one's are not capped";
}

// What becomes of a give-back when somebody is stopped or killed meanwhile. The host's link is so
// slow that emptying device 1 takes half a second.
class ReturnHarvestTest : public PoolsTest {
 protected:
  ReturnHarvestTest() : daemon_(With(Harvest("2e7") + FilePool("16MiB"), "96MiB")) {}

  proto::DeviceUse Use() { return StatsOf(daemon_).devices(1); }
  uint64_t Lying() { return Use().harvest().used(); }
  // Enough is stored there to catch a give-back while it is under way.
  bool IsFilled() {
    return Eventually([&] { return Lying() > MiB(9); });
  }
  // Half of what lay there has moved on.
  bool IsHalfDone(uint64_t before) {
    return Eventually([&] { return Lying() <= before / 2; });
  }
  void ExpectServes() {
    Store store = Connect(daemon_);
    std::vector<Held> held = Make(store, 11, /*devices=*/1);
    ExpectAllHold(store, held);
  }

  DaemonProcess daemon_;
};

TEST_F(ReturnHarvestTest, NeedsNoClientThatRuns) {
  BusyClient client(daemon_, 14, /*devices=*/1);
  ASSERT_TRUE(IsFilled());
  client.Stop();
  const uint64_t before = Use().peer_pool();
  const auto returned = ReturnHarvested(daemon_, before, std::chrono::seconds(5));
  ASSERT_TRUE(returned.ok()) << returned.error().message;
  EXPECT_EQ(returned->late(), "");
  EXPECT_GE(returned->bytes(), before);
  EXPECT_EQ(Use().harvest().missed(), 0u);
  client.Continue();
  EXPECT_EQ(client.End(), 0) << "its tensors hold";
}

TEST_F(ReturnHarvestTest, EndsWhenTheClientWhoseBytesMoveOnIsKilled) {
  BusyClient client(daemon_, 14, /*devices=*/1);
  ASSERT_TRUE(IsFilled());
  client.Stop();
  const uint64_t before = Lying();
  std::thread operator_thread([&, bytes = Use().peer_pool()] {
    const auto returned = ReturnHarvested(daemon_, bytes, std::chrono::seconds(20));
    ASSERT_TRUE(returned.ok()) << returned.error().message;
    EXPECT_EQ(returned->late(), "");
  });
  EXPECT_TRUE(IsHalfDone(before));
  client.Kill();
  operator_thread.join();
  EXPECT_TRUE(Eventually([&] {
    return Lying() == 0 && StatsOf(daemon_).clients() == 0 && TierOf(daemon_, "host").used() == 0;
  }));
  ExpectServes();
}

TEST_F(ReturnHarvestTest, OfADaemonThatIsKilledLeavesNothingBehind) {
  Store store = Connect(daemon_);
  std::vector<Held> held = Make(store, 14, /*devices=*/1);
  ASSERT_TRUE(IsFilled());
  const uint64_t before = Lying();
  std::thread operator_thread([&, bytes = Use().peer_pool()] {
    EXPECT_FALSE(ReturnHarvested(daemon_, bytes, std::chrono::seconds(60)).ok());
  });
  EXPECT_TRUE(IsHalfDone(before));
  daemon_.Kill(SIGKILL);
  operator_thread.join();
  for (Held& one : held) {
    EXPECT_TRUE(Eventually([&] { return IsLost(store, one.tensor); }));
  }
  EXPECT_TRUE(FolderIsEmpty());
  daemon_.Start();
  const proto::Stats stats = StatsOf(daemon_);
  EXPECT_EQ(stats.clients(), 0u);
  for (const proto::TierStats& tier : stats.tiers()) EXPECT_EQ(tier.used(), 0u) << tier.name();
  ExpectServes();
}

TEST_F(ReturnHarvestTest, AnOwnerThatIsKilledWhileItWaitsLeavesTheMemoryToOthers) {
  Process owner([&](const Process::Say& say, const Process::Ask& ask) {
    while (ask()) sched_yield();
    Store own = Connect(daemon_);
    say();
    own.create(MiB(27), {.device = 1});
    return 0;
  });
  Store store = Connect(daemon_);
  std::vector<Held> held = Make(store, 14, /*devices=*/1);
  ASSERT_TRUE(IsFilled());
  owner.Resume();
  ASSERT_TRUE(owner.AwaitReady());
  ASSERT_TRUE(Eventually([&] { return StatsOf(daemon_).waiting() == 1; }));
  owner.Kill();
  EXPECT_TRUE(Eventually([&] {
    const proto::Stats stats = StatsOf(daemon_);
    return stats.waiting() == 0 && stats.clients() == 1 && stats.devices(1).store() == 0;
  }));
  ExpectAllHold(store, held);
  EXPECT_TRUE(IsFilled()) << "again";
}

TEST_F(ReturnHarvestTest, ALegacyJobThatIsKilledWhileItWaitsLeavesTheMemoryToOthers) {
  Process job([&](const Process::Say& say, const Process::Ask& ask) {
    while (ask()) sched_yield();
    const LedgerPage page;
    proto::ClientPacket packet;
    packet.set_request(1);
    packet.mutable_legacy_hello()->set_protocol_version(proto::kProtocolVersion);
    const int descriptors[] = {page.Descriptor().release()};
    const auto says = ipc::Connect(daemon_.socket(), ipc::Now() + std::chrono::seconds(30));
    RAVEN_CHECK(ipc::Send(says->get(), packet.SerializeAsString(), descriptors).ok());
    RAVEN_CHECK(ipc::Receive(says->get(), true).ok());
    packet.mutable_legacy_reclaim()->set_uuid("HOST-1");
    packet.mutable_legacy_reclaim()->set_bytes(MiB(24));
    const auto asks = ipc::Connect(daemon_.socket(), ipc::Now() + std::chrono::seconds(30));
    RAVEN_CHECK(ipc::Send(asks->get(), packet.SerializeAsString()).ok());
    say();
    const auto answer = ipc::Receive(asks->get(), true);
    return 1;
  });
  Store store = Connect(daemon_);
  std::vector<Held> held = Make(store, 14, /*devices=*/1);
  ASSERT_TRUE(IsFilled());
  const uint64_t before = Lying();
  job.Resume();
  ASSERT_TRUE(job.AwaitReady());
  ASSERT_TRUE(IsHalfDone(before));
  job.Kill();
  ExpectAllHold(store, held);
  EXPECT_TRUE(Eventually([&] {
    ExpectAllHold(store, held);
    return Lying() > MiB(9);
  })) << "it is harvested again";
}

class PeerPoolsTest : public testing::Test {
 protected:
  PeerPoolsTest() { config_.peer_pool_size = core::MiB(4); }
  OtherPools Make(const device::HostOptions& options) {
    const device::Devices devices = device::OpenHostDevices(options);
    auto pools = MakeOtherPools(config_, devices, std::vector<core::LinkModel>(devices.size()));
    RAVEN_CHECK(pools.ok());
    return *std::move(pools);
  }
  Config config_;
};

TEST_F(PeerPoolsTest, WhatIsHarvestedIsNotTakenAtTheStart) {
  config_.peer_pool_size = {};
  config_.harvest_size = core::MiB(4);
  const OtherPools pools = Make({.count = 2, .peer_bytes_per_second = 2e9});
  ASSERT_EQ(pools.pools.size(), 2u);
  EXPECT_EQ(pools.pools[1].chunk, core::MiB(256));
  EXPECT_TRUE(pools.pools[1].covered);
  EXPECT_EQ(pools.pools[1].capacity, core::MiB(4));
  EXPECT_EQ(pools.shares, std::vector<core::Bytes>(2));
  EXPECT_EQ(pools.harvests.at(core::PoolId{4}), core::DeviceId{1});
  EXPECT_TRUE(pools.memory[1]->slabs.all().empty());
}

TEST_F(PeerPoolsTest, WhatOtherNodesLendIsTheLastPoolAndNotTouched) {
  const device::Devices devices =
      device::OpenHostDevices({.count = 2, .peer_bytes_per_second = 2e9});
  auto pieces = std::make_unique<device::FakePieces>(core::MiB(64), core::MiB(2));
  const device::FakePieces& lenders = *pieces;
  auto pools = MakeOtherPools(config_, devices, std::vector<core::LinkModel>(2),
                              {std::move(pieces), std::chrono::microseconds(200), 1e9, 2e9});
  ASSERT_TRUE(pools.ok());
  ASSERT_EQ(pools->pools.size(), 3u);
  ASSERT_EQ(pools->remote, core::PoolId{5});
  const core::Pool& remote = pools->pools[2];
  EXPECT_EQ(core::NameOf(remote), "remote 0");
  EXPECT_EQ(remote.capacity, core::MiB(64));
  EXPECT_EQ(remote.chunk, core::MiB(2));
  EXPECT_EQ(remote.granularity, core::KiB(64));
  EXPECT_FALSE(remote.covered);
  const core::Link& link = pools->links.back();
  EXPECT_EQ(link.a, core::kHostPool);
  EXPECT_EQ(link.a_to_b, 1e9);
  EXPECT_EQ(link.b_to_a, 2e9);
  EXPECT_TRUE(lenders.pieces().empty());
}

TEST_F(PeerPoolsTest, AShareAndAHarvestAreNotTakenOfOneDevice) {
  config_.harvest_size = core::MiB(8);
  const device::Devices devices = device::OpenHostDevices({.count = 2});
  const auto pools = MakeOtherPools(config_, devices, std::vector<core::LinkModel>(2));
  ASSERT_FALSE(pools.ok());
  EXPECT_EQ(pools.error().message,
            "\"harvest.size\" is 8.0 MiB, but \"peer_pool.size\" is 4.0 MiB: of a device either a "
            "share is taken or what is idle");
}

TEST_F(PeerPoolsTest, EachDeviceHasAShareThatTheOthersReach) {
  const OtherPools pools = Make({.count = 3, .peer_bytes_per_second = 2e9});
  ASSERT_EQ(pools.pools.size(), 3u);
  EXPECT_EQ(core::NameOf(pools.pools[2]), "peer 2");
  EXPECT_EQ(pools.shares, std::vector<core::Bytes>(3, core::MiB(4)));
  EXPECT_EQ(pools.pairs_left_out, 0u);
  ASSERT_EQ(pools.links.size(), 9u);
  for (const core::Link& link : pools.links) {
    if (link.a == core::kHostPool) continue;
    for (const double rate : {link.a_to_b, link.b_to_a}) {
      EXPECT_GT(rate, 0);
      EXPECT_LE(rate, 2.1e9);
    }
  }
  EXPECT_TRUE(pools.harvests.empty());
  // Of an owner its own share is reached by way of the host.
  EXPECT_TRUE(pools.memory[1]->IsStaged(core::DeviceId{1}));
  EXPECT_FALSE(pools.memory[1]->IsStaged(core::DeviceId{0}));
}

TEST_F(PeerPoolsTest, APairThatFailsIsLeftOutAndCounted) {
  // The first pair's first copy.
  const OtherPools pools = Make({.count = 3, .fail_copy = [](uint64_t n) { return n == 1; }});
  ASSERT_EQ(pools.pools.size(), 3u);
  EXPECT_EQ(pools.pairs_left_out, 1u);
  EXPECT_TRUE(pools.memory[0]->IsStaged(core::DeviceId{1}));
  EXPECT_FALSE(pools.memory[0]->IsStaged(core::DeviceId{2}));
}

TEST_F(PeerPoolsTest, AShareThatNoDeviceReachesIsNotMade) {
  const OtherPools pools = Make({.count = 2, .fail_copy = [](uint64_t) { return true; }});
  EXPECT_TRUE(pools.pools.empty());
  EXPECT_TRUE(pools.memory.empty());
  EXPECT_EQ(pools.shares, std::vector<core::Bytes>(2));
  EXPECT_EQ(pools.pairs_left_out, 2u);
}

TEST_F(PeerPoolsTest, OneDeviceHasNoPeers) {
  const OtherPools pools = Make({.count = 1});
  EXPECT_TRUE(pools.pools.empty());
  EXPECT_EQ(pools.shares, std::vector<core::Bytes>(1));
}

TEST_F(PeerPoolsTest, AShareLargerThanTheDeviceIsRefusedByKey) {
  config_.peer_pool_size = core::GiB(3);
  const auto pools = MakeOtherPools(config_, device::OpenHostDevices({.count = 2}),
                                    std::vector<core::LinkModel>(2));
  ASSERT_FALSE(pools.ok());
  EXPECT_EQ(pools.error().code, core::ErrorCode::kInvalidArgument);
  EXPECT_EQ(pools.error().message.find("\"peer_pool.size\" is 3.0 GiB, but HOST-0: "), 0u)
      << pools.error().message;
}

TEST_F(PoolsTest, NothingOfTheFileOutlivesTheDaemon) {
  for (const int signal : {SIGTERM, SIGKILL}) {
    DaemonProcess daemon(With(FilePool("16MiB")));
    const ipc::UniqueFd file = FileOf(daemon);
    EXPECT_TRUE(FolderIsEmpty());
    EXPECT_EQ(daemon.Kill(signal), signal == SIGTERM ? 0 : -SIGKILL);
    EXPECT_TRUE(FolderIsEmpty());
  }
}

TEST_F(PoolsTest, AFilePoolThatCannotBeIsRefusedByKeyAndReason) {
  const auto refusal = [&](const std::string& folder, core::Bytes size) {
    Config config;
    config.socket_path = directory_ / "other";
    config.backend = "host";
    config.pool_size = core::MiB(64);
    config.file_pool_path = folder;
    config.file_pool_size = size;
    const auto server = Server::Create(config);
    EXPECT_FALSE(server.ok());
    if (server.ok()) return std::string();
    EXPECT_EQ(server.error().code, core::ErrorCode::kInvalidArgument);
    return server.error().message;
  };
  const auto expect = [](const std::string& words, const std::string& key,
                         const std::string& reason) {
    EXPECT_EQ(words.find("\"" + key + "\" is "), 0u) << words;
    EXPECT_NE(words.find(reason), std::string::npos) << words;
  };
  const std::string nowhere = directory_ / "nowhere";
  expect(refusal(nowhere, core::MiB(4)), "file_pool.path", "No such file or directory");
  const std::string file = directory_ / "file";
  std::ofstream(file) << "no folder";
  expect(refusal(file, core::MiB(4)), "file_pool.path", "Not a directory");
  expect(refusal(directory_ / "", core::GiB(2040)), "file_pool.size", "are free");
}

}  // namespace
}  // namespace ravenstore::daemon
