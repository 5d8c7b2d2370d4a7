#include "core/execution/page_executor.h"

#include <gtest/gtest.h>

#include <map>
#include <optional>
#include <set>
#include <vector>

#include "core/plan/residency_plan.h"
#include "tests/core/execution/word_backend.h"

namespace ravenstore::core {
namespace {

using plan::Unit;

constexpr Bytes kPage = MiB(2);

// Begins nothing by itself: the test says when a mapping or a copy ends.
class Backend : public WordBackend {
 public:
  bool Map(const MapOrder& order) override {
    mapping = order;
    ++maps;
    return false;
  }
  uint32_t MapsMost() const override { return maps_most; }
  void Unmap(plan::PhysicalPage page) override { unmapping = page; }
  void Release(const plan::PageSupply::Released& page) override { released.push_back(page); }
  void CopyIn(const CopyOrder& order) override { in = order; }
  void CopyOut(const CopyOrder& order) override { out = order; }
  void MoveSlot(const PageMemory::SlotMove& move, Bytes) override { moves.push_back(move); }
  bool MoveCopy(const CopyMove& move) override {
    copy_moves.push_back(move);
    return !copy_moves_fail;
  }
  bool CanCopyIn(plan::PoolNumber, bool) const override { return !in; }
  bool CanCopyOut(plan::PoolNumber) const override { return !out; }

  uint32_t maps_most = 1;
  uint32_t maps = 0;
  std::optional<MapOrder> mapping;
  std::optional<plan::PhysicalPage> unmapping;
  std::vector<plan::PageSupply::Released> released;
  std::optional<CopyOrder> in;
  std::optional<CopyOrder> out;
  std::vector<PageMemory::SlotMove> moves;
  std::vector<CopyMove> copy_moves;
  bool copy_moves_fail = false;
};

// Two pages may be held. Tensor i fills page i, if no other place is said.
class PageExecutorTest : public testing::Test {
 protected:
  PageExecutorTest()
      : executor_(
            {.limits = {.page = kPage, .pages = 2, .pools = {{.in_rate = 1e9, .out_rate = 1e9}}},
             .coming_most = kPage * 2},
            &backend_) {}

  // Starts what there is to do, and lets all mappings end.
  bool Map() {
    bool arrived = executor_.Start();
    while (backend_.mapping || backend_.unmapping) {
      if (backend_.mapping) {
        const Unit unit = backend_.mapping->unit;
        backend_.mapping.reset();
        executor_.Mapped(unit);
      } else {
        const plan::PhysicalPage page = *backend_.unmapping;
        backend_.unmapping.reset();
        executor_.Unmapped(page);
      }
      arrived |= executor_.Start();
    }
    return arrived;
  }
  void EndIn(bool ok) {
    const Unit unit = backend_.in->unit;
    backend_.in.reset();
    executor_.CopiedIn(unit, ok);
    Map();
  }
  void EndOut(bool ok) {
    const Unit unit = backend_.out->unit;
    backend_.out.reset();
    executor_.CopiedOut(unit, ok);
    Map();
  }
  void Create(TensorNumber tensor) {
    executor_.Place(tensor, {2 * tensor, 1}, Bytes{}, kPage);
    if (!executor_.Pin(tensor)) Map();
    ASSERT_TRUE(executor_.IsResident(tensor));
    executor_.Begin(tensor);
  }
  void Put(TensorNumber tensor, bool modified) {
    executor_.Unpin(tensor);
    if (modified) executor_.Modify(tensor);
    executor_.Reach(tensor);
  }
  // Tensors 0 and 1 are idle; tensor 2 is created, for which one of them must leave.
  void FillAndCreateOneMore() {
    for (TensorNumber tensor : {0u, 1u}) {
      Create(tensor);
      Put(tensor, true);
    }
    backend_.granted.clear();
    executor_.Place(2, {4, 1}, Bytes{}, kPage);
    EXPECT_FALSE(executor_.Pin(2));
    Map();
  }

  // Tensor 0 has left for tensor 2. A get waits for it, for which tensor 1 has left.
  void WaitForTensorThatLeft() {
    FillAndCreateOneMore();
    EndOut(true);
    executor_.Begin(2);
    Put(2, true);
    EXPECT_FALSE(executor_.Pin(0));
    Map();
    EndOut(true);
  }

