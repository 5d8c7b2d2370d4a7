#include "core/plan/tensor_indexes.h"

#include <gtest/gtest.h>

namespace ravenstore::core::plan {
namespace {

TEST(TensorIndexesTest, ARowThatIsReusedHasAnotherIndex) {
  CallHistory history;
  TensorIndexes indexes;
  const TensorIndex first = indexes.Add(5, history);
  history.Add({CallKind::kCreate, false, first, {}}, MiB(1));
  EXPECT_EQ(indexes.Of(5), first);
  history.Add({CallKind::kFree, false, first, {}}, MiB(1));
  indexes.Remove(5);
  EXPECT_NE(indexes.Add(5, history), first);
  EXPECT_EQ(indexes.end(), 2u);
}

TEST(TensorIndexesTest, AnIndexIsReusedWhenTheHistoryHasForgottenIt) {
  CallHistory history;
  TensorIndexes indexes;
  for (CallNumber i = 0; i < 2 * CallHistory::kCallsMax; ++i) {
    const TensorIndex tensor = indexes.Add(0, history);
    ASSERT_FALSE(history.Knows(tensor));
    history.Add({CallKind::kCreate, false, tensor, {}}, MiB(1));
    history.Add({CallKind::kFree, false, tensor, {}}, MiB(1));
    indexes.Remove(0);
  }
  EXPECT_LE(indexes.end(), CallHistory::kCallsMax / 2 + 2);
}

}  // namespace
}  // namespace ravenstore::core::plan
