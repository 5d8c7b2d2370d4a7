// Memory that other nodes lend: how it comes, what lies there, how it goes and is lost.
#include <gtest/gtest.h>

#include <chrono>
#include <string>
#include <vector>

#include "core/away_pools.h"
#include "tests/core/script.h"

namespace ravenstore::core {
namespace {

using State = Script::State;
using CopyKind = World::CopyKind;

constexpr PoolId kRemote{2};  // behind the host's and one device's
constexpr Bytes kPiece = KiB(8);

// The device holds two tensors of 4 KiB and the host two more; other nodes lend pieces of 8 KiB.
Script::Setting OneLender() {
  Script::Setting setting;
  setting.capacity = KiB(8);
  setting.host = KiB(8);
  setting.others = {{PoolKind::kRemote, KiB(64), 10e9, 10e9, {}, kPiece}};
  return setting;
}

class PlannerChunksTest : public testing::Test {
 protected:
  // Each in the room that the copies before it leave: of six the first two end on the host, the
  // next two in the first piece, the last two on the device.
  void Fill(const std::vector<std::string>& names) {
    for (const std::string& name : names)
      s_.Create(name, KiB(4)).AllCopiesDone().Put(name, Order(--order_));
  }
  void FillPiece() {
    Lend(kPiece);
    Fill({"A", "B", "C", "D", "E", "F"});
    ASSERT_EQ(PoolOf("B"), kHostPool);
    ASSERT_EQ(PoolOf("C"), kRemote);
    ASSERT_EQ(PoolOf("D"), kRemote);
    ASSERT_EQ(Held(), kPiece);
  }
  void Lend(Bytes most) {
    s_.world().SetPool(kRemote, most);
    s_.FinishSlabs();
  }
  void Recall(Bytes offset) {
    s_.world().RecallChunk(kRemote, offset);
    s_.FinishSlabs();
  }
  void LosePiece(Bytes offset) {
    s_.world().LoseChunk(kRemote, offset);
    s_.FinishSlabs();
  }
  // What comes and goes does so once the test says so.
  void AskForAPiece() {
    Lend(kPiece);
    Fill({"A", "B", "C", "D"});
    s_.SlabsCome(false).Create("E", KiB(4));
    ASSERT_EQ(s_.world().slab_jobs().size(), 1u);
  }
  void ExpectItGoesAsItComes() {
    s_.world().FinishSlab(0, /*ok=*/true);
    EXPECT_EQ(s_.world().planner().OtherTier(kRemote).used, Bytes{0});
    ASSERT_EQ(s_.world().slab_jobs().size(), 1u);
    EXPECT_EQ(s_.world().slab_jobs()[0].kind, World::SlabJob::Kind::kPoolShrinks);
    s_.SlabsCome(true).AllCopiesDone();
    EXPECT_EQ(s_.StateOf("E"), State::kInUse) << "in the next piece";
  }
  PoolId PoolOf(const std::string& name) {
    EXPECT_TRUE(s_.View(name).has_copy) << name;
    return s_.View(name).away;
  }
  Bytes Held() { return s_.world().planner().OtherTier(kRemote).held; }
  Bytes HostUsed() { return s_.world().planner().HostTier().used; }

