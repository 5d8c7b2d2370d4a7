#include "sim/validation_images.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>
#include <vector>

#include "sim/tape.h"
#include "sim/tape_layers.h"

namespace ravenstore::sim {

namespace {

// A convolution over single values, with what is added to each channel.
struct Classifier {
  Images::Shape shape;
  Parameter* weight;
  Parameter* bias;
};

Classifier ClassifierFor(Tape* tape, Images* images, double channels, double classes) {
  const Images::Shape shape{classes, 1};
  return {shape, images->WeightFor(channels, shape), tape->Learned(kHalf * classes)};
}

Image Classified(Tape* tape, Images* images, const Classifier& classifier, const Image& x) {
  Image y = images->Convolve(x, classifier.shape, *classifier.weight);
  y.value = Make(tape, {y.value, classifier.bias->value}, y.value.data->bytes());
  return y;
}

// The mean of every channel.
Image Mean(Tape* tape, Images* images, const Image& x) {
  return {Make(tape, {x.value}, images->Bytes(x.channels, 1)), x.channels, 1};
}

// ---- EfficientNet

class EfficientNet {
 public:
  EfficientNet(Tape* tape, double batch) : tape_(*tape), images_(tape, batch) {
    double channels = Wide(32);
    stem_ = Made(&images_, 3, {channels, 3, 2}, false);
    for (const Stage& stage : kStages) {
      const double out = Wide(stage.channels);
      const int repeats = static_cast<int>(std::ceil(stage.repeats * kDepth));
      for (int i = 0; i < repeats; ++i) {
        AddBlock(channels, out, stage, i == 0 ? stage.stride : 1);
        channels = out;
      }
    }
    head_ = Made(&images_, channels, {Wide(1280), 1}, false);
    last_ = ClassifierFor(tape, &images_, Wide(1280), 1000);
  }

  void Train() {
    Image x{tape_.Frozen(images_.Bytes(3, kSide)), 3, kSide};
    x = Activated(sim::Run(&images_, stem_, x));
    for (const Block& block : blocks_) x = Run(block, x);
    x = Activated(sim::Run(&images_, head_, x));
    x = Mean(&tape_, &images_, x);
    x.value = Dropped(x.value, x.value.data->bytes() / kHalf);
    images_.Loss(Classified(&tape_, &images_, last_, x));
  }

 private:
  static constexpr double kSide = 380;
  static constexpr double kWidth = 1.4;
  static constexpr double kDepth = 1.8;
  struct Stage {
    double expansion;
    double channels;
    double repeats;
    double stride;
    double window;
  };
  static constexpr Stage kStages[] = {{1, 16, 1, 1, 3}, {6, 24, 2, 2, 3},  {6, 40, 2, 2, 5},
                                      {6, 80, 3, 2, 3}, {6, 112, 3, 1, 5}, {6, 192, 4, 2, 5},
                                      {6, 320, 1, 1, 3}};
  struct Block {
    std::optional<Layer> widen;
    Layer spatial;
    Classifier squeeze, weigh;
    Layer narrow;
    bool residual;
  };

  // Whole eights, as the paper's code has it: not less than nine tenths of what was asked for.
  static double Wide(double channels) {
    const double wide = channels * kWidth;
    const double rounded = std::max(8.0, std::floor((wide + 4) / 8) * 8);
    return rounded < 0.9 * wide ? rounded + 8 : rounded;
  }
  void AddBlock(double in, double out, const Stage& stage, double stride) {
    const double wide = in * stage.expansion;
    std::optional<Layer> widen;
    if (stage.expansion > 1) widen = Made(&images_, in, {wide, 1}, false);
    Layer spatial = Made(&images_, wide, {wide, stage.window, stride, wide}, false);
    Classifier squeeze = ClassifierFor(&tape_, &images_, wide, in / 4);
    Classifier weigh = ClassifierFor(&tape_, &images_, in / 4, wide);
    Layer narrow = Made(&images_, wide, {out, 1}, false);
    blocks_.push_back({std::move(widen), std::move(spatial), squeeze, weigh, std::move(narrow),
                       stride == 1 && in == out});
  }
  // x * sigmoid(x) keeps x.
  Image Activated(const Image& x) {
    return {Make(&tape_, {x.value}, x.value.data->bytes(), {.inputs_kept = 1}), x.channels, x.side};
  }
  Value Dropped(const Value& x, double mask) {
    return Make(&tape_, {x}, x.data->bytes(), {.made = {mask}});
  }
  Image Run(const Block& block, const Image& before) {
    Image x = before;
    if (block.widen) x = Activated(sim::Run(&images_, *block.widen, x));
    x = Activated(sim::Run(&images_, block.spatial, x));
    Image weights = Mean(&tape_, &images_, x);
    weights = Activated(Classified(&tape_, &images_, block.squeeze, weights));
    weights = Classified(&tape_, &images_, block.weigh, weights);
    const double bytes = weights.value.data->bytes();
    weights.value = Make(&tape_, {weights.value}, bytes, {.output_kept = true});
    x.value = Make(&tape_, {x.value, weights.value}, x.value.data->bytes(), {.inputs_kept = 2});
    x = sim::Run(&images_, block.narrow, x);
    if (!block.residual) return x;
    x.value = Dropped(x.value, kHalf * images_.batch());
    return images_.Sum(before, x);
  }

