#include "elastic/job_pages.h"

#include <atomic>
#include <condition_variable>
#include <map>
#include <random>
#include <string>

#include "core/books/page_views.h"
#include "core/schedule/learned_foresight.h"
#include "tests/elastic/testing.h"

namespace ravenstore::elastic {
namespace {

using core::Bytes;
using core::CallResult;
using core::ClientId;
using core::KiB;
using core::MiB;
using core::TensorNumber;

constexpr ClientId kClient{1};

// A scheduler that drives the pages, and a stream that has executed each call when the next is
// made.
class JobPagesTest : public EngineTest, public core::PageMaker {
 protected:
  static constexpr uint32_t kPages = 64;  // of addresses

  void Open(uint32_t device_pages, uint32_t host_pages) {
    const auto counted = [this](uint32_t pages) {
      return PlaceLimits{kPart * pages, [this](Bytes more) { return charged_ += more, true; },
                         [this](Bytes less) { charged_ -= less; }};
    };
    parts_ = std::make_unique<Parts>(&driver_, 0, 0, counted(device_pages), counted(host_pages));
    RAVEN_CHECK(driver_.address_reserve(&begin_, (kPart * kPages).count(), kPart.count(), 0, 0) ==
                CUDA_SUCCESS);
    scheduler_ =
        std::make_unique<core::PageScheduler>(core::PageScheduler::Options{.pages = kPages}, this);
    pages_ = std::make_unique<JobPages>(
        JobPages::Options{
            .begin = begin_,
            .page = kPart,
            .client = kClient,
            .open = &open_,
            .answer = [this](TensorNumber tensor, bool granted) { answers_[tensor] = granted; },
            .ended =
                [this] {
                  const std::lock_guard lock(mutex_);
                  ended_.notify_all();
                }},
        parts_.get(), scheduler_.get());
    CUcontext current = nullptr;
    driver_.ctx_get_current(&current);
    mover_ = *Mover::Create(&driver_, parts_.get(), current, nullptr);
    pages_->SetMover(mover_.get());
    const core::plan::PlanLimits limits{
        .page = kPart,
        .pages = device_pages,
        .pools = {{.capacity = kPart * host_pages, .in_rate = 2e10, .out_rate = 2e10}},
        .in_place = true};
    scheduler_->SetPages(device_pages);
    scheduler_->Join(
        {.id = kClient,
         .backend = pages_.get(),
         .limits = limits,
         .foresight = std::make_unique<core::LearnedForesight>(
             limits, core::LearnedForesight::Options{.uses_hints = false, .has_slots = false}),
         .addresses = kPart * kPages});
    stream_ = MakeStream();
  }
  void TearDown() override {
    mover_.reset();
    pages_.reset();
    scheduler_.reset();
  }
  void MakePage(ClientId /*client*/) override { makes_ = true; }

