#include "core/predictor.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <optional>
#include <vector>

namespace ravenstore::core {
namespace {

using std::chrono::milliseconds;

// A client whose accesses come a millisecond after each other, and what the planner writes of it.
class PredictorTest : public ::testing::Test {
 protected:
  explicit PredictorTest(const Predictor::Options& options = {}) : predictor_(&catalog_, options) {}

  TensorRow& Create(NameId name) {
    now_ += milliseconds(1);
    TensorRow& tensor = catalog_.Add();
    tensor.name = name;
    tensor.size = MiB(1);
    tensor.slot = SlotId{static_cast<uint32_t>(slots_.size())};
    slots_.Set(tensor.slot, Catalog::RowOf(tensor.id));
    predictor_.Created(name, tensor.size, &tensor.logical, now_);
    std::vector<Predictor::Change> changes;
    predictor_.FollowCreate(tensor, slots_, now_, &changes);
    Write(changes);
    return tensor;
  }
  std::vector<TensorRow*> CreateAndPut(uint32_t count) {
    std::vector<TensorRow*> tensors;
    for (uint32_t i = 1; i <= count; ++i) tensors.push_back(&Create(NameId{i}));
    for (TensorRow* tensor : tensors) Put(*tensor);
    return tensors;
  }
  std::optional<bool> Get(TensorRow& tensor) {
    now_ += milliseconds(1);
    const auto came_true = predictor_.Got(&tensor.logical, now_);
    tensor.in_use = true;
    tensor.correlated = false;
    std::vector<Predictor::Change> changes;
    predictor_.FollowGet(tensor, slots_, now_, &changes);
    Write(changes);
    return came_true;
  }
  void Put(TensorRow& tensor, const NextUse& hint = {}) {
    tensor.in_use = false;
    tensor.Expect(predictor_.Put(tensor.id, &tensor.logical, hint, now_));
  }
  std::optional<bool> Use(TensorRow& tensor) {
    const auto came_true = Get(tensor);
    Put(tensor);
    return came_true;
  }
  // As planned by its client: iteration by iteration the same.
  void Iterate(const std::vector<TensorRow*>& tensors, int times) {
    for (int i = 0; i < times; ++i) {
      predictor_.Step();
      for (TensorRow* tensor : tensors) Use(*tensor);
    }
  }

  // They belong together, but come at no regular distance.
  std::vector<TensorRow*> UseTogether(uint32_t count, TensorRow& other) {
    const auto tensors = CreateAndPut(count);
    for (const int pause : {2, 40, 9, 70, 20}) {
      for (TensorRow* tensor : tensors) Use(*tensor);
      for (int i = 0; i < pause; ++i) Use(other);
    }
    return tensors;
  }

  static std::ptrdiff_t ToldOf(const TensorRow& tensor,
                               const std::vector<Predictor::Change>& changes) {
    return std::count_if(changes.begin(), changes.end(),
                         [&](const Predictor::Change& one) { return one.tensor == tensor.id; });
  }
  static int64_t Nanoseconds(Tick tick) { return tick.time_since_epoch().count(); }
  static NextUse At(Tick when) { return {.kind = NextUse::Kind::kAt, .at = when}; }
  static NextUse Order(int64_t order) { return {.kind = NextUse::Kind::kOrder, .order = order}; }

  Catalog catalog_;
  TensorSlots slots_;
  Predictor predictor_;
  Tick now_{milliseconds(1000)};

