#include "client/lease.h"

#include <gtest/gtest.h>

#include <memory>
#include <thread>

#include "ipc/clock.h"
#include "ipc/wake.h"

namespace ravenstore::client {
namespace {

using proto::LeaseState;
using std::chrono::milliseconds;

// A row of its own page, so that it can be slept on.
class LeaseTest : public testing::Test {
 protected:
  void Set(LeaseState state, uint16_t holders = 0) {
    row_.word.store(proto::Pack(proto::LeaseWord{state, holders, 0}));
  }

  proto::LeaseSlot row_{};
  PhaseWord phase_{Phase::kAttached};
  proto::LeaseWord answer_;
};

TEST_F(LeaseTest, CasLeaseMovesOneGenerationOnAndFailsForTheSlower) {
  Set(LeaseState::kIdle);
  uint64_t seen = row_.word.load();
  uint64_t stale = seen;
  EXPECT_TRUE(CasLease(row_, &seen, LeaseState::kInUse, 1));
  const proto::LeaseWord now = proto::UnpackLease(row_.word.load());
  EXPECT_EQ(now.state, LeaseState::kInUse);
  EXPECT_EQ(now.holders, 1);
  EXPECT_EQ(now.generation, 1u);
  EXPECT_FALSE(CasLease(row_, &stale, LeaseState::kAway, 0));
  EXPECT_EQ(stale, row_.word.load()) << "it is told what was faster";
}

TEST_F(LeaseTest, OnlyTwoStatesAreResident) {
  for (int state = 0; state <= 9; ++state) {
    const auto named = static_cast<LeaseState>(state);
    const bool expected = named == LeaseState::kInUse || named == LeaseState::kIdle;
    EXPECT_EQ(IsResident(named), expected) << state;
  }
}

TEST_F(LeaseTest, AnswerThatIsThereEndsTheWait) {
  Set(LeaseState::kInUse, 1);
  EXPECT_EQ(AwaitAnswer(row_, LeaseState::kFetching, ipc::Now(), phase_, &answer_),
            Waited::kAnswered);
  EXPECT_EQ(answer_.state, LeaseState::kInUse);
  EXPECT_EQ(answer_.holders, 1);
}

TEST_F(LeaseTest, SleeperIsWokenByTheAnswer) {
  Set(LeaseState::kFetching);
  std::thread daemon([&] {
    while (row_.waiters.load() == 0) std::this_thread::yield();
    Set(LeaseState::kAway);
    if (row_.waiters.exchange(0) != 0) ipc::WakeLowHalf(&row_.word);
  });
  EXPECT_EQ(AwaitAnswer(row_, LeaseState::kFetching, core::kNever, phase_, &answer_),
            Waited::kAnswered);
  EXPECT_EQ(answer_.state, LeaseState::kAway);
  daemon.join();
}

TEST_F(LeaseTest, DeadlineEndsTheWait) {
  Set(LeaseState::kRequested);
  const core::Tick deadline = ipc::Now() + milliseconds(5);
  EXPECT_EQ(AwaitAnswer(row_, LeaseState::kRequested, deadline, phase_, &answer_),
            Waited::kTimedOut);
  EXPECT_GE(ipc::Now(), deadline);
}

TEST_F(LeaseTest, LostSessionEndsTheWaitWithoutAWake) {
  Set(LeaseState::kRequested);
  std::thread watcher([&] {
    while (row_.waiters.load() == 0) std::this_thread::yield();
    phase_.store(Phase::kLost);
  });
  EXPECT_EQ(AwaitAnswer(row_, LeaseState::kRequested, core::kNever, phase_, &answer_),
            Waited::kInterrupted);
  watcher.join();
}

TEST_F(LeaseTest, WordIsAwaitedUntilItReachesTheValue) {
  std::atomic<uint64_t> word{4};
  EXPECT_EQ(AwaitWord(word, 4, ipc::Now(), phase_), Waited::kAnswered);
  EXPECT_EQ(AwaitWord(word, 5, ipc::Now() + milliseconds(2), phase_), Waited::kTimedOut);
  std::thread stream([&] { word.store(9); });
  EXPECT_EQ(AwaitWord(word, 5, core::kNever, phase_), Waited::kAnswered);
  stream.join();
}

TEST_F(LeaseTest, WordThatWasLetThroughByALostSessionIsNoAnswer) {
  std::atomic<uint64_t> word{proto::kWordValueMask};
  phase_.store(Phase::kLost);
  EXPECT_EQ(AwaitWord(word, 1, core::kNever, phase_), Waited::kInterrupted);
}

TEST_F(LeaseTest, DeadlinesDoNotOverflow) {
  EXPECT_EQ(DeadlineAfter(ipc::Now(), core::Duration::max()), core::kNever);
  EXPECT_EQ(DeadlineAfter(core::kNever, core::Duration(5)), core::kNever);
  EXPECT_EQ(DeadlineAfter(core::Tick(core::Duration(1)), core::Duration(2)),
            core::Tick(core::Duration(3)));
}

TEST_F(LeaseTest, DeadlineIsFixedWhenFirstAskedFor) {
  Deadline deadline(milliseconds(50));
  const core::Tick first = deadline.at();
  EXPECT_LE(first, ipc::Now() + milliseconds(50));
  EXPECT_EQ(deadline.at(), first);
}

}  // namespace
}  // namespace ravenstore::client
