#include "device/chunks.h"

#include <gtest/gtest.h>

#include "tests/device/testing.h"

namespace ravenstore::device {
namespace {

using core::ErrorCode;
using core::KiB;
using Made = core::Result<std::shared_ptr<int>>;

Made Seven() {
  return std::make_shared<int>(7);
}

TEST(ChunkTableTest, KeepsWhatWasPlaced) {
  ChunkTable<int> table(KiB(64), KiB(4));
  ASSERT_OK(table.Place(KiB(8), KiB(4), Seven));
  ASSERT_OK(table.Find(KiB(8)));
  EXPECT_EQ(**table.Find(KiB(8)), 7);
  EXPECT_CODE(table.Find(KiB(4)), ErrorCode::kNotFound);
}

TEST(ChunkTableTest, RefusesOverlapsOnEitherSide) {
  ChunkTable<int> table(KiB(64), KiB(4));
  ASSERT_OK(table.Place(KiB(16), KiB(16), Seven));
  for (const uint64_t at : {4, 16, 20, 28}) {
    EXPECT_CODE(table.Place(KiB(at), KiB(16), Seven), ErrorCode::kInvalidArgument);
  }
  ASSERT_OK(table.Place(KiB(0), KiB(16), Seven));
  ASSERT_OK(table.Place(KiB(32), KiB(32), Seven));
}

TEST(ChunkTableTest, ARangeIsClaimedWhileItIsFilled) {
  ChunkTable<int> table(KiB(64), KiB(4));
  ASSERT_OK(table.Place(KiB(0), KiB(8), [&]() -> Made {
    EXPECT_CODE(table.Place(KiB(4), KiB(4), Seven), ErrorCode::kInvalidArgument);
    EXPECT_CODE(table.Find(KiB(0)), ErrorCode::kNotFound);
    EXPECT_CODE(table.Remove(KiB(0), [](int&) { return core::Ok(); }), ErrorCode::kNotFound);
    return Seven();
  }));
}

TEST(ChunkTableTest, AFailureToFillFreesTheRange) {
  ChunkTable<int> table(KiB(64), KiB(4));
  const auto fail = []() -> Made { return core::Error{ErrorCode::kDevice, "no"}; };
  EXPECT_CODE(table.Place(KiB(0), KiB(8), fail), ErrorCode::kDevice);
  ASSERT_OK(table.Place(KiB(0), KiB(8), Seven));
}

TEST(ChunkTableTest, AFailureToClearKeepsTheRangeOutOfUse) {
  ChunkTable<int> table(KiB(64), KiB(4));
  ASSERT_OK(table.Place(KiB(0), KiB(8), Seven));
  const auto fail = [](int&) -> core::Status { return core::Error{ErrorCode::kDevice, "no"}; };
  EXPECT_CODE(table.Remove(KiB(0), fail), ErrorCode::kDevice);
  EXPECT_CODE(table.Place(KiB(0), KiB(8), Seven), ErrorCode::kInvalidArgument);
  EXPECT_CODE(table.Remove(KiB(0), fail), ErrorCode::kNotFound);
}

TEST(ChunkTableTest, DrainVisitsEveryChunkOnce) {
  ChunkTable<int> table(KiB(64), KiB(4));
  ASSERT_OK(table.Place(KiB(0), KiB(8), Seven));
  ASSERT_OK(table.Place(KiB(32), KiB(8), Seven));
  int visits = 0;
  table.Drain([&](core::Bytes, int& chunk) { visits += chunk == 7 ? 1 : 100; });
  table.Drain([&](core::Bytes, int&) { visits += 100; });
  EXPECT_EQ(visits, 2);
}

}  // namespace
}  // namespace ravenstore::device
