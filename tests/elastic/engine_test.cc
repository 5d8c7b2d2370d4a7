#include "elastic/engine.h"

#include <atomic>
#include <random>

#include "tests/elastic/testing.h"

namespace ravenstore::elastic {
namespace {

using core::Bytes;
using core::ErrorCode;
using core::MiB;

TEST_F(EngineTest, WhatFitsStaysOnTheDevice) {
  Open(MiB(32), MiB(64));
  const CUdeviceptr a = Allocate(MiB(10));
  const CUdeviceptr b = Allocate(MiB(20));
  Write(a, 1, MiB(10));
  Write(b, 2, MiB(20));
  EXPECT_EQ(Wrong(a, 1, MiB(10)), 0u);
  EXPECT_EQ(Wrong(b, 2, MiB(20)), 0u);
  EXPECT_EQ(engine_->stats().away, Bytes{0});
  EXPECT_EQ(engine_->stats().uses_in_place, 0u);
}

TEST_F(EngineTest, MoreThanTheDeviceHoldsIsRightWhereverItLies) {
  Open(MiB(32), MiB(128));
  std::vector<CUdeviceptr> all;
  for (uint64_t i = 0; i < 12; ++i) {
    all.push_back(Allocate(MiB(8)));
    Write(all.back(), i, MiB(8));
  }
  for (int round = 0; round < 3; ++round) {
    for (uint64_t i = 0; i < all.size(); ++i) EXPECT_EQ(Wrong(all[i], i, MiB(8)), 0u) << i;
  }
  EXPECT_LE(engine_->parts().held(Place::kDevice), MiB(32));
  EXPECT_GE(engine_->stats().away, MiB(64));
  EXPECT_GT(engine_->stats().moved_out, Bytes{0});
  EXPECT_EQ(said_, "");
}

TEST_F(EngineTest, AFreedRangeServesTheSameStreamAtOnceAndOthersOnceItsUsesHavePassed) {
  Open(MiB(64), MiB(64));
  const CUstream one = MakeStream();
  const CUstream other = MakeStream();
  Fake<void(int)>("FakeCudaHoldCopies")(1);
  const CUdeviceptr a = Allocate(MiB(4), one);
  const auto words = Pattern(1, MiB(4));
  Copy(a, AddressOf(words), MiB(4), one);
  EXPECT_TRUE(engine_->Free(a, one, true));
  EXPECT_NE(Allocate(MiB(4), other), a);
  EXPECT_EQ(Allocate(MiB(4), one), a);
  EXPECT_TRUE(engine_->Free(a, one, true));
  Fake<void(int)>("FakeCudaHoldCopies")(0);
  Synchronize(one);
  // Where pages must come it is found out what streams have passed: the first look records what the
  // second finds.
  bool is_free = false;
  for (int i = 0; i < 3; ++i) {
    is_free |= Allocate(MiB(4), other) == a;
    Synchronize(one);
  }
  EXPECT_TRUE(is_free);
}

// A kernel takes longer than its launch, also on a loaded machine.
TEST_F(EngineTest, AJobRunsFarAheadOfTheGpuOnlyWhereAllFits) {
  Open(MiB(256), MiB(256));
  const CUstream stream = MakeStream();
  std::vector<CUdeviceptr> all;
  for (int i = 0; i < 16; ++i) all.push_back(Allocate(MiB(8), stream));
  Fake<void(uint64_t)>("FakeCudaKernelNanoseconds")(2'000'000);
  const auto step = [&] {
    for (size_t i = 0; i < all.size(); ++i) RunEmptyKernel({all[i]}, stream, 100 + i);
  };
  for (int i = 0; i < 4; ++i) step();
  Synchronize(stream);
  EXPECT_EQ(engine_->stats().paces, 0u);
  engine_->SetDeviceLimit(MiB(112));
  EXPECT_TRUE(Eventually([&] {
    step();
    return engine_->stats().paces > 0;
  }));
  Synchronize(stream);
  Fake<void(uint64_t)>("FakeCudaKernelNanoseconds")(0);
}

TEST_F(EngineTest, WhatIsFreedIsNotCopied) {
  Open(MiB(32), MiB(64));
  std::vector<CUdeviceptr> all;
  for (uint64_t i = 0; i < 4; ++i) {
    all.push_back(Allocate(MiB(8)));
    Write(all.back(), i, MiB(8));
  }
  for (const size_t i : {0, 2}) EXPECT_TRUE(engine_->Free(all[i], nullptr, true));
  // Neither hole holds it: it gets other addresses, backed by what was beneath the holes.
  const CUdeviceptr large = Allocate(MiB(16));
  EXPECT_GT(large, all[3]);
  Write(large, 7, MiB(16));
  EXPECT_EQ(Wrong(large, 7, MiB(16)), 0u);
  EXPECT_EQ(engine_->stats().dropped, MiB(16));
  EXPECT_EQ(engine_->stats().moved_out, Bytes{0});
  for (const size_t i : {1, 3}) EXPECT_EQ(Wrong(all[i], i, MiB(8)), 0u);
  EXPECT_FALSE(engine_->Free(all[0], nullptr, true));
}

TEST_F(EngineTest, WhatIsFreedServesOtherSizesInPlace) {
  Open(MiB(32), MiB(64));
  const CUdeviceptr a = Allocate(MiB(14));
  const CUdeviceptr b = Allocate(MiB(6));
  Write(a, 1, MiB(14));
  Write(b, 2, MiB(6));
  EXPECT_TRUE(engine_->Free(a, nullptr, true));
  const CUdeviceptr c = Allocate(MiB(10));
  const CUdeviceptr d = Allocate(MiB(4));
  EXPECT_EQ(c, a);
  EXPECT_EQ(d, a + MiB(10).count());
  Write(c, 3, MiB(10));
  Write(d, 4, MiB(4));
  EXPECT_EQ(Wrong(b, 2, MiB(6)), 0u);
  EXPECT_EQ(Wrong(c, 3, MiB(10)), 0u);
  EXPECT_EQ(engine_->stats().dropped, Bytes{0});
  EXPECT_EQ(engine_->parts().held(Place::kDevice), MiB(20));
}

TEST_F(EngineTest, AnAllocationIsNotRefusedWhileItsPagesAreBeingMapped) {
  patience_ = {};
  Open(MiB(64), MiB(64));
  const CUdeviceptr a = Allocate(MiB(48));
  Write(a, 1, MiB(48));
  EXPECT_EQ(Wrong(a, 1, MiB(48)), 0u);
  EXPECT_LE(engine_->stats().room_waits, 1u);
  EXPECT_EQ(engine_->stats().uses_in_place, 0u);
}

TEST_F(EngineTest, WhatIsPinnedStays) {
  Open(MiB(32), MiB(128));
  const CUdeviceptr a = Allocate(MiB(8));
  Write(a, 1, MiB(8));
  engine_->Pin(a + 100);
  for (uint64_t i = 0; i < 8; ++i) Write(Allocate(MiB(8)), i, MiB(8));
  const uint64_t before = engine_->stats().uses_in_place;
  EXPECT_EQ(Wrong(a, 1, MiB(8)), 0u);
  EXPECT_EQ(engine_->stats().uses_in_place, before) << "it lay on the device";
  EXPECT_EQ(engine_->stats().pinned, MiB(8));
}

TEST_F(EngineTest, NothingIsTakenFromBeneathACallThatIsUnderWay) {
  Open(MiB(16), MiB(64));
  const CUdeviceptr a = Allocate(MiB(16));
  Write(a, 1, MiB(16));
  Fake<void(int)>("FakeCudaHoldCopies")(1);
  std::vector<uint64_t> words(MiB(16).count() / sizeof(uint64_t));
  Copy(AddressOf(words), a, MiB(16), nullptr);
  // There is no room but beneath the copy that is held: this one comes to lie on the host.
  const CUstream other = MakeStream();
  const CUdeviceptr b = Allocate(MiB(8), other);
  EXPECT_EQ(engine_->stats().away, MiB(8));
  Fake<void(int)>("FakeCudaHoldCopies")(0);
  Synchronize(nullptr);
  EXPECT_EQ(words, Pattern(1, MiB(16)));
  Write(b, 2, MiB(8), other);
  EXPECT_EQ(Wrong(b, 2, MiB(8), other), 0u);
  EXPECT_EQ(Wrong(a, 1, MiB(16)), 0u);
}

TEST_F(EngineTest, ACallThatMayTouchAnythingHoldsAllInPlace) {
  Open(MiB(16), MiB(64));
  const CUdeviceptr a = Allocate(MiB(16));
  Write(a, 1, MiB(16));
  Engine::Submission* unknown = engine_->Begin({7, nullptr, {}, true});
  const CUdeviceptr b = Allocate(MiB(8));
  EXPECT_EQ(engine_->stats().away, MiB(8));
  EXPECT_EQ(engine_->stats().moved_out, Bytes{0});
  engine_->SetDeviceLimit(MiB(8));
  Write(b, 2, MiB(8));
  EXPECT_EQ(engine_->parts().held(Place::kDevice), MiB(16));
  engine_->End(unknown, true);
  EXPECT_TRUE(Eventually([&] { return engine_->parts().held(Place::kDevice) <= MiB(8); }));
  EXPECT_GT(engine_->stats().moved_out, Bytes{0});
  EXPECT_EQ(Wrong(a, 1, MiB(16)), 0u);
  EXPECT_EQ(Wrong(b, 2, MiB(8)), 0u);
}

// Parts so large that moving them is worth it.
constexpr Bytes kLarge = MiB(32);

TEST_F(EngineTest, ALowerLimitEmptiesTheDeviceAndAHigherOneFillsIt) {
  Open(kLarge * 4, kLarge * 4, kLarge);
  std::vector<CUdeviceptr> all;
  for (uint64_t i = 0; i < 4; ++i) {
    all.push_back(Allocate(kLarge));
    Write(all.back(), i, kLarge);
  }
  engine_->SetDeviceLimit(kLarge);
  EXPECT_TRUE(Eventually([&] { return engine_->parts().held(Place::kDevice) <= kLarge; }));
  for (uint64_t i = 0; i < 4; ++i) EXPECT_EQ(Wrong(all[i], i, kLarge), 0u);
  engine_->SetDeviceLimit(kLarge * 4);
  EXPECT_TRUE(Eventually([&] {
    for (uint64_t i = 0; i < 4; ++i) EXPECT_EQ(Wrong(all[i], i, kLarge), 0u);
    return engine_->stats().away == Bytes{0};
  }));
}

TEST_F(EngineTest, AnIdleJobIsEmptiedWhenItsLimitIsAskedAndComesBackWithItsNextCalls) {
  std::atomic<uint64_t> most{(kLarge * 2).count()};
  limit_ = [&most] { return Bytes(most.load()); };
  Open(kLarge * 2, kLarge * 2, kLarge);
  const CUdeviceptr one = Allocate(kLarge);
  const CUdeviceptr other = Allocate(kLarge);
  Write(one, 1, kLarge);
  Write(other, 2, kLarge);
  most = 0;
  EXPECT_TRUE(Eventually([&] { return engine_->parts().held(Place::kDevice) == Bytes{0}; }));
  EXPECT_TRUE(Eventually([&] { return engine_->stats().away == kLarge * 2; }));
  EXPECT_EQ(Wrong(one, 1, kLarge), 0u);
  most = (kLarge * 2).count();
  EXPECT_TRUE(Eventually([&] {
    EXPECT_EQ(Wrong(one, 1, kLarge), 0u);
    EXPECT_EQ(Wrong(other, 2, kLarge), 0u);
    return engine_->stats().away == Bytes{0};
  }));
  engine_.reset();  // it asks as long as it lives
}

class AwayTest : public EngineTest {
 protected:
  // Pages of their own, all on the host.
  std::vector<CUdeviceptr> MakeAway(size_t count) {
    Open(kLarge * count, kLarge * (count + 4), kLarge);
    std::vector<CUdeviceptr> pages;
    for (uint64_t i = 0; i < count; ++i) {
      pages.push_back(Allocate(kLarge));
      Write(pages.back(), i, kLarge);
    }
    SendAway(kLarge * count);
    return pages;
  }
  void SendAway(Bytes all) {
    engine_->SetDeviceLimit(Bytes{0});
    EXPECT_TRUE(Eventually([&] { return engine_->stats().away == all; }));
  }
};

TEST_F(AwayTest, APageThatIsAwayIsMappedOnceACallNamesIt) {
  const auto pages = MakeAway(2);
  EXPECT_FALSE(CanReach(pages[0]));
  EXPECT_FALSE(CanReach(pages[1]));
  EXPECT_EQ(Wrong(pages[1], 1, kLarge), 0u);
  EXPECT_EQ(engine_->stats().uses_in_place, 1u);
  EXPECT_FALSE(CanReach(pages[0])) << "nobody named it";
  EXPECT_TRUE(CanReach(pages[1]));
}

std::atomic<int> mappings_on_host{0};
std::atomic<bool> counts_mappings{false};

TEST_F(AwayTest, APageThatComesBackBeforeItIsUsedIsNeverMappedOnTheHost) {
  driver_.mem_map = [](CUdeviceptr at, size_t bytes, size_t offset,
                       CUmemGenericAllocationHandle handle, unsigned long long flags) {
    mappings_on_host += counts_mappings ? 1 : 0;
    return Fake<decltype(cuMemMap)>("cuMemMap")(at, bytes, offset, handle, flags);
  };
  Open(kLarge, kLarge * 5, kLarge);
  const CUdeviceptr page = Allocate(kLarge);
  Write(page, 1, kLarge);
  const auto has_pinned = [&] { return engine_->parts().held(Place::kHost) >= kLarge * 5; };
  SendAway(kLarge);
  EXPECT_TRUE(Eventually(has_pinned));
  engine_->SetDeviceLimit(kLarge);
  EXPECT_TRUE(Eventually([&] {
    EXPECT_EQ(Wrong(page, 1, kLarge), 0u);
    return engine_->stats().away == Bytes{0};
  }));
  counts_mappings = true;
  SendAway(kLarge);
  counts_mappings = false;
  EXPECT_EQ(mappings_on_host, 0);
}

TEST_F(AwayTest, BeforeACallThatMayTouchAnythingAllIsMappedAndStaysSo) {
  const auto pages = MakeAway(3);
  Engine::Submission* unknown = engine_->Begin({7, nullptr, {}, true});
  for (const CUdeviceptr page : pages) EXPECT_TRUE(CanReach(page));
  engine_->End(unknown, true);
  EXPECT_NE(said_.find("stays mapped"), std::string::npos);
  // A page that leaves from now on is mapped immediately.
  engine_->SetDeviceLimit(kLarge * 3);
  EXPECT_TRUE(Eventually([&] {
    for (uint64_t i = 0; i < pages.size(); ++i) EXPECT_EQ(Wrong(pages[i], i, kLarge), 0u);
    return engine_->stats().away == Bytes{0};
  }));
  SendAway(kLarge * 3);
  for (const CUdeviceptr page : pages) EXPECT_TRUE(CanReach(page));
}

TEST_F(AwayTest, WhatIsPinnedIsMappedBeforeItsAddressIsToldAndATableHasAllMapped) {
  const auto pages = MakeAway(3);
  engine_->Pin(pages[0] + 8);
  EXPECT_TRUE(CanReach(pages[0]));
  EXPECT_FALSE(CanReach(pages[1]));
  engine_->Pin(pages[1] + kLarge.count() * 100, true);
  EXPECT_FALSE(CanReach(pages[1])) << "there is no range";
  engine_->Pin(pages[1], true);
  for (const CUdeviceptr page : pages) EXPECT_TRUE(CanReach(page));
}

TEST_F(AwayTest, WhoAsksForItHasAllMappedFromTheStart) {
  maps_away_ = true;
  for (const CUdeviceptr page : MakeAway(2)) EXPECT_TRUE(CanReach(page));
  EXPECT_EQ(said_, "");
}

TEST_F(AwayTest, WhoWillGoAroundTheEngineHasAllMapped) {
  const auto pages = MakeAway(2);
  engine_->ReachAll();
  for (const CUdeviceptr page : pages) EXPECT_TRUE(CanReach(page));
}

TEST_F(AwayTest, ThreadsThatNameTheSamePageAtOnceAllFindIt) {
  const auto pages = MakeAway(2);
  const auto read = [&](uint64_t which) {
    context_.MakeCurrent();
    EXPECT_EQ(Wrong(pages[which], which, kLarge, MakeStream()), 0u);
  };
  std::thread others[] = {std::thread(read, 0), std::thread(read, 0), std::thread(read, 1)};
  read(0);
  for (std::thread& other : others) other.join();
  EXPECT_EQ(said_, "");
}

TEST_F(AwayTest, WhatCannotBeMappedIsSaidAndAFreedPageGoesWithoutACall) {
  const auto pages = MakeAway(2);
  EXPECT_TRUE(engine_->Free(pages[1], nullptr, true));
  Fake<void(const char*, int, CUresult)>("FakeCudaFail")("cuMemMap", 1, CUDA_ERROR_UNKNOWN);
  const CUdeviceptr named[] = {pages[0]};
  engine_->End(engine_->Begin({1, nullptr, named, false}), false);
  EXPECT_FALSE(CanReach(pages[0]));
  EXPECT_NE(said_.find("cannot be reached"), std::string::npos);
  // The next call tries again.
  EXPECT_EQ(Wrong(pages[0], 0, kLarge), 0u);
}

TEST_F(AwayTest, AnIllegalAddressIsExplainedOnce) {
  const auto pages = MakeAway(1);
  engine_->NoteIllegalAddress();
  engine_->NoteIllegalAddress();
  const size_t first = said_.find("RAVENSTORE_ELASTIC_AWAY=mapped");
  ASSERT_NE(first, std::string::npos);
  EXPECT_EQ(said_.find("RAVENSTORE_ELASTIC_AWAY=mapped", first + 1), std::string::npos);
}

std::atomic<bool> is_illegal{false};

TEST_F(AwayTest, TheEngineSeesByItselfThatAnAddressWasIllegal) {
  driver_.event_query = [](CUevent event) {
    if (!is_illegal) return Fake<decltype(cuEventQuery)>("cuEventQuery")(event);
    // After an illegal address nothing runs any more; here it would, on memory that is given back.
    Fake<decltype(cuCtxSynchronize)>("cuCtxSynchronize")();
    return CUDA_ERROR_ILLEGAL_ADDRESS;
  };
  Open(kLarge, kLarge * 4, kLarge);
  const CUdeviceptr page = Allocate(kLarge);
  is_illegal = true;
  Write(page, 1, kLarge);
  engine_->SetDeviceLimit(Bytes{0});  // it looks whether the page may leave
  EXPECT_TRUE(Eventually(
      [&] { return engine_->parts().held(Place::kDevice) == Bytes{0} || said_is_set_; }));
  engine_.reset();
  is_illegal = false;
  EXPECT_NE(said_.find("RAVENSTORE_ELASTIC_AWAY=mapped"), std::string::npos);
}

TEST_F(AwayTest, AJobWhoseMemoryIsAllMappedIsToldNothingOfThat) {
  maps_away_ = true;
  MakeAway(1);
  engine_->NoteIllegalAddress();
  EXPECT_EQ(said_, "");
}

// Kernels that may read addresses out of memory which no parameter names.
class TableTest : public AwayTest {
 protected:
  // Memory of the driver's with these words.
  CUdeviceptr Table(const std::vector<uint64_t>& words) {
    CUdeviceptr at = 0;
    const size_t bytes = words.size() * sizeof(uint64_t);
    EXPECT_EQ(Fake<decltype(cuMemAlloc)>("cuMemAlloc_v2")(&at, bytes), CUDA_SUCCESS);
    EXPECT_EQ(driver_.copy_async(at, AddressOf(words), bytes, nullptr), CUDA_SUCCESS);
    Synchronize(nullptr);
    return at;
  }
  // A launch that names other memory alone, before its End.
  Engine::Submission* Begin(uint64_t code, CUdeviceptr other) {
    const CUdeviceptr others[] = {other};
    return engine_->Begin({code, nullptr, {}, false, {}, {code, 1}, others});
  }
  // Launches until the kind is known not to follow addresses.
  void Learn(uint64_t code, CUdeviceptr other) {
    EXPECT_TRUE(Eventually([&] {
      engine_->End(Begin(code, other), true);
      Synchronize(nullptr);
      return said_is_set_ || Trusts(code, other);
    }));
  }
  // A launch of it holds nothing.
  bool Trusts(uint64_t code, CUdeviceptr other) {
    Engine::Submission* launch = Begin(code, other);
    const bool trusts = !launch->unknown;
    engine_->End(launch, true);
    return trusts;
  }
};

TEST_F(TableTest, ALaunchOfAnUnknownKernelHasAllMapped) {
  const auto pages = MakeAway(2);
  const CUdeviceptr data = Table({1, 2, 3});
  EXPECT_FALSE(CanReach(pages[0]));
  Engine::Submission* launch = Begin(7, data);
  for (const CUdeviceptr page : pages) EXPECT_TRUE(CanReach(page));
  engine_->End(launch, true);
  // Known not to follow, it holds nothing and maps nothing.
  Learn(7, data);
  EXPECT_TRUE(Trusts(7, data));
  EXPECT_EQ(said_, "");
  engine_->SetDeviceLimit(kLarge * 2);
  EXPECT_TRUE(Eventually([&] {
    for (uint64_t i = 0; i < pages.size(); ++i) EXPECT_EQ(Wrong(pages[i], i, kLarge), 0u);
    return engine_->stats().away == Bytes{0};
  }));
  SendAway(kLarge * 2);
  engine_->End(Begin(7, data), true);
  EXPECT_FALSE(CanReach(pages[0]));
}

TEST_F(TableTest, ATableThatAKernelMadeHasEachKernelHoldAll) {
  const auto pages = MakeAway(2);
  const CUdeviceptr table = Table({0, pages[1] + 64});
  engine_->End(Begin(7, table), true);
  EXPECT_TRUE(Eventually([&] { return said_is_set_.load(); }));
  EXPECT_NE(said_.find("table of addresses"), std::string::npos);
  const CUdeviceptr data = Table({1, 2, 3});
  Engine::Submission* launch = Begin(8, data);
  EXPECT_TRUE(launch->unknown);
  for (const CUdeviceptr page : pages) EXPECT_TRUE(CanReach(page));
  engine_->End(launch, true);
  EXPECT_FALSE(Trusts(8, data));
}

TEST_F(TableTest, ATableOfWhatNeverMovesIsNone) {
  const auto pages = MakeAway(2);
  engine_->Pin(pages[1]);
  const CUdeviceptr table = Table({0, pages[1] + 64});
  Learn(7, table);
  EXPECT_TRUE(Trusts(7, table));
  EXPECT_EQ(said_, "");
}

TEST_F(TableTest, WhoAsksForItHasEachKernelHoldAllFromTheStart) {
  maps_away_ = true;
  const auto pages = MakeAway(2);
  const CUdeviceptr data = Table({1, 2, 3});
  engine_->End(Begin(7, data), true);
  Synchronize(nullptr);
  EXPECT_FALSE(Trusts(7, data));
}

TEST_F(EngineTest, TheHostsPartsArePinnedAsMemoryIsAllocated) {
  Open(MiB(32), MiB(128));
  const auto pins = [&](Bytes bytes) {
    const auto held = [&] { return engine_->parts().held(Place::kHost); };
    EXPECT_TRUE(Eventually([&] { return held() >= bytes; }));
    EXPECT_LE(held(), bytes + kPart);
  };
  const CUdeviceptr fits = Allocate(MiB(32));
  Write(fits, 1, MiB(32));
  pins(MiB(32));
  // What does not fit, and eight parts for moves, is more.
  const CUdeviceptr more = Allocate(MiB(8));
  pins(MiB(8) + kPart * 8);
  // For a job that is to give up all that it holds.
  engine_->SetDeviceLimit(Bytes{0});
  pins(MiB(40) + kPart * 8);
  EXPECT_EQ(Wrong(fits, 1, MiB(32)), 0u);
  EXPECT_TRUE(engine_->Free(more, nullptr, true));
}

TEST_F(EngineTest, AheadOfANeedHalfOfTheHostsLimitIsPinnedAtMost) {
  Open(MiB(64), MiB(64));
  const CUdeviceptr fits = Allocate(MiB(48));
  EXPECT_TRUE(Eventually([&] { return engine_->parts().held(Place::kHost) == MiB(32); }));
  Write(fits, 1, MiB(48));
  EXPECT_EQ(Wrong(fits, 1, MiB(48)), 0u);
  EXPECT_EQ(engine_->parts().held(Place::kHost), MiB(32));
}

TEST_F(EngineTest, WithoutRoomAnywhereItSaysSoAndGoesOn) {
  Open(MiB(16), MiB(16));
  const CUdeviceptr a = Allocate(MiB(16));
  Write(a, 1, MiB(16));
  const CUdeviceptr b = Allocate(MiB(16));
  const auto none = engine_->Allocate(MiB(8), nullptr, true);
  ASSERT_FALSE(none.ok());
  EXPECT_EQ(none.error().code, ErrorCode::kOutOfMemory);
  EXPECT_EQ(Wrong(a, 1, MiB(16)), 0u);
  EXPECT_TRUE(engine_->Free(b, nullptr, true));
  const CUdeviceptr c = Allocate(MiB(8));
  Write(c, 3, MiB(8));
  EXPECT_EQ(Wrong(c, 3, MiB(8)), 0u);
}

TEST_F(EngineTest, AnAddressWithinARangeIsFound) {
  Open(MiB(32), MiB(32));
  const CUdeviceptr a = Allocate(Bytes(5'000'000));
  const auto found = engine_->Find(a + 4'000'000);
  ASSERT_TRUE(found.has_value());
  EXPECT_EQ(found->begin, a);
  EXPECT_EQ(found->size, Bytes(5'000'000));
  EXPECT_TRUE(engine_->Free(a, nullptr, true));
  EXPECT_FALSE(engine_->Find(a).has_value());
  EXPECT_FALSE(engine_->Find(12345).has_value());
}

// A sanitizer slows each of them down twentyfold.
#ifdef __SANITIZE_THREAD__
constexpr int kRandomSteps = 120;
constexpr int kRounds = 3;
#else
constexpr int kRandomSteps = 500;
constexpr int kRounds = 10;
#endif

// A range as the job knows it.
struct Known {
  CUdeviceptr address;
  Bytes size;
  uint64_t seed;
  CUstream stream;
};

// Allocates, frees, writes, reads and changes the limit at random; each read is checked whole.
class RandomTest : public EngineTest, public testing::WithParamInterface<bool> {};

INSTANTIATE_TEST_SUITE_P(Away, RandomTest, testing::Bool(), [](const auto& maps_away) {
  return maps_away.param ? "Mapped" : "Named";
});

TEST_P(RandomTest, WhateverHappensEachReadFindsWhatWasWritten) {
  maps_away_ = GetParam();
  const char* asked = std::getenv("RAVENSTORE_TEST_SEED");
  const uint64_t seed = asked != nullptr ? std::strtoull(asked, nullptr, 10) : 20261125;
  RecordProperty("seed", std::to_string(seed));
  std::printf("seed %llu\n", static_cast<unsigned long long>(seed));
  std::mt19937_64 random(seed);
  const auto draw = [&](uint64_t below) { return random() % below; };
  Open(MiB(32), MiB(256));
  const CUstream streams[] = {MakeStream(), MakeStream(), nullptr};
  std::vector<Known> known;
  for (int i = 0; i < kRandomSteps; ++i) {
    const uint64_t what = draw(10);
    if (known.empty() || (what < 3 && known.size() < 20)) {
      const CUstream stream = streams[draw(3)];
      const Bytes size = core::KiB(512) * (1 + draw(12));
      const CUdeviceptr address = Allocate(size, stream, draw(4) > 0);
      known.push_back({address, size, random(), stream});
      Write(address, known.back().seed, size, stream);
      continue;
    }
    const size_t which = draw(known.size());
    Known& range = known[which];
    if (what == 3 || known.size() == 20) {
      EXPECT_TRUE(engine_->Free(range.address, range.stream, draw(4) > 0));
      known.erase(known.begin() + static_cast<ptrdiff_t>(which));
    } else if (what == 4) {
      range.seed = random();
      Write(range.address, range.seed, range.size, range.stream);
    } else if (what == 5 && draw(20) == 0) {
      engine_->SetDeviceLimit(MiB(16) + MiB(8) * draw(4));
    } else {
      ASSERT_EQ(Wrong(range.address, range.seed, range.size, range.stream), 0u) << "step " << i;
    }
  }
  EXPECT_GT(engine_->stats().moved_in, Bytes{0});
  EXPECT_GT(engine_->stats().moved_out, Bytes{0});
  EXPECT_EQ(said_, "");
}

// Two threads, each with a stream and ranges of its own, on one device that holds a third of it.
TEST_F(EngineTest, ThreadsDoNotDisturbEachOther) {
  Open(MiB(32), MiB(256));
  const auto work = [this](uint64_t own) {
    context_.MakeCurrent();
    const CUstream stream = MakeStream();
    std::vector<CUdeviceptr> all;
    for (uint64_t i = 0; i < 6; ++i) {
      all.push_back(Allocate(MiB(8), stream));
      Write(all.back(), own + i, MiB(8), stream);
    }
    for (int round = 0; round < kRounds; ++round) {
      for (uint64_t i = 0; i < 6; ++i) EXPECT_EQ(Wrong(all[i], own + i, MiB(8), stream), 0u);
      engine_->Free(all[2], stream, true);
      all[2] = Allocate(MiB(8), stream);
      Write(all[2], own + 2, MiB(8), stream);
    }
  };
  std::thread other(work, 1000);
  work(2000);
  other.join();
  EXPECT_EQ(said_, "");
}

}  // namespace
}  // namespace ravenstore::elastic
