#include "core/correlation.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

namespace ravenstore::core {
namespace {

// A client whose tensors have their logical ids as ids.
class User {
 public:
  void Use(uint32_t logical) {
    missed_.clear();
    correlation_.Used(logical, TensorId{logical}, ++logical_time_, &missed_);
  }
  void Use(const std::vector<uint32_t>& logicals) {
    for (const uint32_t logical : logicals) Use(logical);
  }
  std::vector<uint32_t> Ahead() {
    std::vector<uint32_t> logicals;
    for (const auto& step : correlation_.Ahead()) logicals.push_back(step.logical);
    return logicals;
  }
  Correlation& correlation() { return correlation_; }
  const std::vector<Correlation::Step>& missed() const { return missed_; }
  int64_t logical_time() const { return logical_time_; }

 private:
  Correlation correlation_;
  int64_t logical_time_ = 0;
  std::vector<Correlation::Step> missed_;
};

TEST(CorrelationTest, NothingIsExpectedBeforeAnythingRepeats) {
  User user;
  user.Use({1, 2, 3, 4});
  EXPECT_TRUE(user.Ahead().empty());
}

TEST(CorrelationTest, ACycleIsFollowedAsFarAsAllowed) {
  User user;
  constexpr uint32_t kLength = 48;
  for (int round = 0; round < 3; ++round) {
    for (uint32_t i = 1; i <= kLength; ++i) user.Use(i);
  }
  const auto ahead = user.Ahead();
  ASSERT_EQ(ahead.size(), Correlation::kMostAhead);
  for (size_t i = 0; i < ahead.size(); ++i) {
    EXPECT_EQ(ahead[i], i + 1);
    EXPECT_EQ(user.correlation().Ahead()[i].logical_time,
              user.logical_time() + static_cast<int64_t>(i) + 1);
    EXPECT_EQ(user.correlation().Ahead()[i].tensor, TensorId{ahead[i]});
  }
  EXPECT_GE(user.correlation().ConfidenceOf(ahead.back()), kLeastSure);
}

TEST(CorrelationTest, OnceIsEnoughForTheNextFewAndMoreFollowsAsItComesTrue) {
  User user;
  for (uint32_t i = 1; i <= 48; ++i) user.Use(i);
  user.Use(1);
  const size_t at_first = user.Ahead().size();
  EXPECT_GE(at_first, 1u);
  EXPECT_LE(at_first, 3u);
  for (uint32_t i = 2; i <= 12; ++i) user.Use(i);
  EXPECT_GT(user.Ahead().size(), 4 * at_first);
}

TEST(CorrelationTest, AForkIsTakenAsOftenAsItWas) {
  User user;
  for (int i = 0; i < 200; ++i) {
    user.Use({1, i % 8 == 0 ? 3u : 2u, 4, 5, 6, 7, 8, 9});
  }
  user.Use(1);
  ASSERT_FALSE(user.Ahead().empty());
  EXPECT_EQ(user.Ahead().front(), 2u);
  const double confidence = user.correlation().ConfidenceOf(2);
  EXPECT_GT(confidence, 0.6);
  EXPECT_LT(confidence, 0.98);
  // What is less likely than not is not told: nothing beyond a second such fork.
  EXPECT_EQ(user.correlation().ConfidenceOf(3), 0);
}

TEST(CorrelationTest, TheTwoLastTellAForkApart) {
  User user;
  for (int i = 0; i < 40; ++i) user.Use({1, 9, 2, 5, 3, 9, 4, 6});
  user.Use({1, 9});
  ASSERT_FALSE(user.Ahead().empty());
  EXPECT_EQ(user.Ahead().front(), 2u);
  user.Use({2, 5, 3, 9});
  ASSERT_FALSE(user.Ahead().empty());
  EXPECT_EQ(user.Ahead().front(), 4u);
}

TEST(CorrelationTest, WhatChangedIsForgotten) {
  User user;
  for (int i = 0; i < 20; ++i) user.Use({1, 2, 7, 8});
  for (int i = 0; i < 20; ++i) user.Use({1, 3, 7, 8});
  user.Use(1);
  ASSERT_FALSE(user.Ahead().empty());
  EXPECT_EQ(user.Ahead().front(), 3u);
}

TEST(CorrelationTest, WhatDidNotComeIsGivenBack) {
  User user;
  for (int i = 0; i < 20; ++i) user.Use({1, 2, 3, 4});
  user.Use({1, 2});
  ASSERT_FALSE(user.Ahead().empty());
  const auto expected = user.Ahead();
  user.Use(99);
  ASSERT_EQ(user.missed().size(), expected.size());
  EXPECT_EQ(user.missed().front().logical, 3u);
}

TEST(CorrelationTest, WhatComesALittleTooSoonBreaksNoChain) {
  User user;
  for (int i = 0; i < 20; ++i) user.Use({1, 2, 3, 4, 5, 6, 7, 8, 9});
  user.Use({1, 2});
  for (int i = 0; i < 10; ++i) {
    user.Use(4);
    EXPECT_TRUE(user.missed().empty());
    ASSERT_GE(user.Ahead().size(), 3u);
    EXPECT_EQ(user.Ahead()[0], 3u) << "still to come";
    EXPECT_EQ(user.Ahead()[1], 5u);
    user.Use({3, 5, 6, 7, 8, 9, 1, 2});
    EXPECT_TRUE(user.correlation().IsTrusted());
  }
}

// What is known after the first two is short: the chain ends with what came too soon.
TEST(CorrelationTest, TheChainGoesOnBehindWhatCameTooSoon) {
  User user;
  for (uint32_t i = 1; i <= 48; ++i) user.Use(i);
  user.Use({1, 2});
  ASSERT_EQ(user.Ahead(), (std::vector<uint32_t>{3, 4}));
  user.Use({4, 3});
  ASSERT_FALSE(user.Ahead().empty());
  EXPECT_EQ(user.Ahead().front(), 5u) << "and not 4 once more, as it stands behind 3";
  EXPECT_EQ(user.correlation().Ahead().front().logical_time, user.logical_time() + 1);
  user.Use({5, 6});
  EXPECT_TRUE(user.correlation().IsTrusted());
}

TEST(CorrelationTest, WhatWasPassedOverIsGivenBackInTheEnd) {
  User user;
  std::vector<uint32_t> all;
  for (uint32_t i = 1; i <= 30; ++i) all.push_back(i);
  for (int i = 0; i < 20; ++i) user.Use(all);
  user.Use({1, 2});
  std::vector<uint32_t> missed;
  for (const uint32_t logical : {4, 5, 6, 7, 8, 9, 10}) {
    user.Use(logical);
    for (const auto& step : user.missed()) missed.push_back(step.logical);
  }
  EXPECT_EQ(missed, std::vector<uint32_t>{3});
  EXPECT_EQ(user.Ahead().front(), 11u);
}

TEST(CorrelationTest, WhoIsWrongIsNotAskedUntilItIsRightAgain) {
  User user;
  std::mt19937 random(1);
  size_t predicted = 0;
  for (int i = 0; i < 5000; ++i) {
    user.Use(1 + static_cast<uint32_t>(random() % 50));
    predicted += user.Ahead().empty() ? 0 : 1;
  }
  EXPECT_LT(predicted, 100u);
  for (int round = 0; round < 20; ++round) {
    for (uint32_t i = 1; i <= 50; ++i) user.Use(i);
  }
  EXPECT_TRUE(user.correlation().IsTrusted());
  EXPECT_FALSE(user.Ahead().empty());
}

TEST(CorrelationTest, MemoryAndWorkAreBounded) {
  User user;
  for (int round = 0; round < 2; ++round) {
    for (uint32_t i = 1; i <= 100000; ++i) user.Use(i);
  }
  EXPECT_LE(user.correlation().states(), Correlation::kMostStates);
  // What is learned after the table was full counts as well.
  for (int round = 0; round < 20; ++round) {
    for (uint32_t i = 1; i <= 40; ++i) user.Use(200000 + i);
  }
  EXPECT_FALSE(user.Ahead().empty());
  EXPECT_LE(user.Ahead().size(), Correlation::kMostAhead);
}

}  // namespace
}  // namespace ravenstore::core
