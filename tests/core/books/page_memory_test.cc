#include "core/books/page_memory.h"

#include <gtest/gtest.h>

namespace ravenstore::core {
namespace {

using Source = plan::PageSupply::Source;

constexpr plan::Unit kSlot = 1;

TEST(PageMemoryTest, APageThatAUnitLeavesServesAnother) {
  PageMemory memory(MiB(2), 1);
  const auto first = memory.Take(0, 1, Source::kNeverUsed);
  EXPECT_EQ(memory.Of(0, 1).page, first.page);
  EXPECT_FALSE(memory.Release());
  memory.Leave(0, 1);
  const auto next = memory.Take(2, 1, Source::kStale);
  EXPECT_EQ(next.page, first.page);
  EXPECT_TRUE(next.steps.unmap);
  EXPECT_EQ(memory.pages(), 1u);
}

TEST(PageMemoryTest, SlotsOfAClassShareAPage) {
  PageMemory memory(MiB(2), 2);
  const auto page = memory.Take(kSlot, 4, Source::kNeverUsed);
  EXPECT_TRUE(memory.slot_pages().HasRoom(4));
  EXPECT_EQ(memory.Join(kSlot + 2, 4).page, page.page);
  EXPECT_EQ(memory.Of(kSlot + 2, 4).offset, KiB(512));
  memory.Leave(kSlot, 4);
  memory.Leave(kSlot + 2, 4);
  EXPECT_EQ(memory.supply().total(), 2u);
}

TEST(PageMemoryTest, SlotsOfASparsePageMoveToAnother) {
  PageMemory memory(MiB(2), 2);
  memory.Take(kSlot, 2, Source::kNeverUsed);
  memory.Join(kSlot + 2, 2);
  memory.Take(kSlot + 4, 2, Source::kNeverUsed);
  memory.Leave(kSlot, 2);
  const auto sparse = memory.slot_pages().FindSparse([](plan::Unit) { return true; });
  ASSERT_EQ(sparse.size(), 1u);
  const auto moves = memory.Empty(sparse, 2);
  ASSERT_EQ(moves.size(), 1u);
  EXPECT_NE(moves[0].from.page, moves[0].to.page);
  EXPECT_EQ(memory.Of(sparse[0], 2).page, moves[0].to.page);
  const auto released = memory.Release();
  ASSERT_TRUE(released);
  EXPECT_EQ(released->page, moves[0].from.page);
  EXPECT_EQ(memory.pages(), 1u);
}

TEST(PageMemoryTest, AReleasedPageTakesMemoryUntilItIsDestroyed) {
  PageMemory memory(MiB(2), 1);
  EXPECT_EQ(memory.releasing(), 0u);
  ASSERT_TRUE(memory.Release());
  EXPECT_EQ(memory.pages(), 0u);
  EXPECT_EQ(memory.releasing(), 1u);
  memory.Destroyed();
  EXPECT_EQ(memory.releasing(), 0u);
}

}  // namespace
}  // namespace ravenstore::core
