// A PageStore alone: a test says what clients did, and their mappers acknowledge without mapping.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <thread>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "daemon/away_memory.h"
#include "daemon/page_store.h"
#include "ipc/clock.h"
#include "tests/ipc/acknowledge_maps.h"

namespace ravenstore::daemon {

// A client's segment and mapper.
struct FakeProcess {
  FakeProcess(core::ClientId id, core::TenantId tenant, size_t devices)
      : attachment(
            std::make_shared<Attachment>(Attachment{id,
                                                    tenant,
                                                    {},
                                                    0,
                                                    0,
                                                    "a test",
                                                    std::move(*ipc::ControlSegment::Create(1)),
                                                    std::move(*ipc::Doorbell::Create()),
                                                    {}})),
        maps(&attachment->segment->maps),
        mapper(&attachment->segment->maps) {
    attachment->arenas.resize(devices);
  }

  std::shared_ptr<Attachment> attachment;
  MapOrders maps;
  ipc::MapConsumer mapper;
  std::set<core::SlotId> away;
  std::set<core::SlotId> granted_early;
  std::set<core::SlotId> getting;  // their words are the client's
  bool is_stopped = false;
};

class PageStoreFixture : public testing::Test {
 protected:
  static constexpr core::ClientId kClient{1};
  static constexpr core::TenantId kTenant{1};
  static constexpr core::TenantId kOther{2};
  static constexpr core::DeviceId kDevice{0};
  static constexpr uint64_t kGuaranteedPart = 4;

  explicit PageStoreFixture(
      device::Devices devices = device::OpenHostDevices({.total = core::MiB(64)}))
      : PageStoreFixture(std::move(devices), {}, core::MiB(64)) {}
  // `others`: pools other than the host's, of `host` bytes. Their memory outlives this.
  PageStoreFixture(device::Devices devices, std::vector<StorePools::Other> others, core::Bytes host,
                   core::Bytes capacity = core::MiB(8))
      : devices_(std::move(devices)) {
    for (const StorePools::Other& other : others) pool_memory_[other.id] = other.memory;
    memory_ = HostMemory(devices_, std::move(*devices_[0]->ReservePoolVaRange(host, -1)));
    pool_memory_[core::kHostPool] = memory_.get();
    PageStore::Options options;
    options.device_capacity.assign(devices_.size(), capacity);
    options.arena.assign(devices_.size(), core::MiB(512));
    options.host_capacity = host;
    options.others = std::move(others);
    options.host_step = core::MiB(4);
    options.host_ahead = core::Bytes{0};
    options.page = core::MiB(2);
    options.guaranteed_part = kGuaranteedPart;
    options.links.resize(devices_.size());
    PageStore::Hooks hooks;
    hooks.attachment = [this](core::ClientId id) {
      FakeProcess& process = *processes_.at(id);
      return std::pair(process.attachment, &process.maps);
    };
    hooks.drop = [this](core::ClientId id, core::SlotId slot) {
      FakeProcess& process = *processes_.at(id);
      return process.getting.count(slot) == 0 && process.away.insert(slot).second;
    };
    hooks.publish = [this](core::ClientId id, core::SlotId slot, core::DeviceId, core::Bytes) {
      processes_.at(id)->away.erase(slot);
    };
    hooks.grant_early = [this](core::ClientId id, core::SlotId slot, core::DeviceId, core::Bytes) {
      if (grants_early_) processes_.at(id)->granted_early.insert(slot);
      if (grants_early_) processes_.at(id)->away.erase(slot);
      return grants_early_;
    };
    hooks.end_early_grant = [this](core::ClientId id, core::SlotId slot,
                                   const core::Status& outcome) {
      EXPECT_EQ(processes_.at(id)->granted_early.erase(slot), 1u);
      early_grants_ended_.push_back(outcome);
    };
    hooks.send_maps = [this](core::ClientId id) { processes_.at(id)->maps.Send(); };
    store_ = std::make_unique<PageStore>(options, devices_, memory_.get(), workers_.get(),
                                         &mailbox_, std::move(hooks));
    EXPECT_TRUE(store_->Open().ok());
    Attach(kClient, kTenant);
  }
  ~PageStoreFixture() override {
    while (store_ != nullptr && !processes_.empty()) Detach(processes_.begin()->first);
    workers_.reset();
  }

