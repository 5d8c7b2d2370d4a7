#include "daemon/session.h"

#include <gtest/gtest.h>

#include <memory>
#include <set>
#include <string>

#include "core/check.h"

namespace ravenstore::daemon {
namespace {

using core::SlotId;

std::shared_ptr<Attachment> MakeAttachment() {
  auto segment = ipc::ControlSegment::Create(7);
  auto doorbell = ipc::Doorbell::Create();
  RAVEN_CHECK(segment.ok());
  RAVEN_CHECK(doorbell.ok());
  auto attachment = std::make_shared<Attachment>(Attachment{core::ClientId{7},
                                                            core::TenantId{1},
                                                            {},
                                                            1,
                                                            2,
                                                            "session_test",
                                                            std::move(*segment),
                                                            std::move(*doorbell),
                                                            {}});
  attachment->arenas.resize(2);
  return attachment;
}

class SessionTest : public testing::Test {
 protected:
  proto::LogLane& Lane(size_t i) { return session_.segment()->log[i]; }
  void UseLanes(uint32_t lanes) { session_.segment()->header.log_lanes = lanes; }

  Session session_{MakeAttachment()};
};

TEST(ArrivalWordsTest, AllWordsAreGivenOnceAndTheirValuesRise) {
  ArrivalWords words;
  std::set<uint16_t> given;
  uint64_t last = 0;
  for (uint32_t i = 0; i < proto::kArrivalWords; ++i) {
    const auto word = words.Take();
    ASSERT_TRUE(word.has_value());
    EXPECT_LT(word->index, proto::kArrivalWords);
    EXPECT_TRUE(given.insert(word->index).second) << word->index;
    EXPECT_GT(word->value, last);
    last = word->value;
  }
  EXPECT_FALSE(words.Take().has_value());
}

TEST(ArrivalWordsTest, AWordThatWasReleasedServesAgainWithAHigherValue) {
  ArrivalWords words;
  std::vector<proto::WordValue> taken;
  for (uint32_t i = 0; i < proto::kArrivalWords; ++i) taken.push_back(*words.Take());
  words.Release(taken[3].index);
  const auto again = words.Take();
  ASSERT_TRUE(again.has_value());
  EXPECT_EQ(again->index, taken[3].index);
  EXPECT_GT(again->value, taken.back().value);
}

TEST_F(SessionTest, RowsGrowWithTheSlotsAndStayWhatTheyAre) {
  EXPECT_EQ(session_.rows(), 0u);
  session_.RowOf(SlotId{2}).tensor = core::TensorId{5};
  session_.RowOf(SlotId{2}).SetStreamComplete(6);
  EXPECT_EQ(session_.rows(), 3u);
  EXPECT_EQ(session_.RowOf(SlotId{0}).tensor, core::kNoTensor);
  const Session::Row* row = &session_.RowOf(SlotId{2});
  session_.RowOf(SlotId{proto::kSlotCapacity - 1});
  EXPECT_EQ(session_.rows(), proto::kSlotCapacity);
  EXPECT_EQ(&session_.RowOf(SlotId{2}), row) << "moving a million of them takes long";
  EXPECT_EQ(session_.RowOf(SlotId{2}).tensor, core::TensorId{5});
  EXPECT_EQ(session_.RowOf(SlotId{2}).complete_word(), 6u);
}

TEST_F(SessionTest, ItKnowsItsClient) {
  EXPECT_EQ(session_.id(), core::ClientId{7});
}

TEST_F(SessionTest, RequestsComeInOrder) {
  EXPECT_FALSE(session_.HasWork());
  ipc::RequestProducer ring(&session_.segment()->requests);
  for (uint32_t slot = 0; slot < 3; ++slot) {
    proto::Request request{};
    request.slot = slot;
    ASSERT_TRUE(ring.Push(request));
  }
  EXPECT_TRUE(session_.HasWork());
  proto::Request request;
  for (uint32_t slot = 0; slot < 3; ++slot) {
    ASSERT_EQ(session_.NextRequest(&request), ipc::Take::kEntry);
    EXPECT_EQ(request.slot, slot);
  }
  EXPECT_EQ(session_.NextRequest(&request), ipc::Take::kEmpty);
  EXPECT_FALSE(session_.HasWork());
}

TEST_F(SessionTest, AFaultyClientHasNoWork) {
  ipc::RequestProducer(&session_.segment()->requests).Push({});
  session_.faulty = true;
  EXPECT_FALSE(session_.HasWork());
}

TEST_F(SessionTest, EveryLaneInUseIsRead) {
  ipc::LogProducer first(&Lane(0));
  ipc::LogProducer last(&Lane(proto::kLogLanes - 1));
  proto::Access access;
  first.Append({1, proto::AccessOp::kPut});
  EXPECT_FALSE(session_.NextAccess(&access)) << "no lane is in use";
  UseLanes(proto::kLogLanes);
  last.Append({2, proto::AccessOp::kGet});
  EXPECT_TRUE(session_.HasWork());
  ASSERT_TRUE(session_.NextAccess(&access));
  EXPECT_EQ(access.slot, 1u);
  EXPECT_EQ(access.op, proto::AccessOp::kPut);
  ASSERT_TRUE(session_.NextAccess(&access));
  EXPECT_EQ(access.slot, 2u);
  EXPECT_EQ(access.op, proto::AccessOp::kGet);
  EXPECT_FALSE(session_.NextAccess(&access));
  EXPECT_FALSE(session_.HasWork());
}

TEST_F(SessionTest, ALaneThatNeverEndsLeavesTheOthersTheirTurn) {
  UseLanes(3);
  ipc::LogProducer endless(&Lane(0));
  ipc::LogProducer other(&Lane(2));
  other.Append({7, proto::AccessOp::kPut});
  proto::Access access{};
  uint32_t looks = 0;
  for (; access.slot != 7 && looks < proto::kLogLaneEntries; ++looks) {
    endless.Append({1, proto::AccessOp::kGet});
    ASSERT_TRUE(session_.NextAccess(&access));
  }
  EXPECT_LT(looks, 100u);
  // And none of its own is left out or out of order.
  for (uint32_t i = 0; i < 200; ++i) endless.Append({1000 + i, proto::AccessOp::kGet});
  while (session_.NextAccess(&access) && access.slot == 1) {
  }
  for (uint32_t i = 0; i < 200; ++i) {
    ASSERT_EQ(access.slot, 1000 + i);
    EXPECT_EQ(session_.NextAccess(&access), i + 1 < 200);
  }
}

TEST_F(SessionTest, MoreLanesThanThereAreAreNotRead) {
  UseLanes(0xffffffff);
  proto::Access access;
  EXPECT_FALSE(session_.NextAccess(&access));
}

TEST_F(SessionTest, ACorruptLaneHidesItselfAlone) {
  UseLanes(2);
  Lane(0).head = uint64_t{1} << 40;
  ipc::LogProducer good(&Lane(1));
  good.Append({3, proto::AccessOp::kPut});
  proto::Access access;
  ASSERT_TRUE(session_.NextAccess(&access));
  EXPECT_EQ(access.slot, 3u);
  EXPECT_FALSE(session_.NextAccess(&access));
  EXPECT_FALSE(session_.HasWork()) << "else the daemon never sleeps again";
  Lane(0).head = 0;
  EXPECT_FALSE(session_.HasWork()) << "it stays corrupt";
}

TEST_F(SessionTest, DroppedEntriesAreReportedOncePerRise) {
  UseLanes(1);
  ipc::LogProducer lane(&Lane(0));
  for (uint32_t i = 0; i < proto::kLogLaneEntries; ++i) lane.Append({i, proto::AccessOp::kGet});
  proto::Access access;
  ASSERT_TRUE(session_.NextAccess(&access));
  EXPECT_FALSE(session_.LogWasDropped());
  lane.Append({1, proto::AccessOp::kGet});
  for (int i = 0; i < 2; ++i) lane.Append({1, proto::AccessOp::kGet});
  EXPECT_TRUE(session_.LogWasDropped());
  EXPECT_FALSE(session_.LogWasDropped());
  EXPECT_EQ(session_.log_dropped(), 2u);
  lane.Append({1, proto::AccessOp::kGet});
  EXPECT_TRUE(session_.LogWasDropped());
  EXPECT_EQ(session_.log_dropped(), 3u);
}

TEST_F(SessionTest, FailuresAreRememberedWithinBounds) {
  EXPECT_EQ(session_.Failure(SlotId{1}), "");
  session_.RememberFailure(SlotId{1}, "no room");
  EXPECT_EQ(session_.Failure(SlotId{1}), "no room");
  session_.RememberFailure(SlotId{1}, "no time");
  EXPECT_EQ(session_.Failure(SlotId{1}), "no time");
  size_t remembered = 0;
  constexpr uint32_t kFailures = 10000;
  for (uint32_t i = 0; i < kFailures; ++i) {
    session_.RememberFailure(SlotId{i}, std::to_string(i));
    EXPECT_EQ(session_.Failure(SlotId{i}), std::to_string(i));
  }
  for (uint32_t i = 0; i < kFailures; ++i) remembered += !session_.Failure(SlotId{i}).empty();
  EXPECT_LE(remembered, 4096u);
  // A batch that was refused asks for the words of its first.
  EXPECT_EQ(session_.Failure(SlotId{kFailures - 1000}), std::to_string(kFailures - 1000));
}

TEST_F(SessionTest, OfAUserWithoutMemoryFewFailuresAreKept) {
  uint64_t charged = 0;
  for (uint32_t i = 0; i < 100; ++i) {
    charged += Session::CostOf("no room");
    charged -= session_.RememberFailure(SlotId{i}, "no room");
  }
  uint64_t freed = 0;
  for (uint32_t i = 100; i < 200; ++i)
    freed += session_.RememberFailure(SlotId{i}, "no memory", /*charged=*/false);
  EXPECT_EQ(freed, charged);
  EXPECT_EQ(session_.Failure(SlotId{199}), "no memory");
  EXPECT_EQ(session_.Failure(SlotId{150}), "");
}

TEST_F(SessionTest, ToLookAtARowMakesNone) {
  EXPECT_EQ(session_.TensorAt(SlotId{proto::kSlotCapacity - 1}), core::kNoTensor);
  EXPECT_FALSE(session_.IsTaken(SlotId{5000}));
  EXPECT_EQ(session_.rows(), 0u);
  EXPECT_GT(session_.GrowthFor(SlotId{5000}), 5000u);
  session_.RowOf(SlotId{5000}).tensor = Session::kPending;
  EXPECT_TRUE(session_.IsTaken(SlotId{5000}));
  EXPECT_EQ(session_.TensorAt(SlotId{5000}), core::kNoTensor);
  EXPECT_EQ(session_.GrowthFor(SlotId{5000}), 0u);
  EXPECT_EQ(session_.GrowthFor(SlotId{5001}), sizeof(uint32_t));
}

}  // namespace
}  // namespace ravenstore::daemon
