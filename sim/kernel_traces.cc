#include "sim/kernel_traces.h"

#include <algorithm>
#include <deque>
#include <functional>
#include <initializer_list>
#include <memory>
#include <random>
#include <string_view>
#include <utility>
#include <vector>

#include "sim/trace_builder.h"

namespace ravenstore::sim {

namespace {

constexpr double kLaunchSeconds = 3e-6;
constexpr double kNoise = 0.02;
// Convolutions reach about a third of what matrix products do.
constexpr double kConvolutionShare = 0.3;
// Bytes of an element, of a sum over many, and of a place in a pooling window.
constexpr double kHalf = 2;
constexpr double kFloat = 4;
constexpr double kIndex = 8;

// A tensor, freed with its last holder.
class Buffer {
 public:
  Buffer(Builder* builder, double bytes)
      : builder_(builder), tensor_(builder->Create(Round(bytes))) {}
  ~Buffer() { builder_->Free(tensor_); }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  uint32_t tensor() const { return tensor_; }
  double bytes() const { return static_cast<double>(builder_->SizeOf(tensor_).count()); }

 private:
  Builder* builder_;
  uint32_t tensor_;
};
using Data = std::shared_ptr<const Buffer>;

// What a gradient is summed up in. Shared by the value and by the kernels that will want it.
struct Gradient {
  Data sum;
};

struct Value {
  Data data;
  std::shared_ptr<Gradient> gradient = std::make_shared<Gradient>();
};

// A weight, or what else is learned, and its momentum.
struct Parameter {
  Value value;
  Data momentum;
};

class Tape {
 public:
  Tape(std::string_view name, const Hardware& hardware, uint64_t seed)
      : builder_(name), hardware_(hardware), random_(seed) {}

  Parameter* Learned(double bytes) {
    parameters_.push_back({{Filled(bytes)}, Filled(bytes)});
    return &parameters_.back();
  }
  Data Filled(double bytes) {
    auto data = std::make_shared<const Buffer>(&builder_, bytes);
    builder_.Put(data->tensor(), true);
    return data;
  }
  // The set-up ends: an iteration of its own.
  void EndSetUp() {
    builder_.Compute(1e-3);
    builder_.Step();
  }

  struct Kernel {
    double seconds = 0;  // of arithmetic
    std::vector<Data> reads;
    std::vector<Data> changes = {};
    double workspace = 0;
  };
  // Runs it and returns its outputs, of so many bytes.
  std::vector<Data> Run(const Kernel& kernel, std::initializer_list<double> outputs);
  Data Run(const Kernel& kernel, double output) { return Run(kernel, {output}).front(); }

  double ConvolutionSeconds(double flops) const {
    return flops / (hardware_.flops * kConvolutionShare);
  }
  double ProductSeconds(double flops) const { return flops / hardware_.flops; }

  // `backward` runs after that of all that is recorded later.
  void Record(std::function<void()> backward) { backward_.push_back(std::move(backward)); }
  // Another contribution to the value's gradient.
  void Add(const std::shared_ptr<Gradient>& gradient, Data more) {
    Data& sum = gradient->sum;
    sum = sum == nullptr ? std::move(more) : Run({.reads = {sum, more}}, sum->bytes());
  }
  void Backward() {
    while (!backward_.empty()) {
      const auto one = std::move(backward_.back());
      backward_.pop_back();
      one();
    }
  }
  // Every parameter by its gradient, one kernel each.
  void Update() {
    for (Parameter& parameter : parameters_) {
      const Data gradient = std::move(parameter.value.gradient->sum);
      if (gradient != nullptr)
        Run({.reads = {gradient}, .changes = {parameter.value.data, parameter.momentum}}, {});
    }
    builder_.Step();
  }
  Trace Take() {
    parameters_.clear();
    return builder_.Take();
  }