  Backend backend_;
  PageExecutor executor_;
};

TEST_F(PageExecutorTest, AnIdlePageLeavesForACallThatWaits) {
  FillAndCreateOneMore();
  ASSERT_TRUE(backend_.out);
  EXPECT_EQ(backend_.out->unit, 0u);   // used least recently
  EXPECT_TRUE(backend_.away.empty());  // a get would still find it
  EndOut(true);
  EXPECT_EQ(backend_.away, std::set<TensorNumber>({0}));
  EXPECT_EQ(backend_.granted, std::vector<TensorNumber>({2}));
}

TEST_F(PageExecutorTest, ACallGoesOnWhenItsBytesAreOnTheirWay) {
  backend_.grants_early = true;
  WaitForTensorThatLeft();
  ASSERT_TRUE(backend_.in);
  EXPECT_EQ(backend_.granted_early, std::vector<TensorNumber>({0}));
  EXPECT_FALSE(executor_.Waits(0));
  // The stream waits: the tensor is in use until it has come to the end of that use.
  executor_.Unpin(0);
  EndIn(true);
  EXPECT_EQ(backend_.arrived, std::vector<TensorNumber>({0}));
  EXPECT_TRUE(executor_.IsResident(0));
  EXPECT_TRUE(executor_.books()[0].InUse());
  executor_.Reach(0);
  EXPECT_FALSE(executor_.books()[0].InUse());
}

TEST_F(PageExecutorTest, ACreateIsNotGrantedEarly) {
  backend_.grants_early = true;
  FillAndCreateOneMore();
  EndOut(true);
  EXPECT_TRUE(backend_.granted_early.empty());
  EXPECT_EQ(backend_.granted, std::vector<TensorNumber>({2}));
}

TEST_F(PageExecutorTest, ATensorGrantedEarlyWhoseBytesDoNotArriveIsLostInItsPlace) {
  backend_.grants_early = true;
  WaitForTensorThatLeft();
  EndIn(false);
  EXPECT_EQ(backend_.broken, std::vector<TensorNumber>({0}));
  EXPECT_TRUE(backend_.refused.empty());
  EXPECT_FALSE(executor_.tensors()[0].lives());
  EXPECT_TRUE(executor_.books()[0].IsResident()) << "the stream may touch the memory";
  executor_.Unpin(0);
  executor_.Reach(0);
  executor_.Remove(0);
  CheckBooks(executor_.books());
}

TEST_F(PageExecutorTest, BytesThatThePoolLosesBreakTheEarlyGrant) {
  backend_.grants_early = true;
  WaitForTensorThatLeft();
  std::vector<TensorNumber> lost;
  executor_.Lose(0, &lost);
  EXPECT_EQ(lost, std::vector<TensorNumber>({0}));
  EXPECT_EQ(backend_.broken, std::vector<TensorNumber>({0}));
  EndIn(false);
  EXPECT_EQ(backend_.broken.size(), 1u);
  EXPECT_TRUE(executor_.books()[0].InUse());
  CheckBooks(executor_.books());
}

// A plan that begins after the create knows of the tensor that the create makes.
TEST_F(PageExecutorTest, APageHasTheHighestPriorityOfItsTensors) {
  const auto priority = [this] { return executor_.books()[0].priority; };
  executor_.Place(0, {0, 1}, Bytes{}, KiB(512));
  executor_.Place(1, {0, 1}, KiB(512), KiB(512));
  for (TensorNumber tensor : {0u, 1u}) {
    if (!executor_.Pin(tensor)) Map();
    executor_.Begin(tensor);
  }
  EXPECT_EQ(priority(), Priority::kNormal);
  executor_.Unpin(0, Priority::kLow);
  EXPECT_EQ(priority(), Priority::kNormal);
  executor_.Unpin(1, Priority::kLow);
  EXPECT_EQ(priority(), Priority::kLow);
  executor_.Pin(1);
  executor_.Unpin(1, Priority::kHigh);
  EXPECT_EQ(priority(), Priority::kHigh);
  EXPECT_EQ(executor_.Snapshot()[0].priority, Priority::kHigh);
  executor_.End(1);
  EXPECT_EQ(priority(), Priority::kLow);
  executor_.End(0);
  EXPECT_EQ(priority(), Priority::kNormal);
}

TEST_F(PageExecutorTest, ACreateThatWaitsIsInTheSnapshot) {
  FillAndCreateOneMore();
  const plan::UnitSnapshot waiting = executor_.Snapshot()[4];
  EXPECT_EQ(waiting.live, 1u);
  EXPECT_EQ(waiting.pins, 1u);
  EXPECT_TRUE(waiting.held);
  EXPECT_TRUE(waiting.dirty);
  EndOut(true);
  executor_.Begin(2);
  EXPECT_EQ(executor_.Snapshot()[4].live, 1u);
  Put(2, false);
  executor_.End(2);
  EXPECT_EQ(executor_.Snapshot()[4].live, 0u);
}

TEST_F(PageExecutorTest, AFreePageIsReturnedFirst) {
  Create(0);
  executor_.SetShare(1);
  Map();
  ASSERT_EQ(backend_.released.size(), 1u);
  EXPECT_FALSE(backend_.released[0].mapped);
  EXPECT_EQ(executor_.books().memory().pages(), 1u);
}

TEST_F(PageExecutorTest, AnIdlePageLeavesWhereTheShareFalls) {
  for (TensorNumber tensor : {0u, 1u}) {
    Create(tensor);
    Put(tensor, true);
  }
  executor_.SetShare(1);
  Map();
  EXPECT_TRUE(backend_.released.empty());
  ASSERT_TRUE(backend_.out);
  EndOut(true);
  ASSERT_EQ(backend_.released.size(), 1u);
  EXPECT_TRUE(backend_.released[0].mapped);
  EXPECT_EQ(backend_.away, std::set<TensorNumber>({0}));
}

TEST_F(PageExecutorTest, WhatCallsHoldStaysBeyondTheShare) {
  Create(0);
  Create(1);
  executor_.SetShare(1);
  Map();
  EXPECT_TRUE(backend_.released.empty());
  EXPECT_EQ(executor_.books().view().surplus, 1u);
  Put(1, false);
  Map();
  EndOut(true);
  EXPECT_EQ(backend_.released.size(), 1u);
}

TEST_F(PageExecutorTest, APageThatWasMadeIsUsed) {
  FillAndCreateOneMore();
  executor_.SetShare(3);
  executor_.AddPage();
  Map();
  EXPECT_EQ(backend_.granted, std::vector<TensorNumber>({2}));
}

TEST_F(PageExecutorTest, AnUnreportedUseKeepsThePage) {
  FillAndCreateOneMore();
  backend_.in_use.insert(0);
  EndOut(true);
  EXPECT_TRUE(backend_.away.empty());
  EXPECT_EQ(executor_.stats().not_revoked, 1u);
  ASSERT_TRUE(backend_.out);  // the other one leaves
  EXPECT_EQ(backend_.out->unit, 2u);
  EndOut(true);
  EXPECT_EQ(backend_.away, std::set<TensorNumber>({1}));
}

TEST_F(PageExecutorTest, AFailedCopyInRefusesTheCallsThatWait) {
  WaitForTensorThatLeft();
  ASSERT_TRUE(backend_.in);
  EndIn(false);
  EXPECT_EQ(backend_.refused, std::vector<TensorNumber>({0}));
  EXPECT_EQ(executor_.books()[0].life, PageState::kAway);
  EXPECT_FALSE(executor_.Pin(0));  // the client tries again
  Map();
  EndIn(true);
  EXPECT_EQ(backend_.granted.back(), 0u);
  CheckBooks(executor_.books());
}

TEST_F(PageExecutorTest, TensorsEndWithTheOnlyCopyOfAPage) {
  FillAndCreateOneMore();
  EndOut(true);  // tensor 0 leaves
  executor_.Begin(2);
  EXPECT_FALSE(executor_.Pin(0));
  std::vector<TensorNumber> lost;
  executor_.Lose(0, &lost);
  EXPECT_EQ(lost, std::vector<TensorNumber>({0}));
  EXPECT_EQ(backend_.refused, std::vector<TensorNumber>({0}));
  EXPECT_EQ(executor_.books().copies().pools().used(), Bytes{});
  EXPECT_FALSE(executor_.tensors()[0].lives());
  executor_.Remove(0);
  executor_.Place(0, {0, 1}, Bytes{}, kPage);  // it is created again
  EXPECT_FALSE(executor_.Pin(0));
  Map();
  EndOut(true);  // tensor 1 leaves
  EXPECT_EQ(backend_.granted, std::vector<TensorNumber>({2, 0}));
}

TEST_F(PageExecutorTest, ACopyThatIsLostOnItsWayInMakesAnEmptyPage) {
  WaitForTensorThatLeft();
  ASSERT_TRUE(backend_.in);
  std::vector<TensorNumber> lost;
  executor_.Lose(0, &lost);
  EXPECT_EQ(lost, std::vector<TensorNumber>({0}));
  EndIn(false);
  EXPECT_EQ(executor_.books()[0].life, PageState::kClean);
  EXPECT_EQ(executor_.books()[0].live, 0u);
  EXPECT_EQ(executor_.books().copies().pools().used(), kPage);  // of tensor 1
  CheckBooks(executor_.books());
}

TEST_F(PageExecutorTest, ALostCopyOfAResidentPageLosesNothing) {
  WaitForTensorThatLeft();
  EndIn(true);  // its copy remains
  EXPECT_EQ(executor_.books()[0].life, PageState::kClean);
  std::vector<TensorNumber> lost;
  executor_.Lose(0, &lost);
  EXPECT_TRUE(lost.empty());
  EXPECT_TRUE(executor_.books()[0].IsDirty());
  executor_.Lose(0, &lost);
  EXPECT_TRUE(lost.empty());
}

// One that is being mapped, too: its client's mapper may take any time.
TEST_F(PageExecutorTest, TheCopyOfAPageThatIsNotCopiedInMovesToAnotherPool) {
  FillAndCreateOneMore();
  EXPECT_FALSE(CanMoveOn(executor_.books()[0])) << "it is being copied out";
  EndOut(true);
  EXPECT_TRUE(CanMoveOn(executor_.books()[0]));
  executor_.books().MoveCopy(0, 0);
  CheckBooks(executor_.books());
}

TEST_F(PageExecutorTest, CopiesOfResidentPagesAreDropped) {
  WaitForTensorThatLeft();
  EndIn(true);
  EXPECT_EQ(executor_.DropCopies(0, Bytes(1)), kPage);
  EXPECT_TRUE(executor_.books()[0].IsDirty());
  EXPECT_EQ(executor_.DropCopies(0, Bytes(1)), Bytes{}) << "the other one's page is away";
  CheckBooks(executor_.books());
}

TEST_F(PageExecutorTest, APageIsFetchedWithoutACall) {
  FillAndCreateOneMore();
  EndOut(true);
  executor_.Begin(2);
  Put(2, true);
  executor_.books().Demand(0);
  Map();
  EndOut(true);
  ASSERT_TRUE(backend_.in);
  EXPECT_TRUE(backend_.in->demanded);
  EndIn(true);
  EXPECT_TRUE(executor_.IsResident(0));
  EXPECT_EQ(backend_.away, std::set<TensorNumber>({1}));
}

TEST_F(PageExecutorTest, ACallThatWaitsTooLongIsRefused) {
  FillAndCreateOneMore();
  executor_.Refuse(2);
  EXPECT_EQ(backend_.refused, std::vector<TensorNumber>({2}));
  executor_.Remove(2);
  EndOut(true);
  EXPECT_TRUE(backend_.granted.empty());
  CheckBooks(executor_.books());
}

TEST_F(PageExecutorTest, AFailedCopyOutLosesNothing) {
  FillAndCreateOneMore();
  EndOut(false);
  EXPECT_TRUE(backend_.away.empty());
  ASSERT_TRUE(backend_.out);
  EndOut(true);
  EXPECT_EQ(backend_.granted, std::vector<TensorNumber>({2}));
}

TEST_F(PageExecutorTest, KeptMemoryStaysBeneathItsAddresses) {
  Create(0);
  executor_.KeepInPlace({0, 1});
  const auto memory = PlaceOf(executor_.books(), 0);
  executor_.Unpin(0);
  executor_.End(0);
  executor_.Reach(0);
  executor_.Remove(0);
  Create(1);
  Put(1, true);
  executor_.Place(2, {4, 1}, Bytes{}, kPage);
  EXPECT_FALSE(executor_.Pin(2));
  Map();
  EndOut(true);  // tensor 1 left, though page 0 is empty
  EXPECT_EQ(PlaceOf(executor_.books(), 0).page, memory.page);
  EXPECT_TRUE(executor_.books()[0].IsResident());
  executor_.EndKeepInPlace({0, 1});
  EXPECT_FALSE(executor_.books()[0].InUse());
}

TEST_F(PageExecutorTest, ARetiredClientLeavesWhenWhatIsUnderWayHasEnded) {
  FillAndCreateOneMore();
  executor_.Retire();
  EXPECT_FALSE(executor_.IsQuiet());
  EndOut(true);
  EXPECT_TRUE(executor_.IsQuiet());
  EXPECT_EQ(executor_.books().copies().pools().used(), Bytes{});
  CheckBooks(executor_.books());
}

TEST_F(PageExecutorTest, ACallThatHasWaitedTooLongIsRefused) {
  Create(0);
  Create(1);
  executor_.Place(2, {4, 1}, Bytes{}, kPage);
  EXPECT_FALSE(executor_.Pin(2));
  Map();
  EXPECT_TRUE(executor_.IsQuiet());
  executor_.Refuse(2);
  EXPECT_EQ(backend_.refused, std::vector<TensorNumber>({2}));
  executor_.Remove(2);
}

// Four slots a page. The second page has one slot, and the first has room for it.
TEST_F(PageExecutorTest, PagesThatACallWaitsForAreMappedSideBySide) {
  backend_.maps_most = 2;
  executor_.Place(0, {0, 2}, Bytes{}, kPage * 2);
  EXPECT_FALSE(executor_.Pin(0));
  executor_.Start();
  EXPECT_EQ(backend_.maps, 2u);
  executor_.Mapped(2);
  executor_.Start();
  EXPECT_FALSE(executor_.IsQuiet());
  executor_.Mapped(0);
  EXPECT_TRUE(executor_.Start());
  EXPECT_TRUE(executor_.IsQuiet());
  EXPECT_TRUE(executor_.IsResident(0));
}

TEST_F(PageExecutorTest, AheadOfNeedHalfAsManyPagesAreMappedSideBySide) {
  backend_.maps_most = 4;
  backend_.grants_early = true;
  executor_.books().SetShare(8);
  for (int i = 0; i < 6; ++i) executor_.AddPage();
  std::vector<plan::PlannedCall> calls;
  for (uint32_t i = 0; i < 6; ++i) {
    calls.push_back({.kind = plan::CallKind::kCreate, .units = {2 * i, 1}, .at = Duration(i)});
    calls.push_back(
        {.kind = plan::CallKind::kPut, .unpins = true, .units = {2 * i, 1}, .at = Duration(i)});
  }
  executor_.books().SetPlan(
      plan::ResidencyPlan::Make(calls, executor_.Snapshot(), executor_.books().view().limits));
  executor_.Start();
  EXPECT_EQ(backend_.maps, 2u);
  executor_.Place(5, {10, 1}, Bytes{}, kPage);
  EXPECT_FALSE(executor_.Pin(5));
  executor_.Start();
  EXPECT_EQ(backend_.maps, 3u) << "a call waits for this one";
}

// The page that has room for it may be among those that are under way.
TEST_F(PageExecutorTest, ASlotIsNotMappedWhileAnotherIs) {
  backend_.maps_most = 2;
  for (const TensorNumber tensor : {0u, 1u}) {
    executor_.Place(tensor, {1 + 2 * tensor, 1, 8}, Bytes{}, KiB(64));
    EXPECT_FALSE(executor_.Pin(tensor));
  }
  executor_.Start();
  EXPECT_EQ(backend_.maps, 1u);
  executor_.Mapped(backend_.mapping->unit);
  executor_.Start();
  EXPECT_EQ(backend_.maps, 2u);
}

TEST_F(PageExecutorTest, ASlotMovesOnlyWithItsWordRevoked) {
  for (TensorNumber tensor = 0; tensor < 5; ++tensor) {
    executor_.Place(tensor, {2 * tensor + 1, 1, 4}, Bytes{}, KiB(512));
    if (!executor_.Pin(tensor)) Map();
    executor_.Begin(tensor);
    Put(tensor, true);
  }
  executor_.End(0);
  ASSERT_TRUE(executor_.books().view().supply.total() == 0);
  backend_.in_use = {1, 2, 3, 4};  // not reported
  executor_.Place(5, {0, 1}, Bytes{}, kPage);
  EXPECT_FALSE(executor_.Pin(5));
  Map();
  EXPECT_TRUE(backend_.moves.empty());
  EXPECT_GT(executor_.stats().not_revoked, 0u);
  backend_.in_use.clear();
  for (TensorNumber tensor = 1; tensor < 5; ++tensor) {  // the reports come
    executor_.Pin(tensor);
    Put(tensor, false);
  }
  Map();
  ASSERT_EQ(backend_.moves.size(), 1u);
  EXPECT_EQ(backend_.moves[0].slot, 9u);
  EXPECT_TRUE(backend_.away.empty());  // published where it is now
  EXPECT_EQ(backend_.granted.back(), 5u);
  CheckBooks(executor_.books());
}

TEST_F(PageExecutorTest, NoSlotMovesToAPageThatIsNotMappedYet) {
  for (TensorNumber tensor = 0; tensor < 5; ++tensor) {
    executor_.Place(tensor, {2 * tensor + 1, 1, 4}, Bytes{}, KiB(512));
    executor_.Pin(tensor);
    if (tensor == 4) break;
    Map();
    executor_.Begin(tensor);
    Put(tensor, true);
  }
  executor_.Start();
  ASSERT_TRUE(backend_.mapping) << "the second page";
  for (const TensorNumber tensor : {0u, 1u, 2u}) executor_.End(tensor);
  executor_.SetShare(1);
  executor_.Start();
  EXPECT_TRUE(backend_.moves.empty());
  EXPECT_TRUE(backend_.released.empty());
  Map();
  EXPECT_EQ(backend_.moves.size(), 1u);
  EXPECT_EQ(backend_.released.size(), 1u);
}

// Tensors 0 and 1 share page 0, and the second one's other half is in page 2.
TEST_F(PageExecutorTest, ATensorOfAwayPagesMovesToASlotAndComesAlone) {
  executor_.Place(0, {0, 1}, Bytes{}, KiB(256));
  executor_.Place(1, {0, 2}, kPage - KiB(128), KiB(256));
  for (TensorNumber tensor : {0u, 1u}) {
    if (!executor_.Pin(tensor)) Map();
    executor_.Begin(tensor);
    Put(tensor, true);
  }
  const plan::UnitSpan slot{1, 1, 8};
  EXPECT_FALSE(executor_.MoveToSlot(1, slot));  // it is resident
  executor_.Leave(kPage);
  Map();
  EndOut(true);
  EXPECT_FALSE(executor_.MoveToSlot(1, slot));  // the other page is
  executor_.Leave(kPage);
  Map();
  EndOut(true);
  std::vector<Unit> left;
  executor_.TakeLeft(&left);
  EXPECT_EQ(left, std::vector<Unit>({2, 0}));  // page 0 has two uses
  backend_.copy_moves_fail = true;
  EXPECT_FALSE(executor_.MoveToSlot(1, slot));
  backend_.copy_moves_fail = false;
  backend_.copy_moves.clear();
  ASSERT_TRUE(executor_.MoveToSlot(1, slot));
  ASSERT_EQ(backend_.copy_moves.size(), 2u);
  EXPECT_EQ(backend_.copy_moves[0].page_offset, kPage - KiB(128));
  EXPECT_EQ(backend_.copy_moves[1].page_offset, Bytes{});
  EXPECT_EQ(backend_.copy_moves[1].slot_offset, KiB(128));
  EXPECT_EQ(executor_.books()[2].live, 0u);
  EXPECT_FALSE(executor_.Pin(1));
  Map();
  ASSERT_TRUE(backend_.in);
  EXPECT_EQ(backend_.in->unit, 1u);
  EXPECT_EQ(backend_.in->bytes, KiB(256));
  EndIn(true);
  EXPECT_EQ(backend_.granted.back(), 1u);
  EXPECT_EQ(executor_.books()[0].life, PageState::kAway);
  CheckBooks(executor_.books());
}

TEST_F(PageExecutorTest, APageThatACallWaitsForKeepsItsTensors) {
  for (TensorNumber tensor : {0u, 1u}) {
    executor_.Place(tensor, {0, 1}, Bytes{}, KiB(256));
    if (!executor_.Pin(tensor)) Map();
    executor_.Begin(tensor);
    Put(tensor, true);
  }
  executor_.Leave(kPage);
  Map();
  EndOut(true);
  EXPECT_FALSE(executor_.Pin(0));
  EXPECT_FALSE(executor_.MoveToSlot(1, {1, 1, 8}));
  EXPECT_TRUE(backend_.copy_moves.empty());
}

// ---- Bytes that can be recomputed.

TEST_F(PageExecutorTest, ATensorThatCanBeRecomputedLeavesWithoutACopy) {
  for (TensorNumber tensor : {0u, 1u}) {
    Create(tensor);
    Put(tensor, true);
    executor_.SetRecomputes(tensor, true);
  }
  executor_.Place(2, {4, 1}, Bytes{}, kPage);
  EXPECT_FALSE(executor_.Pin(2));
  Map();
  EXPECT_TRUE(executor_.IsResident(2));
  EXPECT_FALSE(backend_.out);
  EXPECT_EQ(executor_.stats().discarded, 1u);
  const TensorNumber discarded = executor_.tensors()[0].is_discarded() ? 0 : 1;
  EXPECT_TRUE(executor_.tensors()[discarded].is_discarded());
  executor_.Begin(2);
  Put(2, true);
  // It begins again, and may stay: its word says that it is there.
  EXPECT_FALSE(executor_.Pin(discarded));
  Map();
  EXPECT_TRUE(executor_.IsResident(discarded));
  EXPECT_FALSE(executor_.tensors()[discarded].lives());
  executor_.Begin(discarded);
  EXPECT_TRUE(executor_.tensors()[discarded].lives());
  EXPECT_FALSE(executor_.tensors()[discarded].away);
}

TEST_F(PageExecutorTest, TheMemoryOfWhatIsDiscardedForAFallenShareIsReleasedImmediately) {
  for (TensorNumber tensor : {0u, 1u}) {
    Create(tensor);
    Put(tensor, true);
    executor_.SetRecomputes(tensor, true);
  }
  executor_.SetShare(0);
  executor_.Start();
  EXPECT_EQ(executor_.stats().discarded, 2u);
  EXPECT_FALSE(backend_.out);
  EXPECT_EQ(executor_.books().memory().pages(), 0u);
}

TEST_F(PageExecutorTest, TheOthersOfItsPageAreCopied) {
  executor_.Place(0, {0, 1}, Bytes{}, KiB(512));
  executor_.Place(1, {0, 1}, MiB(1), KiB(512));
  for (TensorNumber tensor : {0u, 1u}) {
    if (!executor_.Pin(tensor)) Map();
    executor_.Begin(tensor);
  }
  for (TensorNumber tensor : {0u, 1u}) Put(tensor, true);
  executor_.SetRecomputes(0, true);
  ASSERT_TRUE(executor_.Leave(kPage));
  executor_.Start();
  ASSERT_TRUE(backend_.out);
  EXPECT_EQ(backend_.out->bytes, KiB(512));
  EXPECT_TRUE(executor_.tensors()[0].is_discarded());
  EXPECT_TRUE(executor_.tensors()[1].lives());
  EndOut(true);
}

TEST_F(PageExecutorTest, ADiscardedTensorWhoseGetFailsStaysDiscarded) {
  Create(0);
  Put(0, true);
  executor_.SetRecomputes(0, true);
  ASSERT_TRUE(executor_.Leave(kPage));
  executor_.Start();
  ASSERT_TRUE(executor_.tensors()[0].is_discarded());
  for (TensorNumber tensor : {1u, 2u}) Create(tensor);
  EXPECT_FALSE(executor_.Pin(0));
  executor_.Refuse(0);
  EXPECT_TRUE(executor_.tensors()[0].is_discarded());
  executor_.Remove(0);
}

}  // namespace
}  // namespace ravenstore::core