  void Attach(core::ClientId id, core::TenantId tenant,
              core::Budgets budgets = {core::MiB(8), core::MiB(64)}) {
    processes_[id] = std::make_unique<FakeProcess>(id, tenant, devices_.size());
    Apply(core::ClientAttached{id, tenant, budgets});
  }
  void Detach(core::ClientId id) {
    Apply(core::ClientRemoved{id});
    AwaitEnd(id);
  }
  // It is gone.
  void AwaitEnd(core::ClientId id) {
    PumpUntil([&] { return store_->Forget(id); });
    processes_.erase(id);
  }
  void Apply(const core::Event& event) { store_->Apply(event, ipc::Now(), &plan_); }
  void Pump() {
    mailbox_.RunSome(mailbox_.size());
    for (const auto& [id, process] : processes_) {
      if (!process->is_stopped) ipc::AcknowledgeMaps(&process->mapper);
      std::vector<MapOrders::Ended> ended;
      EXPECT_TRUE(process->maps.Poll(&ended));
      store_->MapsEnded(id, ended);
    }
    store_->Poll(ipc::Now(), &plan_);
    MakeMemory();
    store_->views().CheckInvariants();
    std::this_thread::yield();
  }
  // Of pools that grow or shrink.
  void MakeMemory() {
    for (size_t i = 0; i < plan_.size(); ++i) {
      const core::Action action = plan_[i];
      const core::GrowPool* const grows = std::get_if<core::GrowPool>(&action);
      const core::ShrinkPool* const shrinks = std::get_if<core::ShrinkPool>(&action);
      if (grows == nullptr && shrinks == nullptr) continue;
      plan_.erase(plan_.begin() + static_cast<ptrdiff_t>(i--));
      if (grows != nullptr) {
        AwayMemory& memory = *pool_memory_.at(grows->pool);
        ASSERT_TRUE(memory.Make(grows->offset, grows->size).ok());
        memory.slabs.Add(grows->offset, grows->size);
        Apply(core::PoolGrown{grows->pool, grows->offset, grows->size});
      } else {
        AwayMemory& memory = *pool_memory_.at(shrinks->pool);
        memory.slabs.Remove(shrinks->offset);
        ASSERT_TRUE(memory.Destroy(shrinks->offset).ok());
        Apply(core::PoolShrunk{shrinks->pool, shrinks->offset, shrinks->size});
      }
    }
  }
  void PumpUntil(const std::function<bool()>& done) {
    for (int i = 0; i < 1'000'000; ++i) {
      if (done()) return;
      Pump();
    }
    FAIL() << "it does not happen";
  }
  template <typename Reply>
  std::optional<Reply> Take(core::SlotId slot, core::ClientId client = kClient) {
    for (auto next = plan_.begin(); next != plan_.end(); ++next) {
      const Reply* reply = std::get_if<Reply>(&*next);
      if (reply == nullptr || reply->slot != slot || reply->client != client) continue;
      const Reply taken = *reply;
      if constexpr (std::is_same_v<Reply, core::FetchReply>) AwayOf(client).erase(slot);
      plan_.erase(next);
      return taken;
    }
    return std::nullopt;
  }
  template <typename Reply>
  Reply Await(core::SlotId slot, core::ClientId client = kClient) {
    std::optional<Reply> reply;
    PumpUntil([&] { return (reply = Take<Reply>(slot, client)).has_value(); });
    return *reply;
  }
  void AskFor(core::SlotId slot, core::ClientId client = kClient, core::Bytes size = core::MiB(2),
              bool fail_fast = false, core::Tick deadline = core::kNever,
              core::DeviceId device = kDevice, core::StreamId stream = core::kNoStream) {
    Apply(core::CreateRequested{.client = client,
                                .slot = slot,
                                .size = size,
                                .device = device,
                                .name = {},
                                .deadline = deadline,
                                .fail_fast = fail_fast,
                                .stream = stream});
  }
  // Of work on the stream.
  core::AllocReply CreateFor(core::StreamId stream, core::SlotId slot) {
    AskFor(slot, kClient, core::MiB(2), false, core::kNever, kDevice, stream);
    return Await<core::AllocReply>(slot);
  }
  core::TensorId Create(core::SlotId slot, core::ClientId client = kClient) {
    AskFor(slot, client);
    return Await<core::AllocReply>(slot, client).tensor;
  }
  core::TensorId CreateOn(core::DeviceId device, core::SlotId slot, core::Bytes size) {
    AskFor(slot, kClient, size, false, core::kNever, device);
    return Await<core::AllocReply>(slot).tensor;
  }
  void Put(core::TensorId tensor, uint32_t writes,
           core::Priority priority = core::Priority::kNormal) {
    Apply(core::PutSeen{.tensor = tensor, .writes = writes, .next_use = {}, .priority = priority});
    Apply(core::StreamComplete{tensor});
  }
  // Tensors of a page each that no call uses, from slot `first` on.
  void Fill(core::ClientId client, uint32_t first, uint32_t count) {
    for (uint32_t slot = first; slot < first + count; ++slot)
      Put(Create(core::SlotId{slot}, client), 1);
  }
  // Slot 0, which has left for others.
  core::TensorId CreateAway() {
    const core::TensorId tensor = Create(core::SlotId{0});
    Put(tensor, 1);
    for (uint32_t slot = 1; AwayOf(kClient).count(core::SlotId{0}) == 0; ++slot)
      Put(Create(core::SlotId{slot}), 1);
    return tensor;
  }
  void ExpectComesBack(core::TensorId tensor) {
    Apply(core::FetchRequested{tensor, kDevice, core::kNever});
    EXPECT_EQ(Await<core::FetchReply>(core::SlotId{0}).tensor, tensor);
    Put(tensor, 2);
    Apply(core::Freed{tensor});
    EXPECT_TRUE(Take<core::Release>(core::SlotId{0}).has_value());
    EXPECT_FALSE(store_->views().Knows(tensor));
  }
  // Slots whose words are "away".
  std::set<core::SlotId>& AwayOf(core::ClientId client) { return processes_.at(client)->away; }
  core::Bytes HeldBy(core::ClientId client) const {
    return store_->views().View(client).device_held;
  }
  core::Bytes CopiesOf(core::ClientId client) const {
    return store_->views().View(client).host_used;
  }

  const device::Devices devices_;
  Mailbox mailbox_;
  std::unique_ptr<WorkerPool> workers_ = std::make_unique<WorkerPool>("test", 2);
  std::unique_ptr<AwayMemory> memory_;
  std::map<core::PoolId, AwayMemory*> pool_memory_;
  std::map<core::ClientId, std::unique_ptr<FakeProcess>> processes_;
  core::Plan plan_;
  bool grants_early_ = false;  // bytes that are on their way
  std::vector<core::Status> early_grants_ended_;
  std::unique_ptr<PageStore> store_;
};

}  // namespace ravenstore::daemon
