#include "core/plan/hint_forecast.h"

#include <gtest/gtest.h>

#include <chrono>
#include <limits>
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

TEST_F(HintForecastTest, TheLatestTimesAreLaterThanAllOthers) {
  hints_.Put(0, {NextUse::Kind::kAt, kNever, 0}, microseconds(100));
  hints_.Put(1, In(300), microseconds(100));
  hints_.Put(2, {NextUse::Kind::kAt, Tick::min(), 0}, microseconds(100));
  EXPECT_GT(*hints_.NextUseOf(0, microseconds(200)), std::chrono::years(10));
  EXPECT_EQ(hints_.NextUseOf(2, microseconds(200)), microseconds(200));
  const auto forecast = hints_.Make(places_, tensors_, microseconds(200));
  EXPECT_LT(forecast.gets.at(2), forecast.gets.at(1));
  EXPECT_LT(forecast.gets.at(1), forecast.gets.at(0));
  EXPECT_LT(forecast.calls.back().at, Duration::max() / 2);  // a plan adds to the last time
}

TEST_F(HintForecastTest, TheLargestOrdersAreLaterThanAllOthers) {
  constexpr int64_t kFirst = std::numeric_limits<int64_t>::min();
  constexpr int64_t kLast = std::numeric_limits<int64_t>::max();
  hints_.Put(0, Order(kFirst), microseconds(0));
  hints_.Got(0, microseconds(0));
  hints_.Put(0, Order(kFirst + 10), microseconds(0));
  hints_.Got(0, microseconds(100));
  // One order takes 10 us.
  hints_.Put(0, Order(kLast), microseconds(100));
  hints_.Put(1, Order(kFirst + 20), microseconds(100));
  hints_.Put(2, Order(kFirst), microseconds(100));
  EXPECT_GT(*hints_.NextUseOf(0, microseconds(100)), std::chrono::years(10));
  EXPECT_EQ(hints_.NextUseOf(1, microseconds(100)), microseconds(200));
  EXPECT_EQ(hints_.NextUseOf(2, microseconds(100)), microseconds(100));
  // The rate of orders so far apart is a number, too.
  hints_.Got(0, microseconds(300));
  hints_.Put(0, Order(kLast), microseconds(300));
  EXPECT_EQ(hints_.NextUseOf(0, microseconds(300)), microseconds(300));
}

// It takes 0.2 s; a look at all pairs takes 90 s.
TEST(HintForecastCostTest, OrdersWithoutARateCostNoMoreThanOthers) {
  constexpr TensorIndex kTensors = 200'000;
  Places places({.page = MiB(2)});
  HintForecaster hints(microseconds(1000));
  std::vector<PlacedTensor> tensors;
  for (TensorIndex tensor = 0; tensor < kTensors; ++tensor) {
    tensors.push_back({{.at = tensor * MiB(2).count()}, MiB(2), true, false});
    hints.Put(tensor, {NextUse::Kind::kOrder, {}, tensor}, microseconds(0));
  }
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_EQ(hints.Make(places, tensors, microseconds(0)).calls.size(), kTensors);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(30));
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
