#include "elastic/mover.h"

#include <atomic>
#include <map>
#include <mutex>
#include <vector>

#include "tests/elastic/testing.h"

namespace ravenstore::elastic {
namespace {

using core::Bytes;
using core::MiB;

// Of three pieces.
constexpr Bytes kPart = MiB(24);

// While it is not 0 the thread that comes to map as the first waits, and has said so.
std::atomic<int> held{0};
std::atomic<int> holding{0};
// Copies that the mover has enqueued, and the number of its threads that are in a mapping call.
std::atomic<int> copies{0};
std::atomic<int> mapping{0};
std::atomic<int> mapping_most{0};

class MoverTest : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_EQ(driver_.ctx_get_current(&current_), CUDA_SUCCESS);
    ASSERT_EQ(driver_.address_reserve(&run_, kPart.count() * 8, 0, 0, 0), CUDA_SUCCESS);
    driver_.mem_map = [](CUdeviceptr at, size_t bytes, size_t offset,
                         CUmemGenericAllocationHandle handle, unsigned long long flags) {
      const int now = ++mapping;
      if (now > mapping_most) mapping_most = now;
      if (held > 0 && holding.fetch_add(1) == 0) {
        while (held > 0) std::this_thread::yield();
      }
      const CUresult result =
          Fake<decltype(cuMemMap)>("cuMemMap")(at, bytes, offset, handle, flags);
      --mapping;
      return result;
    };
    driver_.copy_async = [](CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream) {
      copies += stream == nullptr ? 0 : 1;  // the test's own
      return Fake<decltype(cuMemcpyAsync)>("cuMemcpyAsync")(to, from, bytes, stream);
    };
    held = 0;
    holding = 0;
    copies = 0;
    mapping_most = 0;
    mover_ = std::move(*Mover::Create(&driver_, &parts_, current_,
                                      [this](const auto& move, const Parts::Replaced& replaced) {
                                        const std::lock_guard lock(mutex_);
                                        outcomes_.emplace(core::ToInt(move.page), replaced);
                                      }));
  }
  void HoldTheNextMapping() {
    holding = 0;
    held = 1;
  }
  static void HoldCopies(int hold) { Fake<void(int)>("FakeCudaHoldCopies")(hold); }
  static void Synchronize() { Fake<decltype(cuStreamSynchronize)>("cuStreamSynchronize")(nullptr); }
  // A page with a part each of whose pieces begins with that word.
  CUdeviceptr MakePage(uint32_t page, Place place, uint64_t word) {
    const CUdeviceptr at = run_ + (kPart * page).count();
    Part* part = *parts_.Take(place, kPart);
    EXPECT_TRUE(parts_.Map(at, *part).ok());
    for (Bytes piece; piece < kPart; piece += MiB(8))
      EXPECT_EQ(
          driver_.copy_async(at + piece.count(), reinterpret_cast<CUdeviceptr>(&word), 8, nullptr),
          CUDA_SUCCESS);
    Synchronize();
    beneath_[page] = part;
    return at;
  }
  Mover::Move MoveOf(uint32_t page, Place to, bool does_copy = true, bool maps = true) {
    return {RangeId{page},
            run_ + (kPart * page).count(),
            {beneath_[page], true},
            *parts_.Take(to, kPart),
            maps,
            does_copy};
  }
  // Of all pieces; 0 where they differ.
  uint64_t WordAt(CUdeviceptr address) {
    uint64_t words[3] = {};
    for (size_t i = 0; i < 3; ++i)
      EXPECT_EQ(driver_.copy_async(reinterpret_cast<CUdeviceptr>(&words[i]),
                                   address + (MiB(8) * i).count(), 8, nullptr),
                CUDA_SUCCESS);
    Synchronize();
    return words[0] == words[1] && words[1] == words[2] ? words[0] : 0;
  }
  bool HasEnded(uint32_t page) {
    const std::lock_guard lock(mutex_);
    return outcomes_.contains(page);
  }
  Parts::Replaced OutcomeOf(uint32_t page) {
    EXPECT_TRUE(Eventually([&] { return HasEnded(page); })) << page;
    const std::lock_guard lock(mutex_);
    return outcomes_.at(page);
  }

  FakeContext context_;
  Driver driver_ = *LoadDriver(&FakeFunction);
  CUcontext current_ = nullptr;
  CUdeviceptr run_ = 0;
  Parts parts_{&driver_, 0, 0, {MiB(512), {}, {}}, {MiB(512), {}, {}}};
  std::map<uint32_t, Part*> beneath_;
  std::mutex mutex_;
  std::map<uint32_t, Parts::Replaced> outcomes_;
  std::unique_ptr<Mover> mover_;
};

