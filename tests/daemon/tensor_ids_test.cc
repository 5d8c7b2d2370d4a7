#include "daemon/tensor_ids.h"

#include <gtest/gtest.h>

namespace ravenstore::daemon {
namespace {

TEST(TensorIdsTest, AnIdNamesItsTensorUntilItIsRemoved) {
  TensorIds ids;
  EXPECT_FALSE(ids.Find(core::TensorId{7}));
  const core::TensorId id = ids.Add({core::ClientId{3}, core::SlotId{5}});
  EXPECT_NE(id, core::kNoTensor);
  ASSERT_TRUE(ids.Find(id));
  EXPECT_EQ(ids.Find(id)->client, core::ClientId{3});
  EXPECT_EQ(ids.Find(id)->slot, core::SlotId{5});
  ids.Remove(id);
  EXPECT_FALSE(ids.Find(id));
}

TEST(TensorIdsTest, AnIdIsNeverAnotherTensors) {
  TensorIds ids;
  core::TensorId before = ids.Add({});
  for (int i = 0; i < 3000; ++i) {
    ids.Remove(before);
    const core::TensorId id = ids.Add({core::ClientId{1}, core::SlotId{2}});
    EXPECT_FALSE(ids.Find(before));
    EXPECT_TRUE(ids.Find(id));
    before = id;
  }
  EXPECT_FALSE(ids.Find(core::kNoTensor));
}

}  // namespace
}  // namespace ravenstore::daemon
