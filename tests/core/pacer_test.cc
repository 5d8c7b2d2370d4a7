#include "core/pacer.h"

#include <gtest/gtest.h>

#include <vector>

namespace ravenstore::core {
namespace {

using std::chrono::milliseconds;

// A piece of 10 bytes takes 10 ms, and two of them are the burst.
constexpr double kRate = 1000;
constexpr Bytes kPiece{10};
constexpr Bytes kBurst{20};

class PacerTest : public testing::Test {
 protected:
  PacerTest() { pacer_.SetRate(kRate); }
  bool Sends(Pacer::Sender sender, int64_t ms, Bytes bytes = kPiece) {
    return pacer_.MaySend(sender, bytes, At(ms));
  }
  static Tick At(int64_t ms) { return Tick(milliseconds(ms)); }

  Pacer pacer_{kBurst};
  const Pacer::Sender a_ = pacer_.Join();
  const Pacer::Sender b_ = pacer_.Join();
  const Pacer::Sender c_ = pacer_.Join();
};

TEST_F(PacerTest, WithoutARateAllGoesImmediately) {
  pacer_.SetRate(0);
  for (int i = 0; i < 100; ++i) EXPECT_TRUE(Sends(a_, 0, GiB(1)));
}

TEST_F(PacerTest, ABurstGoesImmediatelyAndTheRestAtTheRate) {
  EXPECT_TRUE(Sends(a_, 100));
  EXPECT_TRUE(Sends(a_, 100));
  EXPECT_FALSE(Sends(a_, 100));
  EXPECT_EQ(pacer_.NextTurn(), At(110));
  EXPECT_FALSE(Sends(a_, 109));
  EXPECT_TRUE(Sends(a_, 110));
  EXPECT_FALSE(Sends(a_, 110));
  EXPECT_EQ(pacer_.NextTurn(), At(120));
}

TEST_F(PacerTest, ALateSenderLosesNoMoreThanTheBurst) {
  EXPECT_TRUE(Sends(a_, 0));
  EXPECT_TRUE(Sends(a_, 0));
  EXPECT_FALSE(Sends(a_, 0));
  EXPECT_TRUE(Sends(a_, 15)) << "5 ms late";
  EXPECT_FALSE(Sends(a_, 15));
  EXPECT_EQ(pacer_.NextTurn(), At(20)) << "as if it had come in time";
  EXPECT_TRUE(Sends(a_, 1000)) << "what was not sent for long is not made up for";
  EXPECT_TRUE(Sends(a_, 1000));
  EXPECT_FALSE(Sends(a_, 1000));
}

TEST_F(PacerTest, APieceBeyondTheBurstGoesAloneAndIsPaidFor) {
  EXPECT_TRUE(Sends(a_, 0, Bytes{50}));
  EXPECT_FALSE(Sends(a_, 0, Bytes{50}));
  EXPECT_EQ(pacer_.NextTurn(), At(50));
  EXPECT_FALSE(Sends(a_, 39));
  EXPECT_TRUE(Sends(a_, 40)) << "one that is smaller goes when the burst has room for it";
}

TEST_F(PacerTest, ThoseThatAreRefusedTakeTurns) {
  EXPECT_TRUE(Sends(a_, 0));
  EXPECT_TRUE(Sends(a_, 0));
  EXPECT_FALSE(Sends(a_, 0));
  EXPECT_FALSE(Sends(b_, 0));
  EXPECT_FALSE(Sends(c_, 0));
  std::vector<Pacer::Sender> order;
  for (int64_t ms = 0; ms <= 60; ++ms) {
    for (const Pacer::Sender sender : {a_, b_, c_}) {
      if (Sends(sender, ms)) order.push_back(sender);
    }
  }
  EXPECT_EQ(order, (std::vector{a_, b_, c_, a_, b_, c_}));
}

TEST_F(PacerTest, OneThatIsNotInLineWaitsBehindIt) {
  EXPECT_TRUE(Sends(a_, 0));
  EXPECT_TRUE(Sends(a_, 0));
  EXPECT_FALSE(Sends(a_, 0));
  EXPECT_FALSE(Sends(b_, 50));
  EXPECT_TRUE(Sends(a_, 50));
  EXPECT_TRUE(Sends(b_, 50));
}

TEST_F(PacerTest, OneThatLeavesDelaysNoOther) {
  EXPECT_TRUE(Sends(a_, 0, kBurst));
  EXPECT_FALSE(Sends(a_, 0));
  EXPECT_FALSE(Sends(b_, 0));
  pacer_.Leave(a_);
  EXPECT_TRUE(Sends(b_, 10));
  EXPECT_EQ(pacer_.NextTurn(), Tick{});
}

TEST_F(PacerTest, WhenTheRateEndsThoseInLineGoImmediately) {
  EXPECT_TRUE(Sends(a_, 0, kBurst));
  EXPECT_FALSE(Sends(a_, 0));
  EXPECT_FALSE(Sends(b_, 0));
  pacer_.SetRate(0);
  EXPECT_EQ(pacer_.NextTurn(), Tick{});
  EXPECT_TRUE(Sends(b_, 0));
  EXPECT_TRUE(Sends(a_, 0));
}

// In no time more goes than the rate and the burst together, however small the pieces are.
TEST_F(PacerTest, ManySmallPiecesAreNoFasterThanTheRate) {
  constexpr double kFast = 40e9;
  pacer_.SetRate(kFast);
  uint64_t sent = 0;
  Tick now{};
  while (now < At(1)) {
    if (pacer_.MaySend(a_, Bytes{512}, now)) {
      sent += 512;
    } else {
      now = pacer_.NextTurn();
    }
  }
  EXPECT_LE(static_cast<double>(sent), kFast * 1e-3 + 512);
  EXPECT_GE(static_cast<double>(sent), kFast * 0.9e-3);
}

}  // namespace
}  // namespace ravenstore::core
