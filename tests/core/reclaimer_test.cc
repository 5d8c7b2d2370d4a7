#include "core/reclaimer.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "core/eviction_policies.h"

namespace ravenstore::core {
namespace {

using Emptyings = Reclaimer::Emptyings;
using Which = Reclaimer::Which;

constexpr Tick kNow{std::chrono::seconds(1000)};
constexpr ClientId kAnn{1};
constexpr ClientId kBob{2};
constexpr ClientId kCid{3};
constexpr PoolId kDevice = PoolOf(DeviceId{0});
const AwayLinks kLinks{{{kHostPool, {}, GiB(1)}}};

// One client's memory: slabs of 4 MiB side by side, tensors one behind the other.
class Shelf {
 public:
  Shelf(Catalog* catalog, ClientId client, size_t slabs)
      : catalog_(catalog), client_(client), map_(MiB(64)), index_(catalog) {
    for (uint64_t i = 0; i < slabs; ++i) {
      slabs_.emplace_back(MiB(4 * i), MiB(4));
      map_.AddChunk(MiB(4 * i), MiB(4));
    }
  }

  // One that can leave, is dirty, and is needed so much later.
  uint32_t Add(Bytes size, Duration later) {
    const uint32_t row = AddInUse(size);
    TensorRow& tensor = (*catalog_)[row];
    tensor.use_kind = UseKind::kAt;
    tensor.use_key = (kNow + later).time_since_epoch().count();
    index_.Insert(tensor);
    return row;
  }
  uint32_t AddInUse(Bytes size) {
    TensorRow& tensor = catalog_->Add();
    tensor.size = size;
    tensor.version = 1;
    const uint32_t row = Catalog::RowOf(tensor.id);
    tensor.home.block = *map_.Allocate(size, row);
    return row;
  }
  void Remove(uint32_t row) {
    TensorRow& tensor = (*catalog_)[row];
    index_.Erase(tensor);
    map_.Free(tensor.home.block);
    catalog_->Remove(tensor.id);
  }
  double Cost(uint32_t row) const { return index_.EvictionCost((*catalog_)[row], kNow, kLinks); }
  void SetPriority(uint32_t row, Priority priority) {
    index_.Erase((*catalog_)[row]);
    (*catalog_)[row].priority = priority;
    index_.Insert((*catalog_)[row]);
  }
  Reclaimer::Arena arena() const {
    return {client_, TenantId{ToInt(client_)}, slabs_, map_, index_, kLinks, kNow};
  }

 private:
  Catalog* catalog_;
  ClientId client_;
  ExtentMap map_;
  ValueIndex index_;
  std::vector<Range> slabs_;
};

class ReclaimerTest : public testing::Test {
 protected:
  Emptyings Find(const Shelf& shelf, Which which = Which::kAll, const Range& spared = {},
                 std::optional<double> weight = {}) {
    Emptyings found;
    reclaimer_.Find(shelf.arena(), spared, which, weight, &found);
    return found;
  }
  static std::vector<Bytes> Begins(const Emptyings& slabs) {
    std::vector<Bytes> offsets;
    for (const auto& one : slabs) offsets.push_back(one.slab.first);
    return offsets;
  }

  // Of a device of 64 MiB.
  static QuotaTree Quotas() {
    return QuotaTree(
        {.devices = {MiB(64)}, .host = MiB(64), .granularity = MiB(1), .guaranteed_part = 0});
  }
  struct Claims {
    Bytes guarantee{};
    std::optional<uint32_t> weight{};
    TenantPriority priority = TenantPriority::kNormal;
  };
  static void Attach(QuotaTree* quota, ClientId client, const Claims& claims) {
    const Budgets budgets{.device = MiB(64),
                          .host = MiB(64),
                          .device_guarantee = claims.guarantee,
                          .weight = claims.weight,
                          .priority = claims.priority};
    quota->SetBudgets(TenantId{ToInt(client)}, budgets);
    quota->Attach(client, TenantId{ToInt(client)}, budgets);
  }
  static Reclaimer::Asker AskedBy(ClientId client) {
    return {client, TenantId{ToInt(client)}, kDevice, MiB(4)};
  }

