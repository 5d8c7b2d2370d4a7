// Every step that a small program makes the daemon do goes wrong once, each in a run of its own:
// what comes back are the right bytes, or an error.
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <future>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "client/client.h"
#include "ipc/clock.h"
#include "tests/daemon/daemon_process.h"
#include "tests/daemon/faulty_server.h"
#include "tests/daemon/pattern.h"

namespace ravenstore::daemon {
namespace {

using device::HostFault;
using device::HostStep;
using std::chrono::milliseconds;
using std::chrono::seconds;
using Kind = HostStep::Kind;

// More of them than the budget holds, across slabs.
constexpr uint64_t kBytes = KiB(300);
constexpr int kTensors = 11;
constexpr uint64_t kBudget = MiB(2);
constexpr core::DeviceId kOwner{1};

constexpr size_t kKinds = static_cast<size_t>(Kind::kToPeer) + 1;

// Of all steps of one kind from now on one goes wrong.
class OneFault {
 public:
  struct What {
    Kind kind{};
    uint64_t step = 1;  // of that kind, counted from 1
    HostFault fault = HostFault::kRefused;
    bool opens_fail_once = false;  // the channel that takes the place of one that failed, too
  };

  explicit OneFault(What what) : what_(what) {}

  HostFault Next(HostStep step) {
    if (step.kind == what_.kind && steps_.fetch_add(1) + 1 == what_.step) return what_.fault;
    const bool opens = step.kind == Kind::kOpen && what_.opens_fail_once;
    return opens && !opened_.exchange(true) ? HostFault::kRefused : HostFault::kNone;
  }
  // The step has come.
  bool was_reached() const { return steps_ >= what_.step; }

 private:
  const What what_;
  std::atomic<uint64_t> steps_{0};  // of the kind
  std::atomic<bool> opened_{false};
};

class Program {
 public:
  Program(FaultyServer::Peers peers, OneFault::What what)
      : fault_(what),
        server_({.peers = peers,
                 .device = core::MiB(8),
                 .peer = core::MiB(4),
                 .host = core::MiB(8),
                 .fault = [this](HostStep step) { return fault_.Next(step); }}) {}

  void Run() {
    server_.SetFaults(true);
    store_ = std::make_unique<Store>(Store::connect({.socket = server_.socket(),
                                                     .name = "harvest_faults_test",
                                                     .device_budget = kBudget,
                                                     .timeout = seconds(10)}));
    for (int i = 0; i < kTensors; ++i) Create();
    for (Held& held : held_) Use(held, /*writes=*/held.seed % 2 == 0);
    ReturnHarvested();
    for (Held& held : held_) Use(held, /*writes=*/true);
    for (int i = 0; i < 3 && i < static_cast<int>(held_.size()); ++i)
      Use(held_[static_cast<size_t>(i)], /*writes=*/true, /*device=*/1);
    server_.SetFaults(false);
    // Nothing is wrong any more: what is not lost is there.
    refused_ = 0;
    for (Held& held : held_) Use(held, /*writes=*/false);
    EXPECT_EQ(refused_, 0);
    held_.clear();
    store_.reset();
    EXPECT_TRUE(Eventually([&] { return server_.IsEmpty(); }));
    server_.CheckInvariants();
    checks_ = server_.Ask([](Loop& loop) { return loop.move_checks(); });
  }

  const OneFault& fault() const { return fault_; }
  int lost() const { return lost_; }
  const MoveChecks& checks() const { return checks_; }

 private:
  struct Held {
    Tensor tensor;
    uint64_t seed;
    bool lost = false;
  };

