#include "elastic/slot_set.h"

#include <gtest/gtest.h>

#include <random>
#include <set>

namespace ravenstore::elastic {
namespace {

TEST(SlotSetTest, FindsTheSameNeighboursAsAnOrderedSet) {
  for (const uint64_t seed : {1, 2, 3}) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937_64 random(seed);
    constexpr size_t kSlots = 10'000;
    SlotSet set(kSlots);
    std::set<size_t> truth;
    for (int i = 0; i < 20'000; ++i) {
      const size_t slot = random() % kSlots;
      if (random() % 3 == 0) {
        set.Add(slot);
        truth.insert(slot);
      } else {
        set.Remove(slot);
        truth.erase(slot);
      }
      const size_t from = random() % kSlots;
      const auto next = truth.lower_bound(from);
      ASSERT_EQ(set.Next(from), next != truth.end() ? std::optional(*next) : std::nullopt);
      const auto after = truth.upper_bound(from);
      ASSERT_EQ(set.Previous(from),
                after != truth.begin() ? std::optional(*std::prev(after)) : std::nullopt);
      ASSERT_EQ(set.empty(), truth.empty());
      ASSERT_EQ(set.Holds(slot), truth.contains(slot));
    }
  }
}

TEST(SlotSetTest, KeepsItsMembersWhenItGrows) {
  SlotSet set(1);
  set.Add(0);
  for (size_t slots = 2; slots < 300'000; slots *= 3) {
    set.Grow(slots);
    set.Add(slots - 1);
    EXPECT_EQ(set.Next(0), 0u);
    EXPECT_EQ(set.Previous(slots - 1), slots - 1);
    EXPECT_EQ(set.Previous(slots - 2), slots == 2 ? 0 : slots / 3 - 1);
  }
}

TEST(RingSetTest, GoesOnOverTheEndOfTheRing) {
  RingSet set(64);
  for (const uint64_t number : {126, 130, 140}) set.Add(number);
  EXPECT_EQ(set.First(120, 150), 126u);
  EXPECT_EQ(set.First(127, 150), 130u);
  EXPECT_EQ(set.Last(120, 150), 140u);
  EXPECT_EQ(set.Last(120, 140), 130u);
  EXPECT_EQ(set.First(141, 150), std::nullopt);
  EXPECT_EQ(set.Last(131, 140), std::nullopt);
}

}  // namespace
}  // namespace ravenstore::elastic
