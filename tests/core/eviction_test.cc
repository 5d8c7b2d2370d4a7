#include "core/eviction.h"

#include <gtest/gtest.h>

#include <utility>
#include <vector>

#include "core/eviction_policies.h"

namespace ravenstore::core {
namespace {

constexpr Tick kNow{std::chrono::seconds(1000)};
const AwayLinks kLinks{{{kHostPool, {}, GiB(1)}}};

Tick In(Duration duration) {
  return kNow + duration;
}

// An arena of one piece in which tensors stand one behind the other.
class Shelf {
 public:
  explicit Shelf(Bytes size) : map_(size) { map_.AddChunk(Bytes{0}, size); }

  // A quiet, dirty tensor, last used a second before kNow.
  TensorId Add(Bytes size) {
    TensorRow& tensor = catalog_.Add();
    tensor.size = size;
    tensor.home.block = *map_.Allocate(size, Catalog::RowOf(tensor.id));
    tensor.use_key = -In(-std::chrono::seconds(1)).time_since_epoch().count();
    tensor.version = 1;
    index_.Insert(tensor);
    return tensor.id;
  }
  TensorId AddClean(Bytes size) {
    const TensorId id = Add(size);
    return Change(id, [](TensorRow& tensor) { tensor.away.state = Replica::State::kCurrent; });
  }
  TensorId AddAt(Bytes size, Tick at) {
    return Change(Add(size), [at](TensorRow& tensor) {
      tensor.use_kind = UseKind::kAt;
      tensor.use_key = at.time_since_epoch().count();
    });
  }
  TensorId AddOrder(Bytes size, int64_t order) {
    return Change(Add(size), [order](TensorRow& tensor) {
      tensor.use_kind = UseKind::kOrder;
      tensor.use_key = order;
    });
  }
  TensorId AddUsed(Bytes size, Tick at) {
    return Change(Add(size),
                  [at](TensorRow& tensor) { tensor.use_key = -at.time_since_epoch().count(); });
  }
  TensorId AddNever(Bytes size) {
    return Change(Add(size), [](TensorRow& tensor) { tensor.never = true; });
  }
  // A copy of it to the host begins.
  void BeginCleaning(TensorId id) {
    TensorRow& tensor = *catalog_.Find(id);
    index_.Erase(tensor);
    tensor.in_use = false;
    tensor.stream_complete = true;
    Catalog::Commit(tensor, TensorState::kCleaning);
    index_.BeginCleaning(tensor);
  }
  template <typename Function>
  TensorId Change(TensorId id, Function change) {
    TensorRow& tensor = *catalog_.Find(id);
    index_.Erase(tensor);
    change(tensor);
    index_.Insert(tensor);
    return id;
  }
  // Takes it out of the index, as when it is in use.
  void Hold(TensorId id) { index_.Erase(*catalog_.Find(id)); }
  void Remove(TensorId id) {
    Hold(id);
    map_.Free(catalog_.Find(id)->home.block);
    catalog_.Remove(id);
  }

  std::vector<TensorId> Victims(Bytes need, const EvictionIndex::Limits& limits = {}) const {
    std::vector<TensorId> ids;
    for (const uint32_t row : index_.FindRun(map_, need, kNow, links_, limits)) {
      ids.push_back(catalog_[row].id);
    }
    return ids;
  }
  EvictionIndex::Limits LaterThan(TensorId id, bool clean_only = false) const {
    return {.clean_only = clean_only, .later_than = catalog_.Find(id)};
  }
  double Value(TensorId id) const { return index_.Value(*catalog_.Find(id), kNow, links_); }
  void SetLinks(AwayLinks links) { links_ = std::move(links); }
  EvictionIndex& index() { return index_; }
  const Catalog& catalog() const { return catalog_; }
  ExtentMap& map() { return map_; }

