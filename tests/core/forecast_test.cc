#include "core/forecast.h"

#include <gtest/gtest.h>

#include <numeric>
#include <random>
#include <vector>

namespace ravenstore::core {
namespace {

using Source = Forecast::Source;

// A program that makes tensors of one size, puts them, and gets and frees them in reverse.
class Training {
 public:
  explicit Training(bool says_steps = true) : says_steps_(says_steps) {}

  // Returns how many puts were foretold from what was learned, and counts how many of those right.
  int Step(int layers, std::mt19937* shuffle = nullptr) {
    std::vector<LogicalUse> uses(static_cast<size_t>(layers));
    std::vector<int64_t> predicted(uses.size(), -1);
    int known = 0;
    for (size_t i = 0; i < uses.size(); ++i) {
      forecast_.Created(kNoName, MiB(1 + i % 3), &uses[i], Tick(++now_));
      const auto said = forecast_.Put(&uses[i]);
      if (said.source != Source::kLearned) continue;
      ++known;
      predicted[i] = said.logical_time;
    }
    std::vector<size_t> order;
    for (size_t i = uses.size(); i-- > 0;) order.push_back(i);
    if (shuffle != nullptr) {
      for (size_t i = 0; i + 1 < order.size(); ++i) {
        if ((*shuffle)() % 20 == 0) std::swap(order[i], order[i + 1]);
      }
    }
    for (const size_t i : order) {
      forecast_.Got(&uses[i], Tick(++now_));
      if (predicted[i] == forecast_.logical_time()) ++exact_;
      forecast_.Freed(kNoName, MiB(1 + i % 3), &uses[i]);
    }
    if (says_steps_) forecast_.Step();
    return known;
  }

  Forecast& forecast() { return forecast_; }
  int exact() const { return exact_; }

 private:
  const bool says_steps_;
  Forecast forecast_;
  Duration now_{0};
  int exact_ = 0;
};

TEST(ForecastTest, AnIterationIsPredictedFromTheOneBefore) {
  Training training;
  EXPECT_EQ(training.Step(50), 0);
  EXPECT_EQ(training.Step(50), 50);
  EXPECT_EQ(training.exact(), 50);
  EXPECT_EQ(training.forecast().wrong(), 0u);
}

TEST(ForecastTest, IterationsAreInferredWhereTheClientSaysNothing) {
  Training training(/*says_steps=*/false);
  for (int i = 0; i < 5; ++i) training.Step(50);
  EXPECT_EQ(training.Step(50), 50);
  EXPECT_GE(training.exact(), 50);
}

TEST(ForecastTest, AFewThingsOutOfOrderCostLittle) {
  Training training;
  std::mt19937 random(7);
  for (int i = 0; i < 10; ++i) training.Step(100, &random);
  EXPECT_EQ(training.Step(100, &random), 100);
  EXPECT_LT(training.forecast().wrong() * 20, training.forecast().right());
}

TEST(ForecastTest, AChangedPeriodIsLearnedAnew) {
  Training training;
  for (int i = 0; i < 5; ++i) training.Step(40);
  for (int i = 0; i < 8; ++i) training.Step(90);
  const int exact = training.exact();
  EXPECT_EQ(training.Step(90), 90);
  EXPECT_EQ(training.exact(), exact + 90);
}

TEST(ForecastTest, BeforeAnythingIsKnownTheLastComesBackFirst) {
  Forecast forecast;
  LogicalUse first;
  LogicalUse second;
  forecast.Created(kNoName, MiB(1), &first, Tick(Duration(1)));
  const auto early = forecast.Put(&first);
  forecast.Created(kNoName, MiB(1), &second, Tick(Duration(2)));
  const auto late = forecast.Put(&second);
  EXPECT_EQ(early.source, Source::kLastInFirstOut);
  EXPECT_GT(early.logical_time, late.logical_time);
}

TEST(ForecastTest, ATensorThatIsFreedUnreadIsPredictedSo) {
  Forecast forecast;
  for (int step = 0; step < 2; ++step) {
    LogicalUse use;
    forecast.Created(NameId{3}, MiB(1), &use, Tick(Duration(step)));
    const auto predicted = forecast.Put(&use);
    EXPECT_EQ(predicted.freed, step == 1);
    forecast.Freed(NameId{3}, MiB(1), &use);
    forecast.Step();
  }
}

// A weight that was made before the iterations, and its gradient in each of them.
TEST(ForecastTest, WhatLivesOnIsToldFromWhatIsMadeOfItsSize) {
  Forecast forecast;
  LogicalUse weight;
  forecast.Created(kNoName, MiB(1), &weight, Tick{});
  forecast.Put(&weight);
  forecast.Step();
  for (int step = 0; step < 4; ++step) {
    forecast.Got(&weight, Tick{});
    LogicalUse gradient;
    forecast.Created(kNoName, MiB(1), &gradient, Tick{});
    EXPECT_NE(gradient.logical, weight.logical);
    const auto of_weight = forecast.Put(&weight);
    const auto of_gradient = forecast.Put(&gradient);
    if (step > 1) {
      EXPECT_EQ(of_weight.source, Source::kLearned);
      EXPECT_FALSE(of_weight.freed);
      EXPECT_EQ(of_gradient.source, Source::kLearned);
      EXPECT_TRUE(of_gradient.freed);
    }
    forecast.Freed(kNoName, MiB(1), &gradient);
    forecast.Step();
  }
  EXPECT_EQ(forecast.wrong(), 0u);
}

// Weights that are read over and over by a program that says nothing of iterations.
TEST(ForecastTest, WhatIsReadAtEvenDistancesIsPredictedWithoutIterations) {
  Forecast forecast;
  std::vector<LogicalUse> weights(10);
  for (auto& use : weights) {
    forecast.Created(kNoName, MiB(1), &use, Tick{});
    forecast.Put(&use);
  }
  for (int round = 0; round < 6; ++round) {
    for (auto& use : weights) {
      forecast.Got(&use, Tick{});
      const auto predicted = forecast.Put(&use);
      EXPECT_EQ(predicted.source == Source::kLearned, round >= 2) << "round " << round;
      if (round >= 2) {
        EXPECT_EQ(predicted.logical_time, forecast.logical_time() + 10);
      }
    }
  }
}

// Weights that are read layer by layer, of which two change places in some iteration.
class Weights {
 public:
  static constexpr size_t kCount = 20;

