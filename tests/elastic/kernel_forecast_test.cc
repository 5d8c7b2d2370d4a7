#include "elastic/kernel_forecast.h"

#include <gtest/gtest.h>

#include <vector>

namespace ravenstore::elastic {
namespace {

using core::MiB;
using core::plan::CallKind;
using core::plan::PlannedCall;
using std::chrono::milliseconds;
using Kind = PageRecord::Kind;

// Units are even.
KernelForecast Forecast(uint32_t units, std::vector<PageRecord> records, int calls) {
  KernelForecast forecast;
  forecast.records = std::move(records);
  forecast.limits = {.page = MiB(32), .pages = 2, .pools = {{.in_rate = 50e9, .out_rate = 50e9}}};
  for (uint32_t unit = 0; unit < units; ++unit) {
    forecast.units.push_back({.live = 1, .held = true, .dirty = true, .pool = 0});
    forecast.units.emplace_back();
  }
  // A call takes 10 ms, and each step begins with that time.
  for (int call = 1; call <= calls; ++call) forecast.times.push_back(milliseconds(10) * call);
  forecast.step = milliseconds(10) * calls;
  forecast.times.push_back(forecast.step);
  return forecast;
}

std::vector<CallKind> KindsOf(const KernelForecast& forecast, size_t calls) {
  std::vector<CallKind> kinds;
  for (size_t i = 0; i < calls; ++i) kinds.push_back(forecast.plan.calls()[i].kind);
  return kinds;
}

TEST(KernelForecastTest, AKernelGetsItsPagesAndPutsThemWhenTheNextBegins) {
  auto forecast = Forecast(3, {{0, 7, Kind::kUse}, {4, 7, Kind::kUse}, {2, 8, Kind::kUse}}, 2);
  forecast.Make();
  EXPECT_EQ(KindsOf(forecast, 6), (std::vector{CallKind::kGet, CallKind::kGet, CallKind::kPut,
                                               CallKind::kPut, CallKind::kGet, CallKind::kPut}));
  EXPECT_EQ(forecast.plan.call(0).at, milliseconds(10));
  EXPECT_EQ(forecast.plan.call(2).at, milliseconds(20));
  EXPECT_EQ(forecast.plan.call(4).at, milliseconds(20));
  EXPECT_EQ(forecast.plan.call(5).at, milliseconds(30));
  // Before each record, while the kernel before it runs.
  EXPECT_EQ(forecast.positions[0], 0);
  EXPECT_EQ(forecast.positions[1], 1);
  EXPECT_EQ(forecast.positions[2], 2);
  EXPECT_EQ(forecast.positions[3], 5);
}

TEST(KernelForecastTest, ConsecutivePagesAreOneCall) {
  auto forecast = Forecast(3, {{0, 0, Kind::kUse}, {2, 0, Kind::kUse}, {4, 0, Kind::kUse}}, 1);
  forecast.Make();
  EXPECT_EQ(forecast.plan.call(0).units.count, 3u);
  EXPECT_EQ(forecast.plan.call(1).kind, CallKind::kPut);
  EXPECT_EQ(forecast.plan.call(1).units.count, 3u);
  EXPECT_EQ(forecast.plan.pages_held(), 3u);
  EXPECT_GT(forecast.plan.over_budget(), 0u);
}

TEST(KernelForecastTest, AStepRepeatsWithItsTimes) {
  auto forecast = Forecast(2, {{0, 0, Kind::kUse}, {2, 1, Kind::kUse}}, 2);
  forecast.Make();
  ASSERT_GT(forecast.positions.size(), 1000u);
  EXPECT_EQ(forecast.plan.call(0).at, milliseconds(10));
  for (size_t step = 1; step < 100; ++step) {
    // The put of the kernel before comes first.
    const auto get = forecast.positions[2 * step] + 1;
    ASSERT_EQ(forecast.plan.call(get).units.first, 0u);
    ASSERT_EQ(forecast.plan.call(get).at, milliseconds(10 + 20 * static_cast<int64_t>(step)));
  }
}

TEST(KernelForecastTest, AllocationsAndFreesEndAndBeginLives) {
  auto forecast = Forecast(
      1, {{2, 0, Kind::kAllocate}, {2, 0, Kind::kUse}, {0, 0, Kind::kUse}, {2, 1, Kind::kFree}}, 1);
  forecast.Make();
  EXPECT_EQ(KindsOf(forecast, 7),
            (std::vector{CallKind::kCreate, CallKind::kPut, CallKind::kGet, CallKind::kGet,
                         CallKind::kPut, CallKind::kPut, CallKind::kFree}));
  EXPECT_EQ(forecast.plan.pages_alive(), 2u);
}

TEST(KernelForecastTest, CallsOfPagesThatLiveDifferentlyNowAreLeftOut) {
  // Unit 0 lives already, and unit 2 does not live.
  auto forecast =
      Forecast(1, {{0, 0, Kind::kAllocate}, {2, 0, Kind::kUse}, {2, 0, Kind::kFree}}, 1);
  forecast.Make();
  EXPECT_TRUE(forecast.plan.calls().empty());
}

}  // namespace
}  // namespace ravenstore::elastic
