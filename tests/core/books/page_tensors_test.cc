#include "core/books/page_tensors.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

namespace ravenstore::core {
namespace {

std::vector<TensorNumber> In(const PageTensors& tensors, plan::Unit unit) {
  const auto found = tensors.In(unit);
  std::vector<TensorNumber> sorted(found.begin(), found.end());
  std::sort(sorted.begin(), sorted.end());
  return sorted;
}

TEST(PageTensorsTest, ATensorsBytesAreInItsUnits) {
  PageTensors tensors(MiB(2));
  tensors.Place(0, {4, 3}, MiB(2) - KiB(512), MiB(2) + KiB(513));
  EXPECT_EQ(tensors.BytesIn(0, 0), KiB(512));
  EXPECT_EQ(tensors.BytesIn(0, 1), MiB(2));
  EXPECT_EQ(tensors.BytesIn(0, 2), KiB(1));
}

TEST(PageTensorsTest, NeighboursShareABorderPageUntilTheyEnd) {
  PageTensors tensors(MiB(2));
  tensors.Place(0, {0, 2}, Bytes{}, MiB(3));
  tensors.Place(1, {2, 2}, MiB(1), MiB(2));
  EXPECT_TRUE(In(tensors, 2).empty());  // placed, but no bytes yet
  tensors.Begin(0);
  tensors.Begin(1);
  EXPECT_EQ(In(tensors, 0), std::vector<TensorNumber>({0}));
  EXPECT_EQ(In(tensors, 2), std::vector<TensorNumber>({0, 1}));
  EXPECT_EQ(In(tensors, 4), std::vector<TensorNumber>({1}));
  tensors.End(0);
  EXPECT_EQ(In(tensors, 2), std::vector<TensorNumber>({1}));
  EXPECT_TRUE(In(tensors, 0).empty());
  tensors.Remove(0);
  EXPECT_EQ(tensors[0].life, PageTensors::Life::kNone);
  EXPECT_TRUE(tensors.In(1000).empty());
}

TEST(PageTensorsTest, TensorsThatCallsHoldBeginUntilTheyLiveOrFail) {
  PageTensors tensors(MiB(2));
  const auto beginning = [&tensors] {
    const auto found = tensors.beginning();
    std::vector<TensorNumber> sorted(found.begin(), found.end());
    std::sort(sorted.begin(), sorted.end());
    return sorted;
  };
  for (const TensorNumber tensor : {0U, 1U, 2U, 3U}) {
    tensors.Place(tensor, {0, 1}, KiB(4) * tensor, KiB(4));
    tensors.Hold(tensor);
  }
  EXPECT_EQ(beginning(), std::vector<TensorNumber>({0, 1, 2, 3}));
  tensors.Begin(1);
  tensors.Remove(0);
  tensors.AbortBegin(3);
  EXPECT_EQ(beginning(), std::vector<TensorNumber>({2}));
  EXPECT_EQ(In(tensors, 0), std::vector<TensorNumber>({1}));
  // A get of a tensor that has ended begins it again.
  tensors.EndHold(3);
  tensors.Hold(3);
  EXPECT_EQ(beginning(), std::vector<TensorNumber>({2, 3}));
  tensors.Clear();
  EXPECT_TRUE(beginning().empty());
  EXPECT_TRUE(tensors.In(0).empty());
  EXPECT_EQ(tensors.size(), 0u);
  EXPECT_EQ(tensors.held(), Bytes{});
}

TEST(PageTensorsTest, ATensorBeginsWhereOthersHaveNotEndedYet) {
  PageTensors tensors(MiB(2));
  tensors.Place(0, {2, 1}, Bytes{}, MiB(1));
  tensors.Place(1, {2, 2}, MiB(1), MiB(2));
  for (const TensorNumber tensor : {0U, 1U}) tensors.Begin(tensor);
  // Their frees were called; the stream comes there later.
  tensors.Place(2, {0, 4}, Bytes{}, MiB(8));
  tensors.Begin(2);
  EXPECT_EQ(In(tensors, 2), std::vector<TensorNumber>({0, 1, 2}));
  tensors.End(0);
  tensors.End(1);
  for (const plan::Unit unit : {0U, 2U, 4U, 6U})
    EXPECT_EQ(In(tensors, unit), std::vector<TensorNumber>({2}));
  tensors.End(2);
  for (const plan::Unit unit : {0U, 2U, 4U, 6U}) EXPECT_TRUE(In(tensors, unit).empty());
}

TEST(PageTensorsTest, TheBytesThatCallsHoldAreCounted) {
  PageTensors tensors(MiB(2));
  tensors.Place(0, {0, 2}, Bytes{}, MiB(3));
  tensors.Place(1, {2, 2}, MiB(1), MiB(2));
  tensors.Hold(0);
  tensors.Hold(1);
  EXPECT_EQ(tensors.held(), MiB(5));
  tensors.EndHold(0);
  EXPECT_FALSE(tensors[0].pinned);
  EXPECT_EQ(tensors.held(), MiB(2));
}

TEST(PageTensorsTest, AUnitHasTheHighestPriorityOfItsTensors) {
  PageTensors tensors(MiB(2));
  tensors.Place(0, {0, 1}, Bytes{}, MiB(1));
  tensors.Place(1, {0, 1}, MiB(1), MiB(1));
  tensors.Begin(0);
  tensors.Begin(1);
  EXPECT_FALSE(tensors.has_priorities());
  tensors.SetPriority(0, Priority::kLow);
  EXPECT_TRUE(tensors.has_priorities());
  EXPECT_EQ(tensors.PriorityIn(0), Priority::kNormal);
  tensors.SetPriority(1, Priority::kLow);
  EXPECT_EQ(tensors.PriorityIn(0), Priority::kLow);
  tensors.SetPriority(1, Priority::kHigh);
  EXPECT_EQ(tensors.PriorityIn(0), Priority::kHigh);
  EXPECT_EQ(tensors.PriorityIn(2), Priority::kNormal) << "nothing lives there";
}

TEST(PageTensorsTest, ATensorThatMovesToASlotIsOnlyThere) {
  PageTensors tensors(MiB(2));
  tensors.Place(0, {0, 2}, MiB(2) - KiB(64), KiB(256));
  tensors.Begin(0);
  tensors.Move(0, {9, 1, 8});
  EXPECT_TRUE(In(tensors, 0).empty());
  EXPECT_TRUE(In(tensors, 2).empty());
  EXPECT_EQ(In(tensors, 9), std::vector<TensorNumber>({0}));
  EXPECT_EQ(tensors.BytesIn(0, 0), KiB(256));
  EXPECT_TRUE(tensors[0].lives());
}

}  // namespace
}  // namespace ravenstore::core
