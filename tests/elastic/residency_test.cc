#include "elastic/residency.h"

#include <memory>
#include <string>
#include <vector>

#include "tests/elastic/testing.h"

namespace ravenstore::elastic {
namespace {

using core::Bytes;

class ResidencyTest : public EngineTest {
 protected:
  void Make(bool moves = true) {
    options_.part = kPart;
    options_.moves = moves;
    options_.log = [this](const char* text) { logged_.emplace_back(text); };
    CUdeviceptr begin = 0;
    RAVEN_CHECK(driver_.address_reserve(&begin, (kPart * 64).count(), kPart.count(), 0, 0) ==
                CUDA_SUCCESS);
    addresses_ = std::make_unique<Addresses>(begin, kPart * 64, kPart);
    memory_ = std::make_unique<JobMemory>(
        JobMemory::Options{.begin = *addresses_->Take(kPart * 32, Addresses::kNoOwner),
                           .addresses = kPart * 32,
                           .page = kPart,
                           .device = kPart * 4,
                           .host = kPart * 4,
                           .ended = [this] { residency_->NotifyEnded(); },
                           .plan_due = [] {},
                           .removed = [this](uint32_t at) { residency_->NoteRemoved(at); }},
        &parts_, &streams_);
    ranges_ = std::make_unique<RangeTable>(options_, memory_.get(), addresses_.get(), &segments_,
                                           &clock_, [](Bytes) {});
    residency_ = std::make_unique<Residency>(
        options_,
        Residency::Uses{&parts_, memory_.get(), &segments_, &streams_, ranges_.get(), &clock_});
  }

  EngineOptions options_;
  Parts parts_{&driver_, 0, 0, PlaceLimits{kPart * 4, {}, {}}, PlaceLimits{kPart * 4, {}, {}}};
  Streams streams_{&driver_};
  SegmentTable segments_{kPart, &streams_};
  CallClock clock_;
  std::unique_ptr<Addresses> addresses_;
  std::unique_ptr<JobMemory> memory_;
  std::unique_ptr<RangeTable> ranges_;
  std::unique_ptr<Residency> residency_;
  std::vector<std::string> logged_;
};

TEST_F(ResidencyTest, AFailureEndsAllMovesAndIsLoggedOnce) {
  Make();
  const Residency::Lock lock(residency_->locks());
  EXPECT_FALSE(residency_->broken());
  const core::Error error{core::ErrorCode::kDevice, "the driver failed"};
  residency_->Fail("a part could not be moved", error);
  residency_->Fail("another", error);
  EXPECT_TRUE(residency_->broken());
  ASSERT_EQ(logged_.size(), 1u);
  EXPECT_NE(logged_[0].find("nothing moves any more"), std::string::npos);
}

TEST_F(ResidencyTest, WithoutMovesItIsBrokenFromTheBeginning) {
  Make(false);
  EXPECT_TRUE(residency_->broken());
  EXPECT_TRUE(logged_.empty());
}

TEST_F(ResidencyTest, ACallThatMayTouchAnythingFreezesUntilItHasPassed) {
  Make();
  const Residency::Lock lock(residency_->locks());
  EXPECT_FALSE(residency_->IsFrozen());
  residency_->BeginUnknown();
  EXPECT_TRUE(residency_->AnyUnknown() && residency_->IsFrozen());
  residency_->EndUnknown(nullptr);
  EXPECT_FALSE(residency_->IsFrozen()) << "it was not enqueued";
}

TEST_F(ResidencyTest, TheScheduleAdvancesWhileNothingLives) {
  Make();
  Residency::Lock lock(residency_->locks());
  residency_->Advance();
  EXPECT_TRUE(residency_->is_all_there());
  EXPECT_FALSE(residency_->is_short());
}

TEST_F(ResidencyTest, RemovedRangesNumbersAreUsedAgainOnceCallsAreSeen) {
  Make();
  Residency::Lock lock(residency_->locks());
  const uint32_t number = ranges_->New({.asked = kPart, .size = kPart});
  residency_->NoteRemoved(number);
  residency_->SeeCalls();
  EXPECT_EQ(ranges_->New({.asked = kPart, .size = kPart}), number);
}

}  // namespace
}  // namespace ravenstore::elastic
