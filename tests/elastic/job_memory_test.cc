#include "elastic/job_memory.h"

#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <vector>

#include "tests/elastic/testing.h"

namespace ravenstore::elastic {
namespace {

using core::Bytes;
using core::CallResult;
using core::MiB;
using core::TensorNumber;
using Hold = JobMemory::Hold;

class JobMemoryTest : public EngineTest {
 protected:
  void Open(uint32_t device_pages, uint32_t host_pages) {
    parts_ = std::make_unique<Parts>(&driver_, 0, 0, PlaceLimits{kPart * device_pages, {}, {}},
                                     PlaceLimits{kPart * host_pages, {}, {}});
    CUdeviceptr begin = 0;
    RAVEN_CHECK(driver_.address_reserve(&begin, (kPart * 64).count(), kPart.count(), 0, 0) ==
                CUDA_SUCCESS);
    memory_ = std::make_unique<JobMemory>(
        JobMemory::Options{.begin = begin,
                           .addresses = kPart * 64,
                           .page = kPart,
                           .device = kPart * device_pages,
                           .host = kPart * host_pages,
                           .ended =
                               [this] {
                                 const std::lock_guard lock(mutex_);
                                 ended_.notify_all();
                               },
                           .plan_due = [] {},
                           .removed = [this](TensorNumber range) { removed_.push_back(range); }},
        parts_.get(), &streams_);
    CUcontext current = nullptr;
    driver_.ctx_get_current(&current);
    mover_ = *Mover::Create(&driver_, parts_.get(), current, nullptr);
    memory_->pages().SetMover(mover_.get());
    stream_ = MakeStream();
  }
  void TearDown() override {
    mover_.reset();
    memory_.reset();
  }
  // Waits until all that has begun has ended.
  void Settle() {
    while (true) {
      memory_->Advance(0);
      if (memory_->pages().WantsHostPart()) {
        memory_->pages().GiveHostPart(*parts_->Take(Place::kHost, kPart));
        continue;
      }
      if (memory_->IsQuiet()) return;
      std::unique_lock lock(mutex_);
      ended_.wait(lock, [this] { return memory_->pages().Report(); });
    }
  }
  void Create(TensorNumber range, Bytes size = kPart) {
    memory_->Grow(std::max<TensorNumber>(range + 1, 8));
    ASSERT_TRUE(memory_->open().Place(range, size, 0));
    EXPECT_NE(memory_->Create(range, size, {}, 0, false), CallResult::kNoPlace);
    Settle();
    ASSERT_EQ(memory_->HoldOf(range), Hold::kHeld);
    memory_->EndCreate(range, {}, 0);
    PassEnds();
  }
  // A call has held the range.
  void Put(TensorNumber range, std::vector<Point> points) {
    memory_->open().Hold(range);
    memory_->open().Put(range, {}, &points);
    See();
  }
  void Free(TensorNumber range, std::vector<Point> points) {
    memory_->open().Hold(range);
    memory_->open().Free(range, {}, 0, &points);
    See();
  }
  void See() {
    std::vector<LoggedCall> calls;
    memory_->open().TakeLog(&calls);
    memory_->calls().See(&calls);
  }
  void PassEnds() {
    memory_->calls().TakePassed();
    memory_->calls().EndPassed();
  }
  Point Enqueue() { return streams_.Enqueued(stream_); }
  // The stream has passed all.
  void Synchronized() {
    for (int look = 0; look < 2; ++look) {
      Synchronize(stream_);
      streams_.Look();
      PassEnds();
    }
    Synchronize(stream_);
    streams_.Look();
    PassEnds();
  }

