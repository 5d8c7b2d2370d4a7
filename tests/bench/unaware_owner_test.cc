#include "bench/unaware_owner.h"

#include <gtest/gtest.h>

#include <vector>

namespace ravenstore::bench {
namespace {

using core::Bytes;
using core::GiB;

constexpr double kSlow = 16 * 0x1p30;
constexpr double kImmediate = 1e18;
constexpr size_t kMinutes = 10;

// `before` for kMinutes, then `after` for as many.
std::vector<Bytes> From(Bytes before, Bytes after) {
  std::vector<Bytes> used(kMinutes, before);
  used.insert(used.end(), kMinutes, after);
  return used;
}

TEST(UnawareOwnerTest, AllThatIsIdleBeyondTheReserveIsHarvested) {
  const std::vector<Bytes> used(100 * kMinutes, GiB(30));
  const UnawareOutcome outcome =
      SimulateUnawareOwner(used, {.memory = GiB(80), .reserve = GiB(10), .rate = kSlow});
  EXPECT_EQ(outcome.errors, 0u);
  EXPECT_NEAR(outcome.harvested * 0x1p-30, 80 - 0.5 - 30 - 10, 0.5);
}

TEST(UnawareOwnerTest, GrowthWithinTheReserveMeetsNoErrorHoweverFast) {
  const UnawareOutcome outcome = SimulateUnawareOwner(
      From(GiB(30), GiB(39)), {.memory = GiB(80), .reserve = GiB(10), .rate = kImmediate});
  EXPECT_GT(outcome.pieces, 30u / 2 + 9 / 2);
  EXPECT_EQ(outcome.errors, 0u);
}

TEST(UnawareOwnerTest, SlowGrowthBeyondTheReserveMeetsNoError) {
  const UnawareOptions options{.memory = GiB(80), .reserve = GiB(10), .rate = kSlow};
  EXPECT_EQ(SimulateUnawareOwner(From(GiB(30), GiB(70)), options).errors, 0u);
}

TEST(UnawareOwnerTest, GrowthThatIsFasterThanChunksGoMeetsErrors) {
  const UnawareOptions options{.memory = GiB(80), .reserve = GiB(10), .rate = kImmediate};
  EXPECT_GT(SimulateUnawareOwner(From(GiB(30), GiB(70)), options).errors, 0u);
}

// With no reserve the daemon sees no need to give anything back.
TEST(UnawareOwnerTest, APieceThatDoesNotFitIsOneErrorForEachChange) {
  std::vector<Bytes> used(kMinutes);
  used.push_back(GiB(20));
  const UnawareOutcome outcome =
      SimulateUnawareOwner(used, {.memory = GiB(80), .reserve = Bytes{0}, .rate = kSlow});
  EXPECT_EQ(outcome.pieces, 1u);
  EXPECT_EQ(outcome.errors, 1u);
}

}  // namespace
}  // namespace ravenstore::bench
