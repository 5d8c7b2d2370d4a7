#include "core/extents.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <optional>
#include <random>
#include <set>
#include <vector>

namespace ravenstore::core {
namespace {

constexpr uint64_t kUnit = kExtentAlignment.count();

Bytes Units(uint64_t n) {
  return Bytes(n * kUnit);
}

TEST(ExtentMapTest, GivesNothingWithoutMemory) {
  ExtentMap map(Units(100));
  EXPECT_FALSE(map.Allocate(Units(1)).has_value());
  EXPECT_EQ(map.FreeFrom(Bytes(0)), Bytes(0));
  map.CheckInvariants();
}

TEST(ExtentMapTest, RoundsSizesUp) {
  ExtentMap map(Units(100));
  map.AddChunk(Bytes(0), Units(100));
  const auto block = map.Allocate(Bytes(1));
  ASSERT_TRUE(block);
  EXPECT_EQ(map.SizeOf(*block), Units(1));
  EXPECT_EQ(map.used(), Units(1));
  EXPECT_FALSE(map.Allocate(Bytes(0)).has_value());
}

TEST(ExtentMapTest, AnExtentSpansTwoChunks) {
  ExtentMap map(Units(100));
  map.AddChunk(Bytes(0), Units(10));
  map.AddChunk(Units(10), Units(10));
  EXPECT_EQ(map.FreeFrom(Bytes(0)), Units(20));
  EXPECT_TRUE(map.Allocate(Units(15)).has_value());
  map.CheckInvariants();
}

TEST(ExtentMapTest, TakesTheSmallestHoleThatFitsAndTheLowestOnTies) {
  ExtentMap map(Units(100));
  map.AddChunk(Bytes(0), Units(8));
  map.AddChunk(Units(20), Units(4));
  map.AddChunk(Units(40), Units(4));
  EXPECT_EQ(map.OffsetOf(*map.Allocate(Units(3))), Units(20));
  EXPECT_EQ(map.OffsetOf(*map.Allocate(Units(4))), Units(40));
  EXPECT_EQ(map.OffsetOf(*map.Allocate(Units(4))), Bytes(0));
  map.CheckInvariants();
}

TEST(ExtentMapTest, TakesAPlaceThatIsNamedIfAHoleBeginsThere) {
  ExtentMap map(Units(100));
  map.AddChunk(Bytes(0), Units(10));
  EXPECT_FALSE(map.AllocateAt(Units(2), Units(3)));  // the hole begins before
  EXPECT_FALSE(map.AllocateAt(Bytes(0), Units(11)));
  EXPECT_FALSE(map.AllocateAt(Bytes(0), Bytes(0)));
  EXPECT_FALSE(map.AllocateAt(Units(50), Units(1)));  // there is no memory
  EXPECT_FALSE(map.AllocateAt(Units(100), Units(1)));
  ASSERT_TRUE(map.AllocateAt(Bytes(0), Units(4)));
  EXPECT_FALSE(map.AllocateAt(Bytes(0), Units(1)));
  ASSERT_TRUE(map.AllocateAt(Units(4), Units(6)));
  EXPECT_EQ(map.used(), Units(10));
  map.CheckInvariants();
}

TEST(ExtentMapTest, TheMiddleOfTheLargestHoleCanBeHad) {
  ExtentMap map(Units(100));
  EXPECT_FALSE(map.AllocateInMiddle(Units(1)));
  map.AddChunk(Bytes(0), Units(4));
  map.AddChunk(Units(20), Units(11));
  EXPECT_FALSE(map.AllocateInMiddle(Bytes(0)));
  EXPECT_FALSE(map.AllocateInMiddle(Units(7)));  // 6 behind the middle
  EXPECT_EQ(map.OffsetOf(*map.AllocateInMiddle(Units(2))), Units(25));
  EXPECT_EQ(map.FreeFrom(Units(20)), Units(5));
  map.CheckInvariants();
  ExtentMap one(Units(1));
  one.AddChunk(Bytes(0), Units(1));
  EXPECT_EQ(one.OffsetOf(*one.AllocateInMiddle(Units(1))), Bytes(0));
  one.CheckInvariants();
}

TEST(ExtentMapTest, MergesFreedNeighboursOnBothSides) {
  ExtentMap map(Units(30));
  map.AddChunk(Bytes(0), Units(30));
  const auto a = *map.Allocate(Units(10));
  const auto b = *map.Allocate(Units(10));
  const auto c = *map.Allocate(Units(10));
  map.Free(a);
  map.Free(c);
  EXPECT_EQ(map.FreeFrom(Bytes(0)), Units(10));
  EXPECT_EQ(map.FreeFrom(Units(20)), Units(10));
  map.Free(b);
  EXPECT_EQ(map.FreeFrom(Bytes(0)), Units(30));
  map.CheckInvariants();
}

TEST(ExtentMapTest, ARetiredChunkIsNeitherFreeNorAbsentUntilItIsRemoved) {
  ExtentMap map(Units(30));
  map.AddChunk(Bytes(0), Units(30));
  ASSERT_TRUE(map.IsFree(Units(10), Units(10)));
  map.CloseChunk(Units(10), Units(10));
  EXPECT_TRUE(map.IsRetired(Units(10), Units(10)));
  EXPECT_EQ(map.held(), Units(20));
  EXPECT_FALSE(map.IsFree(Units(10), Units(10)));
  EXPECT_FALSE(map.Allocate(Units(11)).has_value());
  EXPECT_EQ(map.KindOf(map.At(Units(10))), ExtentMap::Kind::kRetired);
  map.CheckInvariants();
  map.RemoveChunk(Units(10), Units(10));
  EXPECT_EQ(map.KindOf(map.At(Units(10))), ExtentMap::Kind::kAbsent);
  map.CheckInvariants();
  map.AddChunk(Units(10), Units(10));
  EXPECT_EQ(map.FreeFrom(Bytes(0)), Units(30));
  map.CheckInvariants();
}

TEST(ExtentMapTest, AClosedChunkTakesNothingNewAndEmptiesAsItsExtentsAreFreed) {
  ExtentMap map(Units(30));
  map.AddChunk(Bytes(0), Units(30));
  const auto low = *map.Allocate(Units(15));  // [0, 15), half of it in the piece
  const auto high = *map.Allocate(Units(2));  // [15, 17)
  map.CloseChunk(Units(10), Units(10));
  EXPECT_EQ(map.FreeFrom(Units(20)), Units(10));
  EXPECT_FALSE(map.IsRetired(Units(10), Units(10)));
  map.Free(low);
  EXPECT_FALSE(map.IsRetired(Units(10), Units(10)));
  EXPECT_EQ(map.FreeFrom(Bytes(0)), Units(10));
  map.CheckInvariants();
  map.Free(high);
  EXPECT_TRUE(map.IsRetired(Units(10), Units(10)));
  EXPECT_EQ(map.held(), Units(20));
  map.CheckInvariants();
}

TEST(ExtentMapTest, ABlockIsFoundByAnyOfItsAddresses) {
  ExtentMap map(Units(30));
  map.AddChunk(Units(10), Units(10));
  const auto used = *map.Allocate(Units(4));
  EXPECT_EQ(map.At(Units(13)), used);
  EXPECT_EQ(map.KindOf(map.At(Units(9))), ExtentMap::Kind::kAbsent);
  EXPECT_EQ(map.KindOf(map.At(Units(14))), ExtentMap::Kind::kFree);
  EXPECT_EQ(map.KindOf(map.At(Units(20))), ExtentMap::Kind::kAbsent);
  EXPECT_EQ(map.At(Units(29)), map.At(Units(20)));
  EXPECT_EQ(map.FreeBefore(Units(20)), Units(6));
  EXPECT_EQ(map.FreeBefore(Units(14)), Bytes(0));
  EXPECT_EQ(map.FreeBefore(Bytes(0)), Bytes(0));
}

TEST(ExtentMapDeathTest, FreeingTwiceAborts) {
  ExtentMap map(Units(30));
  map.AddChunk(Bytes(0), Units(30));
  const auto used = *map.Allocate(Units(4));
  map.Free(used);
  EXPECT_DEATH(map.Free(used), "kUsed");
}

// The map as a string of units, each absent, free, retired, or the number of its extent.
class Model {
 public:
  static constexpr int kAbsent = -1;
  static constexpr int kFree = 0;
  static constexpr int kRetired = -2;

