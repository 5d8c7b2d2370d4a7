#include "elastic/page_maps.h"

#include "tests/elastic/testing.h"

namespace ravenstore::elastic {
namespace {

using core::Bytes;
using core::ErrorCode;
using core::MiB;

class PageMapsTest : public EngineTest {
 protected:
  void SetUp() override {
    CUdeviceptr begin = 0;
    RAVEN_CHECK(driver_.address_reserve(&begin, (kPart * 2).count(), kPart.count(), 0, 0) ==
                CUDA_SUCCESS);
    one_.begin = begin;
    other_.begin = begin + kPart.count();
  }

  Parts parts_{&driver_, 0, 0, {kPart, {}, {}}, {kPart, {}, {}}};
  PageMaps maps_{&parts_, kPart};
  PageMaps::Page one_;
  PageMaps::Page other_;
  PageMaps::Memory memory_;
};

TEST_F(PageMapsTest, MemoryIsMappedAtOnePage) {
  EXPECT_TRUE(maps_.MoveTo(&one_, &memory_).ok());
  EXPECT_TRUE(CanReach(one_.begin));
  EXPECT_TRUE(maps_.MoveTo(&other_, &memory_).ok());
  EXPECT_FALSE(CanReach(one_.begin));
  EXPECT_TRUE(CanReach(other_.begin));
  EXPECT_EQ(memory_.at, &other_);
  EXPECT_TRUE(maps_.Detach(&other_).ok());
  EXPECT_FALSE(CanReach(other_.begin));
  EXPECT_EQ(memory_.at, nullptr);
}

TEST_F(PageMapsTest, TheHostsPartAndTheDevicesReplaceEachOther) {
  EXPECT_TRUE(maps_.MapHost(&one_, &one_.host).ok());
  EXPECT_EQ(one_.mapped, one_.host);
  EXPECT_TRUE(maps_.MoveTo(&one_, &memory_).ok());
  EXPECT_EQ(one_.mapped, memory_.part);
  EXPECT_EQ(one_.of, &memory_);
  EXPECT_TRUE(maps_.MapHost(&one_, &one_.host).ok());
  EXPECT_EQ(memory_.at, nullptr);
  EXPECT_TRUE(CanReach(one_.begin));
}

TEST_F(PageMapsTest, WithoutAPartNothingChanges) {
  EXPECT_TRUE(maps_.MoveTo(&one_, &memory_).ok());
  PageMaps::Memory more;
  EXPECT_EQ(maps_.MoveTo(&one_, &more).error().code, ErrorCode::kOutOfMemory);
  EXPECT_EQ(one_.of, &memory_);
  EXPECT_TRUE(CanReach(one_.begin));
}

TEST_F(PageMapsTest, AMappingThatFailsLeavesThePageWithoutOneAndCanBeRepeated) {
  EXPECT_TRUE(maps_.MapHost(&one_, &one_.host).ok());
  EXPECT_TRUE(maps_.MoveTo(nullptr, &memory_).ok());
  Fake<void(const char*, int, CUresult)>("FakeCudaFail")("cuMemMap", 1, CUDA_ERROR_UNKNOWN);
  EXPECT_FALSE(maps_.MoveTo(&one_, &memory_).ok());
  EXPECT_EQ(one_.mapped, nullptr);
  EXPECT_TRUE(maps_.MoveTo(&one_, &memory_).ok());
  EXPECT_TRUE(CanReach(one_.begin));
}

}  // namespace
}  // namespace ravenstore::elastic