 private:
  Catalog catalog_;
  ExtentMap map_;
  ValueIndex index_{&catalog_};
  AwayLinks links_ = kLinks;
};

using Ids = std::vector<TensorId>;

TEST(EvictionTest, TheFarthestLeavesFirst) {
  Shelf shelf(MiB(12));
  const TensorId near = shelf.AddAt(MiB(4), In(std::chrono::milliseconds(10)));
  const TensorId far = shelf.AddAt(MiB(4), In(std::chrono::seconds(10)));
  shelf.AddAt(MiB(4), In(std::chrono::seconds(1)));
  EXPECT_GT(shelf.Value(far), shelf.Value(near));
  EXPECT_EQ(shelf.Victims(MiB(4)), Ids{far});
}

// A peer's memory with room for 1 MiB, and a file.
constexpr PoolId kPeer{2};
constexpr PoolId kFile{3};
AwayLinks PeerAndFile() {
  return {.pools = {{kPeer, {.up_bytes_per_second = 400e9, .down_bytes_per_second = 400e9}, MiB(1)},
                    {kFile, {.up_bytes_per_second = 8e9, .down_bytes_per_second = 4e9}, GiB(1)}}};
}

TEST(EvictionTest, WhatComesBackSoonerLeavesFirst) {
  Shelf shelf(MiB(8));
  shelf.SetLinks(PeerAndFile());
  const auto copied_to = [](PoolId pool) {
    return [pool](TensorRow& tensor) {
      tensor.away =
          Replica{.block = ExtentMap::Block{0}, .pool = pool, .state = Replica::State::kCurrent};
    };
  };
  // The other is needed later, but its way back is longer by more than that.
  shelf.Change(shelf.AddAt(MiB(4), In(std::chrono::seconds(2))), copied_to(kFile));
  const TensorId of_peer =
      shelf.Change(shelf.AddAt(MiB(4), In(std::chrono::seconds(1))), copied_to(kPeer));
  EXPECT_EQ(shelf.Victims(MiB(4)), Ids{of_peer});
}

TEST(EvictionTest, ADirtyTensorsWayIsThatOfTheNearestPoolThatTakesIt) {
  Shelf shelf(MiB(3));
  shelf.SetLinks(PeerAndFile());
  const TensorId small = shelf.AddAt(MiB(1), In(std::chrono::seconds(1)));
  const TensorId large = shelf.AddAt(MiB(2), In(std::chrono::seconds(1)));
  // Bytes for every second of copying, five times as much out as back.
  const auto value = [](double bytes, double up, double down) {
    return bytes / (12e-6 + bytes / up + 5 * (12e-6 + bytes / down));
  };
  EXPECT_NEAR(shelf.Value(small), value(0x1p20, 400e9, 400e9), 1);
  EXPECT_NEAR(shelf.Value(large), value(0x1p21, 8e9, 4e9), 1);
}

TEST(AwayLinksTest, AnObjectsWayIsThatOfItsPoolWhoeverHoldsIt) {
  const AwayLinks links = PeerAndFile();
  Object object;
  object.size = MiB(2);
  EXPECT_EQ(links.Of(object).up_bytes_per_second, 8e9);  // the peer has no room for it
  object.away = Replica{.block = ExtentMap::Block{0}, .pool = kPeer};
  EXPECT_EQ(links.Of(object).up_bytes_per_second, 400e9);
}

TEST(EvictionTest, OfTwoHoldingsThatOfTheSameKindThatIsUsedLaterIsLater) {
  Shelf shelf(MiB(4));
  Holding sooner;
  sooner.Expect({.kind = UseKind::kOrder, .key = 1});
  Holding later;
  later.Expect({.kind = UseKind::kOrder, .key = 2});
  EXPECT_TRUE(shelf.index().IsLater(later, sooner));
  EXPECT_FALSE(shelf.index().IsLater(sooner, later));
  later.Expect({.kind = UseKind::kAt, .key = 2});
  EXPECT_FALSE(shelf.index().IsLater(later, sooner));
  later.Expect({.never = true});
  EXPECT_TRUE(shelf.index().IsLater(later, sooner));
}

TEST(EvictionTest, TheLaterInOrderLeavesFirst) {
  Shelf shelf(MiB(12));
  shelf.AddOrder(MiB(4), 1);
  const TensorId last = shelf.AddOrder(MiB(4), 30);
  shelf.AddOrder(MiB(4), 2);
  EXPECT_EQ(shelf.Victims(MiB(4)), Ids{last});
}

TEST(EvictionTest, OrdersCountFromTheOneInUse) {
  Shelf shelf(MiB(8));
  const TensorId ordered = shelf.AddOrder(MiB(4), 1000);
  const TensorId plain = shelf.AddUsed(MiB(4), In(-std::chrono::milliseconds(500)));
  // A thousand steps away is further than half a second; one step away is not.
  EXPECT_EQ(shelf.Victims(MiB(4)), Ids{ordered});
  shelf.index().SetOrderCursor(999);
  EXPECT_EQ(shelf.Victims(MiB(4)), Ids{plain});
  shelf.index().LowerOrderCursor(0);
  EXPECT_EQ(shelf.Victims(MiB(4)), Ids{ordered});
}

TEST(EvictionTest, OfThoseNeededAtOnceTheFirstThatWasMadeLeavesFirst) {
  Shelf shelf(MiB(12));
  const TensorId a = shelf.AddAt(MiB(4), In(std::chrono::seconds(2)));
  const TensorId b = shelf.AddAt(MiB(4), In(std::chrono::seconds(2)));
  const TensorId c = shelf.AddAt(MiB(4), In(std::chrono::seconds(2)));
  for (const TensorId next : {a, b, c}) {
    EXPECT_EQ(shelf.Victims(MiB(4)), std::vector{next});
    shelf.Hold(next);
  }
}

TEST(EvictionTest, WithoutHintsTheLeastRecentlyUsedLeavesFirst) {
  Shelf shelf(MiB(12));
  shelf.AddUsed(MiB(4), In(-std::chrono::milliseconds(1)));
  const TensorId oldest = shelf.AddUsed(MiB(4), In(-std::chrono::seconds(3)));
  shelf.AddUsed(MiB(4), In(-std::chrono::seconds(1)));
  EXPECT_EQ(shelf.Victims(MiB(4)), Ids{oldest});
}

TEST(EvictionTest, WhatIsNotNeededAgainLeavesBeforeAnythingElse) {
  Shelf shelf(MiB(12));
  shelf.AddClean(MiB(4));
  const TensorId never = shelf.AddNever(MiB(4));
  shelf.AddAt(MiB(4), In(std::chrono::hours(1)));
  EXPECT_EQ(shelf.Victims(MiB(4)), Ids{never});
}

TEST(EvictionTest, CleanLeavesBeforeDirtyOfTheSameDistance) {
  Shelf shelf(MiB(12));
  shelf.Add(MiB(4));
  const TensorId clean = shelf.AddClean(MiB(4));
  shelf.Add(MiB(4));
  EXPECT_EQ(shelf.Victims(MiB(4)), Ids{clean});
}

TEST(EvictionTest, SizeCountsAmongSmallTensorsAndDistanceAmongLarge) {
  Shelf shelf(MiB(512));
  const TensorId small = shelf.AddAt(KiB(4), In(std::chrono::seconds(2)));
  const TensorId medium = shelf.AddAt(KiB(64), In(std::chrono::seconds(1)));
  EXPECT_GT(shelf.Value(medium), 4 * shelf.Value(small));
  const TensorId large = shelf.AddAt(MiB(64), In(std::chrono::seconds(2)));
  const TensorId larger = shelf.AddAt(MiB(256), In(std::chrono::seconds(1)));
  EXPECT_GT(shelf.Value(large), 1.9 * shelf.Value(larger));
}

TEST(EvictionTest, ARunIsContiguous) {
  Shelf shelf(MiB(24));
  const TensorId lone = shelf.AddAt(MiB(4), In(std::chrono::seconds(100)));
  const TensorId held = shelf.Add(MiB(4));
  const TensorId a = shelf.AddAt(MiB(4), In(std::chrono::seconds(2)));
  const TensorId b = shelf.AddAt(MiB(4), In(std::chrono::seconds(3)));
  const TensorId also_held = shelf.Add(MiB(8));
  shelf.Hold(held);
  shelf.Hold(also_held);
  EXPECT_EQ(shelf.Victims(MiB(4)), Ids{lone});
  EXPECT_EQ(shelf.Victims(MiB(8)), (Ids{a, b}));
  EXPECT_EQ(shelf.Victims(MiB(12)), Ids{});
}

TEST(EvictionTest, FreeNeighboursAreTakenFirst) {
  Shelf shelf(MiB(16));
  const TensorId a = shelf.Add(MiB(4));
  const TensorId b = shelf.Add(MiB(4));
  const TensorId c = shelf.Add(MiB(4));
  shelf.Add(MiB(4));
  shelf.Remove(b);
  const Ids victims = shelf.Victims(MiB(8));
  ASSERT_EQ(victims.size(), 1u);
  EXPECT_TRUE(victims[0] == a || victims[0] == c);
}

// So that holes grow together; but not at the price of more than a fiftieth.
TEST(EvictionTest, OfRunsThatDoAsMuchHarmOneBesideRoomLeaves) {
  for (const bool much_later : {false, true}) {
    Shelf shelf(MiB(64));
    shelf.Hold(shelf.Add(MiB(4)));
    const TensorId hole = shelf.Add(MiB(2));
    const TensorId beside = shelf.AddAt(MiB(4), In(std::chrono::milliseconds(1000)));
    shelf.Hold(shelf.Add(MiB(4)));
    const TensorId apart =
        shelf.AddAt(MiB(4), In(std::chrono::milliseconds(much_later ? 1050 : 1010)));
    shelf.Hold(shelf.Add(MiB(46)));
    shelf.Remove(hole);
    EXPECT_EQ(shelf.Victims(MiB(4)), std::vector{much_later ? apart : beside});
  }
}

TEST(EvictionTest, HandsBackWhatTheRunDoesNotNeed) {
  // Grown from the far, small one over the near one to the large one: the small one is not needed.
  Shelf shelf(MiB(16));
  const TensorId wall = shelf.Add(MiB(1));
  const TensorId small = shelf.AddAt(MiB(1), In(std::chrono::hours(10)));
  const TensorId large = shelf.AddAt(MiB(10), In(std::chrono::hours(9)));
  const TensorId other_wall = shelf.Add(MiB(4));
  shelf.Hold(wall);
  shelf.Hold(other_wall);
  EXPECT_EQ(shelf.Victims(MiB(10)), Ids{large});
  EXPECT_EQ(shelf.Victims(MiB(11)), (Ids{small, large}));
}

TEST(EvictionTest, ForALargeCreateWhatMustBeCopiedCountsAndHardlyWhen) {
  Shelf shelf(MiB(12));
  const TensorId far = shelf.AddAt(MiB(4), In(std::chrono::milliseconds(300)));
  shelf.Hold(shelf.Add(MiB(1)));
  const TensorId hole = shelf.Add(MiB(3));
  const TensorId near = shelf.AddAt(MiB(1), In(std::chrono::milliseconds(20)));
  shelf.Hold(shelf.Add(MiB(3)));
  shelf.Remove(hole);
  EXPECT_EQ(shelf.Victims(MiB(4)), Ids{far});
  EXPECT_EQ(shelf.Victims(MiB(4), {.large = true}), Ids{near});
}

TEST(EvictionTest, ForALargeCreateTheFarthestOfEqualsLeavesFirst) {
  Shelf shelf(MiB(8));
  shelf.AddAt(MiB(4), In(std::chrono::milliseconds(20)));
  const TensorId far = shelf.AddAt(MiB(4), In(std::chrono::milliseconds(30)));
  EXPECT_EQ(shelf.Victims(MiB(4), {.large = true}), Ids{far});
}

TEST(EvictionTest, IsHintedWhileATensorInItIs) {
  Shelf shelf(MiB(12));
  shelf.Add(MiB(4));
  EXPECT_FALSE(shelf.index().IsHinted());
  const TensorId hinted = shelf.AddOrder(MiB(4), 7);
  EXPECT_TRUE(shelf.index().IsHinted());
  shelf.Remove(hinted);
  EXPECT_FALSE(shelf.index().IsHinted());
}

TEST(EvictionTest, NothingLargeLeavesForASmallRequest) {
  // Many large tensors that are needed far later than the small ones.
  Shelf shelf(GiB(30));
  for (int i = 0; i < 14; ++i) shelf.AddAt(GiB(2), In(std::chrono::hours(1 + i)));
  for (int i = 0; i < 7; ++i) shelf.AddAt(MiB(256), In(std::chrono::hours(1 + i)));
  for (int i = 0; i < 4; ++i) shelf.AddAt(KiB(64), In(std::chrono::minutes(10)));
  const Ids victims = shelf.Victims(KiB(64));
  ASSERT_EQ(victims.size(), 1u);
  EXPECT_EQ(shelf.catalog()[Catalog::RowOf(victims[0])].size, KiB(64));
}

TEST(EvictionTest, CleanOnlyTakesNothingThatNeedsACopy) {
  Shelf shelf(MiB(16));
  shelf.AddAt(MiB(4), In(std::chrono::hours(1)));
  EXPECT_EQ(shelf.Victims(MiB(4), {.clean_only = true}), Ids{});
  const TensorId clean = shelf.AddClean(MiB(4));
  EXPECT_EQ(shelf.Victims(MiB(4), {.clean_only = true}), Ids{clean});
  EXPECT_EQ(shelf.Victims(MiB(12), {.clean_only = true}), Ids{clean});  // with the free rest
  shelf.Remove(clean);
  const TensorId never = shelf.AddNever(MiB(4));
  EXPECT_EQ(shelf.Victims(MiB(4), {.clean_only = true}), Ids{never});
}

// It leaves at once; but not at the price of more than kOutWeight times the cost.
TEST(EvictionTest, WhatIsCleanLeavesRatherThanWhatIsBeingCopied) {
  for (const bool much_sooner : {false, true}) {
    Shelf shelf(MiB(12));
    const TensorId copied = shelf.AddAt(MiB(4), In(std::chrono::seconds(10)));
    const TensorId clean = shelf.AddClean(MiB(4));
    shelf.AddAt(MiB(4), In(std::chrono::seconds(2)));
    shelf.Change(clean, [&](TensorRow& tensor) {
      tensor.use_kind = UseKind::kAt;
      tensor.use_key = In(std::chrono::seconds(much_sooner ? 1 : 3)).time_since_epoch().count();
    });
    shelf.BeginCleaning(copied);
    EXPECT_EQ(shelf.Victims(MiB(4)), Ids{much_sooner ? copied : clean});
  }
}

TEST(EvictionTest, LaterThanTakesNothingThatIsNeededSooner) {
  Shelf shelf(MiB(20));
  const TensorId wanted = shelf.AddOrder(MiB(4), 10);
  const TensorId sooner = shelf.AddOrder(MiB(4), 9);
  const TensorId later = shelf.AddOrder(MiB(4), 11);
  const TensorId unknown = shelf.Add(MiB(4));  // it may be needed at once
  const TensorId by_time = shelf.AddAt(MiB(4), In(std::chrono::hours(1)));
  EXPECT_EQ(shelf.Victims(MiB(4), shelf.LaterThan(wanted)), Ids{later});
  EXPECT_EQ(shelf.Victims(MiB(8), shelf.LaterThan(wanted)), Ids{});
  EXPECT_EQ(shelf.Victims(MiB(4), shelf.LaterThan(wanted, true)), Ids{});
  for (const TensorId id : {sooner, later, unknown, by_time}) shelf.Remove(id);
}

// Neighbour by neighbour the cheaper one first would go the way of the small ones, which come to
// more.
TEST(EvictionTest, TheRunAroundASeedIsTheLeastOfAll) {
  Shelf shelf(KiB(52));
  for (int i = 0; i < 6; ++i) shelf.AddAt(KiB(4), In(std::chrono::milliseconds(600)));
  const TensorId seed = shelf.AddAt(KiB(4), In(std::chrono::seconds(60)));
  const TensorId large = shelf.AddAt(KiB(24), In(std::chrono::seconds(2)));
  EXPECT_EQ(shelf.Victims(KiB(28)), (std::vector{seed, large}));
}

TEST(EvictionTest, PrecleansTheFarthestDirtyTensor) {
  Shelf shelf(MiB(20));
  EXPECT_FALSE(shelf.index().FarthestDirty(kNow, kLinks).has_value());
  shelf.AddClean(MiB(4));
  shelf.AddNever(MiB(4));
  EXPECT_FALSE(shelf.index().FarthestDirty(kNow, kLinks).has_value());
  shelf.AddAt(MiB(4), In(std::chrono::seconds(5)));
  const TensorId far = shelf.AddAt(MiB(4), In(std::chrono::seconds(50)));
  EXPECT_EQ(shelf.index().FarthestDirty(kNow, kLinks), Catalog::RowOf(far));
}

// kPriorityWeight times: what is needed so much sooner stays after all.
TEST(EvictionTest, APriorityCountsAsSixteenTimesTheDistance) {
  Shelf shelf(MiB(12));
  const auto put = [&](Priority priority, Tick at) {
    return shelf.Change(shelf.AddAt(MiB(4), at),
                        [&](TensorRow& tensor) { tensor.priority = priority; });
  };
  const TensorId low = put(Priority::kLow, In(std::chrono::milliseconds(100)));
  const TensorId normal = put(Priority::kNormal, In(std::chrono::milliseconds(1500)));
  const TensorId high = put(Priority::kHigh, In(std::chrono::seconds(23)));
  EXPECT_EQ(shelf.Victims(MiB(4)), Ids{low});
  EXPECT_EQ(shelf.index().FarthestDirty(kNow, kLinks), Catalog::RowOf(low));
  shelf.Remove(low);
  const TensorId needed_now = put(Priority::kLow, In(std::chrono::milliseconds(90)));
  EXPECT_EQ(shelf.Victims(MiB(4)), Ids{normal});
  shelf.Remove(normal);
  shelf.Remove(needed_now);
  EXPECT_EQ(shelf.Victims(MiB(4)), Ids{high});
}

// Each heap is looked at from its top: many of high priority must not hide one that is worth less.
TEST(EvictionTest, ManyOfHighPriorityDoNotHideOneOfNormal) {
  Shelf shelf(KiB(4) * 101);
  const TensorId plain = shelf.AddAt(KiB(4), In(std::chrono::seconds(9)));
  for (int i = 0; i < 100; ++i) {
    shelf.Change(shelf.AddAt(KiB(4), In(std::chrono::seconds(10 + i))),
                 [](TensorRow& tensor) { tensor.priority = Priority::kHigh; });
  }
  EXPECT_EQ(shelf.Victims(KiB(4)), Ids{plain});
}

TEST(EvictionTest, NothingMakesWayForWhatHasALowerPriority) {
  Shelf shelf(MiB(12));
  const TensorId next = shelf.AddAt(MiB(4), In(std::chrono::milliseconds(1)));
  const TensorId later = shelf.AddAt(MiB(4), In(std::chrono::seconds(10)));
  EXPECT_EQ(shelf.Victims(MiB(4), shelf.LaterThan(next)), Ids{later});
  shelf.Change(next, [](TensorRow& tensor) { tensor.priority = Priority::kLow; });
  EXPECT_TRUE(shelf.Victims(MiB(4), shelf.LaterThan(next)).empty());
}

TEST(EvictionTest, CountsTheBytesThatCanBeDropped) {
  Shelf shelf(MiB(20));
  const TensorId clean = shelf.AddClean(MiB(4));
  shelf.Add(MiB(4));
  EXPECT_EQ(shelf.index().clean_bytes(), MiB(4));
  EXPECT_EQ(shelf.index().size(), 2u);
  shelf.Remove(clean);
  EXPECT_EQ(shelf.index().clean_bytes(), Bytes(0));
}

}  // namespace
}  // namespace ravenstore::core
