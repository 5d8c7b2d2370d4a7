#include "elastic/table_finder.h"

#include <cstring>

#include "tests/elastic/testing.h"

namespace ravenstore::elastic {
namespace {

using Kind = TableFinder::Kind;

constexpr uint64_t kMovable = 0x7f0012340000;

class TableFinderTest : public testing::Test {
 protected:
  // Memory of the driver's with these words.
  CUdeviceptr Memory(const std::vector<uint64_t>& words) {
    CUdeviceptr at = 0;
    const size_t bytes = words.size() * sizeof(uint64_t);
    EXPECT_EQ(Fake<decltype(cuMemAlloc)>("cuMemAlloc_v2")(&at, bytes), CUDA_SUCCESS);
    const auto from = reinterpret_cast<CUdeviceptr>(words.data());
    EXPECT_EQ(driver_.copy_async(at, from, bytes, nullptr), CUDA_SUCCESS);
    Synchronize();
    return at;
  }
  static void Synchronize() {
    EXPECT_EQ(Fake<decltype(cuStreamSynchronize)>("cuStreamSynchronize")(nullptr), CUDA_SUCCESS);
  }
  // A launch that names this. False: it was not searched.
  bool Launch(const Kind& kind, const std::vector<TableFinder::Named>& named) {
    TableFinder::Search* search = finder_.Begin(kind);
    if (search == nullptr) return false;
    search->named = named;
    finder_.End(search, finder_.Enqueue(search, nullptr));
    return true;
  }
  // Whether a table was found, once all copies are there.
  bool Poll() {
    Synchronize();
    return finder_.Poll([](uint64_t word) { return word == kMovable; });
  }

  FakeContext context_;
  Driver driver_ = *LoadDriver(&FakeFunction);
  TableFinder finder_{&driver_};
};

TEST_F(TableFinderTest, AKindThatHasNoTablesIsKnownOnceItWasSearched) {
  const CUdeviceptr data = Memory({1, 2, 3});
  EXPECT_FALSE(finder_.MayFollow({0, 0})) << "it runs no code";
  EXPECT_TRUE(finder_.MayFollow({7, 1}));
  EXPECT_TRUE(Launch({7, 1}, {{data, 0}}));
  EXPECT_TRUE(finder_.AnyUnderWay());
  EXPECT_FALSE(Poll());
  EXPECT_FALSE(finder_.AnyUnderWay());
  EXPECT_FALSE(finder_.MayFollow({7, 1}));
  EXPECT_FALSE(Launch({7, 1}, {{data, 0}}));
  EXPECT_TRUE(finder_.MayFollow({7, 2})) << "other words of it are addresses";
  EXPECT_TRUE(finder_.MayFollow({8, 1}));
}

TEST_F(TableFinderTest, WhileASearchIsUnderWayNothingIsKnown) {
  const CUdeviceptr data = Memory({1, 2, 3});
  EXPECT_TRUE(Launch({7, 1}, {{data, 0}}));
  Poll();
  EXPECT_TRUE(Launch({8, 1}, {{data, 0}}));
  EXPECT_TRUE(finder_.MayFollow({7, 1}));
  EXPECT_FALSE(finder_.MayFollow({0, 0}));
  Poll();
  EXPECT_FALSE(finder_.MayFollow({7, 1}));
}

TEST_F(TableFinderTest, ATableIsFoundOnceAndThenAnyKernelMayFollow) {
  const CUdeviceptr data = Memory({1, 2, 3});
  const CUdeviceptr table = Memory({0, 5, kMovable});
  EXPECT_TRUE(Launch({7, 1}, {{data, 0}}));
  EXPECT_FALSE(Poll());
  EXPECT_TRUE(Launch({8, 1}, {{data, 0}, {table, 0}}));
  EXPECT_TRUE(Poll());
  EXPECT_TRUE(finder_.found());
  EXPECT_FALSE(Poll()) << "once";
  EXPECT_TRUE(finder_.MayFollow({7, 1}));
  EXPECT_FALSE(Launch({9, 1}, {{table, 0}}));
}

TEST_F(TableFinderTest, OnlyTheBeginningIsSearchedAndNothingBeyondAnAllocation) {
  std::vector<uint64_t> words(TableFinder::kBytes / sizeof(uint64_t) + 1, 0);
  words.back() = kMovable;
  const CUdeviceptr large = Memory(words);
  EXPECT_TRUE(Launch({7, 1}, {{large, 0}}));
  EXPECT_FALSE(Poll());
  // From here on it is within reach, also behind an address that is not aligned.
  EXPECT_TRUE(Launch({8, 1}, {{large + 12, words.size() * sizeof(uint64_t) - 12}}));
  EXPECT_TRUE(Poll());
}

TEST_F(TableFinderTest, WordsThatAreNoAddressesAreLeftOut) {
  const CUdeviceptr table = Memory({kMovable});
  EXPECT_TRUE(Launch({7, 1}, {{0x123456789abc, 0}, {table, 0}}));
  EXPECT_TRUE(Poll());
}

TEST_F(TableFinderTest, WhatCouldNotBeSearchedIsSearchedAtTheNextLaunch) {
  const CUdeviceptr data = Memory({1});
  TableFinder::Search* search = finder_.Begin({7, 1});
  ASSERT_NE(search, nullptr);
  finder_.End(search, false);
  EXPECT_FALSE(finder_.AnyUnderWay());
  EXPECT_TRUE(finder_.MayFollow({7, 1}));
  Fake<void(const char*, int, CUresult)>("FakeCudaFail")("cuMemcpyAsync", 1, CUDA_ERROR_UNKNOWN);
  EXPECT_TRUE(Launch({7, 1}, {{data, 0}}));
  EXPECT_FALSE(finder_.AnyUnderWay());
  EXPECT_TRUE(Launch({7, 1}, {{data, 0}}));
  EXPECT_FALSE(Poll());
  EXPECT_FALSE(finder_.MayFollow({7, 1}));
}

TEST_F(TableFinderTest, WithoutHostMemoryNothingIsEverKnown) {
  Fake<void(const char*, int, CUresult)>("FakeCudaFail")("cuMemHostRegister", 1,
                                                         CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(finder_.Begin({7, 1}), nullptr);
  EXPECT_EQ(finder_.Begin({7, 1}), nullptr);
  EXPECT_TRUE(finder_.MayFollow({7, 1}));
}

TEST_F(TableFinderTest, OfOneKernelOnlySoManyKindsAreToldApart) {
  const CUdeviceptr data = Memory({1});
  for (uint64_t i = 0; i < TableFinder::kPatterns; ++i) {
    EXPECT_TRUE(finder_.MayFollow({7, i}));
    EXPECT_TRUE(Launch({7, i}, {{data, 0}}));
    Poll();
  }
  EXPECT_FALSE(finder_.MayFollow({7, 1000}));
}

TEST_F(TableFinderTest, MoreSearchesAtOnceThanThereIsRoomForWait) {
  const CUdeviceptr data = Memory({1});
  uint64_t code = 1;
  while (Launch({code, 1}, {{data, 0}})) ++code;
  EXPECT_GE(code, 8u);
  Poll();
  EXPECT_TRUE(finder_.MayFollow({code, 1}));
  EXPECT_TRUE(Launch({code, 1}, {{data, 0}}));
}

}  // namespace
}  // namespace ravenstore::elastic
