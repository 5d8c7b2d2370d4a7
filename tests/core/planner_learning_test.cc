// What the planner does with what it learned.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "core/correlation.h"
#include "core/planner.h"
#include "tests/core/script.h"

namespace ravenstore::core {
namespace {

using State = Script::State;
using Future = Explanation::Future;

// Eight tensors, four of which fit.
class PlannerLearningTest : public testing::Test {
 protected:
  PlannerLearningTest() : script_({.capacity = KiB(16), .prefetch = true}) {
    for (const std::string& name : names_) Make(name);
  }

  void Make(const std::string& name, NextUse next_use = {}) {
    script_.Create(name, KiB(4)).AllCopiesDone().Put(name, next_use).AllCopiesDone();
  }
  // Got, and put as it is, with all copies done before and after.
  void Use(const std::string& name) {
    script_.Get(name).AllCopiesDone().PutUnchanged(name).AllCopiesDone();
    script_.Pass(std::chrono::microseconds(100));
  }
  Explanation Explain(const std::string& name) {
    return script_.world().planner().Explain(script_.View(name).id, Tick(std::chrono::seconds(1)));
  }

  const std::vector<std::string> names_ = {"a", "b", "c", "d", "e", "f", "g", "h"};
  Script script_;
};

TEST_F(PlannerLearningTest, WhatFollowedLastTimeIsExpectedAndSaidSo) {
  ASSERT_EQ(script_.StateOf("b"), State::kAway);
  script_.Get("a");
  EXPECT_EQ(Explain("b").future, Future::kCorrelated);
  EXPECT_GE(Explain("b").confidence, Correlation::kLeastSure);
  EXPECT_LT(Explain("b").confidence, 1);
  EXPECT_EQ(Explain("h").confidence, 0);
}

TEST_F(PlannerLearningTest, WhatIsExpectedIsBroughtBeforeItIsAskedFor) {
  for (const std::string& name : names_) Use(name);
  const uint64_t misses = script_.stats().misses;
  for (int round = 0; round < 3; ++round) {
    for (const std::string& name : names_) Use(name);
  }
  EXPECT_GT(script_.stats().prefetches, 8u);
  EXPECT_LE(script_.stats().misses, misses + 3);
}

TEST_F(PlannerLearningTest, WhatDoesNotComeIsExpectedNoMore) {
  script_.Get("a");
  ASSERT_EQ(Explain("b").future, Future::kCorrelated);
  script_.AllCopiesDone().PutUnchanged("a").AllCopiesDone();
  script_.Get("g");
  EXPECT_NE(Explain("b").future, Future::kCorrelated);
}

TEST_F(PlannerLearningTest, WhatTheClientSaidIsKnownBetter) {
  script_.Free("b").AllCopiesDone();
  Make("b2", Order(7));
  for (int round = 0; round < 3; ++round) {
    for (const std::string name : {"a", "b2", "c"}) {
      script_.Get(name).AllCopiesDone().PutUnchanged(name, Order(7)).AllCopiesDone();
    }
  }
  script_.Get("a");
  EXPECT_EQ(Explain("b2").future, Future::kHintedOrder);
}

TEST_F(PlannerLearningTest, WhatWasLearnedFromEarlierIterationsIsSaidWithItsConfidence) {
  for (int round = 0; round < 4; ++round) {
    for (const std::string& name : names_) Use(name);
    script_.world().Step(script_.me());
    script_.Poll();
  }
  const Explanation why = Explain("h");
  EXPECT_EQ(why.future, Future::kLearned);
  EXPECT_GT(why.confidence, 0.85);
}

TEST_F(PlannerLearningTest, WhatIsLeftOutOfAnOrderIsPredictedAndSaidToBe) {
  int64_t order = 0;
  const auto round = [&] {
    for (const std::string& name : names_) {
      script_.Get(name).AllCopiesDone();
      order += 10;
      const NextUse next_use = name == "d" ? NextUse{} : Order(order + 80);
      script_.PutUnchanged(name, next_use).AllCopiesDone();
      script_.Pass(std::chrono::microseconds(100));
    }
    script_.world().Step(script_.me());
    script_.Poll();
  };
  for (int i = 0; i < 4; ++i) round();
  EXPECT_EQ(Explain("d").future, Future::kLearned);
  EXPECT_EQ(Explain("e").future, Future::kHintedOrder);
  const uint64_t misses = script_.stats().misses;
  for (int i = 0; i < 3; ++i) round();
  EXPECT_EQ(script_.stats().misses, misses);
}

// Of eight in an order, two are left out; nothing is learned yet.
TEST_F(PlannerLearningTest, WhatIsLeftOutOfAnOrderAtFirstIsExpectedWithWhatWasPutBeforeIt) {
  int64_t order = 100;
  for (const std::string& name : names_) {
    order -= 10;
    script_.Get(name).AllCopiesDone();
    const NextUse next_use = name == "d" || name == "f" ? NextUse{} : Order(order);
    script_.PutUnchanged(name, next_use).AllCopiesDone();
  }
  EXPECT_EQ(Explain("d").future, Future::kNeighbourHint);
  EXPECT_EQ(Explain("c").future, Future::kHintedOrder);
  EXPECT_EQ(Explain("f").future, Future::kNeighbourHint);
  // In that order all are there in time, those two as well.
  const std::vector<std::string> back = {"h", "g", "f", "e", "d", "c", "b"};
  script_.Get(back[0]).AllCopiesDone();
  const uint64_t misses = script_.stats().misses;
  for (size_t i = 1; i < back.size(); ++i) {
    script_.PutUnchanged(back[i - 1], NotNeeded()).AllCopiesDone();
    script_.Get(back[i]).AllCopiesDone();
  }
  EXPECT_EQ(script_.stats().misses, misses);
}

TEST_F(PlannerLearningTest, WhatWasExpectedWithHintsThatHavePassedIsExpectedNoMore) {
  int64_t order = 0;
  for (const std::string& name : names_) {
    script_.Get(name).AllCopiesDone();
    const NextUse next_use = name == "b" ? NextUse{} : Order(order += 10);
    script_.PutUnchanged(name, next_use).AllCopiesDone();
  }
  ASSERT_EQ(Explain("b").future, Future::kNeighbourHint);
  for (const std::string name : {"a", "c", "d", "e"}) {
    script_.Get(name).AllCopiesDone();
    script_.PutUnchanged(name, Order(order += 10)).AllCopiesDone();
  }
  EXPECT_NE(Explain("b").future, Future::kNeighbourHint);
}

}  // namespace
}  // namespace ravenstore::core