 private:
  Builder builder_;
  const Hardware& hardware_;
  std::mt19937_64 random_;
  std::deque<Parameter> parameters_;
  std::vector<std::function<void()>> backward_;
};

std::vector<Data> Tape::Run(const Kernel& kernel, std::initializer_list<double> outputs) {
  double traffic = kernel.workspace;
  std::vector<Data> reads;  // each once
  for (const Data& data : kernel.reads) {
    traffic += data->bytes();
    if (std::find(reads.begin(), reads.end(), data) == reads.end()) reads.push_back(data);
  }
  for (const Data& data : reads) builder_.Get(data->tensor());
  for (const Data& data : kernel.changes) {
    traffic += 2 * data->bytes();
    builder_.Get(data->tensor(), false);
  }
  std::vector<Data> made;
  for (const double bytes : outputs) {
    made.push_back(std::make_shared<const Buffer>(&builder_, bytes));
    traffic += made.back()->bytes();
  }
  const auto compute = [&] {
    const double factor = 1 + kNoise * (2 * Unit(random_) - 1);
    const double seconds = std::max(kernel.seconds, traffic / hardware_.memory_rate);
    builder_.Compute((seconds + kLaunchSeconds) * factor);
  };
  if (kernel.workspace > 0) {
    const Buffer workspace(&builder_, kernel.workspace);
    compute();
  } else {
    compute();
  }
  for (const Data& data : made) builder_.Put(data->tensor(), true);
  for (const Data& data : kernel.changes) builder_.Put(data->tensor(), true);
  for (const Data& data : reads) builder_.Put(data->tensor());
  return made;
}

// ---- Kernels of several networks, each with those of its backward pass.

// An image's channels and sides, with the values of a batch of them.
struct Image {
  Value value;
  double channels = 0;
  double side = 0;
};

class Images {
 public:
  Images(Tape* tape, double batch) : tape_(*tape), batch_(batch) {}

  double Bytes(double channels, double side) const {
    return kHalf * batch_ * channels * side * side;
  }
  // `groups` convolutions beside one another, over `window` x `window` each.
  struct Shape {
    double channels;
    double window;
    double stride = 1;
    double groups = 1;
  };
  Parameter* WeightFor(double channels, const Shape& shape) {
    return tape_.Learned(kHalf * shape.window * shape.window * channels / shape.groups *
                         shape.channels);
  }
  Image Convolve(const Image& x, const Shape& shape, const Parameter& weight) {
    const double side = x.side / shape.stride;
    return Convolve(x, shape, weight, side);
  }
  // The other way round: each value becomes a window of them.
  Image Spread(const Image& x, double channels, const Parameter& weight) {
    return Convolve(x, {channels, 1}, weight, x.side * 2);
  }
  struct Norm {
    Parameter* scale;
    Parameter* shift;
    Data mean;
    Data variance;
  };
  Norm NormFor(double channels) {
    const double bytes = kFloat * channels;
    return {tape_.Learned(bytes), tape_.Learned(bytes), tape_.Filled(bytes), tape_.Filled(bytes)};
  }
  Image Normalise(const Image& x, const Norm& norm);
  Image Rectify(const Image& x);
  Image Pool(const Image& x, double window);
  Image Join(const Image& a, const Image& b);
  Image Sum(const Image& a, const Image& b);
  // What is wrong, and with it the gradient of `x`.
  void Loss(const Image& x) {
    const auto made = tape_.Run({.reads = {x.value.data}}, {x.value.data->bytes(), kFloat});
    tape_.Add(x.value.gradient, tape_.Run({.reads = {made[0], made[1]}}, x.value.data->bytes()));
  }

 private:
  Image Convolve(const Image& x, const Shape& shape, const Parameter& weight, double side);