  Weights() {
    for (auto& use : uses_) {
      forecast_.Created(kNoName, MiB(1), &use, Tick{});
      forecast_.Put(&use);
    }
    forecast_.Step();
  }

  // Returns how many places each weight was asked for later than told.
  std::vector<int64_t> Read(const std::vector<size_t>& order) {
    std::vector<int64_t> late(kCount);
    for (const size_t i : order) {
      forecast_.Got(&uses_[i], Tick{});
      late[i] = forecast_.logical_time() - predicted_[i];
      predicted_[i] = forecast_.Put(&uses_[i]).logical_time;
    }
    forecast_.Step();
    return late;
  }

 private:
  Forecast forecast_;
  std::vector<LogicalUse> uses_{kCount};
  std::vector<int64_t> predicted_ = std::vector<int64_t>(kCount);
};

TEST(ForecastTest, WhatNeverComesAgainLeavesRoomToLearn) {
  Training training;
  Forecast& forecast = training.forecast();
  Duration now{0};
  for (uint32_t i = 1; i <= 1u << 18; ++i) {
    LogicalUse use;
    forecast.Created(NameId{i}, MiB(1), &use, Tick(++now));
    forecast.Put(&use);
    forecast.Got(&use, Tick(++now));
    forecast.Freed(NameId{i}, MiB(1), &use);
  }
  training.Step(50);
  EXPECT_EQ(training.Step(50), 50);
}

TEST(ForecastTest, WhoDoesNotRepeatItselfIsLeftAlone) {
  Forecast forecast;
  std::mt19937 random(11);
  std::vector<LogicalUse> uses(50);
  for (auto& use : uses) {
    forecast.Created(kNoName, MiB(1), &use, Tick{});
    forecast.Put(&use);
  }
  int known = 0;
  for (int i = 0; i < 2000; ++i) {
    LogicalUse& use = uses[random() % uses.size()];
    forecast.Got(&use, Tick{});
    known += i > 1000 && forecast.Put(&use).source == Source::kLearned;
  }
  EXPECT_LT(known, 20);
}

// An iteration in which a large tensor stays in use from its first access to its last, one is put
// at once, one is freed at once, and a small one stays as the first does. Which of them are
// expected to stay as they are created?
std::vector<bool> StayingIn(Forecast& forecast, Tick& now) {
  std::vector<bool> stays;
  const auto create = [&](Bytes size) {
    LogicalUse use;
    forecast.Created(kNoName, size, &use, ++now);
    stays.push_back(forecast.StaysInUse(use));
    return use;
  };
  LogicalUse gradient = create(MiB(3));
  LogicalUse saved = create(MiB(2));
  forecast.Put(&saved);
  LogicalUse passing = create(MiB(1));
  forecast.Freed(kNoName, MiB(1), &passing);
  LogicalUse small = create(KiB(64));
  for (int i = 0; i < 20; ++i) {
    forecast.Got(&saved, ++now);
    forecast.Put(&saved);
  }
  forecast.Freed(kNoName, MiB(3), &gradient);
  forecast.Freed(kNoName, KiB(64), &small);
  forecast.Freed(kNoName, MiB(2), &saved);
  return stays;
}

TEST(ForecastTest, WhatStayedInUseIsExpectedToStaySo) {
  Forecast forecast;
  Tick now{};
  EXPECT_EQ(StayingIn(forecast, now), std::vector<bool>({false, false, false, false}));
  EXPECT_EQ(StayingIn(forecast, now), std::vector<bool>({false, false, false, false}))
      << "nobody knows how long an iteration is";
  forecast.Step();
  StayingIn(forecast, now);
  forecast.Step();
  EXPECT_EQ(StayingIn(forecast, now), std::vector<bool>({true, false, false, false}));
}

}  // namespace
}  // namespace ravenstore::core
