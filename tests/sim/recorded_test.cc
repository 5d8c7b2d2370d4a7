// What `ravenctl record` writes of a real daemon and real clients, read and replayed.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <fstream>
#include <map>
#include <memory>
#include <mutex>
#include <sstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "client/client.h"
#include "client/ctl/commands.h"
#include "client/ctl/session.h"
#include "core/check.h"
#include "core/result.h"
#include "sim/score.h"
#include "sim/trace.h"
#include "tests/daemon/daemon_process.h"

namespace ravenstore::sim {
namespace {

using client::ctl::Session;
using daemon::DaemonProcess;

Session Open(const DaemonProcess& daemon) {
  auto session = Session::Open(daemon.socket(), std::chrono::seconds(30));
  RAVEN_CHECK(session.ok());
  return std::move(*session);
}

// Before it answers, the daemon reads every client's log.
proto::Stats StatsOf(const DaemonProcess& daemon) {
  auto stats = Open(daemon).Stats();
  RAVEN_CHECK(stats.ok());
  return *stats;
}

// `ravenctl record` in a thread, from when it is sure to be under way until Stop.
class Recording {
 public:
  explicit Recording(const DaemonProcess& daemon) : daemon_(daemon) {
    // While it is under way, no other client may record. Who asks too early records
    // himself and has to give it back, so it is given ever more time.
    for (int attempts = 8; !Begins(attempts); attempts *= 2) Stop();
  }
  ~Recording() { Stop(); }

  // The exit code.
  int Stop() {
    stop_ = true;
    if (thread_.joinable()) thread_.join();
    return code_;
  }
  std::string words() const { return words_.str(); }
  const std::string& file() const { return file_; }

 private:
  bool Begins(int attempts) {
    stop_ = false;
    words_.str({});
    thread_ = std::thread([this] {
      client::ctl::Common common;
      common.socket = daemon_.socket();
      common.timeout = std::chrono::seconds(60);
      code_ = client::ctl::RunRecord(common, {.file = file_, .time = std::chrono::minutes(10)},
                                     stop_, {words_, words_});
    });
    for (int i = 0; i < attempts; ++i) StatsOf(daemon_);
    const auto mine = Open(daemon_).Record(0);
    return !mine.ok() && mine.error().code == core::ErrorCode::kLimit;
  }

  const DaemonProcess& daemon_;
  const std::string file_ = testing::TempDir() + "/recorded_test.trace";
  std::atomic<bool> stop_{false};
  std::thread thread_;
  std::ostringstream words_;
  int code_ = -1;
};

// What a client did, by its own count.
struct Deeds {
  std::map<OpKind, uint64_t> calls;
  uint64_t modified = 0;      // puts
  uint64_t with_order = 0;    // puts
  uint64_t not_needed = 0;    // puts
  uint64_t recomputable = 0;  // puts
};

// A small training: weights that are read, activations that are made, used backwards and freed.
class Trainer {
 public:
  static constexpr uint64_t kWeights = 3;
  static constexpr uint64_t kActivations = 12;

  Trainer(const DaemonProcess& daemon, const std::string& name, uint64_t bytes)
      : daemon_(daemon),
        bytes_(bytes),
        store_(
            Store::connect({.socket = daemon.socket(), .name = name, .device_budget = 16u << 20})) {
  }

  void Train(int iterations) {
    for (uint64_t i = 0; i < kWeights; ++i) {
      weights_.push_back(Create("weight " + std::to_string(i)));
      Put(weights_.back(), {});
    }
    for (int i = 0; i < iterations; ++i) {
      Forward();
      StatsOf(daemon_);  // the log is read before the same tensors' next puts
      Backward();
      store_.step();
      ++deeds_.calls[OpKind::kStep];
      StatsOf(daemon_);
    }
    while (!weights_.empty()) Free(weights_);
  }
  const Deeds& deeds() const { return deeds_; }
  // At most: what lives at the same time.
  core::Bytes footprint() const { return core::Bytes(bytes_ * (kWeights + kActivations)); }

 private:
  void Forward() {
    for (uint64_t i = 0; i < kActivations; ++i) {
      Tensor& weight = weights_[i % kWeights];
      if (i < kWeights) Get(weight);
      activations_.push_back(Create("activation"));
      PutOptions options{.order = -static_cast<int64_t>(i)};
      if (i % 4 == 0) options.recompute = std::chrono::seconds(1);  // never worth it
      Put(activations_.back(), options);
      if (i < kWeights) Put(weight, {.not_modified = true});
    }
  }
  void Backward() {
    for (uint64_t i = kActivations; i-- > 0;) {
      Get(activations_[i]);
      if (i < kWeights) {
        Get(weights_[i]);
        Put(weights_[i], {});
      }
      Put(activations_[i], {.not_modified = true, .not_needed = true});
      Free(activations_);
    }
  }