  explicit Model(size_t units) : cells_(units, kAbsent) {}

  bool All(size_t offset, size_t size, int value) const {
    for (size_t i = offset; i < offset + size; ++i) {
      if (cells_[i] != value) return false;
    }
    return true;
  }
  void Fill(size_t offset, size_t size, int value) {
    std::fill_n(cells_.begin() + static_cast<ptrdiff_t>(offset), size, value);
  }
  bool Any(size_t offset, size_t size, int value) const {
    return std::count(At(offset), At(offset + size), value) > 0;
  }
  void Retire(size_t offset, size_t size) {
    std::replace(cells_.begin() + static_cast<ptrdiff_t>(offset),
                 cells_.begin() + static_cast<ptrdiff_t>(offset + size), kFree, kRetired);
  }
  // The smallest, lowest hole of at least `size`; the number of cells when there is none.
  size_t BestFit(size_t size) const {
    size_t best = cells_.size();
    size_t best_size = cells_.size() + 1;
    for (size_t i = 0; i < cells_.size();) {
      size_t end = i;
      while (end < cells_.size() && cells_[end] == kFree) ++end;
      if (end - i >= size && end - i < best_size) {
        best = i;
        best_size = end - i;
      }
      i = end + 1;
    }
    return best;
  }
  size_t size() const { return cells_.size(); }