  Catalog catalog_;
  Reclaimer reclaimer_{&catalog_};
};

using Offsets = std::vector<Bytes>;
constexpr Duration kSoon = std::chrono::milliseconds(1);
constexpr Duration kLate = std::chrono::seconds(10);

TEST_F(ReclaimerTest, ASlabCanBeEmptiedIfAllThatLiesThereCanLeave) {
  Shelf shelf(&catalog_, kAnn, 3);
  const uint32_t first = shelf.Add(MiB(4), kSoon);
  shelf.AddInUse(MiB(3));
  shelf.Add(MiB(1), kLate);
  const Emptyings found = Find(shelf);
  EXPECT_EQ(Begins(found), (Offsets{MiB(0), MiB(8)}));
  EXPECT_EQ(found[0].rows, std::vector{first});
  EXPECT_EQ(found[0].cost, shelf.Cost(first));
  EXPECT_EQ(found[1].cost, 0);
  EXPECT_EQ(Begins(Find(shelf, Which::kEmpty)), Offsets{MiB(8)});
  EXPECT_EQ(Begins(Find(shelf, Which::kAll, {MiB(2), MiB(1)})), Offsets{MiB(8)});
  EXPECT_GT(reclaimer_.searched(), 0u);
}

TEST_F(ReclaimerTest, ThePrioritiesOfAnotherClientAreWeighedByOneNumber) {
  Shelf shelf(&catalog_, kAnn, 1);
  const uint32_t row = shelf.Add(MiB(4), kSoon);
  const double plain = shelf.Cost(row);
  shelf.SetPriority(row, Priority::kHigh);
  EXPECT_DOUBLE_EQ(Find(shelf)[0].cost, plain * EvictionIndex::kPriorityWeight);
  EXPECT_DOUBLE_EQ(Find(shelf, Which::kAll, {}, 2.0)[0].cost, plain * 2);
}

TEST_F(ReclaimerTest, TheCheapestForTheirSizeGoUntilTheySuffice) {
  Shelf shelf(&catalog_, kAnn, 3);
  shelf.Add(MiB(4), kSoon);
  const uint32_t late = shelf.Add(MiB(4), kLate);
  shelf.Add(MiB(4), 2 * kSoon);
  const auto one = Reclaimer::Cheapest(Find(shelf), MiB(4));
  EXPECT_EQ(Begins(one.slabs), Offsets{MiB(4)});
  EXPECT_EQ(one.cost, shelf.Cost(late));
  const auto two = Reclaimer::Cheapest(Find(shelf), MiB(5));
  EXPECT_EQ(Begins(two.slabs), (Offsets{MiB(4), MiB(8)}));
  EXPECT_EQ(two.bytes, MiB(8));
  EXPECT_EQ(two.largest, MiB(4));
  EXPECT_EQ(Reclaimer::Cheapest(Find(shelf), MiB(20)).bytes, MiB(12));
}

TEST_F(ReclaimerTest, WhatLiesInTwoSlabsCostsOnce) {
  Shelf shelf(&catalog_, kAnn, 2);
  const uint32_t row = shelf.Add(MiB(6), kSoon);
  EXPECT_EQ(Find(shelf)[0].cost, Find(shelf)[1].cost);
  EXPECT_DOUBLE_EQ(Reclaimer::Cheapest(Find(shelf), MiB(8)).cost, shelf.Cost(row));
}

TEST_F(ReclaimerTest, OfAnotherTenantOnlyWhatItHoldsBeyondItsGuaranteeGoes) {
  Shelf shelf(&catalog_, kBob, 3);
  shelf.Add(MiB(4), kSoon);
  shelf.Add(MiB(4), kLate);
  QuotaTree quota = Quotas();
  Attach(&quota, kAnn, {});
  Attach(&quota, kBob, {.guarantee = MiB(8)});
  quota.Charge(kBob, kDevice, MiB(12));
  // The cheaper of two; an empty one is no loss.
  Emptyings asked_by_other = Find(shelf);
  Reclaimer::KeepShares(quota, AskedBy(kAnn), &asked_by_other);
  EXPECT_EQ(Begins(asked_by_other), (Offsets{MiB(8), MiB(4)}));
  Emptyings asked_by_own = Find(shelf);
  Reclaimer::KeepShares(quota, AskedBy(kBob), &asked_by_own);
  EXPECT_EQ(asked_by_own.size(), 3u);
  // By right no more of them either.
  Reclaimer::Asker by_right = AskedBy(kAnn);
  by_right.claim = QuotaTree::Claim::kRight;
  Emptyings due = Find(shelf);
  Reclaimer::KeepShares(quota, by_right, &due);
  EXPECT_TRUE(due.empty());
}

// Of Bob's slabs and, last, of Cid's, who misses his less; in the order in which they go.
TEST_F(ReclaimerTest, ThoseGoFirstOfALowerPriorityThenOfMoreSurplusForTheWeight) {
  Shelf bobs(&catalog_, kBob, 3);
  Shelf cids(&catalog_, kCid, 3);
  for (int i = 0; i < 3; ++i) {
    bobs.Add(MiB(4), kSoon);
    cids.Add(MiB(4), kLate);
  }
  const auto order = [&](const Claims& bob, const Claims& cid) {
    QuotaTree quota = Quotas();
    Attach(&quota, kAnn, {.weight = 100});
    Attach(&quota, kBob, bob);
    Attach(&quota, kCid, cid);
    for (const ClientId client : {kBob, kCid}) quota.Charge(client, kDevice, MiB(13));
    Emptyings slabs = Find(bobs);
    const Emptyings of_cid = Find(cids);
    slabs.insert(slabs.end(), of_cid.begin(), of_cid.end());
    Reclaimer::KeepShares(quota, AskedBy(kAnn), &slabs);
    std::string who;
    for (const auto& one : Reclaimer::Cheapest(std::move(slabs), MiB(24)).slabs)
      who += one.client == kBob ? 'b' : 'c';
    return who;
  };
  EXPECT_EQ(order({}, {.weight = 2}), "bbcbcc") << "13, 9, 13/2, 5, 9/2, 5/2";
  EXPECT_EQ(order({.weight = 2}, {}), "ccbcbb");
  EXPECT_EQ(order({.priority = TenantPriority::kLow}, {}), "bbbccc");
  EXPECT_EQ(order({.priority = TenantPriority::kHigh}, {}), "ccc") << "none is Ann's to take";
}

TEST_F(ReclaimerTest, SlabsComeAgainBehindWhatCannotLeave) {
  Shelf shelf(&catalog_, kAnn, 4);
  const uint32_t gap = shelf.Add(MiB(4), kLate);
  shelf.AddInUse(MiB(1));
  const uint32_t tail = shelf.Add(MiB(3), kLate);
  shelf.Add(MiB(4), kSoon);
  shelf.AddInUse(MiB(4));
  shelf.Remove(gap);
  const auto compaction = reclaimer_.Compact(shelf.arena(), MiB(7), MiB(0));
  EXPECT_EQ(Begins(compaction.slabs), (Offsets{MiB(0), MiB(8)}));
  EXPECT_EQ(compaction.staying, MiB(8));
  // Behind the last one there are addresses for all that comes again; behind the tail of the first
  // one only for one slab, as the next stands there.
  EXPECT_EQ(compaction.reach, MiB(8));
  EXPECT_TRUE(compaction.rows.empty());
  const auto more = reclaimer_.Compact(shelf.arena(), MiB(7), MiB(4));
  EXPECT_EQ(more.reach, MiB(12));
  Shelf other(&catalog_, kBob, 2);
  other.AddInUse(MiB(1));
  const uint32_t last = other.Add(MiB(3), kLate);
  const auto with_tail = reclaimer_.Compact(other.arena(), MiB(7), MiB(0));
  EXPECT_EQ(with_tail.reach, MiB(7));
  EXPECT_EQ(with_tail.rows, std::vector{last});
  EXPECT_NE(last, tail);
}

}  // namespace
}  // namespace ravenstore::core
