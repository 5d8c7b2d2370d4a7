// What the planner loop makes of its clients' puts, gets and frees.
#include "daemon/loop.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "client/client.h"
#include "ipc/clock.h"
#include "ipc/ring.h"
#include "tests/client/test_stream.h"
#include "tests/daemon/daemon_process.h"
#include "tests/ipc/acknowledge_maps.h"

namespace ravenstore::daemon {
namespace {

using std::chrono::milliseconds;

Store Connect(const DaemonProcess& daemon, uint64_t device_budget) {
  return Store::connect(
      {.socket = daemon.socket(), .name = "loop_test", .device_budget = device_budget});
}

TEST(LoopTest, ATensorStaysUntilTheStreamOfItsPutIsDone) {
  DaemonProcess daemon;
  TestStream gate;
  gate.Block();
  Store store = Connect(daemon, MiB(8));
  Tensor tensor = store.create(MiB(6));
  std::memset(tensor.data(), 3, MiB(6));
  store.put(tensor, gate);
  EXPECT_THROW(store.create(MiB(6), {.timeout = milliseconds(50)}), OutOfMemory);
  gate.Open();
  Tensor next = store.create(MiB(6));
  store.free(std::move(next), nullptr);
  EXPECT_EQ(static_cast<char*>(store.get(tensor, nullptr, {.blocking = true}))[MiB(6) - 1], 3);
}

TEST(LoopTest, RoomIsFreeOnlyOnceTheStreamOfItsFreeIsDone) {
  DaemonProcess daemon;
  TestStream gate;
  gate.Block();
  Store store = Connect(daemon, MiB(8));
  store.free(store.create(MiB(6)), gate);
  EXPECT_THROW(store.create(MiB(6), {.timeout = milliseconds(50)}), OutOfMemory);
  EXPECT_EQ(store.stats().tensors, 1u);
  gate.Open();
  EXPECT_NE(store.create(MiB(6)).data(), nullptr);
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
// Anonymous memory of the process.
core::Bytes Resident(pid_t pid) {
  std::ifstream status("/proc/" + std::to_string(pid) + "/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("RssAnon:")) return core::KiB(std::stoull(line.substr(8)));
  }
  return {};
}

TEST(LoopTest, WhatADepartedClientTookOfTheDaemonsMemoryGoesBackToTheKernel) {
  constexpr size_t kTensors = 200'000;
  const DaemonProcess daemon;
  core::Bytes most;
  {
    Store store = Connect(daemon, MiB(256));
    std::vector<Tensor> tensors;
    for (size_t i = 0; i < kTensors; ++i) tensors.push_back(store.create(512));
    most = Resident(daemon.pid());
  }
  // The planner keeps some tables at their largest size, for the next ones.
  EXPECT_TRUE(Eventually([&] { return Resident(daemon.pid()) + core::MiB(3) < most; }))
      << Resident(daemon.pid()).count() << " of " << most.count();
}
#endif

TEST(LoopTest, WhatIsInUseIsNeverMoved) {
  DaemonProcess daemon;
  Store store = Connect(daemon, MiB(8));
  Tensor used = store.create(MiB(4));
  auto* words = static_cast<std::atomic<uint32_t>*>(used.data());
  std::atomic<bool> done{false};
  std::thread writer([&] {
    while (!done) words->fetch_add(1);
  });
  for (int i = 0; i < 20; ++i) {
    Tensor other = store.create(MiB(3));
    store.put(other, nullptr);
    store.free(std::move(other), nullptr);
  }
  done = true;
  writer.join();
  EXPECT_EQ(used.data(), words);
}

// A loop in this process, whose clients write their segments by hand.
class BareLoop {
 public:
  explicit BareLoop(core::Bytes memory) {
    LoopOptions options;
    options.memory = memory;
    options.store.device_capacity = {core::MiB(64)};
    options.store.arena = {core::MiB(256)};
    options.store.host_capacity = core::MiB(64);
    options.store.host_step = core::MiB(2);
    options.store.host_ahead = core::KiB(4);
    options.store.links = {core::LinkModel{}};
    loop_ = std::move(*Loop::Create(options, device::OpenHostDevices({.total = core::MiB(64)}),
                                    workers_.get(),
                                    {.memory_ready = [](auto) {},
                                     .expel = [this](auto...) { ++expelled_; },
                                     .pinned_slab = [](auto) {},
                                     .release_pinned_slab = [](auto...) {}}));
    thread_ = std::thread([this] { loop_->Run(); });
  }
  ~BareLoop() {
    loop_->Stop();
    thread_.join();
    workers_.reset();
  }
  // A client whose creates wait: its mapper does nothing.
  std::shared_ptr<Attachment> Attach(uint32_t id, core::TenantId tenant,
                                     core::Bytes host = core::MiB(64)) {
    auto attachment =
        std::make_shared<Attachment>(Attachment{core::ClientId{id},
                                                tenant,
                                                {core::MiB(2), host},
                                                1,
                                                2,
                                                "loop_test",
                                                std::move(*ipc::ControlSegment::Create(id)),
                                                std::move(*ipc::Doorbell::Create()),
                                                {}});
    attachment->arenas.resize(1);
    loop_->mailbox().Post([this, attachment] {
      loop_->Apply(core::TenantLimits{attachment->tenant, {core::MiB(2), core::MiB(64)}});
      loop_->Attach(attachment);
    });
    return attachment;
  }
  // On its thread; returns when it is done.
  void Do(const std::function<void(Loop&)>& work) {
    std::atomic<bool> done{false};
    loop_->mailbox().Post([&] {
      work(*loop_);
      done = true;
    });
    while (!done) std::this_thread::yield();
  }
  // Asks for `count` tensors, in rows from `first` on, and waits until the loop has taken them in.
  void Create(Attachment& client, ipc::RequestProducer& ring, uint32_t first, uint32_t count,
              core::Bytes bytes = core::Bytes(512)) {
    for (uint32_t slot = first; slot < first + count; ++slot) {
      client.segment->slots[slot].word = proto::Pack({proto::LeaseState::kRequested, 0, 0});
      proto::Request request{};
      request.op = static_cast<uint32_t>(proto::RequestOp::kCreate);
      request.slot = slot;
      request.bytes = bytes.count();
      request.deadline_ns = (ipc::Now() + std::chrono::hours(1)).time_since_epoch().count();
      while (!ring.Push(request)) std::this_thread::yield();
      client.doorbell.Ring();
    }
    while (ring.Room() < proto::kRequestRingEntries) std::this_thread::yield();
    Do([](Loop&) {});
  }
  int expelled() const { return expelled_; }
  // Whether the client has a block of pinned memory of that number now.
  bool Pin(core::ClientId client, uint64_t block) {
    std::atomic<int> had{-1};
    Do([&](Loop& loop) {
      loop.PinnedAlloc(client, {.block = block,
                                .bytes = core::KiB(4),
                                .deadline = ipc::Now() + std::chrono::hours(1),
                                .reply = [&had](const auto& place) { had = place.ok(); }});
    });
    while (had < 0) std::this_thread::yield();
    return had == 1;
  }
  // Frees it behind 64 tickets of that value.
  void Unpin(core::ClientId client, uint64_t block, uint64_t value) {
    std::vector<proto::WordValue> tickets;
    for (uint16_t i = 0; i < 64; ++i) tickets.push_back({i, value});
    Do([&](Loop& loop) { loop.pinned().Free(client, block, tickets); });
  }
  void Detach(core::ClientId client) {
    std::atomic<bool> done{false};
    loop_->mailbox().Post([&] { loop_->Detach(client, [&done] { done = true; }); });
    while (!done) std::this_thread::yield();
  }

 private:
  std::atomic<int> expelled_{0};
  std::unique_ptr<WorkerPool> workers_ = std::make_unique<WorkerPool>("worker", 2);
  std::unique_ptr<Loop> loop_;
  std::thread thread_;
};

// Each takes 64 waits, which cost three times what the block does.
TEST(LoopTest, PinnedBlocksThatWereFreedAndWaitForStreamsCountWithAllTheirTickets) {
  constexpr uint64_t kNever = proto::kWordValueMask;
  BareLoop loop(core::KiB(64));
  const auto client = loop.Attach(1, core::TenantId{1000});
  uint64_t blocks = 0;
  while (loop.expelled() == 0 && blocks < 100 && loop.Pin(client->id, blocks)) {
    loop.Unpin(client->id, blocks, kNever);
    ++blocks;
  }
  EXPECT_GT(blocks, 10u);
  EXPECT_LT(blocks, 40u);
  loop.Detach(client->id);
  const auto next = loop.Attach(2, core::TenantId{1000});
  EXPECT_TRUE(loop.Pin(next->id, 1)) << "all that the first took was given back";
}

TEST(LoopTest, WhatFreedPinnedBlocksTookComesBackOnceTheirTicketsAreReached) {
  BareLoop loop(core::KiB(64));
  const auto client = loop.Attach(1, core::TenantId{1000});
  for (uint64_t round = 1; round <= 200; ++round) {
    ASSERT_TRUE(loop.Pin(client->id, round)) << round;
    loop.Unpin(client->id, round, round);
    for (int i = 0; i < 64; ++i) client->segment->tickets[i] = round;
  }
  EXPECT_EQ(loop.expelled(), 0);
}

// A client whose only tensor is on the host, and takes half of what it may have there.
class HalfFullHost {
 public:
  HalfFullHost() {
    loop_.Create(*client_, ring_, 0, 1, core::MiB(2));
    AwaitState(0, proto::LeaseState::kInUse);
    const proto::LeaseWord used = proto::UnpackLease(row(0).word);
    row(0).word = proto::Pack(proto::Next(used, proto::LeaseState::kIdle, 0));
    client_->segment->header.log_lanes = 1;
    ipc::LogProducer(&client_->segment->log[0]).Append({0, proto::AccessOp::kPut});
    loop_.Create(*client_, ring_, 1, 1, core::MiB(2));
    AwaitState(1, proto::LeaseState::kInUse);
    EXPECT_EQ(StateOf(0), proto::LeaseState::kAway);
  }
  // Queues `others` requests, then the tensor's free. Before the loop can read any of them, asks
  // for pinned memory that has room only after the free. True if the client gets it.
  bool HasPinnedMemoryAfterFree(int others, core::Duration patience) {
    std::atomic<int> had{-1};
    loop_.Do([&](Loop& loop) {
      proto::Request request{};
      request.op = static_cast<uint32_t>(proto::RequestOp::kStep);
      for (int i = 0; i < others; ++i) EXPECT_TRUE(ring_.Push(request));
      const proto::LeaseWord away = proto::UnpackLease(row(0).word);
      row(0).word = proto::Pack(proto::Next(away, proto::LeaseState::kFreeing, 0));
      request.op = static_cast<uint32_t>(proto::RequestOp::kFree);
      request.id = row(0).id;
      EXPECT_TRUE(ring_.Push(request));
      client_->doorbell.Ring();
      loop.PinnedAlloc(client_->id, {.block = 1,
                                     .bytes = core::MiB(3),
                                     .deadline = ipc::Now() + patience,
                                     .reply = [&had](const auto& place) { had = place.ok(); }});
    });
    while (had < 0) std::this_thread::yield();
    return had == 1;
  }

 private:
  proto::LeaseSlot& row(uint32_t slot) { return client_->segment->slots[slot]; }
  proto::LeaseState StateOf(uint32_t slot) { return proto::UnpackLease(row(slot).word).state; }
  void AwaitState(uint32_t slot, proto::LeaseState state) {
    while (StateOf(slot) != state) {
      if (ipc::AcknowledgeMaps(&maps_)) client_->doorbell.Ring();
      std::this_thread::yield();
    }
  }

  BareLoop loop_{core::MiB(4)};
  std::shared_ptr<Attachment> client_ = loop_.Attach(1, core::TenantId{1000}, core::MiB(4));
  ipc::RequestProducer ring_{&client_->segment->requests};
  ipc::MapConsumer maps_{&client_->segment->maps};
};

TEST(LoopTest, PinnedMemoryIsHadInTheRoomOfATensorThatWasFreedJustBefore) {
  HalfFullHost host;
  EXPECT_TRUE(host.HasPinnedMemoryAfterFree(0, core::Duration{0}));
}

TEST(LoopTest, PinnedMemoryWaitsForAFreeThatLiesFarBackInTheRing) {
  HalfFullHost host;
  EXPECT_TRUE(host.HasPinnedMemoryAfterFree(1000, std::chrono::seconds(20)));
}

uint32_t CountRefused(Attachment& client, uint32_t rows) {
  uint32_t refused = 0;
  for (uint32_t slot = 0; slot < rows; ++slot) {
    const proto::LeaseSlot& row = client.segment->slots[slot];
    if (proto::UnpackLease(row.word).state != proto::LeaseState::kFailed) continue;
    EXPECT_EQ(row.error, static_cast<uint32_t>(core::ErrorCode::kLimit));
    ++refused;
  }
  return refused;
}

TEST(LoopTest, CreatesThatWaitTakeNoMoreOfTheDaemonsMemoryThanTheirUsersShare) {
  BareLoop loop(core::MiB(4));
  const auto greedy = loop.Attach(1, core::TenantId{1000});
  const auto modest = loop.Attach(2, core::TenantId{1001});
  ipc::RequestProducer greedy_ring(&greedy->segment->requests);
  ipc::RequestProducer modest_ring(&modest->segment->requests);
  constexpr uint32_t kMany = 9000;
  loop.Create(*greedy, greedy_ring, 0, kMany);
  const uint32_t refused = CountRefused(*greedy, kMany);
  EXPECT_GT(refused, 1800u);  // of 4 MiB seven eighths are fewer than 7168 creates
  EXPECT_LT(refused, 2500u);
  loop.Create(*modest, modest_ring, 0, 50);
  EXPECT_EQ(CountRefused(*modest, 50), 0u);
  // What a client that leaves was charged for its user may take again.
  loop.Detach(greedy->id);
  const auto again = loop.Attach(3, core::TenantId{1000});
  ipc::RequestProducer ring(&again->segment->requests);
  loop.Create(*again, ring, 0, 1000);
  EXPECT_EQ(CountRefused(*again, 1000), 0u);
}

// More accesses than a lane of the log holds, of more tensors than fit: the daemon reads the rows.
TEST(LoopTest, PutsThatFoundTheLogFullAreFoundInTheirRows) {
  DaemonProcess daemon;
  Store store = Connect(daemon, MiB(8));
  std::vector<Tensor> tensors = store.create(std::vector<uint64_t>(16, KiB(512)));
  daemon.Stop();
  for (int i = 0; i < 2000; ++i) {
    store.put(tensors[0], nullptr);
    store.get(tensors[0], nullptr);
  }
  for (auto& tensor : tensors) store.put(tensor, nullptr);
  daemon.Continue();
  Tensor large = store.create(MiB(7));
  EXPECT_NE(large.data(), nullptr);
}

// What the last entry of a full lane says decides what leaves for the request behind it.
TEST(LoopTest, ARequestFindsEveryPutThatWasLoggedBeforeIt) {
  DaemonProcess daemon;
  Store store = Connect(daemon, MiB(6));
  Tensor sooner = store.create(MiB(2));
  Tensor later = store.create(MiB(2));
  Tensor busy = store.create(KiB(512));
  daemon.Stop();
  store.put(sooner, nullptr, {.order = 1});
  constexpr int kPairs = 500;  // and the two puts: a lane has room for 1024 entries
  for (int i = 0; i < kPairs; ++i) {
    store.put(busy, nullptr, {.order = i + 2});
    store.get(busy, nullptr);
  }
  store.put(later, nullptr, {.not_needed = true});
  daemon.Continue();
  const Tensor next = store.create(MiB(2));
  EXPECT_TRUE(sooner.ready());
  EXPECT_THROW(store.get(later, nullptr), Lost);
}

}  // namespace
}  // namespace ravenstore::daemon