  void Create() {
    try {
      Held held{store_->create(kBytes), ++seeds_};
      FillPattern(held.tensor.data(), kBytes, held.seed);
      store_->put(held.tensor, nullptr);
      held_.push_back(std::move(held));
    } catch (const OutOfMemory&) {
      ++refused_;
    }
  }
  void Use(Held& held, bool writes, int device = -1) {
    try {
      void* data = store_->get(held.tensor, nullptr, {.device = device, .blocking = true});
      EXPECT_FALSE(held.lost) << "what is lost stays so";
      EXPECT_EQ(WrongBytes(data, kBytes, held.seed), 0u) << "of tensor " << held.seed;
      if (writes) FillPattern(data, kBytes, held.seed = ++seeds_);
      store_->put(held.tensor, nullptr);
    } catch (const Lost&) {
      if (!std::exchange(held.lost, true)) ++lost_;
    } catch (const Error&) {
      ++refused_;
    }
  }
  // Asks for all harvested memory of the owner's device; fails if it cannot be released.
  void ReturnHarvested() {
    std::promise<void> done;
    const bool asked = server_.Ask([&](Loop& loop) {
      const core::Bytes held = loop.store().Harvested(kOwner);
      return held > core::Bytes{} &&
             loop.ReturnHarvest(kOwner, held, milliseconds(200),
                                [&done](const Harvest::Returned&) { done.set_value(); })
                 .ok();
    });
    if (asked) done.get_future().wait();
  }

  OneFault fault_;
  FaultyServer server_;
  std::unique_ptr<Store> store_;
  std::vector<Held> held_;  // after the store that they are of
  uint64_t seeds_ = 0;
  int lost_ = 0;
  int refused_ = 0;
  MoveChecks checks_;
};

// Runs the program once for each step of each kind, which fails in that run. A kind is over when a
// run ends before its step. Steps are counted by kind, since their order depends on timing. By the
// number among all steps, a create could be the second step of the first run and the first step of
// the second run, and no run would fail it.
//
// Several runs are under way at a time: after a fault the daemon rests.
class EachStep {
 public:
  explicit EachStep(FaultyServer::Peers peers) : peers_(peers) {
    std::vector<std::thread> threads;
    for (int i = 0; i < kRuns; ++i) threads.emplace_back([this] { Work(); });
    for (std::thread& thread : threads) thread.join();
    for (const Kind kind :
         {Kind::kCreate, Kind::kMap, Kind::kPin, Kind::kUp, Kind::kDown, Kind::kToPeer})
      EXPECT_GT(failed_[static_cast<size_t>(kind)], 0) << "kind " << static_cast<int>(kind);
    for (const Kind kind : {Kind::kUp, Kind::kDown, Kind::kToPeer})
      EXPECT_GT(lies_seen_[static_cast<size_t>(kind)], 0u) << "kind " << static_cast<int>(kind);
    EXPECT_EQ(failed_[static_cast<size_t>(Kind::kUnmap)] > 0, ReturnsHarvested());
  }

 private:
  static constexpr int kRuns = 8;
  static constexpr int kLiesTried = 5;
  // Runs for the first steps of a kind that must come, until one comes. Every run creates and maps
  // a page while faults are on. Steps of other kinds depend on timing. For example, a run on a busy
  // machine may end before memory is harvested.
  static constexpr int kRunsForAKind = 50;

  struct Step {
    Kind kind{};
    uint64_t number = 1;
  };

  bool ReturnsHarvested() const { return peers_ == FaultyServer::Peers::kHarvested; }
  bool MustBeReached(Kind kind) const {
    if (kind == Kind::kUnmap) return ReturnsHarvested();
    return kind != Kind::kUnpin && kind != Kind::kOpen;
  }

