#include "elastic/job_share.h"

#include <gtest/gtest.h>

#include <chrono>
#include <optional>
#include <tuple>
#include <utility>

namespace ravenstore::elastic {
namespace {

using core::Bytes;
using core::Duration;
using core::MiB;

constexpr Bytes kPage = MiB(32);
constexpr Bytes kAll = MiB(3200);

JobShare::Demand Wants(uint64_t pages, uint64_t held) {
  return {.in_use = kPage, .expected = kPage * 2, .alive = kPage * pages, .held = kPage * held};
}

class JobShareTest : public testing::Test {
 protected:
  // The share of each of two engines, by its own reckoning.
  std::pair<Bytes, Bytes> Shares(const JobShare::Demand& one, const JobShare::Demand& other,
                                 Bytes room = kPage * 100, Duration now = Duration{0}) {
    const auto of = [&](JobShare* share, size_t own) {
      return share->Of(JobShare::Device{{one, other}, own, MiB(3200), room}, kAll, now);
    };
    return {of(&one_, 0), of(&other_, 1)};
  }
  JobShare one_{kPage};
  JobShare other_{kPage};
};

TEST_F(JobShareTest, AloneItMayHoldAll) {
  EXPECT_EQ(one_.Of(std::nullopt, kAll, {}), kAll);
  EXPECT_EQ(one_.Of(JobShare::Device{{Wants(10, 10)}, 0, MiB(320), Bytes{}}, kAll, {}), kAll);
  EXPECT_FALSE(one_.is_shared());
}

TEST_F(JobShareTest, WhoNeedsMoreHasMoreWhereAllFits) {
  const auto [one, other] = Shares(Wants(70, 50), Wants(20, 50));
  EXPECT_GE(one, kPage * 70);
  EXPECT_GE(other, kPage * 20);
  EXPECT_LE(one + other, kAll);
  EXPECT_TRUE(one_.is_shared());
}

TEST_F(JobShareTest, WhereNotAllFitsTheEngineWithMoreHasATurn) {
  auto [one, other] = Shares(Wants(80, 50), Wants(60, 50));
  EXPECT_EQ(one, kPage * 80);
  EXPECT_EQ(other, kPage * 20);
  // Half of what it had has died.
  std::tie(one, other) = Shares(Wants(39, 80), Wants(65, 20));
  EXPECT_EQ(one, kPage * 35);
  EXPECT_EQ(other, kPage * 65);
}

TEST_F(JobShareTest, ItHoldsNoMoreThanThereIsRoomFor) {
  const auto [one, other] = Shares(Wants(80, 50), Wants(60, 50), Bytes{});
  EXPECT_EQ(one, kPage * 50);
  EXPECT_EQ(other, kPage * 20);
}

TEST_F(JobShareTest, AnEngineThatEndsTakesItsTurnAlong) {
  Shares(Wants(60, 50), Wants(80, 50));
  EXPECT_EQ(one_.Of(JobShare::Device{{Wants(60, 50)}, 0, kAll, kPage * 50}, kAll, {}), kAll);
  EXPECT_EQ(Shares(Wants(90, 50), Wants(20, 50)).first, kPage * 90);
}

TEST_F(JobShareTest, AnyDemandsAreDivided) {
  const JobShare::Demand most{Bytes(UINT64_MAX), Bytes(UINT64_MAX), Bytes(UINT64_MAX),
                              Bytes(UINT64_MAX), Bytes(UINT64_MAX)};
  const Bytes share =
      other_.Of(JobShare::Device{{most, Wants(20, 20)}, 1, kAll, kAll}, kAll, Duration{0});
  EXPECT_GE(share, kPage);
  EXPECT_LE(share, kPage * 50);
}

}  // namespace
}  // namespace ravenstore::elastic