  const core::PageExecutor& executor() const { return scheduler_->client(kClient).executor(); }
  void Advance() {
    do {
      if (std::exchange(makes_, false)) scheduler_->PageMade(kClient);
      scheduler_->Advance(core::Duration{});
      left_.clear();
      scheduler_->Moved(kClient).TakeLeft(&left_);
      pages_->Left(left_);
      if (pages_->WantsHostPart()) {
        const auto part = parts_->Take(Place::kHost, kPart);
        if (part.ok()) {
          pages_->GiveHostPart(*part);
          scheduler_->Moved(kClient);
          scheduler_->Advance(core::Duration{});
        }
      }
    } while (makes_);
    core::CheckBooks(executor().books());
  }
  // Waits for the mover. Returns false when there is nothing to wait for.
  bool Await() {
    Advance();
    if (pages_->IsQuiet()) return false;
    std::unique_lock lock(mutex_);
    ended_.wait(lock, [this] { return pages_->Report(); });
    return true;
  }
  void Settle() {
    while (Await()) {
    }
  }
  CUdeviceptr AddressOf(TensorNumber tensor) const {
    const auto& row = executor().tensors()[tensor];
    return begin_ + (kPart * (row.units.first / 2) + row.offset).count();
  }
  // A call holds the tensor: on the device if its pages come, else where they are by `in_place`.
  template <typename InPlace>
  void Hold(TensorNumber tensor, CallResult result, InPlace in_place) {
    while (result == CallResult::kWaits) {
      if (scheduler_->HoldWaiting(kClient) == tensor) break;
      ASSERT_TRUE(Await()) << "it waits for nothing";
    }
    answers_.erase(tensor);
    const auto holds = [&] {
      const auto& row = executor().tensors()[tensor];
      return row.pinned && (row.in_place || executor().IsResident(tensor));
    };
    while (!holds() && answers_.count(tensor) == 0 && Await()) {
    }
    if (!holds()) {
      if (answers_.count(tensor) == 0) {
        EXPECT_TRUE(scheduler_->Refuse(kClient, tensor));
      }
      while (in_place() != CallResult::kHeld) ASSERT_TRUE(Await()) << "it is never in place";
    }
    scheduler_->BeginUse(kClient, tensor);
    ReachAll(tensor);
  }
  void ReachAll(TensorNumber tensor) {
    const auto units = executor().tensors()[tensor].units;
    for (uint32_t i = 0; i < units.count; ++i) {
      while (pages_->IsChanging(units[i])) ASSERT_TRUE(Await());
      if (pages_->CanReach(units[i])) continue;
      JobPages::Reach reach = pages_->BeginReach(units[i]);
      EXPECT_TRUE(pages_->FinishReach(&reach).ok());
      JobPages::EndReach(reach);
    }
  }
  void Put(TensorNumber tensor, bool modifies) {
    scheduler_->EndUse(kClient, scheduler_->Put(kClient, tensor, modifies, {}, {}));
    Advance();
  }
  bool Create(TensorNumber tensor, Bytes size) {
    open_.Grow(tensor + 1);
    const CallResult result = scheduler_->Create(kClient, {.tensor = tensor, .size = size});
    if (result == CallResult::kNoPlace) return false;
    Hold(tensor, result, [&] {
      return scheduler_->Create(kClient, {.tensor = tensor, .size = size},
                                core::PageScheduler::Creates::kInPlace);
    });
    return true;
  }
  void Get(TensorNumber tensor) {
    Hold(tensor, scheduler_->Get(kClient, tensor, {}),
         [&] { return scheduler_->UseInPlace(kClient, tensor, {}); });
  }
  void Free(TensorNumber tensor) {
    scheduler_->EndUse(kClient, scheduler_->Free(kClient, tensor, {}));
    Advance();
  }
  void WriteWords(TensorNumber tensor, uint64_t seed, Bytes size) {
    const auto words = Pattern(seed, size);
    EXPECT_EQ(
        driver_.copy_async(AddressOf(tensor), EngineTest::AddressOf(words), size.count(), stream_),
        CUDA_SUCCESS);
    Synchronize(stream_);
  }
  bool HasWords(TensorNumber tensor, uint64_t seed, Bytes size) {
    std::vector<uint64_t> words(size.count() / sizeof(uint64_t));
    const bool copied = driver_.copy_async(EngineTest::AddressOf(words), AddressOf(tensor),
                                           size.count(), stream_) == CUDA_SUCCESS;
    Synchronize(stream_);
    return copied && words == Pattern(seed, size);
  }
  void Make(TensorNumber tensor, uint64_t seed, Bytes size) {
    ASSERT_TRUE(Create(tensor, size));
    WriteWords(tensor, seed, size);
    Put(tensor, true);
  }
  void Check(TensorNumber tensor, uint64_t seed, Bytes size) {
    Get(tensor);
    EXPECT_TRUE(HasWords(tensor, seed, size)) << tensor;
    Put(tensor, false);
  }

