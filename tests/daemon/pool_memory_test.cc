#include "daemon/pool_memory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <optional>

namespace ravenstore::daemon {
namespace {

using core::Bytes;
using core::MiB;
using core::Tick;
using std::chrono::seconds;
using Part = PoolMemory::Part;

class PoolMemoryTest : public testing::Test {
 protected:
  // Other nodes' memory, in pieces of 4 MiB.
  static PoolMemory::Options Pieces() {
    return {
        .range = MiB(16), .step = MiB(4), .unit = MiB(4), .idle = seconds(10), .pause = seconds(1)};
  }
  // Idle memory of a device.
  static PoolMemory::Options Harvest() {
    return {.range = MiB(32), .step = MiB(8), .unit = MiB(2), .ahead = MiB(8)};
  }
  static void GrowAll(PoolMemory* memory) {
    while (memory->NextGrowth(MiB(64))) memory->Grown();
  }
};

TEST_F(PoolMemoryTest, OneOfFixedSizeHasAllOfItAndKeepsIt) {
  PoolMemory memory({.range = MiB(8)});
  EXPECT_EQ(memory.free(), MiB(8));
  EXPECT_FALSE(memory.NextGrowth(MiB(16)).has_value());
  EXPECT_EQ(memory.Room(), MiB(8));
  memory.Fail();
  EXPECT_EQ(memory.Room(), Bytes{});
  EXPECT_FALSE(memory.NextRelease().has_value());
}

TEST_F(PoolMemoryTest, MemoryComesByChunksUpToTheLimit) {
  PoolMemory memory(Pieces());
  memory.SetLimit(MiB(10));
  EXPECT_EQ(memory.Room(), MiB(8)) << "whole pieces";
  EXPECT_FALSE(memory.NextGrowth(Bytes{}).has_value()) << "none is wanted";
  EXPECT_EQ(memory.NextGrowth(MiB(1)), (Part{Bytes{}, MiB(4)}));
  EXPECT_FALSE(memory.NextGrowth(MiB(1)).has_value()) << "one at a time";
  EXPECT_EQ(memory.Room(), MiB(8));
  memory.Grown();
  EXPECT_EQ(memory.NextGrowth(MiB(5)), (Part{MiB(4), MiB(4)}));
  memory.Grown();
  EXPECT_FALSE(memory.NextGrowth(MiB(64)).has_value());
  EXPECT_EQ(memory.free(), MiB(8));
}

TEST_F(PoolMemoryTest, AGrowthThatFailsIsTriedAgainAfterAWhile) {
  PoolMemory memory(Pieces());
  EXPECT_TRUE(memory.NextGrowth(MiB(1)).has_value());
  memory.GrowFailed(Tick{});
  EXPECT_EQ(memory.Room(), Bytes{});
  EXPECT_FALSE(memory.NextGrowth(MiB(1)).has_value());
  EXPECT_EQ(memory.NextWake(), Tick{seconds(1)});
  memory.Advance(Tick{seconds(1)});
  EXPECT_TRUE(memory.NextGrowth(MiB(1)).has_value());
}

TEST_F(PoolMemoryTest, ARecalledChunkTakesNoCopyAndIsReleasedWhenItIsEmpty) {
  PoolMemory memory(Pieces());
  memory.SetLimit(MiB(8));
  GrowAll(&memory);
  const auto piece = *memory.Allocate(MiB(6), memory.granularity());  // of both chunks
  memory.Recall(Bytes{});
  EXPECT_TRUE(memory.IsClosed(piece));
  EXPECT_FALSE(memory.IsLost(piece));
  EXPECT_EQ(memory.free(), MiB(2));
  EXPECT_FALSE(memory.NextRelease().has_value());
  memory.Free(piece);
  EXPECT_EQ(memory.free(), MiB(4)) << "of the other chunk";
  EXPECT_EQ(memory.NextRelease(), (Part{Bytes{}, MiB(4)}));
  EXPECT_FALSE(memory.NextRelease().has_value());
  EXPECT_EQ(memory.made(), MiB(8));
  memory.Released(Bytes{});
  EXPECT_EQ(memory.made(), MiB(4));
}

TEST_F(PoolMemoryTest, AChunkThatIsKeptTakesCopiesAgain) {
  PoolMemory memory(Pieces());
  memory.SetLimit(MiB(4));
  GrowAll(&memory);
  const auto piece = *memory.Allocate(MiB(3), memory.granularity());
  memory.Recall(Bytes{});
  memory.Keep(Bytes{});
  EXPECT_FALSE(memory.IsClosed(piece));
  EXPECT_EQ(memory.free(), MiB(1));
  memory.Lose(Bytes{});
  memory.Keep(Bytes{});
  EXPECT_TRUE(memory.IsLost(piece)) << "for good";
}

TEST_F(PoolMemoryTest, WhatIsRecalledBeforeItIsThereIsNeverUsed) {
  PoolMemory memory(Pieces());
  memory.SetLimit(MiB(4));
  EXPECT_TRUE(memory.NextGrowth(MiB(1)).has_value());
  memory.Recall(Bytes{});
  memory.Grown();
  EXPECT_EQ(memory.free(), Bytes{});
  EXPECT_EQ(memory.NextRelease(), (Part{Bytes{}, MiB(4)}));
}

TEST_F(PoolMemoryTest, AHeldPieceKeepsItsChunks) {
  PoolMemory memory(Pieces());
  memory.SetLimit(MiB(4));
  GrowAll(&memory);
  const auto piece = *memory.Allocate(MiB(1), memory.granularity());
  memory.Hold(piece);
  memory.Free(piece);
  memory.Recall(Bytes{});
  EXPECT_FALSE(memory.NextRelease().has_value());
  memory.Unhold(piece);
  EXPECT_TRUE(memory.NextRelease().has_value());
}

TEST_F(PoolMemoryTest, ALowerLimitClosesTheEmptiestChunksAndAHigherOneOpensThem) {
  PoolMemory memory(Harvest());
  memory.SetLimit(MiB(16));
  GrowAll(&memory);
  const auto first = *memory.Allocate(MiB(6), memory.granularity());
  const auto second = *memory.Allocate(MiB(4), memory.granularity());  // of the second chunk
  memory.SetLimit(MiB(8));
  EXPECT_FALSE(memory.IsClosed(first));
  EXPECT_TRUE(memory.IsClosed(second));
  memory.SetLimit(MiB(16));
  EXPECT_FALSE(memory.IsClosed(second));
  EXPECT_EQ(memory.free(), MiB(6));
}

TEST_F(PoolMemoryTest, BeyondTheTargetOnlyEmptyChunksAreReleased) {
  PoolMemory memory(Pieces());
  GrowAll(&memory);
  const auto first = memory.Allocate(MiB(3), memory.granularity());
  const auto second = memory.Allocate(MiB(4), memory.granularity());
  memory.SetTarget(MiB(4));
  EXPECT_EQ(memory.NextRelease(), (Part{MiB(8), MiB(4)}));
  EXPECT_EQ(memory.NextRelease(), (Part{MiB(12), MiB(4)}));
  EXPECT_FALSE(memory.NextRelease().has_value());
  EXPECT_EQ(memory.free(), MiB(1)) << "chunks that are in use stay open";
  memory.Released(MiB(8));
  memory.Released(MiB(12));
  EXPECT_FALSE(memory.NextGrowth(MiB(8)).has_value());
  memory.Free(*second);
  EXPECT_EQ(memory.NextRelease(), (Part{MiB(4), MiB(4)})) << "copies of two chunks";
  memory.Released(MiB(4));
  memory.SetTarget(MiB(16));
  EXPECT_EQ(memory.NextGrowth(MiB(8)), (Part{MiB(4), MiB(4)}));
  memory.Free(*first);
}

TEST_F(PoolMemoryTest, IdleMemoryOfADeviceIsTakenAheadAndInPartsOfAChunk) {
  PoolMemory memory(Harvest());
  memory.SetLimit(MiB(11));
  EXPECT_EQ(memory.NextGrowth(Bytes{}), (Part{Bytes{}, MiB(8)}));
  memory.Grown();
  EXPECT_FALSE(memory.NextGrowth(Bytes{}).has_value()) << "a chunk is free";
  ASSERT_TRUE(memory.Allocate(MiB(1), memory.granularity()).has_value());
  EXPECT_EQ(memory.NextGrowth(Bytes{}), (Part{MiB(8), MiB(2)}));
}

TEST_F(PoolMemoryTest, OffsetsThatAreFreeAgainAreUsedAndStuckOnesAreNot) {
  PoolMemory memory(Harvest());
  memory.SetLimit(MiB(24));
  GrowAll(&memory);
  memory.SetLimit(MiB(8));
  const auto released = memory.NextRelease();
  const auto stuck = memory.NextRelease();
  ASSERT_TRUE(released && stuck);
  memory.Released(released->offset);
  memory.ReleaseFailed(stuck->offset);
  EXPECT_EQ(memory.stuck(), MiB(8));
  EXPECT_EQ(memory.made(), MiB(8));
  EXPECT_EQ(memory.committed(), MiB(16));
  memory.SetLimit(MiB(24));
  EXPECT_EQ(memory.NextGrowth(MiB(64)), (Part{released->offset, MiB(8)}));
}

TEST_F(PoolMemoryTest, WhatStaysEmptyForAWhileIsReturned) {
  PoolMemory memory(Pieces());
  memory.SetLimit(MiB(8));
  GrowAll(&memory);
  const auto piece = *memory.Allocate(MiB(1), memory.granularity());
  memory.Advance(Tick{seconds(10)});
  EXPECT_FALSE(memory.NextRelease().has_value());
  memory.Advance(Tick{seconds(20)});
  ASSERT_TRUE(memory.NextRelease().has_value());
  EXPECT_FALSE(memory.NextRelease().has_value());
  EXPECT_FALSE(memory.IsClosed(piece));
}

TEST_F(PoolMemoryTest, OfAPoolThatFailsAllIsLost) {
  PoolMemory memory(Pieces());
  memory.SetLimit(MiB(8));
  GrowAll(&memory);
  const auto piece = *memory.Allocate(MiB(1), memory.granularity());
  memory.Fail();
  EXPECT_TRUE(memory.IsLost(piece));
  EXPECT_FALSE(memory.Allocate(MiB(1), memory.granularity()).has_value());
  EXPECT_FALSE(memory.NextGrowth(MiB(1)).has_value());
}

}  // namespace
}  // namespace ravenstore::daemon
