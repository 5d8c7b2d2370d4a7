#include "elastic/residency.h"

#include <memory>
#include <string>
#include <vector>

#include "tests/elastic/ranges_fixture.h"

namespace ravenstore::elastic {
namespace {

class ResidencyTest : public RangesFixture {
 protected:
  void Make(bool moves = true) {
    options_.moves = moves;
    options_.log = [this](const char* text) { logged_.emplace_back(text); };
    residency_ = std::make_unique<Residency>(
        options_,
        Residency::Uses{&parts_, memory_.get(), &segments_, &streams_, ranges_.get(), &clock_});
  }

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
