#include "sim/utilisation.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

namespace ravenstore::sim {
namespace {

constexpr int kMinutes = 500'000;

double GibOf(core::Bytes bytes) {
  return static_cast<double>(bytes.count()) * 0x1p-30;
}

double Quantile(std::vector<double> values, double fraction) {
  std::sort(values.begin(), values.end());
  return values[static_cast<size_t>(fraction * static_cast<double>(values.size() - 1))];
}

// The figures of production as the issue gives them. Use to 0.3 GiB, the share of busy minutes to
// a percentage point; a change's quantiles to 0.7 GiB, as these are symmetric here and not there.
TEST(UtilisationTest, AContainerIsAsInProduction) {
  std::mt19937_64 random(7);
  Container container(random);
  std::vector<double> used;
  std::vector<double> changes;
  for (int i = 0; i < kMinutes; ++i) {
    used.push_back(GibOf(container.used()));
    container.Pass(random);
    changes.push_back(GibOf(container.used()) - used.back());
  }
  EXPECT_NEAR(Quantile(used, 0.05), 14.8, 0.3);
  EXPECT_NEAR(Quantile(used, 0.50), 23.1, 0.3);
  EXPECT_NEAR(Quantile(used, 0.95), 31.3, 0.3);
  const auto moved = std::count_if(changes.begin(), changes.end(),
                                   [](double change) { return std::abs(change) > 2; });
  EXPECT_NEAR(static_cast<double>(moved) / kMinutes, 0.23, 0.01);
  EXPECT_NEAR(Quantile(changes, 0.01), -10.7, 0.7);
  EXPECT_NEAR(Quantile(changes, 0.99), 9.7, 0.7);
}

TEST(UtilisationTest, OwnersComeAndGoAndNoGpuHasMoreThanItsMemory) {
  const UtilisationOptions options{.gpus = 3, .minutes = 20'000, .memory = core::GiB(40)};
  const auto used = GenerateUtilisation(options);
  ASSERT_EQ(used.size(), 3u);
  for (const auto& gpu : used) {
    ASSERT_EQ(gpu.size(), options.minutes);
    EXPECT_EQ(*std::max_element(gpu.begin(), gpu.end()), core::GiB(40));
    // Each of two is away a quarter of the time.
    const auto vacant = static_cast<double>(std::count(gpu.begin(), gpu.end(), core::Bytes{0}));
    EXPECT_NEAR(vacant / 20'000, 1.0 / 16, 0.03);
  }
}

TEST(UtilisationTest, TheSeedAloneDecides) {
  UtilisationOptions options{.gpus = 2, .minutes = 100};
  const auto used = GenerateUtilisation(options);
  EXPECT_EQ(GenerateUtilisation(options), used);
  options.seed = 2;
  EXPECT_NE(GenerateUtilisation(options), used);
}

}  // namespace
}  // namespace ravenstore::sim
