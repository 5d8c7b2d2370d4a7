#include "daemon/copy_pieces.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <vector>

namespace ravenstore::daemon {
namespace {

using core::Bytes;
using core::KiB;
using core::MiB;
using testing::ElementsAre;
using Part = CopyPieces::Part;

TEST(CopyPiecesTest, APieceIsOnePartWhereAHoleIsLargeEnough) {
  CopyPieces pieces;
  EXPECT_FALSE(pieces.Allocate(Bytes(1)).has_value());
  pieces.Free({{MiB(4), MiB(8)}});
  EXPECT_THAT(*pieces.Allocate(MiB(2)), ElementsAre(Part{MiB(4), MiB(2)}));
  EXPECT_THAT(*pieces.Allocate(Bytes(1000)), ElementsAre(Part{MiB(6), KiB(1)}));
  EXPECT_EQ(pieces.free(), MiB(6) - KiB(1));
}

TEST(CopyPiecesTest, TheSmallestHoleThatIsLargeEnoughIsTaken) {
  CopyPieces pieces;
  pieces.Free({{Bytes{}, MiB(8)}, {MiB(16), MiB(2)}, {MiB(32), MiB(4)}});
  EXPECT_THAT(*pieces.Allocate(MiB(2)), ElementsAre(Part{MiB(16), MiB(2)}));
  EXPECT_THAT(*pieces.Allocate(MiB(3)), ElementsAre(Part{MiB(32), MiB(3)}));
}

TEST(CopyPiecesTest, WhereNoHoleIsLargeEnoughThePieceHasParts) {
  CopyPieces pieces;
  pieces.Free({{Bytes{}, MiB(2)}, {MiB(4), MiB(3)}, {MiB(8), MiB(1)}});
  EXPECT_THAT(*pieces.Allocate(MiB(5)), ElementsAre(Part{MiB(4), MiB(3)}, Part{Bytes{}, MiB(2)}));
  EXPECT_FALSE(pieces.Allocate(MiB(2)).has_value());
  EXPECT_EQ(pieces.free(), MiB(1)) << "nothing was taken";
}

TEST(CopyPiecesTest, FreeNeighboursAreOneHole) {
  CopyPieces pieces;
  pieces.Free({{Bytes{}, MiB(6)}});
  std::vector<CopyPieces::Piece> taken;
  for (int i = 0; i < 3; ++i) taken.push_back(*pieces.Allocate(MiB(2)));
  for (const int i : {0, 2, 1}) pieces.Free(taken[static_cast<size_t>(i)]);
  EXPECT_THAT(*pieces.Allocate(MiB(6)), ElementsAre(Part{Bytes{}, MiB(6)}));
}

TEST(CopyPiecesTest, APartIsCutOutOfAPiece) {
  CopyPieces::Piece piece{{MiB(0), MiB(4)}, {MiB(8), MiB(2)}};
  CopyPieces::Cut(&piece, {MiB(1), MiB(2)});
  EXPECT_THAT(piece, ElementsAre(Part{MiB(0), MiB(1)}, Part{MiB(3), MiB(1)}, Part{MiB(8), MiB(2)}));
  CopyPieces::Cut(&piece, {MiB(8), MiB(2)});
  CopyPieces::Cut(&piece, {MiB(3), KiB(512)});
  EXPECT_THAT(piece, ElementsAre(Part{MiB(0), MiB(1)}, Part{MiB(3) + KiB(512), KiB(512)}));
}

TEST(CopyPiecesTest, PartsMayHaveToBeMultiplesOfMore) {
  CopyPieces pieces;
  pieces.Free({{Bytes{}, KiB(100)}, {MiB(1), KiB(63)}});
  EXPECT_FALSE(pieces.Allocate(KiB(128), KiB(64)).has_value());
  EXPECT_EQ(pieces.free(), KiB(163));
  pieces.Free({{MiB(2), KiB(90)}});
  EXPECT_THAT(*pieces.Allocate(KiB(130), KiB(64)),
              ElementsAre(Part{Bytes{}, KiB(64)}, Part{MiB(2), KiB(66)}));
}

// What has moved on to the host pool stays, and another copy has the rest when neighbours are gone.
TEST(CopyPiecesTest, PartsOfAMultipleLeaveMultiplesOfItNextToThem) {
  CopyPieces pieces;
  pieces.Free({{Bytes{}, KiB(256)}});
  const CopyPieces::Piece neighbour = *pieces.Allocate(KiB(40));
  EXPECT_THAT(*pieces.Allocate(KiB(128), KiB(64)), ElementsAre(Part{KiB(64), KiB(128)}));
  pieces.Free(neighbour);
  EXPECT_THAT(*pieces.Allocate(KiB(128), KiB(64)),
              ElementsAre(Part{KiB(192), KiB(64)}, Part{Bytes{}, KiB(64)}));
}

TEST(CopyPiecesTest, PartsOfAMultipleBeginAnywhereRatherThanBeShorter) {
  CopyPieces pieces;
  pieces.Free({{KiB(40), KiB(130)}});
  EXPECT_THAT(*pieces.Allocate(KiB(130), KiB(64)), ElementsAre(Part{KiB(40), KiB(130)}));
}

TEST(CopyPiecesTest, AllThatIsFreeInARangeIsTaken) {
  CopyPieces pieces;
  pieces.Free({{Bytes{}, MiB(4)}, {MiB(6), MiB(4)}});
  EXPECT_THAT(pieces.AllocateAll({MiB(2), MiB(6)}),
              ElementsAre(Part{MiB(2), MiB(2)}, Part{MiB(6), MiB(2)}));
  EXPECT_THAT(pieces.AllocateAll({MiB(2), MiB(6)}), ElementsAre());
  EXPECT_EQ(pieces.free(), MiB(4));
  EXPECT_THAT(*pieces.Allocate(MiB(2)), ElementsAre(Part{Bytes{}, MiB(2)}));
}

TEST(CopyPiecesTest, PartsAreMultiplesOfTheGranularity) {
  CopyPieces pieces(KiB(64));
  pieces.Free({{Bytes{}, MiB(1)}});
  EXPECT_THAT(*pieces.Allocate(Bytes(1)), ElementsAre(Part{Bytes{}, KiB(64)}));
  EXPECT_THAT(*pieces.Allocate(KiB(65)), ElementsAre(Part{KiB(64), KiB(128)}));
}

TEST(CopyPiecesTest, NoByteIsLostOrHadTwice) {
  constexpr uint32_t kSeed = 5;
  RecordProperty("seed", static_cast<int>(kSeed));
  std::mt19937 random(kSeed);
  constexpr size_t kUnits = 4096;
  CopyPieces pieces;
  pieces.Free({{Bytes{}, core::kExtentAlignment * kUnits}});
  std::vector<bool> taken(kUnits);
  std::vector<CopyPieces::Piece> held;
  const auto mark = [&](const CopyPieces::Piece& piece, bool as) {
    for (const Part& part : piece) {
      const uint64_t first = part.offset.count() / core::kExtentAlignment.count();
      for (uint64_t i = 0; i < part.bytes.count() / core::kExtentAlignment.count(); ++i) {
        ASSERT_NE(taken[first + i], as);
        taken[first + i] = as;
      }
    }
  };
  for (int i = 0; i < 20'000; ++i) {
    if (held.empty() || random() % 2 == 0) {
      const Bytes bytes(1 + random() % (core::kExtentAlignment.count() * 300));
      const Bytes free = pieces.free();
      auto piece = pieces.Allocate(bytes);
      ASSERT_EQ(piece.has_value(), bytes.RoundUp(core::kExtentAlignment) <= free);
      if (!piece) continue;
      mark(*piece, true);
      held.push_back(*std::move(piece));
    } else {
      std::swap(held[random() % held.size()], held.back());
      mark(held.back(), false);
      pieces.Free(held.back());
      held.pop_back();
    }
  }
  for (const auto& piece : held) pieces.Free(piece);
  EXPECT_EQ(pieces.Allocate(core::kExtentAlignment * kUnits)->size(), 1u);
}

}  // namespace
}  // namespace ravenstore::daemon
