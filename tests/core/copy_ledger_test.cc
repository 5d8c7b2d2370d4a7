#include "core/copy_ledger.h"

#include <gtest/gtest.h>

namespace ravenstore::core {
namespace {

using Way = CopyLedger::Way;

constexpr ClientId kOne{1};
constexpr ClientId kTwo{2};
constexpr DeviceId kDevice{0};
constexpr PoolId kPool{1};

CopyLedger::Options Limits(uint64_t guaranteed_part = 0) {
  return {.devices = 2,
          .pools = 3,
          .ahead = {MiB(64), 8},
          .demand = {MiB(128), 16},
          .guaranteed_part = guaranteed_part};
}
CopyLedger::Lane LaneOf(ClientId client, PoolId pool = kPool) {
  return {client, kDevice, pool};
}

class CopyLedgerTest : public testing::Test {
 protected:
  CopyLedgerTest() {
    for (CopyLedger* ledger : {&ledger_, &shared_}) {
      ledger->Attach(kOne, TenantId{1});
      ledger->Attach(kTwo, TenantId{2});
    }
  }
  static void Begin(CopyLedger* ledger, ClientId client, Way way, Bytes size, int copies) {
    for (int i = 0; i < copies; ++i) ledger->Begin(LaneOf(client), way, size);
  }

  CopyLedger ledger_{Limits()};
  CopyLedger shared_{Limits(4)};  // a fourth is each tenant's
};

TEST_F(CopyLedgerTest, BytesAndCopiesAreCountedByPoolAndWayUntilTheyEnd) {
  ledger_.Begin(LaneOf(kOne), Way::kOut, MiB(3));
  ledger_.Begin(LaneOf(kTwo), Way::kOut, MiB(4));
  ledger_.Begin(LaneOf(kOne), Way::kIn, MiB(5));
  EXPECT_EQ(ledger_.Of(kDevice, kPool, Way::kOut).bytes, MiB(7));
  EXPECT_EQ(ledger_.Of(kDevice, kPool, Way::kOut).copies, 2u);
  EXPECT_EQ(ledger_.Of(kDevice, kPool, Way::kIn).bytes, MiB(5));
  EXPECT_EQ(ledger_.Of(kDevice, PoolId{2}, Way::kOut).copies, 0u);
  EXPECT_EQ(ledger_.Of(DeviceId{1}, kPool, Way::kOut).copies, 0u);
  ledger_.End(LaneOf(kOne), Way::kOut, MiB(3));
  EXPECT_EQ(ledger_.Of(kDevice, kPool, Way::kOut).bytes, MiB(4));
}

TEST_F(CopyLedgerTest, AFirstCopyAlwaysBeginsAndOthersWithinBytesAndCopies) {
  EXPECT_TRUE(ledger_.MayBegin(LaneOf(kOne), Way::kOut, MiB(500)));
  Begin(&ledger_, kOne, Way::kOut, MiB(40), 1);
  EXPECT_TRUE(ledger_.MayBegin(LaneOf(kTwo), Way::kOut, MiB(24)));
  EXPECT_FALSE(ledger_.MayBegin(LaneOf(kTwo), Way::kOut, MiB(25)));
  EXPECT_TRUE(ledger_.MayBegin(LaneOf(kTwo), Way::kIn, MiB(25)));
  EXPECT_TRUE(ledger_.MayBegin(LaneOf(kTwo, PoolId{2}), Way::kOut, MiB(25)));
  Begin(&ledger_, kOne, Way::kIn, KiB(1), 8);
  EXPECT_FALSE(ledger_.MayBegin(LaneOf(kTwo), Way::kIn, KiB(1)));
}

TEST_F(CopyLedgerTest, HalfOfWhatMayBeInFlightIsEnoughToChoose) {
  EXPECT_EQ(ledger_.AheadMost(), MiB(32));
  Begin(&ledger_, kOne, Way::kOut, MiB(31), 1);
  EXPECT_FALSE(ledger_.HasEnough(LaneOf(kOne)));
  Begin(&ledger_, kOne, Way::kOut, MiB(1), 1);
  EXPECT_TRUE(ledger_.HasEnough(LaneOf(kTwo)));
}

TEST_F(CopyLedgerTest, GetsHaveALimitOfTheirOwn) {
  Begin(&ledger_, kOne, Way::kIn, MiB(127), 1);
  EXPECT_FALSE(ledger_.MayBegin(LaneOf(kOne), Way::kIn, MiB(1)));
  EXPECT_TRUE(ledger_.MayDemand(LaneOf(kTwo), Way::kIn));
  Begin(&ledger_, kOne, Way::kIn, MiB(1), 1);
  EXPECT_FALSE(ledger_.MayDemand(LaneOf(kTwo), Way::kIn));
}

TEST_F(CopyLedgerTest, ATenantHasItsPartHoweverMuchOthersCopy) {
  Begin(&shared_, kOne, Way::kOut, MiB(64), 8);
  Begin(&shared_, kOne, Way::kIn, MiB(64), 16);
  EXPECT_FALSE(shared_.IsGuaranteed(LaneOf(kOne), Way::kOut, MiB(1)));
  EXPECT_TRUE(shared_.MayBegin(LaneOf(kTwo), Way::kOut, MiB(100))) << "its first";
  EXPECT_TRUE(shared_.MayDemand(LaneOf(kTwo), Way::kIn));
  Begin(&shared_, kTwo, Way::kOut, MiB(10), 1);
  EXPECT_TRUE(shared_.MayBegin(LaneOf(kTwo), Way::kOut, MiB(6)));
  EXPECT_FALSE(shared_.MayBegin(LaneOf(kTwo), Way::kOut, MiB(7))) << "a fourth of 64 MiB";
  Begin(&shared_, kTwo, Way::kOut, KiB(1), 1);
  EXPECT_FALSE(shared_.MayBegin(LaneOf(kTwo), Way::kOut, KiB(1))) << "a fourth of 8 copies";
  EXPECT_FALSE(ledger_.IsGuaranteed(LaneOf(kTwo), Way::kOut, KiB(1))) << "nothing is, there";
}

TEST_F(CopyLedgerTest, CopiesOfAClientThatIsGoneCountForTheirDeviceUntilTheyEnd) {
  Begin(&shared_, kOne, Way::kOut, MiB(16), 2);
  shared_.Detach(kOne);
  EXPECT_EQ(shared_.Of(kDevice, kPool, Way::kOut).bytes, MiB(32));
  shared_.Attach(ClientId{3}, TenantId{1});
  EXPECT_TRUE(shared_.IsGuaranteed(LaneOf(ClientId{3}), Way::kOut, MiB(16)))
      << "its tenant has none under way";
  shared_.End(LaneOf(kOne), Way::kOut, MiB(16));
  shared_.End(LaneOf(kOne), Way::kOut, MiB(16));
  EXPECT_EQ(shared_.Of(kDevice, kPool, Way::kOut).copies, 0u);
}

}  // namespace
}  // namespace ravenstore::core
