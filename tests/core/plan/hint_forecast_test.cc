#include "core/plan/hint_forecast.h"

#include <gtest/gtest.h>

#include <chrono>
#include <vector>

namespace ravenstore::core::plan {
namespace {

using std::chrono::microseconds;

class HintForecastTest : public testing::Test {
 protected:
  HintForecastTest() {
    for (PlacedTensor& tensor : tensors_) tensor = {places_.Allocate(MiB(2)), MiB(2), true, false};
  }
  static NextUse In(int us) { return {NextUse::Kind::kAt, Tick(microseconds(us)), 0}; }
  static NextUse Order(int64_t order) { return {NextUse::Kind::kOrder, {}, order}; }

  Places places_{{.page = MiB(2)}};
  std::vector<PlacedTensor> tensors_{3};
  HintForecaster hints_{microseconds(1000)};
};

TEST_F(HintForecastTest, TensorsAreGotWhenTheirClientSaid) {
  hints_.Put(0, In(300), microseconds(100));
  hints_.Put(1, In(100), microseconds(200));
  hints_.Put(2, {}, microseconds(200));
  const auto forecast = hints_.Make(places_, tensors_, microseconds(250));
  EXPECT_EQ(forecast.gets.size(), 2u);
  EXPECT_EQ(forecast.gets.at(1), 0);
  EXPECT_EQ(forecast.calls[0].at, microseconds(50));
  EXPECT_EQ(forecast.calls[1].kind, CallKind::kPut);
  EXPECT_EQ(hints_.NextUseOf(0, microseconds(250)), microseconds(400));
  EXPECT_FALSE(hints_.NextUseOf(2, microseconds(250)));
}

TEST_F(HintForecastTest, AUseThatCameIsNoLongerExpected) {
  hints_.Put(0, In(300), microseconds(100));
  hints_.Put(1, In(300), microseconds(100));
  hints_.Got(0, microseconds(400));
  hints_.Freed(1);
  EXPECT_TRUE(hints_.Make(places_, tensors_, microseconds(400)).calls.empty());
}

TEST_F(HintForecastTest, AnOrderIsATimeByTheRateOfTheOrdersThatCame) {
  hints_.Put(0, Order(10), microseconds(0));
  hints_.Put(1, Order(20), microseconds(0));
  hints_.Put(2, Order(40), microseconds(0));
  hints_.Got(0, microseconds(100));
  hints_.Got(1, microseconds(200));
  EXPECT_EQ(hints_.NextUseOf(2, microseconds(200)), microseconds(400));
}

TEST_F(HintForecastTest, CreatesAreExpectedAsTheyCameLately) {
  tensors_[2].in_use = true;
  hints_.Created(2, microseconds(500));
  const auto forecast = hints_.Make(places_, tensors_, microseconds(700));
  ASSERT_EQ(forecast.calls.size(), 1u);
  EXPECT_EQ(forecast.calls[0].kind, CallKind::kCreate);
  EXPECT_EQ(forecast.calls[0].at, microseconds(800));
  EXPECT_EQ(forecast.calls[0].units.first, 6u);  // behind the three that live
  EXPECT_TRUE(hints_.Make(places_, tensors_, microseconds(1600)).calls.empty());
}

}  // namespace
}  // namespace ravenstore::core::plan
