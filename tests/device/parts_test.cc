#include "device/parts.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "core/check.h"
#include "tests/device/testing.h"

namespace ravenstore::device {
namespace {

using core::ErrorCode;
using core::MiB;

// One device of 64 MiB in two parts; another process holds `others_` of it.
class PartsTest : public testing::Test {
 protected:
  PartsTest() {
    HostOptions options{.total = MiB(64)};
    options.others = [this](int) { return std::vector<DeviceProcess>{{1, Bytes(others_)}}; };
    whole_ = OpenHostDevices(options);
    parts_ = InParts(whole_, 2);
    RAVEN_CHECK(parts_.size() == 2);
  }

  static Bytes FreeOf(Device& device) { return device.ReadMemoryUse().value().free; }

  std::atomic<uint64_t> others_{0};
  Devices whole_;
  Devices parts_;
};

TEST_F(PartsTest, TheirCapacitiesSumUpToTheDevicesAndTheirUuidsDiffer) {
  for (const auto& part : parts_) {
    EXPECT_EQ(part->info().total, MiB(32));
    EXPECT_EQ(FreeOf(*part), MiB(32));
    EXPECT_EQ(part->FreeBytes().value(), MiB(32));
  }
  EXPECT_EQ(parts_[0]->info().uuid, "HOST-0/0");
  EXPECT_EQ(parts_[1]->info().uuid, "HOST-0/1");
}

TEST_F(PartsTest, WhatOneCreatesIsItsOwnUntilItIsUnmapped) {
  const auto range = parts_[0]->ReserveVaRange(MiB(64)).value();
  ASSERT_OK(range->Create(Bytes{0}, MiB(24)));
  EXPECT_EQ(FreeOf(*parts_[0]), MiB(8));
  EXPECT_EQ(FreeOf(*parts_[1]), MiB(32));
  EXPECT_CODE(range->Create(MiB(24), MiB(10)), ErrorCode::kOutOfMemory);
  ASSERT_OK(range->Create(MiB(24), MiB(8)));
  ASSERT_OK(range->Unmap(Bytes{0}));
  EXPECT_EQ(FreeOf(*parts_[0]), MiB(24));
}

TEST_F(PartsTest, TheEndOfARangeGivesItsMemoryBackToItsPart) {
  auto range = parts_[1]->ReserveVaRange(MiB(64)).value();
  ASSERT_OK(range->Create(Bytes{0}, MiB(32)));
  range.reset();
  EXPECT_EQ(FreeOf(*parts_[1]), MiB(32));
}

TEST_F(PartsTest, WhatIsImportedIsChargedToNoPart) {
  const auto range = parts_[0]->ReserveVaRange(MiB(64)).value();
  const auto other = parts_[1]->ReserveVaRange(MiB(64)).value();
  ASSERT_OK(range->Create(Bytes{0}, MiB(32)));
  ASSERT_OK(other->Import(range->Export(Bytes{0}).value(), Bytes{0}, MiB(32)));
  EXPECT_EQ(FreeOf(*parts_[1]), MiB(32));
  ASSERT_OK(other->Unmap(Bytes{0}));
  EXPECT_EQ(FreeOf(*parts_[1]), MiB(32));
}

TEST_F(PartsTest, MemoryIsChargedUntilItsLastReferenceAndMapping) {
  const auto range = parts_[0]->ReserveVaRange(MiB(64)).value();
  auto memory = parts_[0]->CreateMemory(MiB(24)).value();
  EXPECT_EQ(FreeOf(*parts_[0]), MiB(8));
  EXPECT_CODE(parts_[0]->CreateMemory(MiB(10)), ErrorCode::kOutOfMemory);
  ASSERT_OK(range->Map(Bytes{0}, memory));
  auto imported = parts_[1]->ImportMemory(memory->Export().value(), MiB(24)).value();
  memory.reset();
  EXPECT_EQ(FreeOf(*parts_[0]), MiB(8));
  EXPECT_EQ(FreeOf(*parts_[1]), MiB(32));
  ASSERT_OK(range->Unmap(Bytes{0}));
  EXPECT_EQ(FreeOf(*parts_[0]), MiB(32));
}

TEST_F(PartsTest, WhatOthersUseIsUsedOfAllPartsAlike) {
  const auto range = parts_[0]->ReserveVaRange(MiB(64)).value();
  ASSERT_OK(range->Create(Bytes{0}, MiB(16)));
  others_ = MiB(20).count();
  EXPECT_EQ(FreeOf(*parts_[0]), MiB(6));
  EXPECT_EQ(FreeOf(*parts_[1]), MiB(22));
}

TEST_F(PartsTest, PartsReachOneAnotherAndNotThemselves) {
  EXPECT_TRUE(parts_[0]->Reaches(*parts_[1]));
  EXPECT_TRUE(parts_[1]->Reaches(*parts_[0]));
  EXPECT_FALSE(parts_[0]->Reaches(*parts_[0]));
  EXPECT_FALSE(parts_[0]->Reaches(*whole_[0]));
}

TEST_F(PartsTest, OnePartIsTheDeviceItself) {
  EXPECT_EQ(InParts(whole_, 1), whole_);
}

TEST(PartsForTestsTest, ASmallNumberIsTaken) {
  unsetenv("RAVENSTORE_TEST_GPU_PARTS");
  EXPECT_EQ(PartsForTests().value(), 1);
  setenv("RAVENSTORE_TEST_GPU_PARTS", "2", 1);
  EXPECT_EQ(PartsForTests().value(), 2);
  for (const char* bad : {"", "0", "9", "-1", "2x", "two"}) {
    setenv("RAVENSTORE_TEST_GPU_PARTS", bad, 1);
    EXPECT_CODE(PartsForTests(), ErrorCode::kInvalidArgument);
  }
  unsetenv("RAVENSTORE_TEST_GPU_PARTS");
}

}  // namespace
}  // namespace ravenstore::device