 private:
  std::vector<int>::const_iterator At(size_t offset) const {
    return cells_.begin() + static_cast<ptrdiff_t>(offset);
  }
  std::vector<int> cells_;
};

class RandomWalk {
 public:
  explicit RandomWalk(uint32_t seed) : random_(seed) {}

  void Step() {
    switch (random_() % 9) {
      case 0: return Add();
      case 1: return Close();
      case 2: return Remove();
      case 3:
      case 4: return Free();
      case 5: return AllocateAt();
      default: return Allocate();
    }
  }
  void Check() const { map_.CheckInvariants(); }

 private:
  static constexpr size_t kRange = 400;
  static constexpr size_t kChunk = 40;

  void Add() {
    const size_t offset = random_() % (kRange / kChunk) * kChunk;
    if (!model_.All(offset, kChunk, Model::kAbsent)) return;
    map_.AddChunk(Units(offset), Units(kChunk));
    model_.Fill(offset, kChunk, Model::kFree);
  }
  void Close() {
    const size_t offset = random_() % (kRange / kChunk) * kChunk;
    ASSERT_EQ(map_.IsFree(Units(offset), Units(kChunk)), model_.All(offset, kChunk, Model::kFree));
    if (model_.Any(offset, kChunk, Model::kAbsent)) return;
    if (!closed_.insert(offset).second) return;
    map_.CloseChunk(Units(offset), Units(kChunk));
    model_.Retire(offset, kChunk);
  }
  void Remove() {
    const size_t offset = random_() % (kRange / kChunk) * kChunk;
    if (!closed_.contains(offset)) return;
    const bool retired = model_.All(offset, kChunk, Model::kRetired);
    ASSERT_EQ(map_.IsRetired(Units(offset), Units(kChunk)), retired);
    if (!retired) return;
    closed_.erase(offset);
    map_.RemoveChunk(Units(offset), Units(kChunk));
    model_.Fill(offset, kChunk, Model::kAbsent);
  }
  void Allocate() {
    const size_t size = 1 + random_() % 30;
    const size_t expected = model_.BestFit(size);
    Took(map_.Allocate(Units(size)), expected, size);
  }
  void AllocateAt() {
    const size_t size = 1 + random_() % 30;
    const size_t offset = random_() % kRange;
    const bool fits = offset + size <= kRange && model_.All(offset, size, Model::kFree) &&
                      (offset == 0 || !model_.All(offset - 1, 1, Model::kFree));
    Took(map_.AllocateAt(Units(offset), Units(size)), fits ? offset : kRange, size);
  }
  void Took(std::optional<ExtentMap::Block> block, size_t expected, size_t size) {
    ASSERT_EQ(block.has_value(), expected < model_.size());
    if (!block) return;
    ASSERT_EQ(map_.OffsetOf(*block), Units(expected));
    ASSERT_EQ(map_.SizeOf(*block), Units(size));
    model_.Fill(expected, size, ++serial_);
    used_.push_back(*block);
  }
  void Free() {
    if (used_.empty()) return;
    std::swap(used_[random_() % used_.size()], used_.back());
    const auto block = used_.back();
    used_.pop_back();
    const size_t offset = map_.OffsetOf(block).count() / kUnit;
    for (size_t i = offset; i < offset + map_.SizeOf(block).count() / kUnit; ++i) {
      model_.Fill(i, 1, closed_.contains(i / kChunk * kChunk) ? Model::kRetired : Model::kFree);
    }
    map_.Free(block);
  }

