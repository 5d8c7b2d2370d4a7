#include "daemon/leases.h"

#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <thread>

#include "ipc/clock.h"
#include "ipc/wake.h"
#include "tests/timing/timing.h"

namespace ravenstore::daemon {
namespace {

using core::ErrorCode;
using core::MiB;
using proto::LeaseState;

constexpr LeaseState kStates[] = {
    LeaseState::kFree,   LeaseState::kRequested, LeaseState::kInUse,
    LeaseState::kIdle,   LeaseState::kAway,      LeaseState::kFetching,
    LeaseState::kFailed, LeaseState::kFreeing,   LeaseState::kLost};

class LeasesTest : public testing::Test {
 protected:
  // Puts the row in `state` and returns its word.
  uint64_t Set(LeaseState state, uint16_t holders = 0, uint64_t generation = 41) {
    slot_.word = proto::Pack(proto::LeaseWord{state, holders, generation});
    return slot_.word;
  }
  void ExpectNext(LeaseState state, uint16_t holders = 0) {
    const proto::LeaseWord now = proto::UnpackLease(slot_.word);
    EXPECT_EQ(now.state, state);
    EXPECT_EQ(now.holders, holders);
    EXPECT_EQ(now.generation, 42u);
  }
  // Looks whether `cas`, given the word, is taken in the state `from` alone, and leads to `to`.
  void ExpectTakenOnlyFrom(LeaseState from, LeaseState to,
                           const std::function<bool(uint64_t)>& cas) {
    const uint64_t expected = Set(from);
    EXPECT_TRUE(cas(expected));
    ExpectNext(to);
    for (const LeaseState state : kStates) {
      if (state == from) continue;
      const uint64_t word = Set(state);
      EXPECT_FALSE(cas(expected)) << "from " << static_cast<int>(state);
      EXPECT_EQ(slot_.word, word);
    }
    // The same state one generation on: it was taken and put back meanwhile.
    const uint64_t word = Set(from, 0, 42);
    EXPECT_FALSE(cas(expected));
    EXPECT_EQ(slot_.word, word);
  }

