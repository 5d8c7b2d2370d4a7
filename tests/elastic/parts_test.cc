#include "elastic/parts.h"

#include <atomic>
#include <utility>

#include "tests/elastic/testing.h"

namespace ravenstore::elastic {
namespace {

using core::Bytes;
using core::ErrorCode;
using core::MiB;

class PartsTest : public testing::Test {
 protected:
  PlaceLimits Counted(Bytes most) {
    return {most,
            [this](Bytes bytes) {
              if (charged_ + bytes > budget_) return false;
              return charged_ += bytes, true;
            },
            [this](Bytes bytes) { charged_ -= bytes; }};
  }

  Bytes budget_ = MiB(1000);
  Bytes charged_;
  FakeContext context_;
  Driver driver_ = *LoadDriver(&FakeFunction);
};

TEST_F(PartsTest, APartThatWasGivenServesTheNextOfItsSize) {
  Parts parts(&driver_, 0, 0, Counted(MiB(8)), {MiB(8), {}, {}});
  Part* one = *parts.Take(Place::kDevice, MiB(4));
  parts.Give(one);
  EXPECT_EQ(*parts.Take(Place::kDevice, MiB(4)), one);
  EXPECT_EQ(parts.held(Place::kDevice), MiB(4));
  EXPECT_EQ(charged_, MiB(4));
}

TEST_F(PartsTest, OneOfAnotherSizeMakesWayAtTheLimit) {
  Parts parts(&driver_, 0, 0, Counted(MiB(8)), {MiB(8), {}, {}});
  parts.Give(*parts.Take(Place::kDevice, MiB(6)));
  Part* taken = *parts.Take(Place::kDevice, MiB(4));
  EXPECT_EQ(parts.held(Place::kDevice), MiB(4));
  const auto none = parts.Take(Place::kDevice, MiB(6));
  ASSERT_FALSE(none.ok());
  EXPECT_EQ(none.error().code, ErrorCode::kOutOfMemory);
  parts.Give(taken);
  EXPECT_EQ(charged_, MiB(4));
}

TEST_F(PartsTest, TheLedgerMayRefuse) {
  budget_ = MiB(4);
  Parts parts(&driver_, 0, 0, Counted(MiB(64)), {MiB(8), {}, {}});
  EXPECT_TRUE(parts.Take(Place::kDevice, MiB(4)).ok());
  EXPECT_FALSE(parts.Take(Place::kDevice, MiB(2)).ok());
  EXPECT_EQ(parts.held(Place::kDevice), MiB(4));
  EXPECT_TRUE(parts.Take(Place::kHost, MiB(8)).ok()) << "another place";
}

TEST_F(PartsTest, WhatIsFreeInOtherSizesMakesWayForTheLedgerToo) {
  budget_ = MiB(8);
  Parts parts(&driver_, 0, 0, Counted(MiB(64)), {MiB(8), {}, {}});
  Part* kept = *parts.Take(Place::kDevice, MiB(2));
  Part* two = *parts.Take(Place::kDevice, MiB(2));
  Part* four = *parts.Take(Place::kDevice, MiB(4));
  parts.Give(two);
  parts.Give(four);
  EXPECT_TRUE(parts.Take(Place::kDevice, MiB(6)).ok());
  EXPECT_EQ(parts.held(Place::kDevice), MiB(8));
  EXPECT_EQ(charged_, MiB(8));
  parts.Give(kept);
}

TEST_F(PartsTest, WhatTheDriverRefusesIsNotCharged) {
  Parts parts(&driver_, 0, 0, Counted(MiB(64)), {MiB(8), {}, {}});
  for (const char* call : {"cuMemCreate", "cuMemAddressReserve", "cuMemMap", "cuMemSetAccess"}) {
    Fake<void(const char*, int, CUresult)>("FakeCudaFail")(call, 1, CUDA_ERROR_UNKNOWN);
    const auto refused = parts.Take(Place::kDevice, MiB(4));
    ASSERT_FALSE(refused.ok()) << call;
    EXPECT_NE(refused.error().message.find(call), std::string::npos) << refused.error().message;
    EXPECT_EQ(charged_, Bytes{0}) << call;
    EXPECT_EQ(parts.held(Place::kDevice), Bytes{0}) << call;
  }
}

TEST_F(PartsTest, ALowerLimitReleasesWhatIsFreeAndThenWhatIsGiven) {
  Parts parts(&driver_, 0, 0, Counted(MiB(16)), {MiB(8), {}, {}});
  Part* taken = *parts.Take(Place::kDevice, MiB(4));
  parts.Give(*parts.Take(Place::kDevice, MiB(8)));
  parts.SetLimit(Place::kDevice, MiB(2));
  EXPECT_EQ(parts.held(Place::kDevice), MiB(4));
  parts.Give(taken);
  EXPECT_EQ(parts.held(Place::kDevice), Bytes{0});
  EXPECT_EQ(charged_, Bytes{0});
}

TEST_F(PartsTest, WhatIsAddedIsFreeAndCountsAndMovesNothingElseOutOfTheWay) {
  Parts parts(&driver_, 0, 0, {MiB(8), {}, {}}, {MiB(8), {}, {}});
  EXPECT_EQ(parts.TakeFree(Place::kHost, MiB(4)), nullptr);
  parts.Give(*parts.Take(Place::kHost, MiB(2)));
  ASSERT_TRUE(parts.Add(Place::kHost, MiB(4)).ok());
  EXPECT_EQ(parts.held(Place::kHost), MiB(6));
  EXPECT_EQ(parts.free(Place::kHost), MiB(6));
  const auto refused = parts.Add(Place::kHost, MiB(4));
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, ErrorCode::kOutOfMemory);
  EXPECT_EQ(parts.free(Place::kHost), MiB(6));
  Part* taken = parts.TakeFree(Place::kHost, MiB(4));
  ASSERT_NE(taken, nullptr);
  EXPECT_EQ(parts.TakeFree(Place::kHost, MiB(4)), nullptr);
  EXPECT_EQ(parts.free(Place::kHost), MiB(2));
  parts.Give(taken);
}

std::atomic<bool> creation_is_held{false};
std::atomic<bool> creates{false};

TEST_F(PartsTest, WithoutRoomForOneMoreTheOneThatIsBeingAddedIsWaitedFor) {
  driver_.mem_create = [](CUmemGenericAllocationHandle* handle, size_t bytes,
                          const CUmemAllocationProp* kind, unsigned long long flags) {
    creates = true;
    while (creation_is_held) std::this_thread::yield();
    return Fake<decltype(cuMemCreate)>("cuMemCreate")(handle, bytes, kind, flags);
  };
  Parts parts(&driver_, 0, 0, {MiB(8), {}, {}}, {MiB(4), {}, {}});
  creation_is_held = true;
  std::thread adds([&] { EXPECT_TRUE(parts.Add(Place::kHost, MiB(4)).ok()); });
  EXPECT_TRUE(Eventually([] { return creates.load(); }));
  Part* taken = nullptr;
  std::thread takes([&] { taken = *parts.Take(Place::kHost, MiB(4)); });
  creation_is_held = false;
  adds.join();
  takes.join();
  EXPECT_NE(taken, nullptr);
  EXPECT_FALSE(parts.Take(Place::kHost, MiB(4)).ok());
}

// What 8 bytes at the address are.
uint64_t WordAt(const Driver& driver, CUdeviceptr address) {
  uint64_t word = 0;
  EXPECT_EQ(driver.copy_async(reinterpret_cast<CUdeviceptr>(&word), address, 8, nullptr), 0);
  Fake<decltype(cuStreamSynchronize)>("cuStreamSynchronize")(nullptr);
  return word;
}

TEST_F(PartsTest, OnePartTakesThePlaceOfAnotherOrLeavesItThere) {
  Parts parts(&driver_, 0, 0, {MiB(8), {}, {}}, {MiB(8), {}, {}});
  CUdeviceptr address = 0;
  ASSERT_EQ(driver_.address_reserve(&address, MiB(2).count(), 0, 0, 0), CUDA_SUCCESS);
  Part* one = *parts.Take(Place::kDevice, MiB(2));
  Part* other = *parts.Take(Place::kHost, MiB(2));
  const uint64_t words[] = {1, 2};
  for (const auto& [part, word] : {std::pair(one, &words[0]), {other, &words[1]}})
    EXPECT_EQ(driver_.copy_async(part->copy, reinterpret_cast<CUdeviceptr>(word), 8, nullptr), 0);

  Parts::Replaced replaced = parts.Replace(address, {}, one, true);
  EXPECT_TRUE(replaced.status.ok());
  EXPECT_EQ(replaced.there.part, one);
  EXPECT_TRUE(replaced.there.is_mapped);
  EXPECT_EQ(WordAt(driver_, address), 1u);
  replaced = parts.Replace(address, replaced.there, other, true);
  EXPECT_EQ(replaced.there.part, other);
  EXPECT_EQ(WordAt(driver_, address), 2u);
  EXPECT_EQ(parts.free(Place::kDevice), MiB(2)) << "the one that was there";

  const Parts::There there = replaced.there;
  const auto fail = Fake<void(const char*, int, CUresult)>("FakeCudaFail");
  one = *parts.Take(Place::kDevice, MiB(2));
  fail("cuMemMap", 1, CUDA_ERROR_UNKNOWN);
  replaced = parts.Replace(address, there, one, true);
  EXPECT_FALSE(replaced.status.ok());
  EXPECT_EQ(replaced.there.part, other);
  EXPECT_TRUE(replaced.there.is_mapped);
  EXPECT_EQ(WordAt(driver_, address), 2u);
  EXPECT_EQ(parts.free(Place::kDevice), MiB(2));

  one = *parts.Take(Place::kDevice, MiB(2));
  fail("cuMemUnmap", 1, CUDA_ERROR_UNKNOWN);
  EXPECT_EQ(parts.Replace(address, there, one, true).there.part, other);
  EXPECT_EQ(parts.free(Place::kDevice), MiB(2));
  EXPECT_TRUE(parts.Unmap(address, *other).ok());
}

TEST_F(PartsTest, APartThatIsNotMappedIsNowhereElseThanAtItsOwnAddress) {
  Parts parts(&driver_, 0, 0, {MiB(8), {}, {}}, {MiB(8), {}, {}});
  CUdeviceptr address = 0;
  ASSERT_EQ(driver_.address_reserve(&address, MiB(2).count(), 0, 0, 0), CUDA_SUCCESS);
  Part* one = *parts.Take(Place::kDevice, MiB(2));
  Part* other = *parts.Take(Place::kHost, MiB(2));
  const uint64_t word = 7;
  const auto write = [&](CUdeviceptr to) {
    return driver_.copy_async(to, reinterpret_cast<CUdeviceptr>(&word), 8, nullptr);
  };
  Parts::Replaced replaced = parts.Replace(address, {}, one, true);
  replaced = parts.Replace(address, replaced.there, other, false);
  ASSERT_TRUE(replaced.status.ok());
  EXPECT_EQ(replaced.there.part, other);
  EXPECT_FALSE(replaced.there.is_mapped);
  EXPECT_EQ(write(address), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(write(other->copy), CUDA_SUCCESS);
  // It stays where it is when what is to come cannot be mapped, and is not lost.
  one = *parts.Take(Place::kDevice, MiB(2));
  Fake<void(const char*, int, CUresult)>("FakeCudaFail")("cuMemMap", 1, CUDA_ERROR_UNKNOWN);
  replaced = parts.Replace(address, replaced.there, one, true);
  EXPECT_FALSE(replaced.status.ok());
  EXPECT_EQ(replaced.there.part, other);
  EXPECT_FALSE(replaced.there.is_mapped);
  one = *parts.Take(Place::kDevice, MiB(2));
  replaced = parts.Replace(address, replaced.there, one, true);
  EXPECT_TRUE(replaced.status.ok());
  EXPECT_EQ(write(address), CUDA_SUCCESS);
  Fake<decltype(cuStreamSynchronize)>("cuStreamSynchronize")(nullptr);
  EXPECT_EQ(parts.free(Place::kHost), MiB(2));
}

TEST_F(PartsTest, APartIsTheSameMemoryAtBothOfItsAddresses) {
  Parts parts(&driver_, 0, 0, {MiB(8), {}, {}}, {MiB(8), {}, {}});
  for (const Place place : {Place::kDevice, Place::kHost}) {
    Part* part = *parts.Take(place, MiB(2));
    CUdeviceptr address = 0;
    ASSERT_EQ(driver_.address_reserve(&address, MiB(2).count(), 0, 0, 0), CUDA_SUCCESS);
    ASSERT_TRUE(parts.Map(address, *part).ok());
    const std::vector<uint64_t> words(1024, 42);
    std::vector<uint64_t> read(1024);
    const auto copy = [&](CUdeviceptr to, CUdeviceptr from) {
      EXPECT_EQ(driver_.copy_async(to, from, 8192, nullptr), CUDA_SUCCESS);
      Fake<decltype(cuStreamSynchronize)>("cuStreamSynchronize")(nullptr);
    };
    copy(address, reinterpret_cast<CUdeviceptr>(words.data()));
    copy(reinterpret_cast<CUdeviceptr>(read.data()), part->copy);
    EXPECT_EQ(read, words);
    EXPECT_TRUE(parts.Unmap(address, *part).ok());
    EXPECT_FALSE(parts.Unmap(address, *part).ok());
  }
}

}  // namespace
}  // namespace ravenstore::elastic
