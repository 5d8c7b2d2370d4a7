#include "core/pinned.h"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <vector>

namespace ravenstore::core {
namespace {

constexpr TenantId kUser{1};
constexpr TenantId kOther{2};
constexpr ClientId kRank0{1};
constexpr ClientId kRank1{2};
constexpr ClientId kStranger{3};

class PinnedBooksTest : public testing::TestWithParam<bool> {
 protected:
  // A block, in a slab that is made if it has to be.
  Bytes Take(TenantId user, PinnedBlockId id, Bytes bytes) {
    if (const auto offset = books_.Carve(user, id, 0, bytes)) return *offset;
    const auto slab = books_.Add(user, 0, books_.PlanSlab(user, 0, bytes));
    EXPECT_TRUE(slab.has_value());
    books_.Ready(slab->id);
    const auto offset = books_.Carve(user, id, 0, bytes);
    EXPECT_TRUE(offset.has_value());
    books_.CheckInvariants();
    return *offset;
  }
  void ReleaseIdle(TenantId user) {
    for (const auto& slab : books_.Idle(user)) {
      for (const ClientId client : books_.Release(slab.id)) books_.Unmapped(slab.id, client);
      books_.Removed(slab.id);
    }
    books_.CheckInvariants();
  }

  PinnedBooks books_{{.range = GiB(64), .granularity = MiB(2), .straddle = GetParam()}};
};

TEST_P(PinnedBooksTest, BlocksAreCutToThePage) {
  const Bytes first = Take(kUser, {kRank0, 1}, Bytes(4097));
  const Bytes second = Take(kUser, {kRank0, 2}, Bytes(1));
  EXPECT_EQ(second - first, Bytes(8192));
  EXPECT_EQ(books_.Used(kRank0), Bytes(3 * 4096));
  EXPECT_EQ(books_.Held(kUser), MiB(2));
}

TEST_P(PinnedBooksTest, WhatAUserFreedServesAllItsProcesses) {
  const Bytes offset = Take(kUser, {kRank0, 1}, MiB(30));
  EXPECT_FALSE(books_.Carve(kUser, {kRank1, 1}, 0, MiB(30)));
  EXPECT_TRUE(books_.Free({kRank0, 1}));
  EXPECT_FALSE(books_.Free({kRank0, 1}));
  EXPECT_EQ(books_.Carve(kUser, {kRank1, 1}, 0, MiB(30)), offset);
  EXPECT_EQ(books_.Used(kRank0), Bytes{0});
  EXPECT_EQ(books_.Held(kUser), MiB(30));
}

TEST_P(PinnedBooksTest, NoSlabEverServesTwoUsers) {
  Take(kUser, {kRank0, 1}, MiB(8));
  books_.Free({kRank0, 1});
  EXPECT_FALSE(books_.Carve(kOther, {kStranger, 1}, 0, Bytes(4096)));
  const Bytes theirs = Take(kOther, {kStranger, 1}, MiB(8));
  EXPECT_EQ(books_.Held(kUser), MiB(8));
  EXPECT_EQ(books_.Held(kOther), MiB(8));
  EXPECT_NE(books_.Carve(kUser, {kRank0, 2}, 0, MiB(8)), theirs);
}

TEST_P(PinnedBooksTest, AClientIsNotifiedOfASlabOnce) {
  const Bytes offset = Take(kUser, {kRank0, 1}, MiB(4));
  EXPECT_EQ(books_.AddNotified(kRank0, 0, offset, MiB(4)).size(), 1u);
  EXPECT_TRUE(books_.AddNotified(kRank0, 0, offset, MiB(4)).empty());
  EXPECT_EQ(books_.AddNotified(kRank1, 0, offset, MiB(4)).size(), 1u);
}

TEST_P(PinnedBooksTest, ASlabGoesOnceNoClientMapsIt) {
  const Bytes offset = Take(kUser, {kRank0, 1}, MiB(4));
  books_.AddNotified(kRank0, 0, offset, MiB(4));
  books_.AddNotified(kRank1, 0, offset, MiB(4));
  EXPECT_TRUE(books_.Idle(kUser).empty());
  books_.Free({kRank0, 1});
  ASSERT_EQ(books_.Idle(kUser).size(), 1u);
  EXPECT_TRUE(books_.Idle(kOther).empty());
  EXPECT_EQ(books_.Idle(kOther, /*of_others=*/true).size(), 1u);
  const PinnedSlabId slab = books_.Idle(kUser)[0].id;
  EXPECT_FALSE(books_.Unmapped(slab, kRank0));  // no release was requested
  EXPECT_EQ(books_.Release(slab), (std::vector<ClientId>{kRank0, kRank1}));
  EXPECT_FALSE(books_.Carve(kUser, {kRank0, 2}, 0, Bytes(4096)));
  EXPECT_TRUE(books_.Idle(kUser).empty());
  EXPECT_TRUE(books_.Unmapped(slab, kRank0));
  EXPECT_FALSE(books_.Unmapped(slab, kRank0));
  EXPECT_FALSE(books_.IsUnmapped(slab));
  EXPECT_EQ(books_.RemoveClient(kRank1), (std::vector<PinnedSlabId>{slab}));
  EXPECT_TRUE(books_.IsUnmapped(slab));
  EXPECT_EQ(books_.Held(kUser), MiB(4));
  books_.Removed(slab);
  EXPECT_EQ(books_.Held(kUser), Bytes{0});
  books_.CheckInvariants();
}

TEST_P(PinnedBooksTest, AClientThatEndsLeavesNoBlockBehind) {
  for (uint64_t i = 0; i < 10; ++i) Take(kUser, {kRank0, i}, MiB(1));
  Take(kUser, {kRank1, 0}, MiB(1));
  books_.RemoveClient(kRank0);
  EXPECT_EQ(books_.Used(kRank0), Bytes{0});
  EXPECT_EQ(books_.Used(kRank1), MiB(1));
  EXPECT_FALSE(books_.Has({kRank0, 3}));
  EXPECT_TRUE(books_.Has({kRank1, 0}));
  books_.CheckInvariants();
}

TEST_P(PinnedBooksTest, ASlabThatFailedCountsNoMore) {
  const auto slab = books_.Add(kUser, 0, MiB(2));
  EXPECT_EQ(books_.Held(kUser), MiB(2));
  EXPECT_FALSE(books_.Carve(kUser, {kRank0, 1}, 0, Bytes(4096)));
  books_.Failed(slab->id);
  EXPECT_EQ(books_.Held(kUser), Bytes{0});
  books_.CheckInvariants();
}

TEST_P(PinnedBooksTest, ASlabThatCannotBeReleasedCountsForGoodAndIsNotAwaited) {
  Take(kUser, {kRank0, 1}, MiB(2));
  books_.Free({kRank0, 1});
  const auto idle = books_.Idle(kUser);
  ASSERT_EQ(idle.size(), 1u);
  books_.Release(idle[0].id);
  EXPECT_EQ(books_.releasing(), 1u);
  books_.NotRemoved(idle[0].id);
  EXPECT_EQ(books_.releasing(), 0u);
  EXPECT_EQ(books_.Held(kUser), MiB(2));
  EXPECT_TRUE(books_.Idle(kUser).empty());
  EXPECT_FALSE(books_.Carve(kUser, {kRank0, 2}, 0, Bytes(4096)));
  books_.CheckInvariants();
}

TEST_P(PinnedBooksTest, AddressesRunOutInWords) {
  PinnedBooks small({.range = MiB(16), .granularity = MiB(2), .straddle = GetParam()});
  EXPECT_FALSE(small.Add(kUser, 0, MiB(32)));
  EXPECT_TRUE(small.Add(kUser, 0, MiB(8)));
  EXPECT_FALSE(small.Add(kUser, 0, MiB(8)));
  small.CheckInvariants();
}

TEST_P(PinnedBooksTest, RandomBlocksNeverOverlapAndTheBooksAgree) {
  std::minstd_rand random(7);
  std::map<PinnedBlockId, std::pair<Bytes, Bytes>> live;
  uint64_t next = 1;
  for (int i = 0; i < 2000; ++i) {
    const ClientId client{1 + static_cast<uint32_t>(random() % 3)};
    const TenantId user = client == kStranger ? kOther : kUser;
    if (random() % 2 == 0 || live.empty()) {
      const Bytes bytes(1 + random() % MiB(9).count());
      const PinnedBlockId id{client, next++};
      const Bytes offset = Take(user, id, bytes);
      for (const auto& [other, extent] : live) {
        ASSERT_TRUE(offset + bytes <= extent.first || extent.first + extent.second <= offset);
      }
      live[id] = {offset, bytes};
    } else {
      const auto victim = std::next(live.begin(), static_cast<ptrdiff_t>(random() % live.size()));
      books_.Free(victim->first);
      live.erase(victim);
    }
    if (i % 50 == 0) ReleaseIdle(kUser);
  }
}

INSTANTIATE_TEST_SUITE_P(Straddle, PinnedBooksTest, testing::Bool());

TEST(PinnedBooksOverheadTest, WhereBlocksMayStraddleLittleIsLockedThatWasNotAskedFor) {
  PinnedBooks books({.range = GiB(64), .granularity = MiB(2), .straddle = true});
  Bytes asked;
  std::minstd_rand random(1);
  for (uint64_t i = 1; asked < GiB(2); ++i) {
    const Bytes bytes(KiB(64).count() + random() % MiB(33).count());
    while (!books.Carve(kUser, {kRank0, i}, 0, bytes))
      books.Ready(books.Add(kUser, 0, books.PlanSlab(kUser, 0, bytes))->id);
    asked += bytes;
  }
  EXPECT_LE(static_cast<double>(books.Held(kUser).count()),
            1.01 * static_cast<double>(asked.count()));
}

TEST(PinnedBooksOverheadTest, WhereTheyMayNotABlockLiesInOneSlab) {
  PinnedBooks books({.range = GiB(64), .granularity = MiB(2), .straddle = false});
  for (uint64_t i = 1; i <= 100; ++i) {
    while (!books.Carve(kUser, {kRank0, i}, 0, MiB(3)))
      books.Ready(books.Add(kUser, 0, books.PlanSlab(kUser, 0, MiB(3)))->id);
  }
  books.CheckInvariants();
  for (const ClientId client : {kRank0, kRank1}) EXPECT_EQ(books.Used(client).count() % 4096, 0u);
  EXPECT_EQ(books.Held(kUser), MiB(400));
}

// Of a transformer's layers, as a training job keeps their activations and states on the host.
TEST(PinnedBooksOverheadTest, WhereTheyMayNotALargeBlocksSlabIsNoLargerThanTheBlock) {
  PinnedBooks books({.range = GiB(64), .granularity = MiB(2), .straddle = false});
  Bytes asked;
  uint64_t blocks = 0;
  for (int layer = 0; layer < 8; ++layer) {
    for (const Bytes bytes :
         {MiB(32), MiB(32), MiB(96), MiB(128), KiB(64), MiB(1), MiB(12), MiB(12), KiB(12), MiB(4),
          MiB(4), KiB(4), MiB(16), MiB(16), KiB(16)}) {
      const PinnedBlockId id{kRank0, ++blocks};
      while (!books.Carve(kUser, id, 0, bytes))
        books.Ready(books.Add(kUser, 0, books.PlanSlab(kUser, 0, bytes))->id);
      asked += bytes;
    }
  }
  EXPECT_LE(static_cast<double>(books.Held(kUser).count()),
            1.01 * static_cast<double>(asked.count()));
}

}  // namespace
}  // namespace ravenstore::core
