#include "core/execution/tensor_words.h"

#include <gtest/gtest.h>

#include <set>
#include <vector>

#include "tests/core/execution/word_backend.h"

namespace ravenstore::core {
namespace {

using plan::Unit;

constexpr Bytes kPage = MiB(2);

// Tensor 0 is in pages 0 and 1, tensor 1 in pages 1 and 2; all are resident.
class TensorWordsTest : public testing::Test {
 protected:
  TensorWordsTest()
      : books_({.limits = {.page = kPage, .pages = 3, .pools = {{}}}, .coming_most = kPage}),
        tensors_(kPage),
        words_(&backend_, books_, &tensors_) {
    books_.Ensure({0, 3});
    for (TensorNumber tensor : {0u, 1u}) {
      const plan::UnitSpan units{2 * tensor, 2};
      tensors_.Place(tensor, units, MiB(1), kPage);
      for (uint32_t i = 0; i < units.count; ++i) {
        books_.Pin(units[i]);
        if (books_[units[i]].IsResident()) continue;
        books_.StartMap({.unit = units[i], .source = plan::PageSupply::Source::kNeverUsed});
        books_.FinishMap(units[i]);
      }
      tensors_.Begin(tensor);
    }
    books_.TakeArrivals(&arrivals_);
  }

  WordBackend backend_;
  PageBooks books_;
  PageTensors tensors_;
  TensorWords words_;
  std::vector<PageBooks::Arrival> arrivals_;
};

TEST_F(TensorWordsTest, AllWordsOfAUnitAreRevokedOrNone) {
  const Unit shared = 2;
  EXPECT_EQ(words_.Revoke(std::span(&shared, 1)), std::nullopt);
  EXPECT_EQ(backend_.away, std::set<TensorNumber>({0, 1}));
  words_.Publish(std::span(&shared, 1));
  EXPECT_TRUE(backend_.away.empty());
  backend_.in_use = {1};
  EXPECT_EQ(words_.Revoke(std::span(&shared, 1)), shared);
  EXPECT_TRUE(backend_.away.empty());
}

TEST_F(TensorWordsTest, OfSeveralUnitsOneInUseUndoesAll) {
  const std::vector<Unit> units = {0, 4};
  backend_.in_use = {1};
  EXPECT_EQ(words_.Revoke(units), Unit{4});
  EXPECT_TRUE(backend_.away.empty());
}

TEST_F(TensorWordsTest, ACallIsGrantedWhereAllOfItsTensorIsResident) {
  const Unit first = 0;
  words_.Revoke(std::span(&first, 1));
  words_.Wait(0);
  words_.Arrive(arrivals_);
  EXPECT_EQ(backend_.granted, std::vector<TensorNumber>({0}));
  EXPECT_EQ(backend_.away, std::set<TensorNumber>({0}));  // the grant says that it is resident
  EXPECT_FALSE(words_.Waits(0));
}

TEST_F(TensorWordsTest, WaitingCallsAreTakenByTheirUnits) {
  words_.Wait(0);
  words_.Wait(1);
  EXPECT_EQ(words_.TakeWaiting(4), std::vector<TensorNumber>({1}));
  EXPECT_TRUE(words_.Waits(0));
}

}  // namespace
}  // namespace ravenstore::core
