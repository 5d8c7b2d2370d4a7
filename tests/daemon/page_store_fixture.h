// A PageStore alone: a test says what a client did, and its mapper acknowledges without mapping.
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

namespace ravenstore::daemon {

class PageStoreFixture : public testing::Test {
 protected:
  static constexpr core::ClientId kClient{1};
  static constexpr core::DeviceId kDevice{0};

  explicit PageStoreFixture(
      device::Devices devices = device::OpenHostDevices({.total = core::MiB(64)}))
      : PageStoreFixture(std::move(devices), {}, core::MiB(64)) {}
  // `others`: pools beside the host's, of `host` bytes. Their memory outlives this.
  PageStoreFixture(device::Devices devices, std::vector<StorePools::Other> others, core::Bytes host)
      : devices_(std::move(devices)) {
    for (const StorePools::Other& other : others) pool_memory_[other.id] = other.memory;
    attachment_ =
        std::make_shared<Attachment>(Attachment{kClient,
                                                core::TenantId{1},
                                                {},
                                                0,
                                                0,
                                                "a test",
                                                std::move(*ipc::ControlSegment::Create(1)),
                                                std::move(*ipc::Doorbell::Create()),
                                                {}});
    attachment_->arenas.resize(1);
    maps_ = std::make_unique<MapOrders>(&attachment_->segment->maps);
    mapper_ = std::make_unique<ipc::MapConsumer>(&attachment_->segment->maps);
    memory_ = HostMemory(devices_, std::move(*devices_[0]->ReservePoolVaRange(host, -1)));
    pool_memory_[core::kHostPool] = memory_.get();
    PageStore::Options options;
    options.device_capacity = {core::MiB(8)};
    options.arena = {core::MiB(512)};
    options.host_capacity = host;
    options.others = std::move(others);
    options.host_step = core::MiB(4);
    options.page = core::MiB(2);
    options.links.resize(1);
    PageStore::Hooks hooks;
    hooks.attachment = [this](core::ClientId) { return std::pair(attachment_, maps_.get()); };
    hooks.drop = [this](core::ClientId, core::SlotId slot) { return away_.insert(slot).second; };
    hooks.publish = [this](core::ClientId, core::SlotId slot, core::DeviceId, core::Bytes) {
      away_.erase(slot);
    };
    hooks.send_maps = [this](core::ClientId) { maps_->Send(); };
    store_ = std::make_unique<PageStore>(options, devices_, memory_.get(), workers_.get(),
                                         &mailbox_, std::move(hooks));
    EXPECT_TRUE(store_->Open().ok());
    Apply(core::ClientAttached{kClient, core::TenantId{1}, {core::MiB(8), core::GiB(1)}});
  }
  ~PageStoreFixture() override {
    if (ends_) return;
    Apply(core::ClientGone{kClient});
    PumpUntil([this] { return store_->IsQuiet(kClient); });
    store_->Forget(kClient);
    workers_.reset();
  }

  void Apply(const core::Event& event) { store_->Apply(event, ipc::Now(), &plan_); }
  void Pump() {
    mailbox_.RunSome(mailbox_.size());
    proto::MapInstruction next;
    while (mapper_->Next(&next) == ipc::Take::kEntry) mapper_->Acknowledge(0);
    std::vector<MapOrders::Ended> ended;
    EXPECT_TRUE(maps_->Poll(&ended));
    store_->MapsEnded(kClient, ended);
    store_->Poll(ipc::Now(), &plan_);
    MakeMemory();
    store_->CheckInvariants();
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
  std::optional<Reply> Take(core::SlotId slot) {
    for (auto next = plan_.begin(); next != plan_.end(); ++next) {
      const Reply* reply = std::get_if<Reply>(&*next);
      if (reply == nullptr || reply->slot != slot) continue;
      const Reply taken = *reply;
      if constexpr (std::is_same_v<Reply, core::FetchReply>) away_.erase(slot);
      plan_.erase(next);
      return taken;
    }
    return std::nullopt;
  }
  template <typename Reply>
  Reply Await(core::SlotId slot) {
    std::optional<Reply> reply;
    PumpUntil([&] { return (reply = Take<Reply>(slot)).has_value(); });
    return *reply;
  }
  core::TensorId Create(core::SlotId slot) {
    Apply(core::CreateRequested{.client = kClient,
                                .slot = slot,
                                .size = core::MiB(2),
                                .device = kDevice,
                                .name = {},
                                .deadline = core::kNever,
                                .fail_fast = false});
    return Await<core::AllocReply>(slot).tensor;
  }
  void Put(core::TensorId tensor, uint32_t writes) {
    Apply(core::PutSeen{tensor, writes, {}});
    Apply(core::StreamComplete{tensor});
  }
  // Slot 0, which has left for others.
  core::TensorId CreateAway() {
    const core::TensorId tensor = Create(core::SlotId{0});
    Put(tensor, 1);
    for (uint32_t slot = 1; away_.count(core::SlotId{0}) == 0; ++slot)
      Put(Create(core::SlotId{slot}), 1);
    return tensor;
  }
  void ExpectComesBack(core::TensorId tensor) {
    Apply(core::FetchRequested{tensor, kDevice, core::kNever});
    EXPECT_EQ(Await<core::FetchReply>(core::SlotId{0}).tensor, tensor);
    Put(tensor, 2);
    Apply(core::Freed{tensor});
    EXPECT_TRUE(Take<core::Release>(core::SlotId{0}).has_value());
    EXPECT_FALSE(store_->Knows(tensor));
  }

  const device::Devices devices_;
  std::shared_ptr<Attachment> attachment_;
  Mailbox mailbox_;
  std::unique_ptr<WorkerPool> workers_ = std::make_unique<WorkerPool>("test", 2);
  std::unique_ptr<AwayMemory> memory_;
  std::map<core::PoolId, AwayMemory*> pool_memory_;
  std::unique_ptr<MapOrders> maps_;
  std::unique_ptr<ipc::MapConsumer> mapper_;
  std::set<core::SlotId> away_;
  bool ends_ = false;
  core::Plan plan_;
  std::unique_ptr<PageStore> store_;
};

}  // namespace ravenstore::daemon
