#include "daemon/rate_limit.h"

#include <gtest/gtest.h>

namespace ravenstore::daemon {
namespace {

using core::TenantId;
using std::chrono::milliseconds;

constexpr core::Tick kBegin{std::chrono::hours(1)};

TEST(RateLimitTest, BeyondTheBurstOneInEachInterval) {
  RateLimit limit(milliseconds(2), 3, std::chrono::seconds(4));
  for (int i = 0; i < 3; ++i) EXPECT_EQ(limit.Next(TenantId{1}, kBegin), kBegin) << i;
  EXPECT_EQ(limit.Next(TenantId{1}, kBegin), kBegin + milliseconds(2));
  EXPECT_EQ(limit.Next(TenantId{1}, kBegin), kBegin + milliseconds(4));
  // Times that were given out count before they have come.
  EXPECT_EQ(limit.Next(TenantId{1}, kBegin + milliseconds(3)), kBegin + milliseconds(6));
}

TEST(RateLimitTest, AUserThatRestsHasTheBurstAgainAndNoMore) {
  RateLimit limit(milliseconds(2), 3, std::chrono::seconds(4));
  for (int i = 0; i < 10; ++i) limit.Next(TenantId{1}, kBegin);
  const core::Tick later = kBegin + std::chrono::seconds(1);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(limit.Next(TenantId{1}, later), later) << i;
  EXPECT_EQ(limit.Next(TenantId{1}, later), later + milliseconds(2));
}

TEST(RateLimitTest, AnotherUserDoesNotWait) {
  RateLimit limit(milliseconds(2), 1, std::chrono::seconds(4));
  for (int i = 0; i < 1000; ++i) limit.Next(TenantId{1}, kBegin);
  EXPECT_EQ(limit.Next(TenantId{2}, kBegin), kBegin);
}

// Those who are forgotten have nothing to wait for.
TEST(RateLimitTest, ManyUsersAreForgottenOnceTheyRest) {
  RateLimit limit(milliseconds(2), 1, std::chrono::seconds(4));
  limit.Next(TenantId{1}, kBegin);
  const core::Tick waits = limit.Next(TenantId{1}, kBegin);
  for (uint32_t user = 2; user < 5000; ++user) limit.Next(TenantId{user}, kBegin);
  EXPECT_EQ(limit.Next(TenantId{1}, kBegin), waits + milliseconds(2));
}

// A client that is gone when its time comes has used that time up all the same.
TEST(RateLimitTest, NoUserWaitsWithoutEnd) {
  RateLimit limit(milliseconds(2), 1, milliseconds(100));
  core::Tick at{};
  for (int i = 0; i < 100'000; ++i) at = limit.Next(TenantId{1}, kBegin);
  EXPECT_EQ(at, kBegin + milliseconds(100));
  EXPECT_EQ(limit.Next(TenantId{1}, kBegin + milliseconds(50)), kBegin + milliseconds(102));
}

}  // namespace
}  // namespace ravenstore::daemon
