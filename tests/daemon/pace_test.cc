#include "daemon/pace.h"

#include <gtest/gtest.h>

namespace ravenstore::daemon {
namespace {

using core::TenantId;
using std::chrono::milliseconds;

constexpr core::Tick kBegin{std::chrono::hours(1)};

TEST(PaceTest, BeyondTheBurstOneInEachInterval) {
  Pace pace(milliseconds(2), 3);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(pace.Next(TenantId{1}, kBegin), kBegin) << i;
  EXPECT_EQ(pace.Next(TenantId{1}, kBegin), kBegin + milliseconds(2));
  EXPECT_EQ(pace.Next(TenantId{1}, kBegin), kBegin + milliseconds(4));
  // The turns that were told count, though their time has not come.
  EXPECT_EQ(pace.Next(TenantId{1}, kBegin + milliseconds(3)), kBegin + milliseconds(6));
}

TEST(PaceTest, WhoRestsHasTheBurstAgainAndNoMore) {
  Pace pace(milliseconds(2), 3);
  for (int i = 0; i < 10; ++i) pace.Next(TenantId{1}, kBegin);
  const core::Tick later = kBegin + std::chrono::seconds(1);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(pace.Next(TenantId{1}, later), later) << i;
  EXPECT_EQ(pace.Next(TenantId{1}, later), later + milliseconds(2));
}

TEST(PaceTest, AnotherUserDoesNotWait) {
  Pace pace(milliseconds(2), 1);
  for (int i = 0; i < 1000; ++i) pace.Next(TenantId{1}, kBegin);
  EXPECT_EQ(pace.Next(TenantId{2}, kBegin), kBegin);
}

// Those who are forgotten have nothing to wait for.
TEST(PaceTest, ManyUsersAreForgottenOnceTheyRest) {
  Pace pace(milliseconds(2), 1);
  pace.Next(TenantId{1}, kBegin);
  const core::Tick waits = pace.Next(TenantId{1}, kBegin);
  for (uint32_t user = 2; user < 5000; ++user) pace.Next(TenantId{user}, kBegin);
  EXPECT_EQ(pace.Next(TenantId{1}, kBegin), waits + milliseconds(2));
}

}  // namespace
}  // namespace ravenstore::daemon
