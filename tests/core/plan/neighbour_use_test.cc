#include "core/plan/neighbour_use.h"

#include <gtest/gtest.h>

#include "tests/core/plan/seeds.h"

namespace ravenstore::core::plan {
namespace {

constexpr Bytes kSize = KiB(512);  // four in a page
constexpr TensorIndex kTensors = 64;

// A client that holds a quarter of its 64 small tensors.
class NeighbourUseTest : public testing::Test {
 protected:
  void CreateAll() {
    for (TensorIndex i = 0; i < kTensors; ++i) use_.Created(i, kSize, true);
  }
  void GetInOrder() {
    for (TensorIndex i = 0; i < kTensors; ++i) use_.Got(i, kSize);
  }
  // One tensor of each page.
  void GetEveryFourth(TensorIndex first) {
    for (TensorIndex i = first; i < kTensors; i += 4) use_.Got(i, kSize);
  }

  NeighbourUse use_{MiB(2), MiB(8)};
};

TEST_F(NeighbourUseTest, WithoutGetsSlotsBeginWhereTheDeviceIsFull) {
  for (TensorIndex i = 0; i < 15; ++i) use_.Created(i, kSize, true);
  EXPECT_FALSE(use_.PreferSlots());
  use_.Created(15, kSize, true);
  EXPECT_TRUE(use_.PreferSlots());
}

TEST_F(NeighbourUseTest, NeighboursThatAreUsedInTurnSharePages) {
  CreateAll();
  GetInOrder();
  EXPECT_FALSE(use_.PreferSlots());
}

TEST_F(NeighbourUseTest, TensorsThatAreUsedWithoutTheirNeighboursHaveSlots) {
  CreateAll();
  for (const TensorIndex first : {0, 1, 2, 3, 0, 1}) GetEveryFourth(first);
  EXPECT_TRUE(use_.PreferSlots());
}

TEST_F(NeighbourUseTest, TheLatestUseDecides) {
  CreateAll();
  for (const TensorIndex first : {0, 1, 2, 3, 0, 1}) GetEveryFourth(first);
  ASSERT_TRUE(use_.PreferSlots());
  for (int i = 0; i < 3; ++i) GetInOrder();
  EXPECT_FALSE(use_.PreferSlots());
}

TEST_F(NeighbourUseTest, AnotherGetOfTheSameTensorIsNoUseOfItsNeighbours) {
  CreateAll();
  for (int i = 0; i < 40; ++i) use_.Got(0, kSize);
  EXPECT_TRUE(use_.PreferSlots());
}

TEST_F(NeighbourUseTest, LargeTensorsOnlyEndIntervals) {
  CreateAll();
  use_.Created(kTensors, MiB(8), false);
  for (TensorIndex i = 0; i < 4; ++i) {
    use_.Got(i, kSize);
    use_.Got(kTensors, MiB(8));  // the page of the small ones has left
  }
  EXPECT_TRUE(use_.PreferSlots());
}

// Two are in a page, with parts of others.
TEST(NeighbourUseOfBordersTest, TensorsThatAreInAPageInPartAreNeighbours) {
  constexpr Bytes kPart = KiB(800);
  NeighbourUse use(MiB(2), MiB(8));
  for (TensorIndex i = 0; i < 15; ++i) use.Created(i, kPart, true);
  for (TensorIndex i = 0; i < 45; ++i) use.Got(i % 15, kPart);
  EXPECT_FALSE(use.PreferSlots());
  for (TensorIndex i = 0; i < 60; ++i) use.Got(i % 5 * 3, kPart);
  EXPECT_TRUE(use.PreferSlots());
}

TEST_F(NeighbourUseTest, AGroupThatDiesEndsItsInterval) {
  CreateAll();
  for (TensorIndex i = kTensors; i-- > 0;) {
    if (i % 4 == 3) use_.Got(i, kSize);
    use_.Freed(i);
  }
  EXPECT_TRUE(use_.PreferSlots());
}

// Activations: each tensor is created, read by the next kernel, and read again in reverse order.
TEST_F(NeighbourUseTest, TensorsOfATrainingStepSharePages) {
  TensorIndex next = 0;
  for (int step = 0; step < 3; ++step) {
    const TensorIndex first = next;
    for (; next < first + kTensors; ++next) {
      use_.Created(next, kSize, true);
      use_.Got(next, kSize);
    }
    for (TensorIndex i = next; i-- > first;) {
      use_.Got(i, kSize);
      use_.Freed(i);
    }
    EXPECT_FALSE(use_.PreferSlots());
  }
}

TEST_F(NeighbourUseTest, BeforeAnIntervalHasEndedOnlySmallerTensorsHaveSlots) {
  CreateAll();
  EXPECT_EQ(use_.LargestSlot(), KiB(512));
  for (const TensorIndex first : {0, 1, 2, 3, 0, 1}) GetEveryFourth(first);
  EXPECT_EQ(use_.LargestSlot(), MiB(2));
  for (int i = 0; i < 3; ++i) GetInOrder();
  EXPECT_EQ(use_.LargestSlot(), Bytes{});
}

TEST_F(NeighbourUseTest, RandomReadsOfManyTensorsHaveSlots) {
  ForSeeds(5, [](Random& random) {
    NeighbourUse use(MiB(2), MiB(8));
    for (TensorIndex i = 0; i < 4096; ++i) use.Created(i, KiB(16), true);
    for (int i = 0; i < 20'000; ++i) use.Got(static_cast<TensorIndex>(random.Below(4096)), KiB(16));
    EXPECT_TRUE(use.PreferSlots());
  });
}

}  // namespace
}  // namespace ravenstore::core::plan