  Tape& tape_;
  double batch_;
};

Image Images::Convolve(const Image& x, const Shape& shape, const Parameter& weight, double side) {
  const double out = Bytes(shape.channels, side);
  // Two for each of its two bytes.
  const double flops = out * shape.window * shape.window * x.channels / shape.groups;
  const double seconds = tape_.ConvolutionSeconds(flops);
  const double workspace = shape.window > 1 && shape.groups == 1 ? out / 4 : 0;
  Image y{{tape_.Run({seconds, {x.value.data, weight.value.data}, {}, workspace}, out)},
          shape.channels,
          side};
  tape_.Record([&tape = tape_, input = x.value.data, to = x.value.gradient, kernel = &weight,
                from = y.value.gradient, seconds, workspace] {
    const Data gradient = std::move(from->sum);
    const Value& w = kernel->value;
    tape.Add(w.gradient, tape.Run({seconds, {input, gradient}, {}, workspace}, w.data->bytes()));
    tape.Add(to, tape.Run({seconds, {gradient, w.data}, {}, workspace}, input->bytes()));
  });
  return y;
}

Image Images::Normalise(const Image& x, const Norm& norm) {
  const double sums = kFloat * x.channels;
  const Value& scale = norm.scale->value;
  const Value& shift = norm.shift->value;
  const auto made = tape_.Run(
      {.reads = {x.value.data, scale.data, shift.data}, .changes = {norm.mean, norm.variance}},
      {x.value.data->bytes(), sums, sums});
  Image y{{made[0]}, x.channels, x.side};
  tape_.Record([&tape = tape_, input = x.value.data, to = x.value.gradient, parameters = norm,
                from = y.value.gradient, mean = made[1], deviation = made[2]] {
    const Data gradient = std::move(from->sum);
    const Value& scale = parameters.scale->value;
    const auto gradients = tape.Run({.reads = {gradient, input, scale.data, mean, deviation}},
                                    {input->bytes(), mean->bytes(), mean->bytes()});
    tape.Add(to, gradients[0]);
    tape.Add(scale.gradient, gradients[1]);
    tape.Add(parameters.shift->value.gradient, gradients[2]);
  });
  return y;
}

Image Images::Rectify(const Image& x) {
  Image y{{tape_.Run({.reads = {x.value.data}}, x.value.data->bytes())}, x.channels, x.side};
  tape_.Record(
      [&tape = tape_, output = y.value.data, to = x.value.gradient, from = y.value.gradient] {
        const Data gradient = std::move(from->sum);
        tape.Add(to, tape.Run({.reads = {gradient, output}}, output->bytes()));
      });
  return y;
}

Image Images::Pool(const Image& x, double window) {
  const double side = x.side / window;
  const double out = Bytes(x.channels, side);
  const auto made = tape_.Run({.reads = {x.value.data}}, {out, out / kHalf * kIndex});
  Image y{{made[0]}, x.channels, side};
  tape_.Record([&tape = tape_, bytes = x.value.data->bytes(), to = x.value.gradient,
                from = y.value.gradient, places = made[1]] {
    const Data gradient = std::move(from->sum);
    tape.Add(to, tape.Run({.reads = {gradient, places}}, bytes));
  });
  return y;
}

Image Images::Join(const Image& a, const Image& b) {
  const double out = a.value.data->bytes() + b.value.data->bytes();
  Image y{
      {tape_.Run({.reads = {a.value.data, b.value.data}}, out)}, a.channels + b.channels, a.side};
  tape_.Record([&tape = tape_, from = y.value.gradient, first = a.value.gradient,
                second = b.value.gradient, bytes = a.value.data->bytes(),
                rest = b.value.data->bytes()] {
    const Data gradient = std::move(from->sum);
    tape.Add(first, tape.Run({.reads = {gradient}}, bytes));
    tape.Add(second, tape.Run({.reads = {gradient}}, rest));
  });
  return y;
}

Image Images::Sum(const Image& a, const Image& b) {
  Image y{{tape_.Run({.reads = {a.value.data, b.value.data}}, a.value.data->bytes())},
          a.channels,
          a.side};
  tape_.Record([&tape = tape_, from = y.value.gradient, first = a.value.gradient,
                second = b.value.gradient] {
    const Data gradient = std::move(from->sum);
    tape.Add(first, gradient);
    tape.Add(second, gradient);
  });
  return y;
}

// A convolution, its normalisation, and mostly a rectifier.
struct Layer {
  Images::Shape shape;
  Parameter* weight;
  Images::Norm norm;
  bool rectified = true;
};

Layer Made(Images* images, double channels, const Images::Shape& shape, bool rectified = true) {
  Parameter* weight = images->WeightFor(channels, shape);
  return {shape, weight, images->NormFor(shape.channels), rectified};
}

Image Run(Images* images, const Layer& layer, const Image& x) {
  const Image y = images->Normalise(images->Convolve(x, layer.shape, *layer.weight), layer.norm);
  return layer.rectified ? images->Rectify(y) : y;
}

// Matrix products and what is done to each element, over sequences.
class Sequences {
 public:
  explicit Sequences(Tape* tape) : tape_(*tape) {}