  proto::LeaseSlot slot_{};
  LeaseRow lease_{&slot_};
};

TEST_F(LeasesTest, DropTakesTheIdleWordAlone) {
  ExpectTakenOnlyFrom(LeaseState::kIdle, LeaseState::kAway,
                      [&](uint64_t word) { return lease_.Drop(word); });
}

TEST_F(LeasesTest, WordsThatAreHandedOnAreThoseOfTheRow) {
  ASSERT_TRUE(lease_.Drop(Set(LeaseState::kIdle)));
  uint64_t idle = 0;
  ASSERT_TRUE(lease_.Publish(1, MiB(2), &idle));
  EXPECT_EQ(idle, slot_.word);
  EXPECT_EQ(lease_.word(), idle);
  EXPECT_EQ(proto::UnpackLease(idle).generation, 43u);  // two steps from 41
}

TEST_F(LeasesTest, PublishTakesAwayRowsAlone) {
  for (const LeaseState state : kStates) {
    const uint64_t word = Set(state);
    slot_.place = 1;
    uint64_t idle = 0;
    if (state == LeaseState::kAway) {
      slot_.arrival = 99;
      EXPECT_TRUE(lease_.Publish(3, MiB(6), &idle));
      ExpectNext(LeaseState::kIdle);
      EXPECT_EQ(slot_.place * proto::kPlaceUnit, MiB(6).count());
      EXPECT_EQ(slot_.device, 3u);
      EXPECT_EQ(slot_.arrival, 0u);
    } else {
      EXPECT_FALSE(lease_.Publish(3, MiB(6), &idle)) << "from " << static_cast<int>(state);
      EXPECT_EQ(slot_.word, word);
      EXPECT_EQ(slot_.place, 1u);
    }
  }
}

TEST_F(LeasesTest, ReadPutReadsIdleRowsAlone) {
  slot_.ticket = 7;
  slot_.hint = 8;
  slot_.writes = 9;
  for (const LeaseState state : kStates) {
    const uint64_t word = Set(state);
    PutRecord put;
    EXPECT_EQ(lease_.ReadPut(&put), state == LeaseState::kIdle);
    if (state != LeaseState::kIdle) continue;
    EXPECT_EQ(put.word, word);
    EXPECT_EQ(put.ticket, 7u);
    EXPECT_EQ(put.hint, 8u);
    EXPECT_EQ(put.writes, 9u);
  }
}

TEST_F(LeasesTest, GrantSaysWhereAndForWhom) {
  Set(LeaseState::kRequested);
  slot_.error = 5;
  slot_.arrival = 6;
  lease_.CompleteAlloc(core::TensorId{77}, 2, MiB(4));
  ExpectNext(LeaseState::kInUse, 1);
  EXPECT_EQ(slot_.id, 77u);
  EXPECT_EQ(slot_.device, 2u);
  EXPECT_EQ(slot_.place * proto::kPlaceUnit, MiB(4).count());
  EXPECT_EQ(slot_.arrival, 0u);
  EXPECT_EQ(slot_.error, 0u);
}

TEST_F(LeasesTest, RefuseSaysWhy) {
  Set(LeaseState::kRequested);
  lease_.FailAlloc(ErrorCode::kOutOfMemory);
  ExpectNext(LeaseState::kFailed);
  EXPECT_EQ(slot_.error, static_cast<uint32_t>(ErrorCode::kOutOfMemory));
}

TEST_F(LeasesTest, AnEarlyGrantSaysWhereAndWhatToWaitFor) {
  Set(LeaseState::kFetching);
  slot_.error = 5;
  lease_.CompleteFetch(1, MiB(8), {.index = 3, .value = 12});
  ExpectNext(LeaseState::kInUse, 1);
  EXPECT_EQ(slot_.device, 1u);
  EXPECT_EQ(slot_.place * proto::kPlaceUnit, MiB(8).count());
  EXPECT_EQ(proto::UnpackWordValue(slot_.arrival).index, 3u);
  EXPECT_EQ(proto::UnpackWordValue(slot_.arrival).value, 12u);
  EXPECT_EQ(slot_.error, 0u);
}

TEST_F(LeasesTest, AnEarlyGrantOfBytesThatWereDiscardedSaysSo) {
  Set(LeaseState::kFetching);
  lease_.CompleteFetch(0, MiB(8), {}, /*recompute=*/true);
  ExpectNext(LeaseState::kInUse, 1);
  EXPECT_EQ(slot_.error, proto::kMustRecompute);
  EXPECT_EQ(proto::UnpackWordValue(slot_.arrival).value, 0u);
}

TEST(RecomputeCostTest, FitsSixteenBitsWithinAThousandth) {
  EXPECT_EQ(proto::UnpackRecompute(proto::PackRecompute(0)), 0u);
  EXPECT_EQ(proto::UnpackRecompute(proto::PackRecompute(1)), 1024u) << "0 would say: cannot be";
  for (uint64_t cost = 1 << 20; cost < uint64_t{1} << 50; cost = cost * 3 / 2 + 1) {
    const double ratio =
        static_cast<double>(proto::UnpackRecompute(proto::PackRecompute(cost))) / cost;
    EXPECT_GT(ratio, 0.998) << cost;
    EXPECT_LE(ratio, 1.0) << cost;
  }
  EXPECT_GT(proto::UnpackRecompute(proto::PackRecompute(~uint64_t{0})), uint64_t{1} << 51);
}

TEST_F(LeasesTest, DenyLeavesItAwayOrLost) {
  Set(LeaseState::kFetching);
  lease_.FailFetch(ErrorCode::kTimedOut);
  ExpectNext(LeaseState::kAway);
  EXPECT_EQ(slot_.error, static_cast<uint32_t>(ErrorCode::kTimedOut));
  Set(LeaseState::kFetching);
  lease_.FailFetch(ErrorCode::kLost);
  ExpectNext(LeaseState::kLost);
  EXPECT_EQ(slot_.error, static_cast<uint32_t>(ErrorCode::kLost));
}

TEST_F(LeasesTest, DenyInPlaceLeavesItIdleWhereItIs) {
  Set(LeaseState::kFetching);
  slot_.place = 16;  // before it was brought back unasked
  slot_.arrival = 5;
  const uint64_t idle =
      lease_.FailFetchInPlace(ErrorCode::kOutOfMemory, 1, core::Bytes(17 * proto::kPlaceUnit));
  ExpectNext(LeaseState::kIdle);
  EXPECT_EQ(idle, slot_.word);
  EXPECT_EQ(slot_.device, 1u);
  EXPECT_EQ(slot_.place, 17u);
  EXPECT_EQ(slot_.arrival, 0u);
  EXPECT_EQ(slot_.error, static_cast<uint32_t>(ErrorCode::kOutOfMemory));
}

TEST_F(LeasesTest, WhatIsBeingFreedIsNotMarkedLost) {
  for (const LeaseState state : kStates) {
    const uint64_t word = Set(state, 2);
    lease_.MarkLost();
    if (state == LeaseState::kFreeing || state == LeaseState::kFree) {
      EXPECT_EQ(slot_.word, word);
    } else {
      ExpectNext(LeaseState::kLost);
    }
  }
}

TEST_F(LeasesTest, ReleaseFreesTheRow) {
  Set(LeaseState::kFreeing);
  lease_.Release();
  ExpectNext(LeaseState::kFree);
}

TEST_F(LeasesTest, GenerationsWrapWithoutTouchingTheState) {
  Set(LeaseState::kFreeing, 0, proto::kGenerationMask);
  lease_.Release();
  EXPECT_EQ(slot_.word, proto::Pack(proto::LeaseWord{LeaseState::kFree, 0, 0}));
}

TEST_F(LeasesTest, EveryAnswerClearsTheWaiters) {
  const std::function<void()> answers[] = {
      [&] { lease_.CompleteAlloc(core::TensorId{1}, 0, MiB(0)); },
      [&] { lease_.FailAlloc(ErrorCode::kLimit); },
      [&] { lease_.CompleteFetch(0, MiB(0), {}); },
      [&] { lease_.FailFetch(ErrorCode::kTimedOut); },
      [&] { lease_.FailFetchInPlace(ErrorCode::kTimedOut, 0, MiB(0)); },
      [&] { lease_.MarkLost(); },
      [&] { lease_.Release(); },
  };
  for (size_t i = 0; i < std::size(answers); ++i) {
    Set(LeaseState::kFetching);
    slot_.waiters = 1;
    answers[i]();
    EXPECT_EQ(slot_.waiters, 0u) << "answer " << i;
  }
}

TEST_F(LeasesTest, AnAnswerWakesTheThreadThatSleepsOnTheRow) {
  const uint64_t requested = Set(LeaseState::kRequested);
  TimeLimit limit(kTestPatience);
  std::thread client([&] {
    while (slot_.word == requested && !limit.IsOver()) {
      slot_.waiters = 1;
      ipc::SleepOnLowHalf(&slot_.word, requested, ipc::Now() + std::chrono::seconds(1));
    }
  });
  while (slot_.waiters == 0) std::this_thread::yield();
  lease_.CompleteAlloc(core::TensorId{1}, 0, MiB(0));
  client.join();
  EXPECT_NE(slot_.word, requested);
}

}  // namespace
}  // namespace ravenstore::daemon
