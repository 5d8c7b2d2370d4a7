#include "sim/token_layers.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "sim/trace.h"

namespace ravenstore::sim {
namespace {

constexpr double kRows = 4096;
constexpr double kWidth = 1024;
constexpr double kBytes = kHalf * kRows * kWidth;
const Value kNone{nullptr, nullptr};

class TokenLayersTest : public testing::Test {
 protected:
  Value X() { return {tape_.Filled(kBytes)}; }
  void Finish(Value y) {
    tape_.Add(y.gradient, tape_.Run({}, y.data->bytes()));
    y = {};
    tape_.Backward();
  }
  Tape tape_{"t", kHardware[0], 1};
  Tokens tokens_{&tape_};
};

TEST_F(TokenLayersTest, LinearLayersLearnTheirWeightsAndBiases) {
  const Linear linear = tokens_.LinearFor(kWidth, 2 * kWidth);
  const Value x = X();
  const Value y = tokens_.Apply(linear, x, kRows);
  EXPECT_EQ(y.data->bytes(), 2 * kBytes);
  Finish(y);
  EXPECT_EQ(linear.weight.gradient->sum->bytes(), kHalf * 2 * kWidth * kWidth);
  EXPECT_EQ(linear.bias.gradient->sum->bytes(), kHalf * 2 * kWidth);
  EXPECT_EQ(x.gradient->sum->bytes(), kBytes);
  EXPECT_EQ(tokens_.LinearFor(kWidth, kWidth, false).bias.data, nullptr);
}

TEST_F(TokenLayersTest, FrozenLayersPassGradientsOn) {
  const Value x = X();
  Finish(tokens_.Apply(tokens_.FrozenLinear(kWidth, kWidth), x, kRows));
  EXPECT_EQ(x.gradient->sum->bytes(), kBytes);
}

TEST_F(TokenLayersTest, NormsLearnAScaleAndMaybeAShift) {
  for (const bool shifted : {false, true}) {
    const TokenNorm norm = tokens_.NormFor(kWidth, shifted);
    const Value x = X();
    Finish(tokens_.Normalise(norm, x, kRows));
    EXPECT_EQ(norm.scale.gradient->sum->bytes(), kHalf * kWidth);
    EXPECT_EQ(norm.shift.data != nullptr, shifted);
    if (shifted) {
      EXPECT_EQ(norm.shift.gradient->sum->bytes(), kHalf * kWidth);
    }
  }
}

TEST_F(TokenLayersTest, AGradientOfATableIsAsLargeAsTheTable) {
  const Value table = tokens_.Learned(32128 * kWidth);
  Finish(tokens_.LookUp(table, tape_.Filled(kIndex * kRows), kBytes));
  EXPECT_EQ(table.gradient->sum->bytes(), table.data->bytes());
}

// Written down or not, attention gives gradients to all that it is of; written down, it holds the
// scores three times: in 32 bit, what was dropped, and what came of that.
TEST_F(TokenLayersTest, AttentionHoldsItsScoresOrNone) {
  const Heads heads{4, 16, kRows / 4, kRows / 4, kWidth};
  const double scores = 4 * 16 * (kRows / 4) * (kRows / 4);
  for (const bool fused : {false, true}) {
    Tape tape("t", kHardware[0], 1);
    {
      Tokens tokens(&tape);
      std::vector<Value> inputs;
      for (int i = 0; i < 3; ++i) inputs.push_back({tape.Filled(kBytes)});
      Value y = fused ? tokens.FusedAttention(heads, inputs, false)
                      : tokens.UnfusedAttention(heads, inputs[0], inputs[1], inputs[2], kNone);
      EXPECT_EQ(y.data->bytes(), kBytes);
      tape.Step();
      tape.Add(y.gradient, tape.Run({}, kBytes));
      y = {};
      tape.Backward();
      for (const Value& input : inputs) EXPECT_EQ(input.gradient->sum->bytes(), kBytes);
    }
    const Trace trace = tape.Take();
    ASSERT_TRUE(Validate(trace).ok());
    double alive = 0;
    for (const Op& op : trace.ops) {
      if (op.kind == OpKind::kStep) break;
      const auto bytes = static_cast<double>(trace.tensors[op.tensor].bytes.count());
      if (op.kind == OpKind::kCreate) alive += bytes;
      if (op.kind == OpKind::kFree) alive -= bytes;
    }
    const double held = fused ? kFloat * 16 * kRows : (kFloat + 1 + kHalf) * scores;
    EXPECT_EQ(alive, 4 * kBytes + held);
  }
}

TEST_F(TokenLayersTest, BiasesOfScoresHaveGradients) {
  const Heads heads{4, 16, 256, 512, kWidth};
  const Value bias{tape_.Filled(kHalf * 16 * 256 * 512)};
  const Value q{tape_.Filled(kHalf * 4 * 256 * kWidth)};
  const Value k{tape_.Filled(kHalf * 4 * 512 * kWidth)};
  const Value v{tape_.Filled(kHalf * 4 * 512 * kWidth)};
  Finish(tokens_.UnfusedAttention(heads, q, k, v, bias));
  EXPECT_EQ(bias.gradient->sum->bytes(), bias.data->bytes());
  EXPECT_EQ(k.gradient->sum->bytes(), k.data->bytes());
}

TEST_F(TokenLayersTest, LossesGiveScoresAGradient) {
  const Value scores = X();
  tokens_.Loss(scores, tape_.Filled(kIndex * kRows));
  tape_.Backward();
  EXPECT_EQ(scores.gradient->sum->bytes(), kBytes);
}

TEST_F(TokenLayersTest, ElementsAreActivatedDroppedAndMultiplied) {
  const Value x = X();
  const Value y = X();
  Finish(tokens_.Multiply(tokens_.Drop(tokens_.Activate(x)), tokens_.Copy(y)));
  EXPECT_EQ(x.gradient->sum->bytes(), kBytes);
  EXPECT_EQ(y.gradient->sum->bytes(), kBytes);
}

}  // namespace
}  // namespace ravenstore::sim
