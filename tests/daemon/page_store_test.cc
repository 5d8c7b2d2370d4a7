// PageStore alone: a test says what a client did, and its mapper acknowledges without mapping.
#include "daemon/page_store.h"

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <thread>
#include <utility>
#include <variant>

#include "daemon/away_memory.h"
#include "ipc/clock.h"

namespace ravenstore::daemon {
namespace {

using core::Bytes;
using core::ClientId;
using core::DeviceId;
using core::MiB;
using core::SlotId;
using core::TensorId;

constexpr ClientId kClient{1};
constexpr DeviceId kDevice{0};

class PageStoreTest : public testing::Test {
 protected:
  PageStoreTest() {
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
    memory_ = HostMemory(devices_, std::move(*devices_[0]->ReservePoolVaRange(MiB(64), -1)));
    PageStore::Options options;
    options.device_capacity = {MiB(8)};
    options.arena = {MiB(512)};
    options.host_capacity = MiB(64);
    options.host_step = MiB(4);
    options.page = MiB(2);
    options.links.resize(1);
    PageStore::Hooks hooks;
    hooks.attachment = [this](ClientId) { return std::pair(attachment_, maps_.get()); };
    hooks.drop = [this](ClientId, SlotId slot) { return away_.insert(slot).second; };
    hooks.publish = [this](ClientId, SlotId slot, DeviceId, Bytes) { away_.erase(slot); };
    hooks.send_maps = [this](ClientId) { maps_->Send(); };
    store_ = std::make_unique<PageStore>(options, devices_, memory_.get(), workers_.get(),
                                         &mailbox_, std::move(hooks));
    EXPECT_TRUE(store_->Open().ok());
    Apply(core::ClientAttached{kClient, core::TenantId{1}, {MiB(8), MiB(64)}});
  }
  ~PageStoreTest() override {
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
  // Of pools that grow.
  void MakeMemory() {
    for (size_t i = 0; i < plan_.size(); ++i) {
      const core::GrowPool* grows = std::get_if<core::GrowPool>(&plan_[i]);
      if (grows == nullptr) continue;
      const core::GrowPool action = *grows;
      plan_.erase(plan_.begin() + static_cast<ptrdiff_t>(i--));
      ASSERT_TRUE(memory_->Make(action.offset, action.size).ok());
      memory_->slabs.Add(action.offset, action.size);
      Apply(core::PoolGrown{action.pool, action.offset, action.size});
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
  std::optional<Reply> Take(SlotId slot) {
    for (auto next = plan_.begin(); next != plan_.end(); ++next) {
      const Reply* reply = std::get_if<Reply>(&*next);
      if (reply == nullptr || reply->slot != slot) continue;
      const Reply taken = *reply;
      plan_.erase(next);
      return taken;
    }
    return std::nullopt;
  }
  template <typename Reply>
  Reply Await(SlotId slot) {
    std::optional<Reply> reply;
    PumpUntil([&] { return (reply = Take<Reply>(slot)).has_value(); });
    return *reply;
  }
  TensorId Create(SlotId slot) {
    Apply(core::CreateRequested{.client = kClient,
                                .slot = slot,
                                .size = MiB(2),
                                .device = kDevice,
                                .name = {},
                                .deadline = core::kNever,
                                .fail_fast = false});
    return Await<core::AllocReply>(slot).tensor;
  }
  void Put(TensorId tensor, uint32_t writes) {
    Apply(core::PutSeen{tensor, writes, {}});
    Apply(core::StreamComplete{tensor});
  }
  // Slot 0, which has left for others.
  TensorId CreateAway() {
    const TensorId tensor = Create(SlotId{0});
    Put(tensor, 1);
    for (uint32_t slot = 1; away_.count(SlotId{0}) == 0; ++slot) Put(Create(SlotId{slot}), 1);
    return tensor;
  }
  void ExpectComesBack(TensorId tensor) {
    Apply(core::FetchRequested{tensor, kDevice, core::kNever});
    EXPECT_EQ(Await<core::FetchReply>(SlotId{0}).tensor, tensor);
    Put(tensor, 2);
    Apply(core::Freed{tensor});
    EXPECT_TRUE(Take<core::Release>(SlotId{0}).has_value());
    EXPECT_FALSE(store_->Knows(tensor));
  }

  const device::Devices devices_ = device::OpenHostDevices({.total = MiB(64)});
  std::shared_ptr<Attachment> attachment_;
  Mailbox mailbox_;
  std::unique_ptr<WorkerPool> workers_ = std::make_unique<WorkerPool>("test", 2);
  std::unique_ptr<AwayMemory> memory_;
  std::unique_ptr<MapOrders> maps_;
  std::unique_ptr<ipc::MapConsumer> mapper_;
  std::set<SlotId> away_;
  core::Plan plan_;
  std::unique_ptr<PageStore> store_;
};

TEST_F(PageStoreTest, ATensorLeavesAndComesBack) {
  ExpectComesBack(CreateAway());
}

// An entry of the log that is read late, or a row that its client has scribbled on.
TEST_F(PageStoreTest, UsesThatAreSaidOfAnAwayTensorAreNone) {
  const TensorId tensor = CreateAway();
  Apply(core::GetSeen{tensor});
  Put(tensor, 2);
  ExpectComesBack(tensor);
}

TEST_F(PageStoreTest, UsesThatAreSaidOfATensorThatIsAskedForAreNone) {
  const TensorId tensor = CreateAway();
  Apply(core::FetchRequested{tensor, kDevice, core::kNever});
  Apply(core::GetSeen{tensor});
  Put(tensor, 2);
  EXPECT_EQ(Await<core::FetchReply>(SlotId{0}).tensor, tensor);
}

}  // namespace
}  // namespace ravenstore::daemon