 private:
  void Write(const std::vector<Predictor::Change>& changes) {
    for (const auto& [id, use] : changes) catalog_.Find(id)->Expect(use);
  }
};

class HintsAloneTest : public PredictorTest {
 protected:
  HintsAloneTest() : PredictorTest({.learn = false, .heuristics = {}}) {}
};
class WithoutCorrelationTest : public PredictorTest {
 protected:
  WithoutCorrelationTest() : PredictorTest(Options()) {}
  static Predictor::Options Options() {
    Predictor::Options options;
    options.heuristics.LeaveOut(Heuristic::kCorrelation);
    return options;
  }
};

TEST_F(PredictorTest, VirtualTimeStandsWhileTheClientWaits) {
  const Tick begin = now_;
  EXPECT_EQ(predictor_.VirtualTime(begin), begin);
  predictor_.BeginWait(begin);
  predictor_.BeginWait(begin + milliseconds(1));
  predictor_.EndWait(begin + milliseconds(2));
  EXPECT_EQ(predictor_.waits(), 1u);
  EXPECT_EQ(predictor_.VirtualTime(begin + milliseconds(5)), begin);
  predictor_.EndWait(begin + milliseconds(5));
  EXPECT_EQ(predictor_.VirtualTime(begin + milliseconds(7)), begin + milliseconds(2));
}

TEST_F(PredictorTest, AHintedTimeIsKeptInVirtualTime) {
  TensorRow& a = Create(NameId{1});
  predictor_.BeginWait(now_);
  now_ += milliseconds(10);
  predictor_.EndWait(now_);
  Put(a, At(now_ + milliseconds(5)));
  EXPECT_EQ(a.use_kind, UseKind::kAt);
  EXPECT_EQ(a.use_key, Nanoseconds(now_ - milliseconds(5)));
  EXPECT_EQ(predictor_.UntilUse(a, now_), milliseconds(5));
  EXPECT_EQ(predictor_.UntilUse(a, now_ + milliseconds(9)), Duration{0});
}

TEST_F(PredictorTest, AHintIsBelievedBeforeWhatWasLearned) {
  const auto tensors = CreateAndPut(3);
  Iterate(tensors, 3);
  Get(*tensors[0]);
  Put(*tensors[0], Order(7));
  EXPECT_EQ(tensors[0]->use_kind, UseKind::kOrder);
  EXPECT_EQ(tensors[0]->use_key, 7);
  EXPECT_FALSE(tensors[0]->predicted);
  Get(*tensors[1]);
  Put(*tensors[1], {.kind = NextUse::Kind::kNever});
  EXPECT_TRUE(tensors[1]->never);
  EXPECT_EQ(tensors[1]->use_kind, UseKind::kUnknown);
}

TEST_F(HintsAloneTest, NothingIsPredicted) {
  const auto tensors = CreateAndPut(3);
  Iterate(tensors, 3);
  for (const TensorRow* tensor : tensors) EXPECT_EQ(tensor->use_kind, UseKind::kUnknown);
  EXPECT_EQ(tensors[2]->use_key, -Nanoseconds(now_));
  EXPECT_EQ(tensors[2]->logical.gets, 3);
}

TEST_F(PredictorTest, WhatWasPutLastIsExpectedFirstBeforeAnythingIsKnown) {
  const auto tensors = CreateAndPut(2);
  Use(Create(NameId{3}));
  Put(*tensors[0]);
  EXPECT_EQ(tensors[0]->use_kind, UseKind::kLearned);
  EXPECT_TRUE(Forecast::IsAssumed(tensors[0]->use_key));
  EXPECT_LT(tensors[0]->use_key, tensors[1]->use_key);
  EXPECT_EQ(predictor_.UntilUse(*tensors[0], now_), Duration{0});
}

TEST_F(WithoutCorrelationTest, TheDistanceToTheNextUseIsLearned) {
  const auto tensors = CreateAndPut(4);
  Iterate(tensors, 3);
  const int64_t logical_time = predictor_.forecast().logical_time();
  EXPECT_EQ(tensors[3]->use_kind, UseKind::kLearned);
  EXPECT_EQ(tensors[3]->use_key, logical_time + 4);
  EXPECT_GT(predictor_.ConfidenceIn(*tensors[3]), 0.5);
  EXPECT_NEAR(Milliseconds(predictor_.UntilUse(*tensors[3], now_)), 4, 0.5);
  EXPECT_EQ(Get(*tensors[0]), true);
}

TEST_F(WithoutCorrelationTest, ThatItIsFreedThenIsLearnedToo) {
  bool dies = false;
  for (int i = 0; i < 4; ++i) {
    predictor_.Step();
    TensorRow& tensor = Create(NameId{1});
    Put(tensor);
    dies = tensor.dies;
    for (int use = 0; use < 4; ++use) Use(Create(NameId{2}));
    predictor_.Freed(tensor.name, tensor.size, &tensor.logical);
  }
  EXPECT_TRUE(dies);
}

TEST_F(WithoutCorrelationTest, WhatIsLearnedBesideHintsIsTranslatedIntoTheirScale) {
  const auto tensors = CreateAndPut(4);
  for (int64_t i = 0; i < 6; ++i) {
    predictor_.Step();
    for (size_t t = 0; t < 4; ++t) {
      Get(*tensors[t]);
      Put(*tensors[t], t == 3 ? NextUse{} : Order(10 * (4 * (i + 1) + static_cast<int64_t>(t))));
    }
  }
  // The one without a hint comes between the third of the last iteration and of the next.
  EXPECT_TRUE(tensors[3]->predicted);
  EXPECT_EQ(tensors[3]->use_kind, UseKind::kOrder);
  EXPECT_NEAR(static_cast<double>(tensors[3]->use_key),
              static_cast<double>(tensors[2]->use_key) + 10, 5);
}

TEST_F(WithoutCorrelationTest, APredictionThatDoesNotComeTrueExpires) {
  const auto tensors = CreateAndPut(4);
  Iterate(tensors, 3);
  ASSERT_EQ(tensors[3]->use_kind, UseKind::kLearned);
  const Tick put = now_;
  for (int i = 0; i < 40; ++i) Use(*tensors[0]);
  EXPECT_EQ(tensors[3]->use_kind, UseKind::kUnknown);
  // As idle as it was.
  EXPECT_NEAR(Milliseconds(Tick(Duration(-tensors[3]->use_key)) - put), 0, 5);
}

TEST_F(PredictorTest, WhatFollowedIsExpectedToFollowAgain) {
  const auto tensors = UseTogether(3, Create(NameId{9}));
  ASSERT_FALSE(tensors[1]->correlated);
  Use(*tensors[0]);
  EXPECT_TRUE(tensors[1]->correlated);
  EXPECT_EQ(tensors[1]->use_kind, UseKind::kLearned);
  EXPECT_EQ(tensors[1]->use_key, predictor_.forecast().logical_time() + 1);
  EXPECT_EQ(tensors[2]->use_key, predictor_.forecast().logical_time() + 2);
  EXPECT_GT(predictor_.ConfidenceIn(*tensors[1]), 0.5);
  EXPECT_FALSE(tensors[0]->correlated);
}

TEST_F(PredictorTest, WhatDoesNotFollowIsKnownAsBefore) {
  TensorRow& other = Create(NameId{9});
  const auto tensors = UseTogether(3, other);
  const ExpectedUse before = tensors[1]->expected();
  Use(*tensors[0]);
  ASSERT_TRUE(tensors[1]->correlated);
  for (int i = 0; i < 6; ++i) Use(other);
  EXPECT_FALSE(tensors[1]->correlated);
  EXPECT_EQ(tensors[1]->use_kind, before.kind);
  EXPECT_EQ(tensors[1]->use_key, before.key);
}

TEST_F(PredictorTest, WhatWasMadeInARowIsExpectedInARow) {
  std::vector<TensorRow*> tensors;
  for (uint32_t i = 1; i <= 8; ++i) tensors.push_back(&Create(NameId{i}));
  for (TensorRow* tensor : tensors) Put(*tensor);
  Use(*tensors[0]);
  EXPECT_TRUE(tensors[1]->correlated);
  EXPECT_LT(tensors[1]->use_key, tensors[2]->use_key);
}

TEST_F(PredictorTest, OfATensorThatIsExpectedTwiceOneUseIsTold) {
  TensorRow& other = Create(NameId{9});
  const auto tensors = CreateAndPut(3);
  for (const int pause : {2, 40, 9, 70, 20}) {
    for (const size_t i : {0, 1, 2, 1}) Use(*tensors[i]);
    for (int i = 0; i < pause; ++i) Use(other);
  }
  std::vector<Predictor::Change> changes;
  predictor_.Got(&tensors[0]->logical, now_);
  predictor_.FollowGet(*tensors[0], slots_, now_, &changes);
  EXPECT_EQ(ToldOf(*tensors[2], changes), 1);
  EXPECT_EQ(ToldOf(*tensors[1], changes), 1);
}

TEST_F(WithoutCorrelationTest, NothingIsExpectedForWhatFollowed) {
  const auto tensors = CreateAndPut(3);
  for (int i = 0; i < 4; ++i) {
    for (TensorRow* tensor : tensors) Use(*tensor);
  }
  for (const TensorRow* tensor : tensors) EXPECT_FALSE(tensor->correlated);
}

}  // namespace
}  // namespace ravenstore::core