  std::mt19937 random_;
  ExtentMap map_{Units(kRange)};
  Model model_{kRange};
  std::vector<ExtentMap::Block> used_;
  std::set<size_t> closed_;
  int serial_ = 0;
};

TEST(ExtentMapTest, AgreesWithASimpleModelOverRandomSteps) {
  for (uint32_t seed = 1; seed <= 20; ++seed) {
    RandomWalk walk(seed);
    for (int step = 0; step < 2000; ++step) {
      SCOPED_TRACE("seed " + std::to_string(seed) + " step " + std::to_string(step));
      walk.Step();
      if (testing::Test::HasFatalFailure()) return;
      walk.Check();
    }
  }
}

// Walking from the lowest address would take 10^11 steps.
TEST(ExtentMapTest, AnAddressIsFoundAmongAMillionExtents) {
  std::mt19937 random(7);
  ExtentMap map(Units(4 << 20));
  map.AddChunk(Bytes(0), Units(4 << 20));
  std::vector<ExtentMap::Block> blocks;
  while (const auto block = map.Allocate(Units(1 + random() % 7))) blocks.push_back(*block);
  EXPECT_GT(blocks.size(), 1'000'000u);
  for (int round = 0; round < 4; ++round) {
    for (int i = 0; i < 100'000; ++i) {
      const ExtentMap::Block block = blocks[random() % blocks.size()];
      ASSERT_EQ(map.At(map.OffsetOf(block)), block);
      ASSERT_EQ(map.At(map.OffsetOf(block) + map.SizeOf(block) - Bytes(1)), block);
    }
    map.CheckInvariants();
    // Holes that span ever more of the address range.
    for (int i = 0; i < 3; ++i) {
      std::erase_if(blocks, [&](ExtentMap::Block block) {
        if (random() % 2 != 0) return false;
        map.Free(block);
        return true;
      });
    }
  }
  for (const ExtentMap::Block block : blocks) map.Free(block);
  EXPECT_EQ(map.OffsetOf(map.At(Units(3 << 20))), Bytes(0));
  map.CheckInvariants();
}

// Of the smallest tensors a slab holds a hundred thousand, and one event gives it back.
TEST(ExtentMapTest, ASlabOfManySmallHolesIsClosedImmediately) {
  constexpr uint64_t kBlocks = 1 << 17;
  double least = 1;
  for (int round = 0; round < 3; ++round) {
    ExtentMap map(Units(kBlocks));
    map.AddChunk(Bytes(0), Units(kBlocks));
    std::vector<ExtentMap::Block> blocks;
    for (uint64_t i = 0; i < kBlocks; ++i) blocks.push_back(*map.Allocate(Units(1)));
    for (uint64_t i = 0; i < kBlocks; i += 2) map.Free(blocks[i]);
    const auto begin = std::chrono::steady_clock::now();
    map.CloseChunk(Bytes(0), Units(kBlocks));
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
    least = std::min(least, took.count());
    EXPECT_EQ(map.held(), map.used());
    for (uint64_t i = 1; i < kBlocks; i += 2) map.Free(blocks[i]);
    EXPECT_TRUE(map.IsRetired(Bytes(0), Units(kBlocks)));
    map.CheckInvariants();
  }
  // One by one, each from among all others, they would take many times that.
  EXPECT_LE(least, 5e-6 * kBlocks);
}

}  // namespace
}  // namespace ravenstore::core
