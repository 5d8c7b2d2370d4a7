#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <vector>

#include "tests/elastic/testing.h"

namespace ravenstore::elastic {
namespace {

using core::Bytes;
using core::ErrorCode;
using core::MiB;

class SegmentsTest : public EngineTest {
 protected:
  static constexpr Bytes kSegment = MiB(6);  // a part and a half

  RangeId Create(Bytes size = kSegment) {
    const auto made = engine_->segments().Create(size);
    RAVEN_CHECK(made.ok());
    return *made;
  }
  // `count` adjacent segments: one run.
  CUdeviceptr MapRun(size_t count, Bytes size = kSegment) {
    const auto base = engine_->segments().Reserve(std::max(size * count, MiB(64)));
    RAVEN_CHECK(base.has_value());
    for (size_t i = 0; i < count; ++i) {
      run_.push_back(Create(size));
      RAVEN_CHECK(engine_->segments().Map(run_.back(), *base + (size * i).count()).ok());
    }
    return *base;
  }
  // Memory of the driver's own.
  CUmemGenericAllocationHandle MakeHandle() {
    CUmemAllocationProp prop{};
    prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    prop.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
    CUmemGenericAllocationHandle handle = 0;
    RAVEN_CHECK(driver_.mem_create(&handle, kSegment.count(), &prop, 0) == CUDA_SUCCESS);
    return handle;
  }
  std::vector<RangeId> run_;
};

TEST_F(SegmentsTest, ARunMovesOutAndBackWithItsWords) {
  // Of a size that is worth a move.
  constexpr Bytes kLarge = MiB(64);
  Open(kLarge * 2, kLarge * 2, kLarge);
  const CUdeviceptr base = MapRun(2, kLarge);
  Write(base, 1, kLarge * 2);  // names the first alone
  engine_->SetDeviceLimit(Bytes{0});
  EXPECT_TRUE(Eventually([&] { return engine_->stats().away == kLarge * 2; }));
  EXPECT_EQ(engine_->parts().held(Place::kDevice), Bytes{0});
  EXPECT_EQ(Wrong(base, 1, kLarge * 2), 0u);
  engine_->SetDeviceLimit(kLarge * 2);
  EXPECT_TRUE(Eventually([&] {
    for (uint64_t i = 0; i < 2; ++i) {
      const Bytes at = kLarge * i;
      EXPECT_EQ(Wrong(base + at.count(), 1 + at.count() / sizeof(uint64_t), kLarge), 0u);
    }
    return engine_->stats().away == Bytes{0};
  }));
  EXPECT_GE(engine_->stats().moved_in, kLarge * 2);
}

TEST_F(SegmentsTest, ACallThatNamesOneHoldsAllBesideIt) {
  Open(MiB(64), MiB(64));
  const CUdeviceptr base = MapRun(3);
  const CUdeviceptr other = MapRun(3);
  Write(base, 1, kSegment * 3);
  Write(other, 2, kSegment * 3);
  const CUdeviceptr named[] = {base + kSegment.count()};
  Engine::Submission* submission = engine_->Begin({7, nullptr, named, false});
  engine_->SetDeviceLimit(Bytes{0});
  // What was used last leaves last, but nothing of the first run may.
  EXPECT_TRUE(Eventually([&] { return engine_->stats().away == kSegment * 3; }));
  EXPECT_EQ(engine_->parts().held(Place::kDevice), kSegment * 3);
  EXPECT_EQ(Wrong(other, 2, kSegment * 3), 0u);
  EXPECT_EQ(engine_->stats().bytes_in_place, kSegment) << "only what it names is told of";
  engine_->End(submission, false);
  EXPECT_TRUE(Eventually([&] { return engine_->parts().held(Place::kDevice) == Bytes{0}; }));
  EXPECT_EQ(Wrong(base, 1, kSegment * 3), 0u);
}

TEST_F(SegmentsTest, BytesStayWithASegmentThatIsMappedElsewhere) {
  Open(MiB(8), MiB(64));
  const CUdeviceptr base = MapRun(2);
  Write(base, 1, kSegment);
  Write(base + kSegment.count(), 2, kSegment);
  EXPECT_TRUE(engine_->segments().Unmap(run_[0]).ok());
  EXPECT_FALSE(engine_->Find(base).has_value());
  EXPECT_TRUE(engine_->segments().Unmap(run_[1]).ok());
  EXPECT_TRUE(engine_->segments().Map(run_[1], base).ok());
  EXPECT_TRUE(engine_->segments().Map(run_[0], base + kSegment.count()).ok());
  EXPECT_EQ(Wrong(base, 2, kSegment), 0u);
  EXPECT_EQ(Wrong(base + kSegment.count(), 1, kSegment), 0u);
  EXPECT_EQ(engine_->Find(base + 8)->begin, base);
}

TEST_F(SegmentsTest, OneHasOnePlaceOfFreeAddressesOfAReservation) {
  Open(MiB(64), MiB(64));
  const CUdeviceptr base = MapRun(2);
  const auto refused = [&](RangeId id, CUdeviceptr at) {
    const auto mapped = engine_->segments().Map(id, at);
    return !mapped.ok() && mapped.error().code == ErrorCode::kInvalidArgument;
  };
  EXPECT_TRUE(refused(run_[0], base + MiB(32).count())) << "mapped already";
  const RangeId other = Create();
  EXPECT_TRUE(refused(other, base + MiB(4).count())) << "taken";
  EXPECT_TRUE(refused(other, base + MiB(62).count())) << "beyond the end";
  EXPECT_TRUE(refused(other, base + MiB(32).count() + 512)) << "no granule";
  EXPECT_TRUE(refused(other, Allocate(MiB(4)))) << "an allocation's";
  EXPECT_FALSE(engine_->segments().Reserve(MiB(3)).has_value());
  EXPECT_FALSE(engine_->segments().Create(MiB(1)).ok());
  EXPECT_FALSE(engine_->segments().Unreserve(base, MiB(64))) << "segments are mapped";
  for (const RangeId id : run_) EXPECT_TRUE(engine_->segments().Unmap(id).ok());
  EXPECT_FALSE(engine_->segments().Unreserve(base, MiB(32)));
  EXPECT_TRUE(engine_->segments().Unreserve(base, MiB(64)));
  EXPECT_FALSE(engine_->segments().Unreserve(base, MiB(64)));
}

TEST_F(SegmentsTest, WhatIsDestroyedIsFreeForOthers) {
  Open(MiB(16), Bytes{0});
  for (int i = 0; i < 20; ++i) {
    const CUdeviceptr base = MapRun(2);
    Write(base, 1, kSegment * 2);
    for (const RangeId id : run_) {
      EXPECT_TRUE(engine_->segments().Unmap(id).ok());
      engine_->segments().Destroy(id);
    }
    run_.clear();
    EXPECT_TRUE(engine_->segments().Unreserve(base, MiB(64)));
    EXPECT_EQ(engine_->stats().live, Bytes{0});
  }
  EXPECT_NE(Allocate(MiB(16)), 0u);
  EXPECT_FALSE(engine_->segments().Create(kSegment).ok()) << "it is all taken";
}

TEST_F(SegmentsTest, WhatIsHandedOverIsTheDriversWithAllItsWords) {
  Open(kSegment, MiB(64));
  const CUdeviceptr base = MapRun(2);  // the second is on the host
  Write(base, 1, kSegment * 2);
  for (size_t i = 0; i < 2; ++i) {
    const auto at = engine_->segments().HandOver(run_[i], MakeHandle());
    ASSERT_TRUE(at.ok()) << core::Describe(at.error());
    EXPECT_EQ(*at, base + (kSegment * i).count());
  }
  EXPECT_FALSE(engine_->Find(base).has_value());
  EXPECT_EQ(Wrong(base, 1, kSegment * 2), 0u);
  EXPECT_EQ(engine_->stats().live, Bytes{0});
  EXPECT_EQ(engine_->parts().free(Place::kDevice), engine_->parts().held(Place::kDevice));
}

TEST_F(SegmentsTest, OneThatIsMappedNowhereIsHandedOverToo) {
  Open(MiB(16), MiB(64));
  const CUdeviceptr base = MapRun(1);
  Write(base, 1, kSegment);
  EXPECT_TRUE(engine_->segments().Unmap(run_[0]).ok());
  const CUmemGenericAllocationHandle handle = MakeHandle();
  const auto at = engine_->segments().HandOver(run_[0], handle);
  ASSERT_TRUE(at.ok());
  EXPECT_EQ(*at, 0u);
  const Part whole{Place::kDevice, kSegment, handle, 0};
  EXPECT_TRUE(engine_->parts().Map(base, whole).ok());
  EXPECT_EQ(Wrong(base, 1, kSegment), 0u);
}

// While set, the driver maps nothing at these addresses.
std::atomic<CUdeviceptr> refused_from;
std::atomic<CUdeviceptr> refused_to;
std::atomic<int> refused;
decltype(&cuMemMap) real_map = nullptr;

CUresult MapElsewhere(CUdeviceptr at, size_t size, size_t offset,
                      CUmemGenericAllocationHandle handle, unsigned long long flags) {
  if (at >= refused_from && at < refused_to) return ++refused, CUDA_ERROR_UNKNOWN;
  return real_map(at, size, offset, handle, flags);
}

TEST_F(SegmentsTest, APartThatCannotBeMappedAnyMoreIsNotLost) {
  real_map = driver_.mem_map;
  driver_.mem_map = MapElsewhere;
  Open(MiB(64), MiB(64));
  const CUdeviceptr base = MapRun(2);
  Write(base, 1, kSegment * 2);
  refused_to = base + (kSegment * 2).count();
  refused_from = base;
  engine_->SetDeviceLimit(Bytes{0});
  // The one that should come, and the one that was there.
  EXPECT_TRUE(Eventually([&] { return refused >= 2; }));
  refused_to = 0;
  for (size_t i = 0; i < 2; ++i) {
    const auto at = engine_->segments().HandOver(run_[i], MakeHandle());
    ASSERT_TRUE(at.ok()) << core::Describe(at.error());
    EXPECT_EQ(*at, base + (kSegment * i).count());
  }
  EXPECT_EQ(Wrong(base, 1, kSegment * 2), 0u);
}

TEST_F(SegmentsTest, APinHoldsAllBesideItForGood) {
  Open(MiB(32), MiB(64));
  const CUdeviceptr base = MapRun(2);
  Write(base, 1, kSegment * 2);
  engine_->Pin(base + 8);
  // One that comes later, too.
  const RangeId later = Create();
  EXPECT_TRUE(engine_->segments().Map(later, base + (kSegment * 2).count()).ok());
  EXPECT_EQ(engine_->stats().pinned, kSegment * 3);
  const CUdeviceptr other = Allocate(MiB(8));
  Write(other, 2, MiB(8));
  engine_->SetDeviceLimit(Bytes{0});
  EXPECT_TRUE(Eventually([&] { return engine_->stats().away == MiB(8); }));
  EXPECT_EQ(engine_->parts().held(Place::kDevice), kSegment * 3);
  EXPECT_EQ(Wrong(base, 1, kSegment * 2), 0u);
}

}  // namespace
}  // namespace ravenstore::elastic