TEST_F(MoverTest, WhatIsMovedIsThereAndThePartBeforeIsFree) {
  const CUdeviceptr at = MakePage(1, Place::kDevice, 7);
  const Mover::Move move = MoveOf(1, Place::kHost);
  mover_->Begin(move);
  EXPECT_EQ(OutcomeOf(1).there.part, move.to);
  EXPECT_EQ(WordAt(at), 7u);
  EXPECT_EQ(copies, 3);
  EXPECT_EQ(parts_.free(Place::kDevice), kPart);
  EXPECT_EQ(parts_.free(Place::kHost), Bytes{0});
}

TEST_F(MoverTest, WhatIsNotToBeMappedIsThereAtItsOwnAddressAlone) {
  const CUdeviceptr at = MakePage(1, Place::kDevice, 7);
  const Mover::Move move = MoveOf(1, Place::kHost, true, false);
  mover_->Begin(move);
  const Parts::Replaced replaced = OutcomeOf(1);
  EXPECT_TRUE(replaced.status.ok());
  EXPECT_EQ(replaced.there.part, move.to);
  EXPECT_FALSE(replaced.there.is_mapped);
  EXPECT_EQ(WordAt(move.to->copy), 7u);
  uint64_t word = 0;
  EXPECT_NE(driver_.copy_async(reinterpret_cast<CUdeviceptr>(&word), at, 8, nullptr), CUDA_SUCCESS);
  // And comes back from there.
  const Mover::Move back{RangeId{2}, at,  replaced.there, *parts_.Take(Place::kDevice, kPart),
                         true,       true};
  mover_->Begin(back);
  EXPECT_TRUE(OutcomeOf(2).status.ok());
  EXPECT_EQ(WordAt(at), 7u);
}

TEST_F(MoverTest, FewPiecesOfEachDirectionAreInFlightAtOnce) {
  MakePage(1, Place::kDevice, 1);
  MakePage(2, Place::kDevice, 2);
  MakePage(3, Place::kHost, 3);
  const Mover::Move moves[] = {MoveOf(1, Place::kHost), MoveOf(2, Place::kHost),
                               MoveOf(3, Place::kDevice)};
  HoldCopies(1);
  for (const Mover::Move& move : moves) mover_->Begin(move);
  EXPECT_TRUE(Eventually([] { return copies == 4; }));
  EXPECT_FALSE(HasEnded(1));
  HoldCopies(0);
  for (uint32_t page = 1; page <= 3; ++page) EXPECT_TRUE(OutcomeOf(page).status.ok());
  EXPECT_EQ(copies, 9);
  for (uint32_t page = 1; page <= 3; ++page) EXPECT_EQ(WordAt(moves[page - 1].at), page);
}

TEST_F(MoverTest, WhileOnePageIsMappedNothingIsEnqueuedAndNoOtherIsMapped) {
  const CUdeviceptr first = MakePage(1, Place::kDevice, 1);
  const CUdeviceptr second = MakePage(2, Place::kDevice, 2);
  const CUdeviceptr third = MakePage(3, Place::kHost, 3);
  const Mover::Move moves[] = {MoveOf(1, Place::kHost), MoveOf(2, Place::kHost),
                               MoveOf(3, Place::kDevice)};
  HoldTheNextMapping();
  mover_->Begin(moves[0]);
  EXPECT_TRUE(Eventually([] { return holding == 1; }));
  mover_->Begin(moves[1]);
  mover_->Begin(moves[2]);
  EXPECT_EQ(copies, 3);
  held = 0;
  for (uint32_t page = 1; page <= 3; ++page)
    EXPECT_EQ(OutcomeOf(page).there.part, moves[page - 1].to);
  EXPECT_EQ(mapping_most, 1);
  EXPECT_EQ(WordAt(first), 1u);
  EXPECT_EQ(WordAt(second), 2u);
  EXPECT_EQ(WordAt(third), 3u);
}

TEST_F(MoverTest, WhileAnotherThreadMapsNoPieceIsEnqueued) {
  const CUdeviceptr at = MakePage(1, Place::kDevice, 1);
  MakePage(2, Place::kDevice, 2);
  const Mover::Move copied = MoveOf(1, Place::kHost);
  {
    const Mover::Pause pause(mover_.get());
    mover_->Begin(copied);
    // What needs no copy goes on, and by then the other is known.
    mover_->Begin(MoveOf(2, Place::kHost, false));
    EXPECT_TRUE(OutcomeOf(2).status.ok());
    EXPECT_EQ(copies, 0);
  }
  EXPECT_TRUE(OutcomeOf(1).status.ok());
  EXPECT_EQ(WordAt(at), 1u);
}

