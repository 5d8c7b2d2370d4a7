// Processes that publish, load and read named sets, and that put regions to sleep and wake them,
// are killed at every step, and so is the daemon. Wrong bytes are never seen, and nothing is left
// behind.
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "client/client.h"
#include "client/ctl/session.h"
#include "client/regions.h"
#include "tests/daemon/daemon_process.h"
#include "tests/daemon/pattern.h"
#include "tests/daemon/stats_of.h"
#include "tests/ipc/child.h"
#include "tests/timing/timing.h"

namespace ravenstore::daemon {
namespace {

using client::Region;
using std::chrono::milliseconds;

constexpr int kFine = 0;
constexpr int kWrongBytes = 7;
constexpr uint64_t kSizes[] = {KiB(700), MiB(3) + 512};
constexpr milliseconds kShortTimeout(200);
constexpr int kNames = 3;
constexpr int kProcesses = 6;

// What one process does: calls at random, until the one at which it kills itself, if any.
class Actor {
 public:
  Actor(std::string socket, uint64_t seed, int steps, bool dies)
      : socket_(std::move(socket)), random_(seed), steps_(steps), dies_(dies) {}

  int Run() {
    try {
      while (true) Turn();
    } catch (const Error& error) {
      // The daemon was killed.
      return error.code() == RAVENSTORE_LOST || error.code() == RAVENSTORE_UNAVAILABLE ? kFine : 1;
    } catch (const Done& done) {
      return done.code;
    }
  }

 private:
  struct Done {
    int code;
  };

  uint64_t Any(uint64_t most) { return random_() % most; }
  // Before each call.
  void Step() {
    if (steps_-- > 0) return;
    if (dies_) kill(getpid(), SIGKILL);
    throw Done{kFine};
  }
  Store Connect() {
    Step();
    return Store::connect({.socket = socket_, .name = "actor", .fixed_addresses = true});
  }
  // Calls that may find no room, no set, or a layout of another.
  static bool IsUsual(const Error& error) {
    return error.code() == RAVENSTORE_OUT_OF_MEMORY || error.code() == RAVENSTORE_TIMED_OUT ||
           error.code() == RAVENSTORE_NOT_FOUND || error.code() == RAVENSTORE_WRONG_STATE;
  }
  void Turn() {
    const std::string name = "set " + std::to_string(Any(kNames));
    try {
      if (Any(3) == 0) return SleepAndWake();
      if (Any(3) == 0) return static_cast<void>(Publish(name, 0));
      Store store = Connect();
      uint64_t load = 0;
      Step();
      NamedSet set = Any(2) == 0
                         ? NamedSet::open_or_load(store, name, &load, {.timeout = milliseconds(20)})
                         : NamedSet::open(store, name, {.timeout = milliseconds(20)});
      std::optional<Store> published;
      if (load != 0) {
        published = Publish(name, load);
        Step();
        set = NamedSet::open(store, name);
      }
      Read(set);
    } catch (const Error& error) {
      if (!IsUsual(error)) throw;
    }
  }
  Store Publish(const std::string& name, uint64_t load) {
    Store store = Connect();
    const uint64_t seed = random_();
    std::vector<Tensor> tensors;
    for (const uint64_t size : kSizes) {
      Step();
      tensors.push_back(store.create(size, {.timeout = kShortTimeout}));
      auto* const words = static_cast<uint64_t*>(tensors.back().data());
      // The bytes say of which seed they are.
      FillPattern(words + 1, size - sizeof(seed), seed);
      *words = seed;
      Step();
      store.put(tensors.back(), nullptr);
    }
    Step();
    store.seal(name, load);
    Step();
    return store;
  }
  void SleepAndWake() {
    Step();
    Region region({.socket = socket_, .name = "sleeper"});
    std::vector<void*> blocks;
    for (const uint64_t size : kSizes) {
      Step();
      Region::Enter(&region);
      void* const block = Region::AllocateInCurrent(size, 0);
      Region::Enter(nullptr);
      if (block == nullptr) return;
      blocks.push_back(block);
    }
    std::optional<uint64_t> seed;
    for (uint64_t cycles = 1 + Any(4); cycles > 0; --cycles) {
      const bool unchanged = seed && Any(3) == 0;
      if (!unchanged) seed = random_();
      for (size_t i = 0; i < blocks.size() && !unchanged; ++i)
        FillPattern(blocks[i], kSizes[i], *seed + i);
      Step();
      const bool keeps_bytes = unchanged || Any(4) > 0;
      region.Sleep({.keeps_bytes = keeps_bytes, .unchanged = unchanged, .timeout = kShortTimeout});
      Step();
      const bool in_order = Any(2) == 0;
      region.Wake({.in_order = in_order, .timeout = kShortTimeout});
      for (size_t i = 0; i < blocks.size(); ++i) {
        if (in_order) {
          Step();
          Region::Await(blocks[i], nullptr, kShortTimeout);
        }
        if (keeps_bytes && WrongBytes(blocks[i], kSizes[i], *seed + i) != 0)
          throw Done{kWrongBytes};
      }
      if (!keeps_bytes) seed.reset();
    }
  }
  static void Check(const NamedSet& set) {
    std::optional<uint64_t> of;
    for (size_t i = 0; i < set.parts(); ++i) {
      const auto part = set.part(i);
      const auto* const words = static_cast<const uint64_t*>(part.address);
      if (part.bytes != kSizes[i] || (of && *of != *words)) throw Done{kWrongBytes};
      of = *words;
      if (WrongBytes(words + 1, part.bytes - sizeof(uint64_t), *of) != 0) throw Done{kWrongBytes};
    }
  }
  void Read(NamedSet& set) {
    for (uint64_t i = 0; i < 1 + Any(4); ++i) {
      Step();
      set.use(kShortTimeout);
      Check(set);
      Step();
      switch (Any(3)) {
        case 0: set.end_use(); break;
        case 1:
          set.advance(set.version() + Any(2), milliseconds(10));
          Check(set);
          break;
        default: break;
      }
    }
  }

