#include "sim/kernel_traces.h"

#include <utility>
#include <vector>

#include "sim/tape.h"
#include "sim/tape_layers.h"

namespace ravenstore::sim {

Trace UNetKernels(const Hardware& hardware, int iterations, uint64_t seed) {
  constexpr double kBatch = 16;
  constexpr double kSide = 512;
  constexpr size_t kLevels = 5;
  constexpr double kLeast = 64;
  Tape tape("unet", hardware, seed);
  Images images(&tape, kBatch);
  struct Level {
    std::vector<Layer> down;
    Parameter* spread = nullptr;
    std::vector<Layer> up;
  };
  std::vector<Level> levels(kLevels);
  double channels = 3;
  for (size_t i = 0; i < kLevels; ++i) {
    const double wide = kLeast * static_cast<double>(1 << i);
    levels[i].down = {Made(&images, channels, {wide, 3}), Made(&images, wide, {wide, 3})};
    if (i + 1 < kLevels) {
      levels[i].spread = images.WeightFor(wide * 2, {wide, 2});
      levels[i].up = {Made(&images, wide * 2, {wide, 3}), Made(&images, wide, {wide, 3})};
    }
    channels = wide;
  }
  const Images::Shape last{2, 1};
  Parameter* const last_weight = images.WeightFor(kLeast, last);
  tape.EndSetUp();
  for (int iteration = 0; iteration < iterations; ++iteration) {
    Image x{{tape.Filled(images.Bytes(3, kSide))}, 3, kSide};
    std::vector<Image> across;
    for (size_t i = 0; i < kLevels; ++i) {
      if (i > 0) x = images.Pool(x, 2);
      for (const Layer& layer : levels[i].down) x = Run(&images, layer, x);
      across.push_back(x);
    }
    across.pop_back();
    for (size_t i = kLevels - 1; i-- > 0;) {
      x = images.Join(across.back(), images.Spread(x, across.back().channels, *levels[i].spread));
      across.pop_back();
      for (const Layer& layer : levels[i].up) x = Run(&images, layer, x);
    }
    x = images.Convolve(x, last, *last_weight);
    images.Loss(x);
    x = {};
    tape.Backward();
    tape.Update();
    tape.Step();
  }
  levels.clear();
  return tape.Take();
}

Trace MobileNetKernels(const Hardware& hardware, int iterations, uint64_t seed) {
  constexpr double kBatch = 256;
  constexpr double kSide = 224;
  struct Stage {
    double expansion;
    double channels;
    int blocks;
    double stride;
  };
  constexpr Stage kStages[] = {{1, 16, 1, 1}, {6, 24, 2, 2},  {6, 32, 3, 2}, {6, 64, 4, 2},
                               {6, 96, 3, 1}, {6, 160, 3, 2}, {6, 320, 1, 1}};
  Tape tape("mobilenet", hardware, seed);
  Images images(&tape, kBatch);
  struct Block {
    std::vector<Layer> layers;
    bool residual;
  };
  std::vector<Block> blocks = {{{Made(&images, 3, {32, 3, 2})}, false}};
  double channels = 32;
  for (const Stage& stage : kStages) {
    for (int i = 0; i < stage.blocks; ++i) {
      const double wide = channels * stage.expansion;
      const double stride = i == 0 ? stage.stride : 1;
      Block block{{}, i > 0};
      if (stage.expansion > 1) block.layers.push_back(Made(&images, channels, {wide, 1}));
      block.layers.push_back(Made(&images, wide, {wide, 3, stride, wide}));
      block.layers.push_back(Made(&images, wide, {stage.channels, 1}, false));
      blocks.push_back(std::move(block));
      channels = stage.channels;
    }
  }
  blocks.push_back({{Made(&images, channels, {1280, 1})}, false});
  const Images::Shape last{1000, 1};
  Parameter* const last_weight = images.WeightFor(1280, last);
  tape.EndSetUp();
  for (int iteration = 0; iteration < iterations; ++iteration) {
    Image x{{tape.Filled(images.Bytes(3, kSide))}, 3, kSide};
    for (const Block& block : blocks) {
      const Image before = x;
      for (const Layer& layer : block.layers) x = Run(&images, layer, x);
      if (block.residual) x = images.Sum(before, x);
    }
    x = images.Convolve(images.Pool(x, x.side), last, *last_weight);
    images.Loss(x);
    x = {};
    tape.Backward();
    tape.Update();
    tape.Step();
  }
  blocks.clear();
  return tape.Take();
}

Trace LstmKernels(const Hardware& hardware, int iterations, uint64_t seed) {
  constexpr double kBatch = 256;
  constexpr double kWidth = 1500;
  constexpr double kWords = 10000;
  constexpr size_t kSteps = 32;
  constexpr size_t kLayers = 4;
  constexpr double kState = kHalf * kBatch * kWidth;
  Tape tape("lstm", hardware, seed);
  Sequences sequences(&tape);
  struct Weights {
    Parameter* input;
    Parameter* state;
    Parameter* bias;
  };
  Parameter* const words = tape.Learned(kHalf * kWords * kWidth);
  std::vector<Weights> layers;
  for (size_t i = 0; i < kLayers; ++i) {
    layers.push_back({tape.Learned(kHalf * 4 * kWidth * kWidth),
                      tape.Learned(kHalf * 4 * kWidth * kWidth),
                      tape.Learned(kFloat * 4 * kWidth)});
  }
  Parameter* const last = tape.Learned(kHalf * kWords * kWidth);
  tape.EndSetUp();
  for (int iteration = 0; iteration < iterations; ++iteration) {
    std::vector<Value> states;  // of a layer, by step
    {
      const Value looked_up = sequences.Combine({words->value}, kState * kSteps);
      for (size_t t = 0; t < kSteps; ++t) states.push_back(sequences.Part(looked_up, kState));
    }
    for (const Weights& layer : layers) {
      Value state{tape.Filled(kState)};
      Value cell{tape.Filled(kState)};
      for (Value& input : states) {
        const Value from_input =
            sequences.Product(input, layer.input->value, kBatch, kWidth, 4 * kWidth);
        const Value from_state =
            sequences.Product(state, layer.state->value, kBatch, kWidth, 4 * kWidth);
        const Value sum = sequences.Combine({from_input, from_state, layer.bias->value},
                                            from_input.data->bytes());
        const Value in = sequences.Activate(sequences.Part(sum, kState), kState);
        const Value forget = sequences.Activate(sequences.Part(sum, kState), kState);
        const Value fresh = sequences.Activate(sequences.Part(sum, kState), kState);
        const Value out = sequences.Activate(sequences.Part(sum, kState), kState);
        cell = sequences.Combine({sequences.Combine({forget, cell}, kState, true),
                                  sequences.Combine({in, fresh}, kState, true)},
                                 kState);
        state = sequences.Combine({out, sequences.Activate(cell, kState)}, kState, true);
        input = state;
      }
    }
    const Value all = sequences.Combine(states, kState * kSteps);
    states.clear();
    const Value scores = sequences.Product(all, last->value, kBatch * kSteps, kWidth, kWords);
    const Data likely = tape.Run({.reads = {scores.data}}, scores.data->bytes());
    tape.Add(scores.gradient, tape.Run({.reads = {likely}}, likely->bytes()));
    tape.Backward();
    tape.Update();
    tape.Step();
  }
  return tape.Take();
}

}  // namespace ravenstore::sim
