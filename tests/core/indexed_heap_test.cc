#include "core/indexed_heap.h"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <vector>

namespace ravenstore::core {
namespace {

struct Rows {
  std::vector<int64_t> keys;
  std::vector<uint32_t> positions;
};

struct Traits {
  Rows* rows;
  int64_t Key(uint32_t row) const { return rows->keys[row]; }
  uint32_t& Position(uint32_t row) const { return rows->positions[row]; }
};

void ExpectHeap(const IndexedHeap& heap, const Rows& rows) {
  for (size_t place = 0; place < heap.size(); ++place) {
    const uint32_t row = heap[place];
    ASSERT_EQ(rows.positions[row], place);
    if (place > 0) {
      ASSERT_GE(rows.keys[heap[(place - 1) / 4]], rows.keys[row]);
    }
  }
}

TEST(IndexedHeapTest, GivesKeysLargestFirst) {
  Rows rows{{3, 1, 4, 1, 5, 9, 2, 6}, std::vector<uint32_t>(8, kNotInHeap)};
  IndexedHeap heap;
  for (uint32_t row = 0; row < 8; ++row) heap.Insert(row, Traits{&rows});
  std::vector<int64_t> order;
  while (!heap.empty()) {
    order.push_back(rows.keys[heap[0]]);
    heap.Erase(heap[0], Traits{&rows});
  }
  EXPECT_EQ(order, (std::vector<int64_t>{9, 6, 5, 4, 3, 2, 1, 1}));
}

TEST(IndexedHeapTest, ForgetsThePositionOfWhatIsTakenOut) {
  Rows rows{{1, 2}, std::vector<uint32_t>(2, kNotInHeap)};
  IndexedHeap heap;
  heap.Insert(0, Traits{&rows});
  heap.Insert(1, Traits{&rows});
  heap.Erase(1, Traits{&rows});
  EXPECT_EQ(rows.positions[1], kNotInHeap);
  EXPECT_EQ(heap[0], 0u);
}

TEST(IndexedHeapTest, StaysAHeapUnderRandomInsertsAndErases) {
  constexpr uint32_t kRows = 200;
  const uint32_t seed = 20240611;
  SCOPED_TRACE(seed);
  std::mt19937 random(seed);
  Rows rows{std::vector<int64_t>(kRows), std::vector<uint32_t>(kRows, kNotInHeap)};
  IndexedHeap heap;
  size_t in = 0;
  for (int step = 0; step < 20000; ++step) {
    const uint32_t row = random() % kRows;
    if (rows.positions[row] == kNotInHeap) {
      rows.keys[row] = random() % 50;
      heap.Insert(row, Traits{&rows});
      ++in;
    } else {
      heap.Erase(row, Traits{&rows});
      --in;
    }
    ASSERT_EQ(heap.size(), in);
    ASSERT_NO_FATAL_FAILURE(ExpectHeap(heap, rows));
  }
}

}  // namespace
}  // namespace ravenstore::core