  // x (rows x in) times a weight (in x out).
  Value Product(const Value& x, const Parameter& weight, double rows, double in, double out);
  // One output of so many bytes from the inputs, each of which has its gradient from the output's
  // and, if the product rule wants it, from the others.
  Value Combine(const std::vector<Value>& inputs, double bytes, bool multiplies = false);
  // A function that its own output gives the slope of.
  Value Squash(const Value& x, double bytes);
  Value Part(const Value& x, double bytes);

 private:
  Tape& tape_;
};

Value Sequences::Product(const Value& x, const Parameter& weight, double rows, double in,
                         double out) {
  const double seconds = tape_.ProductSeconds(2 * rows * in * out);
  Value y{tape_.Run({seconds, {x.data, weight.value.data}}, kHalf * rows * out)};
  tape_.Record([&tape = tape_, x, &w = weight.value, from = y.gradient, seconds] {
    const Data gradient = std::move(from->sum);
    tape.Add(x.gradient, tape.Run({seconds, {gradient, w.data}}, x.data->bytes()));
    Data& sum = w.gradient->sum;
    if (sum == nullptr) {
      sum = tape.Run({seconds, {x.data, gradient}}, w.data->bytes());
    } else {
      tape.Run({seconds, {x.data, gradient}, {sum}}, {});
    }
  });
  return y;
}

Value Sequences::Combine(const std::vector<Value>& inputs, double bytes, bool multiplies) {
  std::vector<Data> reads;
  for (const Value& input : inputs) reads.push_back(input.data);
  Value y{tape_.Run({.reads = reads}, bytes)};
  struct Input {
    std::shared_ptr<Gradient> gradient;
    double bytes;
    Data other;  // of a product
  };
  std::vector<Input> to;
  for (size_t i = 0; i < inputs.size(); ++i) {
    to.push_back({inputs[i].gradient, inputs[i].data->bytes(),
                  multiplies ? inputs[inputs.size() - 1 - i].data : nullptr});
  }
  tape_.Record([&tape = tape_, to, from = y.gradient] {
    const Data gradient = std::move(from->sum);
    if (gradient == nullptr) return;
    for (const Input& input : to) {
      std::vector<Data> reads = {gradient};
      if (input.other != nullptr) reads.push_back(input.other);
      tape.Add(input.gradient, tape.Run({.reads = reads}, input.bytes));
    }
  });
  return y;
}

Value Sequences::Squash(const Value& x, double bytes) {
  Value y{tape_.Run({.reads = {x.data}}, bytes)};
  tape_.Record([&tape = tape_, output = y.data, to = x.gradient, from = y.gradient] {
    const Data gradient = std::move(from->sum);
    if (gradient == nullptr) return;
    tape.Add(to, tape.Run({.reads = {gradient, output}}, output->bytes()));
  });
  return y;
}

Value Sequences::Part(const Value& x, double bytes) {
  return Combine({x}, bytes);
}

}  // namespace

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
        const Value from_input = sequences.Product(input, *layer.input, kBatch, kWidth, 4 * kWidth);
        const Value from_state = sequences.Product(state, *layer.state, kBatch, kWidth, 4 * kWidth);
        const Value sum = sequences.Combine({from_input, from_state, layer.bias->value},
                                            from_input.data->bytes());
        const Value in = sequences.Squash(sequences.Part(sum, kState), kState);
        const Value forget = sequences.Squash(sequences.Part(sum, kState), kState);
        const Value fresh = sequences.Squash(sequences.Part(sum, kState), kState);
        const Value out = sequences.Squash(sequences.Part(sum, kState), kState);
        cell = sequences.Combine({sequences.Combine({forget, cell}, kState, true),
                                  sequences.Combine({in, fresh}, kState, true)},
                                 kState);
        state = sequences.Combine({out, sequences.Squash(cell, kState)}, kState, true);
        input = state;
      }
    }
    const Value all = sequences.Combine(states, kState * kSteps);
    states.clear();
    const Value scores = sequences.Product(all, *last, kBatch * kSteps, kWidth, kWords);
    const Data likely = tape.Run({.reads = {scores.data}}, scores.data->bytes());
    tape.Add(scores.gradient, tape.Run({.reads = {likely}}, likely->bytes()));
    tape.Backward();
    tape.Update();
  }
  return tape.Take();
}

}  // namespace ravenstore::sim