  const std::string socket_;
  std::mt19937_64 random_;
  int steps_;
  const bool dies_;
};

int Rounds() {
  const char* const rounds = std::getenv("RAVENSTORE_DEATH_ROUNDS");
  return rounds == nullptr ? 15 : std::atoi(rounds);
}

class NamedSetsDeathsTest : public testing::Test {
 protected:
  static std::vector<std::string> Flags() {
    return {"--page", "2MiB", "--device-total", "24MiB", "--pool-size", "96MiB"};
  }
  void Begin(uint64_t seed) {
    std::mt19937_64 random(seed);
    for (int i = 0; i < kProcesses; ++i) {
      const uint64_t own = random();
      const int steps = static_cast<int>(random() % 60);
      const bool dies = random() % 4 > 0;
      actors_.push_back(std::make_unique<ipc::Child>(
          [this, own, steps, dies] { return Actor(daemon_.socket(), own, steps, dies).Run(); }));
    }
    // Some are killed within a call.
    for (uint64_t kills = random() % 3; kills > 0; --kills) {
      poll(nullptr, 0, static_cast<int>(random() % 20));
      kill(actors_[random() % actors_.size()]->pid(), SIGKILL);
    }
  }
  void End(uint64_t seed) {
    for (auto& actor : actors_) {
      const int code = actor->Wait();
      if (code == -SIGKILL) ++killed_;
      EXPECT_TRUE(code == kFine || code == -SIGKILL) << "seed " << seed << ": exit " << code;
    }
    actors_.clear();
  }
  // No set, no client's memory, and no client.
  bool IsEmpty() {
    auto session = client::ctl::Session::Open(daemon_.socket(), std::chrono::seconds(30));
    RAVEN_CHECK(session.ok());
    const auto sets = session->Sets();
    const auto clients = session->Clients();
    RAVEN_CHECK(sets.ok() && clients.ok());
    return sets->empty() && clients->empty() && HeldOfDevices(daemon_) == 0;
  }

  DaemonProcess daemon_{Flags()};
  std::vector<std::unique_ptr<ipc::Child>> actors_;
  int killed_ = 0;
};

TEST_F(NamedSetsDeathsTest, NoReaderSeesWrongBytesAndNothingIsLeft) {
  for (int round = 0; round < Rounds() && !HasFailure(); ++round) {
    const auto seed = static_cast<uint64_t>(round);
    Begin(seed);
    End(seed);
    TimeLimit limit(kTestPatience);
    while (!IsEmpty() && !limit.IsOver()) sched_yield();
    EXPECT_TRUE(IsEmpty()) << "seed " << seed;
    Store store = Store::connect({.socket = daemon_.socket()});
    EXPECT_NO_THROW(store.create(MiB(20))) << "all room is there again; seed " << seed;
  }
  std::printf("%d processes were killed\n", killed_);
}

TEST_F(NamedSetsDeathsTest, ProcessesOutliveTheDaemon) {
  for (int round = 0; round < Rounds() / 3 && !HasFailure(); ++round) {
    const auto seed = static_cast<uint64_t>(1000 + round);
    Begin(seed);
    poll(nullptr, 0, round);
    daemon_.Kill(SIGKILL);
    End(seed);
    daemon_.Start();
  }
}

}  // namespace
}  // namespace ravenstore::daemon