  // The kinds that are not over take turns. nullopt: all are over.
  std::optional<Step> Next() {
    const std::lock_guard lock(mutex_);
    for (size_t i = 0; i < kKinds; ++i) {
      turn_ = (turn_ + 1) % kKinds;
      if (!over_[turn_]) return Step{static_cast<Kind>(turn_), ++begun_[turn_]};
    }
    return std::nullopt;
  }
  void Work() {
    while (!testing::Test::HasFailure()) {
      const std::optional<Step> step = Next();
      if (!step) return;
      if (!FailOnce(*step)) {
        const std::lock_guard lock(mutex_);
        over_[static_cast<size_t>(step->kind)] = true;
      } else if (step->kind >= Kind::kUp) {
        FailCopy(*step);
      }
    }
  }
  // Returns whether the step came.
  bool FailOnce(Step step) {
    const auto& failed = failed_[static_cast<size_t>(step.kind)];
    for (int runs = 0; runs < kRunsForAKind; ++runs) {
      if (Fail({.kind = step.kind, .step = step.number})) return true;
      if (!MustBeReached(step.kind) || failed > 0 || testing::Test::HasFailure()) break;
    }
    return false;
  }
  void FailCopy(Step step) {
    OneFault::What what{.kind = step.kind, .step = step.number, .fault = HostFault::kBreaksOff};
    Fail(what);
    what.opens_fail_once = true;
    Fail(what);
    what = {.kind = step.kind, .step = step.number, .fault = HostFault::kLies};
    // A get may come between, more often where the machine is busy: then it is tried again.
    for (int tries = 0; tries < kLiesTried; ++tries) {
      Fail(what);
      if (lies_seen_[static_cast<size_t>(step.kind)] > 0) break;
    }
  }
  // Returns whether the step came.
  bool Fail(OneFault::What what) {
    const auto kind = static_cast<size_t>(what.kind);
    SCOPED_TRACE("kind " + std::to_string(kind) + ", step " + std::to_string(what.step) +
                 (what.fault == HostFault::kBreaksOff ? ", which breaks off" : "") +
                 (what.fault == HostFault::kLies ? ", which lies" : "") +
                 (what.opens_fail_once ? ", and then one that opens" : ""));
    Program program(peers_, what);
    program.Run();
    if (!program.fault().was_reached()) return false;
    ++failed_[kind];
    EXPECT_GT(program.checks().checked, 0u);
    // What a get came between was not to be relied on anyway.
    EXPECT_LE(program.checks().wrong, what.fault == HostFault::kLies ? 1u : 0u);
    lies_seen_[kind] += program.checks().wrong;
    // Only a copy that is waited for takes a tensor with it, as does one that cannot begin.
    const bool may_bring = what.kind >= Kind::kUp;
    EXPECT_LE(program.lost(), (may_bring ? 1 : 0) + (what.opens_fail_once ? 1 : 0));
    return true;
  }

  const FaultyServer::Peers peers_;
  std::array<std::atomic<int>, kKinds> failed_{};
  std::array<std::atomic<uint64_t>, kKinds> lies_seen_{};
  std::mutex mutex_;
  // Guarded by mutex_.
  size_t turn_ = kKinds - 1;
  std::array<uint64_t, kKinds> begun_{};  // steps for which a run has begun
  std::array<bool, kKinds> over_{};
};

TEST(HarvestFaultsTest, AnyStepMayFailWhereMemoryIsHarvested) {
  EachStep{FaultyServer::Peers::kHarvested};
}

TEST(HarvestFaultsTest, AnyStepMayFailWhereAPeerHasAShare) {
  EachStep{FaultyServer::Peers::kShare};
}

// Memory that is being made, or was since the look, is free in what the look saw, and harvested
// already.
TEST(HarvestFaultsTest, AChunkThatALookDoesNotShowIsNoReasonForMore) {
  std::promise<void> making;
  std::promise<void> go_on;
  FaultyServer server({.peer = core::MiB(16), .fault = [&](HostStep step) {
                         if (step.kind != Kind::kCreate || step.device != core::ToInt(kOwner))
                           return HostFault::kNone;
                         making.set_value();
                         go_on.get_future().wait();
                         return HostFault::kNone;
                       }});
  const auto harvested = [&] {
    return server.Ask([](Loop& loop) { return loop.store().Harvested(kOwner); });
  };
  const core::Bytes reserve = core::MiB(2);
  ASSERT_TRUE(Eventually([&] { return server.FreeOf(1) == core::MiB(14); }));
  server.SetOthers(1, core::MiB(16));
  ASSERT_TRUE(Eventually([&] { return harvested() == core::Bytes{}; }));
  server.SetFaults(true);
  server.SetOthers(1, core::Bytes{});
  ASSERT_EQ(making.get_future().wait_for(seconds(20)), std::future_status::ready);
  server.SetFaults(false);
  MemoryWatch::Seen before;
  before.at = ipc::Now();
  before.free = core::MiB(16);
  before.idle = core::MiB(16) - reserve;
  before.busy = false;
  const auto look = [&] {
    return server.Ask([&](Loop& loop) {
      loop.LookAtDevices({before, before});
      return loop.harvests().View(kOwner)->most;
    });
  };
  EXPECT_EQ(look(), core::MiB(16) - reserve) << "while it is made";
  go_on.set_value();
  ASSERT_TRUE(Eventually([&] { return server.FreeOf(1) == core::MiB(14); }));
  EXPECT_EQ(look(), core::MiB(16) - reserve) << "once it is there";
}

}  // namespace
}  // namespace ravenstore::daemon
