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
  EXPECT_GE(Explain("b").confidence, kLeastSure);
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

// Of an iteration a gradient is in use until its end, while more is put than fits.
TEST(PlannerLayoutTest, WhatWillStayInUseLiesAboveAllElse) {
  Script script({.capacity = MiB(16), .slab = MiB(16), .host = MiB(64), .host_budget = MiB(64)});
  const auto iteration = [&] {
    script.Create("first", MiB(4)).AllCopiesDone().Put("first").AllCopiesDone();
    script.Create("gradient", MiB(2)).AllCopiesDone();
    const Bytes place = script.View("gradient").device_offset;
    bool is_highest = true;
    for (const std::string name : {"a", "b", "c", "d"}) {
      script.Create(name, MiB(4)).AllCopiesDone();
      is_highest &= script.View(name).device_offset < place;
      script.Put(name).AllCopiesDone();
    }
    for (const std::string name : {"d", "c", "b", "a", "first"})
      script.Get(name).AllCopiesDone().Free(name);
    script.Free("gradient");
    script.world().Step(script.me());
    script.Poll();
    return is_highest;
  };
  EXPECT_FALSE(iteration()) << "nobody knows it yet";
  iteration();
  EXPECT_TRUE(iteration());
}

}  // namespace
}  // namespace ravenstore::core