  Script s_{OneLender()};
  int64_t order_ = 1000;
};

TEST_F(PlannerChunksTest, PiecesAreBorrowedForWhatLeavesAndOneAhead) {
  Lend(KiB(30));
  Fill({"A", "B", "C", "D"});
  EXPECT_EQ(Held(), Bytes{0}) << "the host takes what leaves";
  Fill({"E"});
  EXPECT_EQ(PoolOf("C"), kRemote);
  EXPECT_EQ(Held(), KiB(16));
  Fill({"F", "G", "H", "I", "J"});
  EXPECT_EQ(Held(), KiB(24)) << "whole pieces only";
}

TEST_F(PlannerChunksTest, WhatLiesThereTakesNoPlaceOnTheHost) {
  FillPiece();
  EXPECT_EQ(HostUsed(), KiB(8));
  s_.Free("E").Get("C").AllCopiesDone().Use("C");
  EXPECT_EQ(s_.StateOf("C"), State::kInUse);
}

TEST_F(PlannerChunksTest, ATensorLargerThanAPieceLiesInSeveral) {
  Script::Setting setting = OneLender();
  setting.capacity = KiB(32);
  setting.host = KiB(4);
  Script s(setting);
  s.world().SetPool(kRemote, KiB(64));
  s.Make("A", KiB(20), Order(9)).Create("B", KiB(20)).AllCopiesDone();
  EXPECT_EQ(s.StateOf("B"), State::kInUse);
  EXPECT_EQ(s.View("A").away, kRemote);
  EXPECT_GE(s.world().planner().OtherTier(kRemote).held, KiB(24));
  // Any of them takes it along.
  s.world().LoseChunk(kRemote, KiB(16));
  s.FinishSlabs().Get("A");
  EXPECT_EQ(s.StateOf("A"), State::kLost);
}

TEST_F(PlannerChunksTest, NothingIsBorrowedForATensorThatAllWouldNotTake) {
  Script::Setting setting = OneLender();
  setting.capacity = KiB(32);
  setting.host = KiB(4);
  Script s(setting);
  s.world().SetPool(kRemote, KiB(16));
  s.Make("A", KiB(20), Order(9)).Create("B", KiB(20)).AllCopiesDone();
  EXPECT_EQ(s.StateOf("B"), State::kWaiting);
  EXPECT_EQ(s.world().planner().OtherTier(kRemote).held, Bytes{0});
}

TEST_F(PlannerChunksTest, WhatLiesAloneInARecalledPieceMovesOnToTheHost) {
  FillPiece();
  s_.Free("A").Free("B");
  s_.world().RecallChunk(kRemote, Bytes{0});
  ASSERT_EQ(s_.CopyKindOf("C"), CopyKind::kOn);
  ASSERT_EQ(s_.CopyKindOf("D"), CopyKind::kOn);
  EXPECT_EQ(Held(), kPiece) << "until its bytes are elsewhere";
  s_.AllCopiesDone();
  EXPECT_EQ(Held(), Bytes{0});
  EXPECT_EQ(PoolOf("C"), kHostPool);
  EXPECT_EQ(HostUsed(), KiB(8));
  s_.Free("E").Get("C").AllCopiesDone().Use("C");  // ends the test when bytes are wrong
  EXPECT_EQ(s_.StateOf("C"), State::kInUse);
}

TEST_F(PlannerChunksTest, WhatIsOnItsDeviceAsWellDropsItsCopyInARecalledPiece) {
  FillPiece();
  s_.Free("D").Free("E").Get("C").AllCopiesDone().PutUnchanged("C");
  ASSERT_TRUE(s_.View("C").has_copy);
  Recall(Bytes{0});
  EXPECT_TRUE(s_.world().copies().empty());
  EXPECT_FALSE(s_.View("C").has_copy);
  EXPECT_EQ(Held(), Bytes{0});
}

TEST_F(PlannerChunksTest, WhatFindsNoRoomStaysInARecalledPieceUntilThereIsSome) {
  FillPiece();
  Recall(Bytes{0});
  EXPECT_TRUE(s_.world().copies().empty()) << "the host is full";
  EXPECT_EQ(PoolOf("C"), kRemote);
  s_.Free("A").Free("B").Pass(std::chrono::milliseconds(200)).AllCopiesDone();
  EXPECT_EQ(PoolOf("C"), kHostPool);
  EXPECT_EQ(PoolOf("D"), kHostPool);
  EXPECT_EQ(Held(), Bytes{0});
}

TEST_F(PlannerChunksTest, WhatLiesInARecalledPieceStaysWhenThatIsKept) {
  FillPiece();
  Recall(Bytes{0});
  s_.world().KeepChunk(kRemote, Bytes{0});
  s_.Free("A").Free("B").Pass(std::chrono::milliseconds(200)).AllCopiesDone();
  EXPECT_EQ(PoolOf("C"), kRemote) << "though the host has room now";
  EXPECT_EQ(Held(), kPiece);
  s_.Free("E").Get("C").AllCopiesDone().Use("C");
  EXPECT_EQ(s_.StateOf("C"), State::kInUse);
}

TEST_F(PlannerChunksTest, MoreComesToLieInAPieceThatIsKept) {
  Lend(kPiece);
  Fill({"A", "B", "C", "D", "E"});
  ASSERT_EQ(PoolOf("C"), kRemote);
  Recall(Bytes{0});
  s_.world().KeepChunk(kRemote, Bytes{0});
  Fill({"F"});
  EXPECT_EQ(PoolOf("D"), kRemote);
  EXPECT_EQ(Held(), kPiece);
}

TEST_F(PlannerChunksTest, ALostPieceIsNotKept) {
  FillPiece();
  Recall(Bytes{0});
  LosePiece(Bytes{0});
  s_.world().KeepChunk(kRemote, Bytes{0});
  s_.Get("C");
  EXPECT_EQ(s_.StateOf("C"), State::kLost);
}

TEST_F(PlannerChunksTest, NothingMoreComesToLieInARecalledPieceWhateverTheLimit) {
  Lend(kPiece);
  Fill({"A", "B", "C", "D", "E"});
  ASSERT_EQ(PoolOf("C"), kRemote);
  Recall(Bytes{0});
  Lend(KiB(64));  // it would open again if it might
  Fill({"F", "G"});
  ASSERT_EQ(PoolOf("E"), kRemote);
  LosePiece(Bytes{0});
  s_.Free("F").Get("E").AllCopiesDone().Use("E");
  EXPECT_EQ(s_.StateOf("E"), State::kInUse) << "it lies in another piece";
  s_.Get("C");
  EXPECT_EQ(s_.StateOf("C"), State::kLost);
}

TEST_F(PlannerChunksTest, ACopyOnThatFailsGivesItsPlaceOnTheHostBack) {
  FillPiece();
  s_.Free("A").Free("B").Free("D");
  s_.world().RecallChunk(kRemote, Bytes{0});
  ASSERT_TRUE(s_.IsCopying("C"));
  EXPECT_EQ(HostUsed(), KiB(4));
  s_.CopyFails("C");
  EXPECT_EQ(HostUsed(), Bytes{0});
  EXPECT_EQ(PoolOf("C"), kRemote);
  s_.Pass(std::chrono::milliseconds(200));
  ASSERT_TRUE(s_.IsCopying("C"));
  s_.CopyDone("C");
  EXPECT_EQ(PoolOf("C"), kHostPool);
}

TEST_F(PlannerChunksTest, WhatLayAloneInALostPieceIsLostAndSaidSo) {
  FillPiece();
  LosePiece(Bytes{0});
  EXPECT_EQ(Held(), Bytes{0});
  s_.Get("C");
  EXPECT_EQ(s_.StateOf("C"), State::kLost);
  EXPECT_EQ(s_.Words("C"), "they were in remote 2, which lost them");
  s_.Free("E").Get("B").AllCopiesDone().Use("B");
  EXPECT_EQ(s_.StateOf("B"), State::kInUse) << "what lay on the host is there";
}

TEST_F(PlannerChunksTest, OnlyTheLostPieceIsLost) {
  Lend(KiB(16));
  Fill({"A", "B", "C", "D", "E", "F", "G", "H"});
  ASSERT_EQ(PoolOf("F"), kRemote);
  LosePiece(Bytes{0});
  s_.Get("C");
  EXPECT_EQ(s_.StateOf("C"), State::kLost);
  s_.Free("G").Get("F").AllCopiesDone().Use("F");
  EXPECT_EQ(s_.StateOf("F"), State::kInUse);
}

TEST_F(PlannerChunksTest, WhatIsOnItsDeviceAsWellOutlivesALostPiece) {
  FillPiece();
  s_.Free("E").Get("C").AllCopiesDone().PutUnchanged("C");
  LosePiece(Bytes{0});
  EXPECT_FALSE(s_.View("C").has_copy);
  s_.Get("C").Use("C");
  EXPECT_EQ(s_.StateOf("C"), State::kInUse);
}

TEST_F(PlannerChunksTest, TheRangeOfALostPieceIsBorrowedAgain) {
  FillPiece();
  LosePiece(Bytes{0});
  s_.Free("C").Free("D");
  Fill({"G", "H"});
  EXPECT_EQ(PoolOf("E"), kRemote);
  EXPECT_EQ(Held(), kPiece);
  s_.Free("G").Get("E").AllCopiesDone().Use("E");
  EXPECT_EQ(s_.StateOf("E"), State::kInUse);
}

TEST_F(PlannerChunksTest, AGetUnderWayFromALostPieceSaysThatItsBytesAreLost) {
  FillPiece();
  s_.Free("E").Get("C");
  ASSERT_TRUE(s_.IsCopying("C"));
  LosePiece(Bytes{0});
  EXPECT_EQ(Held(), kPiece) << "while a copy reads it";
  s_.CopyDone("C");
  EXPECT_EQ(s_.StateOf("C"), State::kLost);
  EXPECT_EQ(Held(), Bytes{0});
}

TEST_F(PlannerChunksTest, WhatIsStillCopiedIntoALostPieceIsLostWithIt) {
  Lend(kPiece);
  Fill({"A", "B", "C", "D"});
  s_.Create("E", KiB(4));
  ASSERT_EQ(s_.CopyKindOf("C"), CopyKind::kOut);
  LosePiece(Bytes{0});
  s_.CopyDone("C");
  EXPECT_EQ(s_.StateOf("E"), State::kInUse);
  s_.Get("C");
  EXPECT_EQ(s_.StateOf("C"), State::kLost);
}

TEST_F(PlannerChunksTest, ACopyIntoALostPieceThatFailsLeavesItsTensorWhereItIs) {
  Lend(kPiece);
  Fill({"A", "B", "C", "D"});
  s_.Create("E", KiB(4));
  ASSERT_TRUE(s_.IsCopying("C"));
  LosePiece(Bytes{0});
  s_.CopyFails("C");
  EXPECT_EQ(Held(), Bytes{0}) << "it is given up at once";
  s_.Get("C").Use("C");
  EXPECT_EQ(s_.StateOf("C"), State::kInUse);
}

TEST_F(PlannerChunksTest, WhatMovesOnFromAPieceThatIsThenLostIsLost) {
  FillPiece();
  s_.Free("A").Free("B");
  s_.world().RecallChunk(kRemote, Bytes{0});
  ASSERT_TRUE(s_.IsCopying("C"));
  LosePiece(Bytes{0});
  s_.Free("E").Get("C");
  EXPECT_EQ(s_.StateOf("C"), State::kWaiting);
  s_.CopyDone("C").AllCopiesDone();
  EXPECT_EQ(s_.StateOf("C"), State::kLost);
  EXPECT_EQ(HostUsed(), Bytes{0});
}

TEST_F(PlannerChunksTest, APieceThatIsRecalledBeforeItCameGoesAtOnce) {
  AskForAPiece();
  s_.world().RecallChunk(kRemote, Bytes{0});
  ExpectItGoesAsItComes();
}

TEST_F(PlannerChunksTest, APieceThatIsLostBeforeItCameGoesAtOnce) {
  AskForAPiece();
  s_.world().LoseChunk(kRemote, Bytes{0});
  ExpectItGoesAsItComes();
}

TEST_F(PlannerChunksTest, WordOfAPieceThatIsNotThereIsIgnored) {
  LosePiece(Bytes{0});
  Recall(KiB(8));
  FillPiece();
  EXPECT_EQ(Held(), kPiece);
}

TEST_F(PlannerChunksTest, PiecesThatStayEmptyGoBack) {
  Lend(KiB(16));
  Fill({"A", "B", "C", "D", "E", "F"});
  ASSERT_EQ(PoolOf("D"), kRemote);
  ASSERT_EQ(Held(), KiB(16)) << "one ahead";
  s_.Pass(kLentIdleFor * 2);
  EXPECT_EQ(Held(), kPiece) << "what nothing lies in";
  s_.Pass(kLentIdleFor * 4);
  EXPECT_EQ(Held(), kPiece);
  s_.Free("C").Free("D").Pass(kLentIdleFor / 2);
  EXPECT_EQ(Held(), kPiece) << "not at once";
  s_.Pass(kLentIdleFor * 2);
  EXPECT_EQ(Held(), Bytes{0});
  s_.Pass(kLentIdleFor * 4);
  EXPECT_EQ(Held(), Bytes{0}) << "nor is another borrowed for nothing";
}

TEST_F(PlannerChunksTest, APieceThatWasUsedSinceTheLastLookStays) {
  FillPiece();
  s_.Free("C").Free("D").Pass(kLentIdleFor);
  Fill({"G"});
  ASSERT_EQ(PoolOf("E"), kRemote);
  s_.Free("E").Pass(kLentIdleFor);
  EXPECT_EQ(Held(), kPiece);
  s_.Pass(kLentIdleFor);
  EXPECT_EQ(Held(), Bytes{0});
}

TEST_F(PlannerChunksTest, ALoweredLimitTakesTheCheapestPieces) {
  Lend(KiB(16));
  Fill({"A", "B", "C", "D", "E", "F", "G", "H"});
  ASSERT_EQ(Held(), KiB(16));
  s_.Free("E").Free("F");
  Lend(KiB(8));
  EXPECT_TRUE(s_.world().copies().empty()) << "the empty one";
  EXPECT_EQ(Held(), kPiece);
  EXPECT_EQ(PoolOf("C"), kRemote);
}

TEST_F(PlannerChunksTest, NoLenderIsAskedAgainAtOnceAfterOneRefused) {
  Lend(kPiece);
  Fill({"A", "B", "C", "D"});
  s_.SlabsCome(false).Create("E", KiB(4));
  ASSERT_EQ(s_.world().slab_jobs().size(), 1u);
  s_.world().FinishSlab(0, /*ok=*/false);
  EXPECT_TRUE(s_.world().slab_jobs().empty());
  EXPECT_EQ(s_.StateOf("E"), State::kWaiting);
  s_.Pass(std::chrono::milliseconds(200));
  EXPECT_EQ(s_.world().slab_jobs().size(), 1u);
  s_.SlabsCome(true).AllCopiesDone();
  EXPECT_EQ(s_.StateOf("E"), State::kInUse);
}

TEST_F(PlannerChunksTest, ATenantsBudgetHoldsThere) {
  s_.TenantBudgets({.device = KiB(8), .host = KiB(1024), .others = {{kRemote, KiB(4)}}});
  Lend(KiB(64));
  Fill({"A", "B", "C", "D", "E"});
  EXPECT_EQ(PoolOf("C"), kRemote);
  s_.Create("F", KiB(4)).AllCopiesDone();
  EXPECT_EQ(s_.StateOf("F"), State::kWaiting);
  s_.TenantBudgets({.device = KiB(8), .host = KiB(1024)}).AllCopiesDone();
  EXPECT_EQ(s_.StateOf("F"), State::kInUse);
  EXPECT_EQ(PoolOf("D"), kRemote);
}

}  // namespace
}  // namespace ravenstore::core
