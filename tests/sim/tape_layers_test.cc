#include "sim/tape_layers.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <vector>

#include "sim/trace.h"

namespace ravenstore::sim {
namespace {

constexpr double kBytes = 1 << 20;

// The sizes of what each kernel gets, in their order.
std::vector<std::multiset<uint64_t>> ReadsOf(const Trace& trace) {
  std::vector<std::multiset<uint64_t>> kernels(1);
  for (const Op& op : trace.ops) {
    if (op.kind == OpKind::kGet) kernels.back().insert(trace.tensors[op.tensor].bytes.count());
    if (op.kind == OpKind::kCompute) kernels.emplace_back();
  }
  kernels.pop_back();
  return kernels;
}

class TapeLayersTest : public testing::Test {
 protected:
  Value Filled(double bytes) { return {tape_.Filled(bytes)}; }
  // A gradient of the result, and the backward pass.
  void Finish(Value y) {
    tape_.Add(y.gradient, tape_.Run({}, 512));
    y = {};
    tape_.Backward();
  }
  Tape tape_{"t", kHardware[0], 1};
};

TEST_F(TapeLayersTest, AFormSaysWhatTheBackwardKernelReads) {
  {
    const Value x = Filled(kBytes);
    const Value scale = Filled(2 * kBytes);
    const Value frozen = tape_.Frozen(3 * kBytes);
    Finish(Make(&tape_, {x, scale, frozen}, 4 * kBytes,
                {.inputs_kept = 1, .output_kept = true, .made = {5 * kBytes}}));
    EXPECT_EQ(x.gradient->sum->bytes(), kBytes);
    EXPECT_EQ(scale.gradient->sum->bytes(), 2 * kBytes);
  }
  const Trace trace = tape_.Take();
  ASSERT_TRUE(Validate(trace).ok());
  const auto reads = ReadsOf(trace);
  ASSERT_EQ(reads.size(), 3u);  // forward, the gradient's beginning, backward
  const uint64_t unit = static_cast<uint64_t>(kBytes);
  EXPECT_EQ(reads[0], (std::multiset<uint64_t>{unit, 2 * unit, 3 * unit}));
  EXPECT_EQ(reads[2], (std::multiset<uint64_t>{512, unit, 4 * unit, 5 * unit}));
}

TEST_F(TapeLayersTest, WhatComesOfFrozenValuesHasNoBackwardPass) {
  {
    const Value x = tape_.Frozen(kBytes);
    const Value y = Make(&tape_, {x}, kBytes, {.made = {kBytes}});
    EXPECT_EQ(y.gradient, nullptr);
    EXPECT_EQ(Apply(&tape_, y, tape_.Frozen(kBytes), kBytes, {0}).gradient, nullptr);
    tape_.Backward();
  }
  EXPECT_EQ(ReadsOf(tape_.Take()).size(), 2u);
}

// What a frozen weight was applied to is not held for it.
TEST_F(TapeLayersTest, AFrozenWeightKeepsNoInput) {
  for (const bool frozen : {true, false}) {
    const Value weight = frozen ? tape_.Frozen(kBytes) : Filled(kBytes);
    Value x = Filled(2 * kBytes);
    const std::weak_ptr<const Buffer> input = x.data;
    const Value y = Apply(&tape_, x, weight, kBytes, {0});
    x.data = nullptr;
    EXPECT_EQ(input.expired(), frozen);
    Finish(y);
    EXPECT_EQ(x.gradient->sum->bytes(), 2 * kBytes);
    if (!frozen) {
      EXPECT_EQ(weight.gradient->sum->bytes(), kBytes);
    }
  }
}

TEST_F(TapeLayersTest, ASumGivesItsGradientOn) {
  const Value x = Filled(kBytes);
  const Value y = Filled(kBytes);
  Finish(Sum(&tape_, x, y));
  EXPECT_EQ(x.gradient->sum, y.gradient->sum);
}

TEST_F(TapeLayersTest, JoinedImagesGetTheirPartsOfTheGradient) {
  Images images(&tape_, 2);
  std::vector<Image> parts;
  for (const double channels : {8.0, 16.0, 32.0})
    parts.push_back({Filled(images.Bytes(channels, 16)), channels, 16});
  tape_.Add(parts[1].value.gradient, tape_.Run({}, images.Bytes(16, 16)));
  const Image joined = images.Join(parts);
  EXPECT_EQ(joined.channels, 56);
  EXPECT_EQ(joined.value.data->bytes(), images.Bytes(56, 16));
  Finish(joined.value);
  for (const Image& part : parts)
    EXPECT_EQ(part.value.gradient->sum->bytes(), part.value.data->bytes());
  parts.clear();
}

TEST_F(TapeLayersTest, ConvolutionsRoundSidesUp) {
  Images images(&tape_, 1);
  const Images::Shape shape{8, 3, 2};
  const Image x{tape_.Frozen(images.Bytes(3, 95)), 3, 95};
  EXPECT_EQ(images.Convolve(x, shape, *images.WeightFor(3, shape)).side, 48);
}

TEST_F(TapeLayersTest, ANetworkOfLayersFreesAllButWhatIsLearned) {
  {
    Images images(&tape_, 4);
    const Layer first = Made(&images, 3, {16, 3, 2});
    const Layer second = Made(&images, 16, {16, 1}, false);
    const Image x{{tape_.Filled(images.Bytes(3, 32))}, 3, 32};
    const Image y = sim::Run(&images, second, sim::Run(&images, first, x));
    images.Loss(images.Pool(images.Sum(y, y), 2));
    tape_.Backward();
    tape_.Update();
  }
  const Trace trace = tape_.Take();
  ASSERT_TRUE(Validate(trace).ok());
  std::set<uint32_t> alive;
  for (const Op& op : trace.ops) {
    if (op.kind == OpKind::kCreate) alive.insert(op.tensor);
    if (op.kind == OpKind::kFree) alive.erase(op.tensor);
  }
  EXPECT_TRUE(alive.empty());
}

TEST_F(TapeLayersTest, ProductsOfSequencesTakeTheirFlops) {
  Sequences sequences(&tape_);
  const double rows = 8192;
  const double width = 8192;
  tape_.Step();
  sequences.Product(Filled(kHalf * rows * width), Filled(kHalf * width * width), rows, width,
                    width);
  const Trace trace = tape_.Take();
  double seconds = 0;
  for (const Op& op : trace.ops) seconds += core::Seconds(op.time);
  const double expected = 2 * rows * width * width / kHardware[0].flops;
  EXPECT_NEAR(seconds, expected, expected * 0.03);
}

}  // namespace
}  // namespace ravenstore::sim
