#include "elastic/mover.h"

#include <atomic>
#include <map>
#include <mutex>

#include "tests/elastic/testing.h"

namespace ravenstore::elastic {
namespace {

using core::Bytes;
using core::MiB;

constexpr Bytes kPart = MiB(2);

// While it is not 0 the thread that comes to map as the first waits, and has said so.
std::atomic<int> held{0};
std::atomic<int> holding{0};

class MoverTest : public testing::Test {
 protected:
  struct Outcome {
    Part* there;
    bool ok;
  };

  void SetUp() override {
    ASSERT_EQ(driver_.ctx_get_current(&current_), CUDA_SUCCESS);
    ASSERT_EQ(driver_.address_reserve(&run_, kPart.count() * 8, 0, 0, 0), CUDA_SUCCESS);
    driver_.mem_map = [](CUdeviceptr at, size_t bytes, size_t offset,
                         CUmemGenericAllocationHandle handle, unsigned long long flags) {
      if (held > 0 && holding.fetch_add(1) == 0) {
        while (held > 0) std::this_thread::yield();
      }
      return Fake<decltype(cuMemMap)>("cuMemMap")(at, bytes, offset, handle, flags);
    };
    held = 0;
    holding = 0;
    out_ = Make("out");
    in_ = Make("in");
  }
  std::unique_ptr<Mover> Make(const char* name) {
    return std::move(
        *Mover::Create(name, &driver_, &parts_, current_,
                       [this](const Mover::Move& move, Part* there, const core::Status& status) {
                         const std::lock_guard lock(mutex_);
                         outcomes_[core::ToInt(move.page)] = {there, status.ok()};
                       }));
  }
  void HoldTheNextMapping() {
    holding = 0;
    held = 1;
  }
  // A page with a part whose first word is that.
  CUdeviceptr MakePage(uint32_t page, Place place, uint64_t word) {
    const CUdeviceptr at = run_ + (kPart * page).count();
    Part* part = *parts_.Take(place, kPart);
    EXPECT_TRUE(parts_.Map(at, *part).ok());
    EXPECT_EQ(driver_.copy_async(at, reinterpret_cast<CUdeviceptr>(&word), 8, nullptr), 0);
    Fake<decltype(cuStreamSynchronize)>("cuStreamSynchronize")(nullptr);
    beneath_[page] = part;
    return at;
  }
  Mover::Move MoveOf(uint32_t page, Place to, bool copies = true) {
    return {RangeId{page}, run_ + (kPart * page).count(), beneath_[page], *parts_.Take(to, kPart),
            copies};
  }
  uint64_t WordAt(CUdeviceptr address) {
    uint64_t word = 0;
    EXPECT_EQ(driver_.copy_async(reinterpret_cast<CUdeviceptr>(&word), address, 8, nullptr), 0);
    Fake<decltype(cuStreamSynchronize)>("cuStreamSynchronize")(nullptr);
    return word;
  }
  bool HasEnded(uint32_t page) {
    const std::lock_guard lock(mutex_);
    return outcomes_.contains(page);
  }
  Outcome OutcomeOf(uint32_t page) {
    EXPECT_TRUE(Eventually([&] { return HasEnded(page); })) << page;
    const std::lock_guard lock(mutex_);
    return outcomes_[page];
  }