TEST_F(MoverTest, WhatIsNotCopiedWaitsForNoCopy) {
  MakePage(1, Place::kDevice, 1);
  const CUdeviceptr at = MakePage(2, Place::kDevice, 2);
  const Mover::Move copied = MoveOf(1, Place::kHost);
  const Mover::Move uncopied = MoveOf(2, Place::kHost, false);
  const uint64_t word = 9;
  for (Bytes piece; piece < kPart; piece += MiB(8))
    EXPECT_EQ(driver_.copy_async(uncopied.to->copy + piece.count(),
                                 reinterpret_cast<CUdeviceptr>(&word), 8, nullptr),
              CUDA_SUCCESS);
  Synchronize();
  HoldCopies(1);
  mover_->Begin(copied);
  mover_->Begin(uncopied);
  EXPECT_EQ(OutcomeOf(2).there.part, uncopied.to);
  EXPECT_FALSE(HasEnded(1));
  HoldCopies(0);
  EXPECT_EQ(OutcomeOf(1).there.part, copied.to);
  EXPECT_EQ(WordAt(at), 9u);
}

TEST_F(MoverTest, WhatCannotBeMappedStaysWhereItWas) {
  const CUdeviceptr at = MakePage(1, Place::kDevice, 5);
  const Mover::Move move = MoveOf(1, Place::kHost);
  Fake<void(const char*, int, CUresult)>("FakeCudaFail")("cuMemUnmap", 1, CUDA_ERROR_UNKNOWN);
  mover_->Begin(move);
  const Parts::Replaced replaced = OutcomeOf(1);
  EXPECT_FALSE(replaced.status.ok());
  EXPECT_EQ(replaced.there.part, move.there.part);
  EXPECT_EQ(WordAt(at), 5u);
  EXPECT_EQ(parts_.free(Place::kHost), kPart);
}

TEST_F(MoverTest, WhatCannotBeCopiedStaysWhereItWasAndOthersGoOn) {
  const CUdeviceptr at = MakePage(1, Place::kDevice, 5);
  const CUdeviceptr next = MakePage(2, Place::kDevice, 6);
  const auto fail = Fake<void(const char*, int, CUresult)>("FakeCudaFail");
  for (const int nth : {1, 2, 3}) {
    {
      const std::lock_guard lock(mutex_);
      outcomes_.clear();
    }
    fail("cuMemcpyAsync", nth, CUDA_ERROR_UNKNOWN);
    const Mover::Move move = MoveOf(1, Place::kHost);
    mover_->Begin(move);
    const Parts::Replaced replaced = OutcomeOf(1);
    EXPECT_FALSE(replaced.status.ok()) << nth;
    EXPECT_EQ(replaced.there.part, move.there.part);
    EXPECT_EQ(parts_.free(Place::kHost), kPart) << "nothing writes it";
  }
  EXPECT_EQ(WordAt(at), 5u);
  mover_->Begin(MoveOf(2, Place::kHost));
  EXPECT_TRUE(OutcomeOf(2).status.ok());
  EXPECT_EQ(WordAt(next), 6u);
}

TEST_F(MoverTest, APartThatMayBeWrittenForWhoKnowsHowLongIsUsedNoMore) {
  MakePage(1, Place::kDevice, 5);
  Fake<void(const char*, int, CUresult)>("FakeCudaFail")("cuEventRecord", 2, CUDA_ERROR_UNKNOWN);
  mover_->Begin(MoveOf(1, Place::kHost));
  EXPECT_FALSE(OutcomeOf(1).status.ok());
  EXPECT_EQ(parts_.free(Place::kHost), Bytes{0});
}

TEST_F(MoverTest, ACopyThatFailsLeavesWhatWasThere) {
  MakePage(1, Place::kDevice, 5);
  driver_.event_query = [](CUevent) { return CUDA_ERROR_ILLEGAL_ADDRESS; };
  const Mover::Move move = MoveOf(1, Place::kHost);
  mover_->Begin(move);
  const Parts::Replaced replaced = OutcomeOf(1);
  Fake<decltype(cuCtxSynchronize)>("cuCtxSynchronize")();  // in truth it is under way
  EXPECT_FALSE(replaced.status.ok());
  EXPECT_EQ(replaced.there.part, move.there.part);
}

TEST_F(MoverTest, WhoeverEndsItWaitsForWhatHasBegun) {
  for (uint32_t page = 0; page < 4; ++page) {
    MakePage(page, Place::kDevice, page);
    mover_->Begin(MoveOf(page, Place::kHost));
  }
  mover_.reset();
  for (uint32_t page = 0; page < 4; ++page) EXPECT_TRUE(HasEnded(page)) << page;
}

}  // namespace
}  // namespace ravenstore::elastic