  Bytes charged_;
  CUdeviceptr begin_ = 0;
  CUstream stream_ = nullptr;
  std::unique_ptr<Parts> parts_;
  std::unique_ptr<core::PageScheduler> scheduler_;
  std::unique_ptr<JobPages> pages_;
  std::unique_ptr<Mover> mover_;
  std::map<TensorNumber, bool> answers_;
  OpenRanges open_{{.page = kPart, .addresses = kPart * kPages}};
  std::vector<core::plan::Unit> left_;
  bool makes_ = false;
  std::mutex mutex_;
  std::condition_variable ended_;
};

TEST_F(JobPagesTest, APageThatIsAwayFaultsUntilACallReachesIt) {
  Open(2, 8);
  for (TensorNumber i = 0; i < 3; ++i) Make(i, i, kPart);
  Settle();
  EXPECT_FALSE(CanReach(AddressOf(0)));
  EXPECT_TRUE(CanReach(AddressOf(2)));
  Check(0, 0, kPart);
  EXPECT_TRUE(CanReach(AddressOf(0)));
  EXPECT_GE(pages_->stats().moved_out, kPart);
}

TEST_F(JobPagesTest, APageThatLeavesIsMappedOnTheHostIfAllIsToBeReached) {
  Open(2, 8);
  pages_->mode().maps_away = true;
  for (TensorNumber i = 0; i < 4; ++i) Make(i, i, kPart);
  Settle();
  for (TensorNumber i = 0; i < 4; ++i) EXPECT_TRUE(CanReach(AddressOf(i))) << i;
}

// Its memory is taken for its next use before Left() sees that it has left. Its bytes then wait for
// a kernel that may touch any page.
TEST_F(JobPagesTest, APageThatLeftAndComesAgainIsMappedOnTheHostIfAllIsToBeReached) {
  Open(1, 8);
  pages_->mode().maps_away = true;
  for (TensorNumber i = 0; i < 2; ++i) Make(i, i, kPart);
  Check(0, 0, kPart);
  Settle();
  const auto life = [&] { return executor().books()[executor().tensors()[0].units.first].life; };
  ASSERT_EQ(life(), core::PageState::kClean);
  pages_->mode().frozen = true;
  ASSERT_TRUE(scheduler_->Moved(kClient).Leave(kPart));
  ASSERT_EQ(life(), core::PageState::kAway);
  const CallResult result = scheduler_->Get(kClient, 0, {});
  Advance();
  ASSERT_EQ(left_.size(), 1u);
  ASSERT_EQ(life(), core::PageState::kMapping);
  Settle();
  ASSERT_EQ(life(), core::PageState::kQueued);
  EXPECT_TRUE(CanReach(AddressOf(0)));
  pages_->mode().frozen = false;
  Hold(0, result, [] { return CallResult::kWaits; });
  EXPECT_EQ(life(), core::PageState::kClean);
  EXPECT_TRUE(HasWords(0, 0, kPart));
  Put(0, false);
}

TEST_F(JobPagesTest, ACreateWithoutRoomBeginsOnTheHost) {
  Open(2, 8);
  Make(0, 1, kPart * 2);
  Get(0);  // holds the device
  Make(1, 2, kPart);
  EXPECT_EQ(parts_->held(Place::kDevice), kPart * 2);
  Put(0, false);
  Check(0, 1, kPart * 2);
  Check(1, 2, kPart);
}

TEST_F(JobPagesTest, AFailedMapOrCopyLosesNothing) {
  for (const char* call : {"cuMemMap", "cuMemcpyAsync", "cuMemUnmap", "cuMemSetAccess"}) {
    SCOPED_TRACE(call);
    Open(2, 8);
    for (TensorNumber i = 0; i < 4; ++i) Make(i, i, kPart);
    Settle();
    for (const int after : {1, 2, 3}) {
      Fake<void(const char*, int, CUresult)>("FakeCudaFail")(call, after, CUDA_ERROR_UNKNOWN);
      for (TensorNumber i = 0; i < 4; ++i) {
        const auto result = scheduler_->Get(kClient, i, {});
        if (result != CallResult::kHeld) continue;
        while (!executor().IsResident(i) && executor().Waits(i) && Await()) {
        }
        if (executor().tensors()[i].pinned) Put(i, false);
      }
      Fake<void(const char*, int, CUresult)>("FakeCudaFail")(call, 0, CUDA_SUCCESS);
      for (TensorNumber i = 0; i < 4; ++i) Check(i, i, kPart);
    }
    TearDown();
  }
}

TEST_F(JobPagesTest, PartsGoBackToTheLedger) {
  Open(2, 8);
  for (TensorNumber i = 0; i < 4; ++i) Make(i, i, kPart);
  Settle();
  EXPECT_EQ(charged_, parts_->held(Place::kDevice) + parts_->held(Place::kHost));
  for (TensorNumber i = 0; i < 4; ++i) Free(i);
  scheduler_->SetPages(0);
  Settle();
  parts_->SetLimit(Place::kDevice, Bytes{0});
  EXPECT_EQ(parts_->held(Place::kDevice), Bytes{0});
  TearDown();
  EXPECT_EQ(parts_->free(Place::kHost), parts_->held(Place::kHost));
  parts_->SetLimit(Place::kHost, Bytes{0});
  EXPECT_EQ(charged_, Bytes{0});
}

TEST_F(JobPagesTest, BytesAreRightAfterAThousandCalls) {
  const char* asked = std::getenv("RAVENSTORE_TEST_SEED");
  const uint64_t first = asked != nullptr ? std::strtoull(asked, nullptr, 10) : 20261130;
  std::printf("seed %llu\n", static_cast<unsigned long long>(first));
  std::mt19937_64 random(first);
  const auto draw = [&](uint64_t below) { return random() % below; };
  Open(4, 32);
  struct Known {
    Bytes size;
    uint64_t seed;
  };
  std::map<TensorNumber, Known> known;
  TensorNumber next = 0;
  for (int call = 0; call < 1000; ++call) {
    const uint64_t what = draw(10);
    if (known.empty() || (what < 3 && known.size() < 16)) {
      const Known made{KiB(512) * (1 + draw(12)), random()};
      Make(next, made.seed, made.size);
      known[next++] = made;
      continue;
    }
    const auto which = std::next(known.begin(), static_cast<ptrdiff_t>(draw(known.size())));
    if (what == 3 || known.size() == 16) {
      Free(which->first);
      known.erase(which);
    } else if (what == 4) {
      which->second.seed = random();
      Get(which->first);
      WriteWords(which->first, which->second.seed, which->second.size);
      Put(which->first, true);
    } else if (what == 5 && draw(10) == 0) {
      scheduler_->SetPages(static_cast<uint32_t>(draw(6)));
    } else {
      Check(which->first, which->second.seed, which->second.size);
    }
    if (HasFatalFailure()) return;
  }
  EXPECT_GT(pages_->stats().moved_in, Bytes{0});
  EXPECT_GT(pages_->stats().moved_out, Bytes{0});
}

}  // namespace
}  // namespace ravenstore::elastic
