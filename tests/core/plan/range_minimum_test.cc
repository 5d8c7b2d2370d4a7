#include "core/plan/range_minimum.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "tests/core/plan/seeds.h"

namespace ravenstore::core::plan {
namespace {

TEST(RangeMinimumTest, NothingLiesBeyondTheValues) {
  RangeMinimum tree;
  EXPECT_EQ(tree.Least(0, 3), RangeMinimum::kEmpty);
  tree.Assign({5, 3, 4});
  EXPECT_EQ(tree.Least(0, 99), 3);
  EXPECT_EQ(tree.Least(3, 99), RangeMinimum::kEmpty);
  tree.Add(1, 99, 10);
  EXPECT_EQ(tree.Least(0, 2), 5);
  EXPECT_EQ(tree.Least(2, 1), RangeMinimum::kEmpty);
}

TEST(RangeMinimumTest, AgreesWithAnArray) {
  ForSeeds(50, [](Random& random) {
    std::vector<int64_t> values(1 + random.Below(70));
    for (int64_t& value : values) value = static_cast<int64_t>(random.Below(100));
    RangeMinimum tree;
    tree.Assign(values);
    for (int i = 0; i < 200; ++i) {
      const size_t first = random.Below(values.size());
      const size_t last = first + random.Below(values.size() - first);
      const auto begin = values.begin() + static_cast<ptrdiff_t>(first);
      const auto end = values.begin() + static_cast<ptrdiff_t>(last) + 1;
      if (random.OneIn(2)) {
        const int64_t amount = static_cast<int64_t>(random.Below(41)) - 20;
        tree.Add(first, last, amount);
        for (auto value = begin; value != end; ++value) *value += amount;
      } else {
        ASSERT_EQ(tree.Least(first, last), *std::min_element(begin, end));
      }
    }
  });
}

}  // namespace
}  // namespace ravenstore::core::plan