  Streams streams_{&driver_};
  std::unique_ptr<Parts> parts_;
  std::unique_ptr<JobMemory> memory_;
  std::unique_ptr<Mover> mover_;
  CUstream stream_ = nullptr;
  std::vector<TensorNumber> removed_;
  std::mutex mutex_;
  std::condition_variable ended_;
};

TEST_F(JobMemoryTest, ARangeStaysUntilTheStreamHasPassedItsLastCall) {
  Open(2, 8);
  Create(1);
  EXPECT_FALSE(memory_->calls().HasEnds());
  EXPECT_TRUE(memory_->Use(1, {}));
  Put(1, {Enqueue()});
  EXPECT_TRUE(memory_->calls().HasEnds());
  memory_->SetDevice(0);
  Settle();
  EXPECT_TRUE(memory_->executor().IsResident(1));
  Synchronized();
  EXPECT_FALSE(memory_->calls().HasEnds());
  Settle();
  EXPECT_EQ(memory_->Away(), kPart);
  EXPECT_EQ(memory_->AwayOf(1), kPart);
}

TEST_F(JobMemoryTest, AnAwayRangeIsUsedWhereItIsWithoutWaiting) {
  Open(2, 8);
  Create(1);
  memory_->SetDevice(0);
  Settle();
  EXPECT_TRUE(memory_->Use(1, {}));
  EXPECT_TRUE(memory_->RowOf(1).in_place);
  memory_->SetDevice(2);
  Settle();
  EXPECT_FALSE(memory_->executor().IsResident(1)) << "it is in use";
  Put(1, {});
  PassEnds();
  memory_->Get(1, {});
  Settle();
  EXPECT_EQ(memory_->HoldOf(1), Hold::kHeld);
  EXPECT_TRUE(memory_->executor().IsResident(1));
}

TEST_F(JobMemoryTest, ACallThatWaitsCanBeRefusedAndGoesOnInPlace) {
  Open(2, 8);
  Create(1, kPart * 2);
  Create(2, kPart * 2);  // the first one leaves
  EXPECT_EQ(memory_->Away(), kPart * 2);
  memory_->pages().mode().frozen = true;
  memory_->Get(1, {});
  Settle();
  ASSERT_EQ(memory_->HoldOf(1), Hold::kWaits);
  memory_->Refuse(1);
  EXPECT_EQ(memory_->HoldOf(1), Hold::kNone);
  EXPECT_TRUE(memory_->Use(1, {}));
  EXPECT_EQ(memory_->HoldOf(1), Hold::kHeld);
}

TEST_F(JobMemoryTest, AFreedRangesNumberIsFreeWhenAllItsEndsHavePassed) {
  Open(2, 8);
  Create(1);
  const CUstream other = MakeStream();
  Fake<void(int)>("FakeCudaHoldCopies")(1);
  std::vector<uint64_t> words(8);
  driver_.copy_async(AddressOf(words), memory_->open().AddressOf(1), 64, stream_);
  EXPECT_TRUE(memory_->Use(1, {}));
  Put(1, {Enqueue()});
  Free(1, {streams_.Enqueued(other)});
  for (int look = 0; look < 3; ++look) {
    Synchronize(other);
    streams_.Look();
    PassEnds();
  }
  EXPECT_TRUE(removed_.empty());
  Fake<void(int)>("FakeCudaHoldCopies")(0);
  for (int look = 0; look < 4; ++look) {
    Synchronize(other);
    Synchronized();
  }
  EXPECT_EQ(removed_, std::vector<TensorNumber>{1});
  EXPECT_FALSE(memory_->calls().HasEnds());
}

TEST_F(JobMemoryTest, ACreateWithoutRoomAnywhereHasNoPlace) {
  Open(2, 2);
  Create(1, kPart * 2);
  Create(2, kPart * 2);
  ASSERT_TRUE(memory_->open().Place(3, kPart, 0));
  EXPECT_EQ(memory_->Create(3, kPart, {}, 0, false), CallResult::kNoPlace);
  EXPECT_EQ(memory_->Create(3, kPart, {}, 0, true), CallResult::kWaits);
}

TEST_F(JobMemoryTest, BeforeACallThatMayWriteAnythingNoCopyCounts) {
  Open(2, 8);
  Create(1, kPart * 2);
  Create(2, kPart * 2);
  memory_->Get(1, {});
  Settle();
  ASSERT_TRUE(memory_->executor().IsResident(1));
  Put(1, {Enqueue()});
  EXPECT_GT(memory_->books().copies().pools().redundant(0), Bytes{});
  memory_->ModifyAll();
  EXPECT_EQ(memory_->books().copies().pools().redundant(0), Bytes{});
}

TEST_F(JobMemoryTest, AnOpenRangeIsUsedBeforeTheSchedulerSeesIt) {
  Open(2, 8);
  Create(1);
  ASSERT_TRUE(memory_->open().TryUse(1, {}, 0));
  memory_->SetDevice(0);
  Settle();
  EXPECT_TRUE(memory_->executor().IsResident(1)) << "a call has it";
  std::vector<Point> points;
  memory_->open().Put(1, {}, &points);
  Settle();
  EXPECT_TRUE(memory_->executor().IsResident(1)) << "the scheduler has not seen the call";
  See();
  PassEnds();
  Settle();
  EXPECT_FALSE(memory_->executor().IsResident(1));
  EXPECT_FALSE(memory_->open().TryUse(1, {}, 1));
  memory_->SetDevice(2);
  Settle();
  EXPECT_TRUE(memory_->executor().IsResident(1));
  EXPECT_TRUE(memory_->open().IsOpen(1)) << "it has come";
}

TEST_F(JobMemoryTest, APageWhereACallHasCreatedARangeStaysUntilThatIsSeen) {
  Open(2, 8);
  Create(1);
  Create(2);
  const core::plan::Unit dead = memory_->RowOf(2).units[0];
  Free(2, {});
  PassEnds();
  ASSERT_TRUE(memory_->open().Place(3, kPart, 0));
  ASSERT_TRUE(memory_->open().TryCreate(3, {}, 0)) << "nothing lives there, and it is resident";
  memory_->SetDevice(0);
  Settle();
  EXPECT_TRUE(memory_->StateOf(dead).IsResident());
  See();
  ASSERT_EQ(memory_->RowOf(3).units[0], dead);
  PassEnds();
  Settle();
  EXPECT_FALSE(memory_->StateOf(dead).IsResident());
  EXPECT_EQ(memory_->AwayOf(3), kPart) << "it was copied out like any other";
}

}  // namespace
}  // namespace ravenstore::elastic