  Tensor Create(const std::string& name) {
    ++deeds_.calls[OpKind::kCreate];
    return store_.create(bytes_, {.name = name.c_str()});
  }
  void Get(Tensor& tensor) {
    ++deeds_.calls[OpKind::kGet];
    store_.get(tensor, nullptr);
  }
  void Put(Tensor& tensor, const PutOptions& options) {
    ++deeds_.calls[OpKind::kPut];
    if (!options.not_modified) ++deeds_.modified;
    if (options.order) ++deeds_.with_order;
    if (options.not_needed) ++deeds_.not_needed;
    if (options.recompute > std::chrono::nanoseconds(0)) ++deeds_.recomputable;
    store_.put(tensor, nullptr, options);
  }
  void Free(std::vector<Tensor>& tensors) {
    ++deeds_.calls[OpKind::kFree];
    store_.free(std::move(tensors.back()), nullptr);
    tensors.pop_back();
  }

  const DaemonProcess& daemon_;
  const uint64_t bytes_;
  Store store_;
  std::vector<Tensor> weights_;
  std::vector<Tensor> activations_;
  Deeds deeds_;
};

Deeds DeedsIn(const Trace& trace, uint32_t client) {
  Deeds deeds;
  for (const Op& op : trace.ops) {
    if (op.client != client || op.kind == OpKind::kCompute) continue;
    ++deeds.calls[op.kind];
    if (op.modified) ++deeds.modified;
    if (op.next_use.kind == core::NextUse::Kind::kOrder) ++deeds.with_order;
    if (op.next_use.kind == core::NextUse::Kind::kNever) ++deeds.not_needed;
    if (op.recompute > core::Duration{0}) ++deeds.recomputable;
  }
  return deeds;
}

void ExpectSame(const Deeds& recorded, const Deeds& done) {
  EXPECT_EQ(recorded.calls, done.calls);
  EXPECT_EQ(recorded.modified, done.modified);
  EXPECT_EQ(recorded.with_order, done.with_order);
  EXPECT_EQ(recorded.not_needed, done.not_needed);
  EXPECT_EQ(recorded.recomputable, done.recomputable);
}

// What one client did, as a trace of its own.
Trace OnlyOf(const Trace& trace, uint32_t client) {
  Trace one;
  one.name = trace.name;
  std::vector<uint32_t> place(trace.tensors.size());
  for (size_t i = 0; i < trace.tensors.size(); ++i) {
    if (trace.tensors[i].client != client) continue;
    place[i] = static_cast<uint32_t>(one.tensors.size());
    one.tensors.push_back(trace.tensors[i]);
    one.tensors.back().client = 0;
  }
  for (Op op : trace.ops) {
    if (op.client != client) continue;
    op.client = 0;
    const bool names = op.kind != OpKind::kCompute && op.kind != OpKind::kStep;
    if (names) op.tensor = place[op.tensor];
    one.ops.push_back(op);
  }
  return one;
}

// Runs the trace under the budget.
void ExpectReplays(const Trace& trace, core::Bytes budget) {
  SCOPED_TRACE(budget.count());
  const Outcome outcome = ReplayUnder("hints", trace, {.budget = budget});
  EXPECT_EQ(outcome.failure, "");
  core::Duration compute{0};
  for (const Op& op : trace.ops) compute += op.time;
  EXPECT_EQ(outcome.compute, compute);
}

TEST(RecordedTest, ADaemonsTraceIsReadAndReplayedWithTheCountsOfItsClients) {
  const DaemonProcess daemon;
  Trainer small(daemon, "small", 512u << 10);
  Trainer large(daemon, "large", (3u << 20) + 512);
  Recording recording(daemon);
  small.Train(4);
  std::thread other([&] { small.Train(3); });
  large.Train(5);
  other.join();
  Deeds all = small.deeds();
  for (const auto& [kind, count] : large.deeds().calls) all.calls[kind] += count;
  ASSERT_TRUE(Eventually([&] { return StatsOf(daemon).frees() == all.calls.at(OpKind::kFree); }));
  const proto::Stats stats = StatsOf(daemon);
  ASSERT_EQ(recording.Stop(), client::ctl::kExitOk) << recording.words();

  std::ifstream file(recording.file(), std::ios::binary);
  const auto trace = Read(file);
  ASSERT_TRUE(trace.ok()) << trace.error().message;
  ASSERT_EQ(trace->clients, 2u);
  const uint32_t first = trace->tensors.at(0).client;  // the small one's, which began
  ExpectSame(DeedsIn(*trace, first), small.deeds());
  ExpectSame(DeedsIn(*trace, 1 - first), large.deeds());
  EXPECT_EQ(trace->Footprint(), small.footprint() + large.footprint());
  const auto names = std::count_if(trace->tensors.begin(), trace->tensors.end(),
                                   [](const auto& one) { return one.name == "activation"; });
  EXPECT_EQ(names, 12 * (4 + 3 + 5));

  // The daemon's planner has counted the same.
  EXPECT_EQ(stats.creates(), all.calls[OpKind::kCreate]);
  EXPECT_EQ(stats.hits() + stats.late_hits() + stats.misses(), all.calls[OpKind::kGet]);
  EXPECT_GT(stats.misses(), 0u);  // the large one does not fit, so that fetches were recorded too

  ExpectReplays(*trace, core::GiB(1));
  for (const uint32_t client : {first, 1 - first}) {
    const Trace one = OnlyOf(*trace, client);
    ASSERT_TRUE(Validate(one).ok());
    ExpectReplays(one, core::Bytes(one.Footprint().count() / 10 * 6));
  }
}

}  // namespace
}  // namespace ravenstore::sim
