#include "daemon/device_memory.h"

#include <gtest/gtest.h>
#include <poll.h>

#include <optional>

#include "tests/daemon/idle_loop.h"

namespace ravenstore::daemon {
namespace {

using core::Bytes;
using core::MiB;

class DeviceMemoryTest : public testing::Test {
 protected:
  // Until the answer is in the control thread's mailbox.
  void Run() {
    loop_.RunPosts();
    pollfd bell{mailbox_.descriptor(), POLLIN, 0};
    ASSERT_EQ(::poll(&bell, 1, 20'000), 1);
    mailbox_.RunSome(mailbox_.size());
  }

  Mailbox mailbox_;
  IdleLoop loop_;
  StoreDeviceMemory memory_{loop_.devices(), loop_.get(), loop_.workers(), &mailbox_};
};

TEST_F(DeviceMemoryTest, FindsWhatIsFreeOfEachDevice) {
  // As another process would.
  auto arena = loop_.devices().front()->ReserveVaRange(MiB(8));
  ASSERT_TRUE(arena.ok());
  ASSERT_TRUE((*arena)->Create(Bytes{0}, MiB(8)).ok());
  std::optional<DeviceMemory::Usage> found;
  memory_.Find([&](const DeviceMemory::Usage& usage) { found = usage; });
  EXPECT_FALSE(found) << "nobody was asked yet";
  Run();
  ASSERT_TRUE(found);
  EXPECT_EQ(found->held, std::vector<Bytes>{Bytes{0}});
  EXPECT_EQ(found->free, std::vector<Bytes>{IdleLoop::kDevice - MiB(8)});
}

TEST_F(DeviceMemoryTest, AsksNoDriverForWhatIsHeldAlone) {
  std::optional<DeviceMemory::Usage> found;
  memory_.FindHeld([&](const DeviceMemory::Usage& usage) { found = usage; });
  Run();
  ASSERT_TRUE(found);
  EXPECT_EQ(found->held, std::vector<Bytes>{Bytes{0}});
  EXPECT_TRUE(found->free.empty());
}

TEST_F(DeviceMemoryTest, FindsOneDevicesForAUser) {
  std::optional<DeviceMemory::DeviceUsage> found;
  memory_.FindFor(core::TenantId{7}, 0,
                  [&](const DeviceMemory::DeviceUsage& usage) { found = usage; });
  Run();
  ASSERT_TRUE(found);
  EXPECT_EQ(found->held, Bytes{0});
  EXPECT_EQ(found->kept, Bytes{0});
  EXPECT_EQ(found->free, IdleLoop::kDevice);
}

TEST_F(DeviceMemoryTest, LimitsWhatTheStoreMayHold) {
  memory_.SetLimit(0, MiB(16));
  loop_.RunPosts();
  EXPECT_EQ(loop_->store().DeviceTier(core::DeviceId{0}).capacity, MiB(16));
}

}  // namespace
}  // namespace ravenstore::daemon