  FakeContext context_;
  Driver driver_ = *LoadDriver(&FakeFunction);
  CUcontext current_ = nullptr;
  CUdeviceptr run_ = 0;
  Parts parts_{&driver_, 0, 0, {MiB(64), {}, {}}, {MiB(64), {}, {}}};
  std::map<uint32_t, Part*> beneath_;
  std::mutex mutex_;
  std::map<uint32_t, Outcome> outcomes_;
  std::unique_ptr<Mover> out_;
  std::unique_ptr<Mover> in_;
};

TEST_F(MoverTest, WhatIsMovedIsThereAndThePartBeforeIsFree) {
  const CUdeviceptr at = MakePage(1, Place::kDevice, 7);
  const Mover::Move move = MoveOf(1, Place::kHost);
  ASSERT_TRUE(out_->Begin(move).ok());
  EXPECT_EQ(OutcomeOf(1).there, move.to);
  EXPECT_EQ(WordAt(at), 7u);
  EXPECT_EQ(parts_.free(Place::kDevice), kPart);
  EXPECT_EQ(parts_.free(Place::kHost), Bytes{0});
}

TEST_F(MoverTest, WhileOnePageIsMappedOthersAreCopiedAndTheOtherDirectionGoesOn) {
  MakePage(1, Place::kDevice, 1);
  MakePage(2, Place::kDevice, 2);
  const CUdeviceptr third = MakePage(3, Place::kHost, 3);
  const Mover::Move first = MoveOf(1, Place::kHost);
  const Mover::Move second = MoveOf(2, Place::kHost);
  const Mover::Move back = MoveOf(3, Place::kDevice);
  HoldTheNextMapping();
  ASSERT_TRUE(out_->Begin(first).ok());
  EXPECT_TRUE(Eventually([] { return holding == 1; }));
  ASSERT_TRUE(out_->Begin(second).ok());
  const auto query = Fake<decltype(cuStreamQuery)>("cuStreamQuery");
  EXPECT_TRUE(Eventually([&] { return query(out_->stream()) == CUDA_SUCCESS; }));
  EXPECT_EQ(WordAt(second.to->copy), 2u);
  ASSERT_TRUE(in_->Begin(back).ok());
  EXPECT_EQ(OutcomeOf(3).there, back.to);
  EXPECT_EQ(WordAt(third), 3u);
  EXPECT_FALSE(HasEnded(1));
  EXPECT_FALSE(HasEnded(2));
  held = 0;
  EXPECT_EQ(OutcomeOf(1).there, first.to);
  EXPECT_EQ(OutcomeOf(2).there, second.to);
}

TEST_F(MoverTest, WhatIsNotCopiedWaitsForNoCopy) {
  MakePage(1, Place::kDevice, 1);
  const CUdeviceptr at = MakePage(2, Place::kDevice, 2);
  const Mover::Move copied = MoveOf(1, Place::kHost);
  const Mover::Move uncopied = MoveOf(2, Place::kHost, false);
  const uint64_t word = 9;
  EXPECT_EQ(driver_.copy_async(uncopied.to->copy, reinterpret_cast<CUdeviceptr>(&word), 8, nullptr),
            0);
  Fake<decltype(cuStreamSynchronize)>("cuStreamSynchronize")(nullptr);
  Fake<void(int)>("FakeCudaHoldCopies")(1);
  ASSERT_TRUE(out_->Begin(copied).ok());
  ASSERT_TRUE(out_->Begin(uncopied).ok());
  EXPECT_EQ(OutcomeOf(2).there, uncopied.to);
  EXPECT_FALSE(HasEnded(1));
  Fake<void(int)>("FakeCudaHoldCopies")(0);
  EXPECT_EQ(OutcomeOf(1).there, copied.to);
  EXPECT_EQ(WordAt(at), 9u);
}

TEST_F(MoverTest, WhatCannotBeMappedStaysWhereItWas) {
  const CUdeviceptr at = MakePage(1, Place::kDevice, 5);
  const Mover::Move move = MoveOf(1, Place::kHost);
  Fake<void(const char*, int, CUresult)>("FakeCudaFail")("cuMemUnmap", 1, CUDA_ERROR_UNKNOWN);
  ASSERT_TRUE(out_->Begin(move).ok());
  const Outcome outcome = OutcomeOf(1);
  EXPECT_FALSE(outcome.ok);
  EXPECT_EQ(outcome.there, move.from);
  EXPECT_EQ(WordAt(at), 5u);
  EXPECT_EQ(parts_.free(Place::kHost), kPart);
}

TEST_F(MoverTest, WhatCannotBeCopiedDoesNotBegin) {
  const CUdeviceptr at = MakePage(1, Place::kDevice, 5);
  for (const char* call : {"cuMemcpyAsync", "cuEventRecord"}) {
    Fake<void(const char*, int, CUresult)>("FakeCudaFail")(call, 1, CUDA_ERROR_UNKNOWN);
    EXPECT_FALSE(out_->Begin(MoveOf(1, Place::kHost)).ok()) << call;
  }
  ASSERT_TRUE(out_->Begin(MoveOf(1, Place::kHost)).ok());
  EXPECT_TRUE(OutcomeOf(1).ok);
  EXPECT_EQ(WordAt(at), 5u);
}

TEST_F(MoverTest, ACopyThatFailsLeavesWhatWasThere) {
  MakePage(1, Place::kDevice, 5);
  driver_.event_query = [](CUevent) { return CUDA_ERROR_ILLEGAL_ADDRESS; };
  const Mover::Move move = MoveOf(1, Place::kHost);
  ASSERT_TRUE(out_->Begin(move).ok());
  const Outcome outcome = OutcomeOf(1);
  EXPECT_FALSE(outcome.ok);
  EXPECT_EQ(outcome.there, move.from);
}

TEST_F(MoverTest, WhoeverEndsItWaitsForWhatHasBegun) {
  for (uint32_t page = 0; page < 4; ++page) {
    MakePage(page, Place::kDevice, page);
    ASSERT_TRUE(out_->Begin(MoveOf(page, Place::kHost)).ok());
  }
  out_.reset();
  for (uint32_t page = 0; page < 4; ++page) EXPECT_TRUE(HasEnded(page)) << page;
}

}  // namespace
}  // namespace ravenstore::elastic