  Tape& tape_;
  Images images_;
  Layer stem_;
  std::vector<Block> blocks_;
  Layer head_;
  Classifier last_;
};

// ---- DenseNet

class DenseNet {
 public:
  explicit DenseNet(Tape* tape) : tape_(*tape), images_(tape, kBatch) {
    double channels = 2 * kGrowth;
    stem_ = Made(&images_, 3, {channels, 7, 2});
    for (const int layers : kStages) {
      Stage stage;
      for (int i = 0; i < layers; ++i) {
        stage.layers.push_back(
            {PartFor(channels, {4 * kGrowth, 1}), PartFor(4 * kGrowth, {kGrowth, 3})});
        channels += kGrowth;
      }
      if (stages_.size() + 1 < std::size(kStages)) {
        stage.narrow = PartFor(channels, {channels / 2, 1});
        channels /= 2;
      }
      stages_.push_back(std::move(stage));
    }
    norm_ = images_.NormFor(channels);
    last_ = ClassifierFor(tape, &images_, channels, 1000);
  }

  void Train() {
    Image x{tape_.Frozen(images_.Bytes(3, kSide)), 3, kSide};
    x = images_.Pool(sim::Run(&images_, stem_, x), 2);
    for (const Stage& stage : stages_) {
      std::vector<Image> all = {x};
      for (const Dense& layer : stage.layers) {
        x = all.size() == 1 ? all[0] : images_.Join(all);
        all.push_back(Run(layer.second, Run(layer.first, x)));
      }
      x = images_.Join(all);
      if (stage.narrow) x = Halved(Run(*stage.narrow, x));
    }
    x = Mean(&tape_, &images_, images_.Relu(images_.Normalise(x, norm_)));
    images_.Loss(Classified(&tape_, &images_, last_, x));
  }

 private:
  static constexpr double kBatch = 256;
  static constexpr double kSide = 224;
  static constexpr double kGrowth = 32;
  static constexpr int kStages[] = {6, 12, 48, 32};

  // Normalised and activated before its convolution.
  struct Part {
    Images::Norm norm;
    Images::Shape shape;
    Parameter* weight;
  };
  struct Dense {
    Part first, second;
  };
  struct Stage {
    std::vector<Dense> layers;
    std::optional<Part> narrow;
  };

  Part PartFor(double channels, const Images::Shape& shape) {
    Images::Norm norm = images_.NormFor(channels);
    return {std::move(norm), shape, images_.WeightFor(channels, shape)};
  }
  Image Run(const Part& part, const Image& x) {
    const Image activated = images_.Relu(images_.Normalise(x, part.norm));
    return images_.Convolve(activated, part.shape, *part.weight);
  }
  // The mean of each four.
  Image Halved(const Image& x) {
    const double side = x.side / 2;
    return {Make(&tape_, {x.value}, images_.Bytes(x.channels, side)), x.channels, side};
  }

  Tape& tape_;
  Images images_;
  Layer stem_;
  std::vector<Stage> stages_;
  Images::Norm norm_;
  Classifier last_;
};

}  // namespace

Trace EfficientNetKernels(const Hardware& hardware, int iterations, uint64_t seed, double batch) {
  return Trained<EfficientNet>("efficientnet-b4", hardware, iterations, seed, {}, batch);
}

Trace DenseNetKernels(const Hardware& hardware, int iterations, uint64_t seed) {
  return Trained<DenseNet>("densenet-201", hardware, iterations, seed, {});
}

}  // namespace ravenstore::sim
