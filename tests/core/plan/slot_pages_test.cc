#include "core/plan/slot_pages.h"

#include <gtest/gtest.h>

#include <ctime>

#include "tests/core/plan/seeds.h"

namespace ravenstore::core::plan {
namespace {

const auto kAny = [](Unit) { return true; };

TEST(SlotPagesTest, SlotsGatherOnTheFullestPage) {
  SlotPages pages;
  EXPECT_FALSE(pages.HasRoom(4));
  for (Unit slot = 1; slot <= 7; slot += 2) pages.JoinEmpty(slot, 4);
  pages.Join(9, 4);
  pages.Join(11, 4);
  pages.Join(13, 4);
  EXPECT_EQ(pages.pages(), 4u);
  EXPECT_FALSE(pages.HasRoom(8));
  EXPECT_TRUE(pages.Leave(1) || pages.Leave(3));  // one of them was alone
}

TEST(SlotPagesTest, SparePagesAreThoseThatTheOthersCouldTake) {
  SlotPages pages;
  EXPECT_EQ(pages.SparePages(), 0u);
  for (Unit slot = 1; slot <= 9; slot += 2) pages.JoinEmpty(slot, 4);  // 5 slots on 5 pages
  pages.JoinEmpty(11, 2);
  EXPECT_EQ(pages.SparePages(), 3u);
  pages.Leave(11);
  EXPECT_EQ(pages.SparePages(), 3u);
}

TEST(SlotPagesTest, ASparsePageEmptiesOntoTheOthers) {
  SlotPages pages;
  pages.JoinEmpty(1, 4);
  pages.Join(3, 4);
  pages.JoinEmpty(5, 4);
  EXPECT_EQ(pages.FindSparse(kAny), std::vector<Unit>{5});
  EXPECT_TRUE(pages.FindSparse([](Unit) { return false; }).empty());
  pages.Empty({5});
  EXPECT_EQ(pages.pages(), 1u);
  EXPECT_TRUE(pages.Contains(5));
  EXPECT_TRUE(pages.FindSparse(kAny).empty());
}

// A page has fewer slots. With this many a linear search takes most of a minute.
TEST(SlotPagesTest, SlotsLeaveAFullPageFast) {
  constexpr Unit kSlots = 1 << 19;
  SlotPages pages;
  pages.JoinEmpty(1, kSlots);
  for (Unit slot = 1; slot < kSlots; ++slot) pages.Join(2 * slot + 1, kSlots);
  const std::clock_t begin = std::clock();
  for (Unit slot = kSlots; slot-- > 0;) pages.Leave(2 * slot + 1);
  EXPECT_LT(std::clock() - begin, 5 * CLOCKS_PER_SEC);
  EXPECT_EQ(pages.pages(), 0u);
}

TEST(SlotPagesTest, RandomSlotsKeepTheirPages) {
  ForSeeds(20, [](Random& random) {
    SlotPages pages;
    std::vector<Unit> slots;
    for (int i = 0; i < 400; ++i) {
      const uint64_t choice = random.Below(5);
      if (choice == 0) {
        const std::vector<Unit> sparse = pages.FindSparse(kAny);
        const uint32_t before = pages.pages();
        if (sparse.empty()) continue;
        pages.Empty(sparse);
        ASSERT_EQ(pages.pages(), before - 1);
      } else if (choice < 3 && !slots.empty()) {
        const size_t which = random.Below(slots.size());
        pages.Leave(slots[which]);
        slots.erase(slots.begin() + static_cast<ptrdiff_t>(which));
      } else {
        const Unit slot = static_cast<Unit>(2 * i + 1);
        const uint32_t slots_per_page = random.OneIn(2) ? 4 : 7;
        if (pages.HasRoom(slots_per_page)) {
          pages.Join(slot, slots_per_page);
        } else {
          pages.JoinEmpty(slot, slots_per_page);
        }
        slots.push_back(slot);
      }
      for (const Unit slot : slots) ASSERT_TRUE(pages.Contains(slot));
    }
    for (const Unit slot : slots) pages.Leave(slot);
    EXPECT_EQ(pages.pages(), 0u);
  });
}

}  // namespace
}  // namespace ravenstore::core::plan
