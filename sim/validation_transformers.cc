#include "sim/validation_transformers.h"

#include <cmath>
#include <utility>
#include <vector>

#include "sim/tape.h"
#include "sim/token_layers.h"

namespace ravenstore::sim {

namespace {

const Value kNone{nullptr, nullptr};
// As fused optimisers take parameters: as many a kernel as their arguments hold.
constexpr Tape::Optimiser kFused{.together = 24, .clips = true};

// ---- T5

class T5 {
 public:
  T5(Tape* tape, double batch) : tape_(*tape), tokens_(tape), batch_(batch) {
    words_ = tokens_.Learned(kWords * kWidth);
    for (Stack* stack : {&encoder_, &decoder_}) {
      stack->bias = tokens_.Learned(kBuckets * kHeads);
      stack->norm = tokens_.NormFor(kWidth, false);
      for (int i = 0; i < kLayers; ++i) {
        Block block{AttentionFor(), {}, {}};
        if (stack == &decoder_) block.across.push_back(AttentionFor());
        block.feed = {tokens_.NormFor(kWidth, false), tokens_.LinearFor(kWidth, kInner, false),
                      tokens_.LinearFor(kInner, kWidth, false)};
        stack->blocks.push_back(std::move(block));
      }
    }
  }

  void Train() {
    const Data in = tape_.Filled(kIndex * batch_ * kQuestion);
    const Data out = tape_.Filled(kIndex * batch_ * kAnswer);
    const Value encoded = Run(encoder_, in, kQuestion, kNone);
    const Value decoded = Run(decoder_, out, kAnswer, encoded);
    const Value scores = sim::Apply(&tape_, decoded, words_, kHalf * batch_ * kAnswer * kWords,
                                    {tape_.ProductSeconds(2 * batch_ * kAnswer * kWidth * kWords)});
    tokens_.Loss(scores, out);
  }

 private:
  static constexpr double kWidth = 1024;
  static constexpr double kInner = 4096;
  static constexpr double kHeads = 16;
  static constexpr double kWords = 32128;
  static constexpr double kBuckets = 32;
  static constexpr int kLayers = 24;
  static constexpr double kQuestion = 512;
  static constexpr double kAnswer = 114;

  struct Attention {
    TokenNorm norm;
    Linear q, k, v, out;
  };
  struct Feed {
    TokenNorm norm;
    Linear in, out;
  };
  struct Block {
    Attention self;
    std::vector<Attention> across;  // a decoder's one
    Feed feed;
  };
  struct Stack {
    Value bias;
    TokenNorm norm;
    std::vector<Block> blocks;
  };

  Attention AttentionFor() {
    const auto linear = [this] { return tokens_.LinearFor(kWidth, kWidth, false); };
    const TokenNorm norm = tokens_.NormFor(kWidth, false);
    return {norm, linear(), linear(), linear(), linear()};
  }
  // Of `x`, with keys and values from `memory` or, if it has no data, from itself.
  Value Attend(const Attention& a, const Value& x, double length, const Value& memory,
               const Value& bias) {
    const double rows = batch_ * length;
    const Value normed = tokens_.Normalise(a.norm, x, rows);
    const bool self = memory.data == nullptr;
    const Value& from = self ? normed : memory;
    const double keys = self ? length : kQuestion;
    const Value q = tokens_.Copy(tokens_.Apply(a.q, normed, rows));
    const Value k = tokens_.Copy(tokens_.Apply(a.k, from, batch_ * keys));
    const Value v = tokens_.Copy(tokens_.Apply(a.v, from, batch_ * keys));
    const Value mixed = tokens_.Copy(
        tokens_.UnfusedAttention({batch_, kHeads, length, keys, kWidth}, q, k, v, bias));
    return tokens_.Plus(x, tokens_.Drop(tokens_.Apply(a.out, mixed, rows)));
  }
  Value Run(const Stack& stack, const Data& places, double length, const Value& encoded) {
    const double rows = batch_ * length;
    Value x = tokens_.Drop(tokens_.LookUp(words_, places, kHalf * rows * kWidth));
    // All layers share the first one's biases by distance.
    const Value bias = Make(&tape_, {stack.bias}, kHalf * kHeads * length * length);
    for (const Block& block : stack.blocks) {
      x = Attend(block.self, x, length, kNone, bias);
      for (const Attention& across : block.across) x = Attend(across, x, length, encoded, kNone);
      const Value normed = tokens_.Normalise(block.feed.norm, x, rows);
      const Value inner = tokens_.Apply(block.feed.in, normed, rows);
      const Value wide = tokens_.Drop(Sequences(&tape_).Activate(inner, inner.data->bytes()));
      x = tokens_.Plus(x, tokens_.Drop(tokens_.Apply(block.feed.out, wide, rows)));
    }
    return tokens_.Drop(tokens_.Normalise(stack.norm, x, rows));
  }

  Tape& tape_;
  Tokens tokens_;
  double batch_;
  Value words_;
  Stack encoder_;
  Stack decoder_;
};

// ---- LLaMA

class LlamaLora {
 public:
  explicit LlamaLora(Tape* tape) : tape_(*tape), tokens_(tape) {
    words_ = tape_.Frozen(kHalf * kWords * kWidth);
    const auto wide = [this] { return tokens_.FrozenLinear(kWidth, kWidth); };
    for (int i = 0; i < kLayers; ++i) {
      layers_.push_back({FrozenNorm(), FrozenNorm(), wide(), wide(), wide(), wide(),
                         tokens_.FrozenLinear(kWidth, kInner), tokens_.FrozenLinear(kWidth, kInner),
                         tokens_.FrozenLinear(kInner, kWidth), AdapterFor(), AdapterFor()});
    }
    norm_ = FrozenNorm();
    last_ = tokens_.FrozenLinear(kWidth, kWords);
    angles_ = tape_.Filled(kFloat * kLength * kWidth / kHeads);
  }

  void Train() {
    const Data places = tape_.Filled(kIndex * kRows);
    Value x = tokens_.LookUp(words_, places, kHalf * kRows * kWidth);
    for (const Layer& layer : layers_) {
      // The first layer's input has no gradient; its adapters' have.
      x = tape_.Checkpoint(x, [this, &layer](const Value& in) { return Run(layer, in); });
    }
    x = tokens_.Normalise(norm_, x, kRows);
    tokens_.Loss(tokens_.Apply(last_, x, kRows), places);
  }

 private:
  static constexpr double kWidth = 4096;
  static constexpr double kInner = 11008;
  static constexpr double kHeads = 32;
  static constexpr double kWords = 32000;
  static constexpr int kLayers = 32;
  static constexpr double kBatch = 8;
  static constexpr double kLength = 2048;
  static constexpr double kRows = kBatch * kLength;
  static constexpr double kRank = 16;

  struct Adapter {
    Linear down, up;
  };
  struct Layer {
    TokenNorm before_attention, before_feed;
    Linear q, k, v, out, gate, in, feed_out;
    Adapter of_q, of_v;
  };

  TokenNorm FrozenNorm() { return {tape_.Frozen(kHalf * kWidth), kNone}; }
  Adapter AdapterFor() {
    Linear down = tokens_.LinearFor(kWidth, kRank, false);
    return {std::move(down), tokens_.LinearFor(kRank, kWidth, false)};
  }
  Value Adapted(const Linear& frozen, const Adapter& adapter, const Value& x) {
    const Value down = tokens_.Apply(adapter.down, tokens_.Drop(x), kRows);
    const Value up = tokens_.Copy(tokens_.Apply(adapter.up, down, kRows));  // scaled
    return tokens_.Plus(tokens_.Apply(frozen, x, kRows), up);
  }
  Value Turn(const Value& x) { return Make(&tape_, {x}, x.data->bytes(), {.also = {angles_}}); }
  Value Run(const Layer& layer, const Value& x) {
    const Value normed = tokens_.Normalise(layer.before_attention, x, kRows);
    const Value q = Turn(Adapted(layer.q, layer.of_q, normed));
    const Value k = Turn(tokens_.Apply(layer.k, normed, kRows));
    const Value v = Adapted(layer.v, layer.of_v, normed);
    const Value mixed =
        tokens_.FusedAttention({kBatch, kHeads, kLength, kLength, kWidth}, {q, k, v}, true);
    const Value attended = tokens_.Plus(x, tokens_.Apply(layer.out, mixed, kRows));
    const Value again = tokens_.Normalise(layer.before_feed, attended, kRows);
    const Value gate = tokens_.Activate(tokens_.Apply(layer.gate, again, kRows));
    const Value inner = tokens_.Multiply(gate, tokens_.Apply(layer.in, again, kRows));
    return tokens_.Plus(attended, tokens_.Apply(layer.feed_out, inner, kRows));
  }

  Tape& tape_;
  Tokens tokens_;
  Value words_;
  std::vector<Layer> layers_;
  TokenNorm norm_;
  Linear last_;
  Data angles_;  // of the places, by which queries and keys are turned
};

// ---- wav2vec 2.0

class Wav2Vec {
 public:
  explicit Wav2Vec(Tape* tape) : tape_(*tape), tokens_(tape) {
    double channels = 1;
    for (const Convolution& shape : kConvolutions) {
      convolutions_.push_back(tokens_.Learned(channels * kChannels * shape.window));
      channels = kChannels;
    }
    group_norm_ = tokens_.NormFor(kChannels);
    feature_norm_ = tokens_.NormFor(kChannels);
    project_ = tokens_.LinearFor(kChannels, kWidth);
    places_ = tokens_.Learned(kWidth * kWidth / kPlaceGroups * kPlaceWindow);
    norm_ = tokens_.NormFor(kWidth);
    for (int i = 0; i < kLayers; ++i) {
      const auto wide = [this] { return tokens_.LinearFor(kWidth, kWidth); };
      layers_.push_back({wide(), wide(), wide(), wide(), tokens_.NormFor(kWidth),
                         tokens_.LinearFor(kWidth, kInner), tokens_.LinearFor(kInner, kWidth),
                         tokens_.NormFor(kWidth)});
    }
    choose_ = tokens_.LinearFor(kChannels, kBooks * kEntries);
    entries_ = tokens_.Learned(kBooks * kEntries * kTarget / kBooks);
    target_ = tokens_.LinearFor(kTarget, kTarget);
    answer_ = tokens_.LinearFor(kWidth, kTarget);
  }

  void Train() {
    Value x = tape_.Frozen(kHalf * kClips * kSamples);
    double length = kSamples;
    double channels = 1;
    for (size_t i = 0; i < convolutions_.size(); ++i) {
      const Convolution& shape = kConvolutions[i];
      length = std::floor((length - shape.window) / shape.stride) + 1;
      const double bytes = kHalf * kClips * length * kChannels;
      const double flops = bytes * shape.window * channels;
      x = sim::Apply(&tape_, x, convolutions_[i], bytes,
                     {tape_.ConvolutionSeconds(flops), bytes / 8});
      if (i == 0) x = tokens_.Normalise(group_norm_, x, kClips * kChannels);
      x = tokens_.Activate(x);
      channels = kChannels;
    }
    const double rows = kClips * length;
    const Value features = tokens_.Normalise(feature_norm_, tokens_.Copy(x), rows);
    const Data mask = tape_.Filled(rows);
    x = tokens_.Drop(tokens_.Apply(project_, features, rows));
    x = Make(&tape_, {x}, x.data->bytes(), {.also = {mask}});
    x = Encode(x, rows, length);
    Contrast(x, features, mask, std::floor(rows * kMasked));
  }

 private:
  struct Convolution {
    double window;
    double stride;
  };
  static constexpr Convolution kConvolutions[] = {{10, 5}, {3, 2}, {3, 2}, {3, 2},
                                                  {3, 2},  {2, 2}, {2, 2}};
  static constexpr double kChannels = 512;
  static constexpr double kWidth = 768;
  static constexpr double kInner = 3072;
  static constexpr double kHeads = 12;
  static constexpr int kLayers = 12;
  static constexpr double kPlaceGroups = 16;
  static constexpr double kPlaceWindow = 128;
  static constexpr double kBooks = 2;
  static constexpr double kEntries = 320;
  static constexpr double kTarget = 256;
  static constexpr double kMasked = 0.49;
  static constexpr double kWrong = 100;
  static constexpr double kClips = 24;
  static constexpr double kSamples = 250000;

  struct Layer {
    Linear q, k, v, out;
    TokenNorm after_attention;
    Linear in, feed_out;
    TokenNorm after_feed;
  };

  Value Encode(Value x, double rows, double length) {
    const double flops = x.data->bytes() * kWidth / kPlaceGroups * kPlaceWindow;
    const Value near =
        sim::Apply(&tape_, x, places_, x.data->bytes(), {tape_.ConvolutionSeconds(flops)});
    x = tokens_.Drop(tokens_.Normalise(norm_, tokens_.Plus(x, tokens_.Activate(near)), rows));
    for (const Layer& layer : layers_) {
      const Value q = tokens_.Copy(tokens_.Apply(layer.q, x, rows));
      const Value k = tokens_.Copy(tokens_.Apply(layer.k, x, rows));
      const Value v = tokens_.Copy(tokens_.Apply(layer.v, x, rows));
      const Value mixed = tokens_.Copy(
          tokens_.UnfusedAttention({kClips, kHeads, length, length, kWidth}, q, k, v, kNone));
      const Value attended = tokens_.Drop(tokens_.Apply(layer.out, mixed, rows));
      x = tokens_.Normalise(layer.after_attention, tokens_.Plus(x, attended), rows);
      const Value inner = tokens_.Drop(tokens_.Activate(tokens_.Apply(layer.in, x, rows)));
      const Value fed = tokens_.Drop(tokens_.Apply(layer.feed_out, inner, rows));
      x = tokens_.Normalise(layer.after_feed, tokens_.Plus(x, fed), rows);
    }
    return x;
  }
  // The masked frames are distinguished from others by what the quantiser makes of the features.
  void Contrast(const Value& x, const Value& features, const Data& mask, double masked) {
    const auto masked_of = [&](const Value& all, double width) {
      return Make(&tape_, {all}, kHalf * masked * width, {.also = {mask}});
    };
    const Value seen = masked_of(features, kChannels);
    const Value likely = Make(&tape_, {tokens_.Apply(choose_, seen, masked)},
                              kFloat * masked * kBooks * kEntries, {.output_kept = true});
    const Value chosen = sim::Apply(&tape_, likely, entries_, kHalf * masked * kTarget,
                                    {tape_.ProductSeconds(2 * masked * kEntries * kTarget)});
    const Value right = tokens_.Apply(target_, chosen, masked);
    const Value answer = tokens_.Apply(answer_, masked_of(x, kWidth), masked);
    const Data others = tape_.Run({}, kIndex * masked * kWrong);
    const double wrong_bytes = kHalf * masked * kWrong * kTarget;
    const Value wrong =
        Make(&tape_, {right}, wrong_bytes, {.also = {others}, .traffic = 2 * wrong_bytes});
    const Value all = Make(&tape_, {right, wrong}, wrong_bytes + right.data->bytes());
    const Value alike =
        Make(&tape_, {answer, all}, kHalf * masked * (kWrong + 1), {.inputs_kept = 2});
    tokens_.Loss(alike, mask);
  }

  Tape& tape_;
  Tokens tokens_;
  std::vector<Value> convolutions_;
  TokenNorm group_norm_, feature_norm_;
  Linear project_;
  Value places_;
  TokenNorm norm_;
  std::vector<Layer> layers_;
  Linear choose_;
  Value entries_;
  Linear target_, answer_;
};

// ---- DiT

class Dit {
 public:
  explicit Dit(Tape* tape) : tape_(*tape), tokens_(tape) {
    patches_ = LinearFor(kPatch, kWidth);
    time_in_ = LinearFor(kFrequencies, kWidth);
    time_out_ = LinearFor(kWidth, kWidth);
    labels_ = LearnedFor(kLabels * kWidth);
    for (int i = 0; i < kLayers; ++i) {
      layers_.push_back({LinearFor(kWidth, 3 * kWidth), LinearFor(kWidth, kWidth),
                         LinearFor(kWidth, 4 * kWidth), LinearFor(4 * kWidth, kWidth),
                         LinearFor(kWidth, 6 * kWidth)});
    }
    last_modulation_ = LinearFor(kWidth, 2 * kWidth);
    last_ = LinearFor(kWidth, 2 * kPatch);  // noise and variance
    places_ = tape_.Filled(kFloat * kTokens * kWidth);
  }

  void Train() {
    const double rows = kBatch * kTokens;
    const Value image = tape_.Frozen(kFloat * rows * kPatch);
    const Data noise = tape_.Run({}, kFloat * rows * kPatch);
    const Value noised = Make(&tape_, {image}, kHalf * rows * kPatch, {.also = {noise}});
    const Value embedded = tokens_.Apply(patches_, noised, rows);
    Value x = Make(&tape_, {embedded}, embedded.data->bytes(), {.also = {places_}});
    const Value times = tape_.Frozen(kHalf * kBatch * kFrequencies);
    const Value time =
        tokens_.Apply(time_out_, tokens_.Activate(tokens_.Apply(time_in_, times, kBatch)), kBatch);
    const Data classes = tape_.Filled(kIndex * kBatch);
    const Value label = tokens_.LookUp(labels_, classes, kHalf * kBatch * kWidth);
    const Value condition = tokens_.Plus(time, label);
    for (const Layer& layer : layers_) x = Run(layer, x, condition);
    const Value modulation = tokens_.Apply(last_modulation_, tokens_.Activate(condition), kBatch);
    const Value out = tokens_.Apply(last_, Modulated(x, modulation), rows);
    const Value loss = Make(&tape_, {out}, kFloat * kBatch, {.inputs_kept = 1, .also = {noise}});
    tape_.Add(loss.gradient, tape_.Run({.reads = {loss.data}}, loss.data->bytes()));
  }
  // The moving average follows what was learned.
  void Average() {
    for (const Averaged& one : averaged_)
      tape_.Run({.reads = {one.learned}, .changes = {one.mean}}, {});
  }

 private:
  static constexpr double kWidth = 1152;
  static constexpr double kHeads = 16;
  static constexpr int kLayers = 28;
  static constexpr double kTokens = 256;
  static constexpr double kPatch = 2 * 2 * 4;
  static constexpr double kFrequencies = 256;
  static constexpr double kLabels = 1001;
  static constexpr double kBatch = 96;

  struct Layer {
    Linear qkv, out, in, feed_out, modulation;
  };
  struct Averaged {
    Data learned;
    Data mean;
  };

  Value LearnedFor(double elements) {
    Value value = tokens_.Learned(elements);
    averaged_.push_back({value.data, tape_.Filled(kFloat * elements)});
    return value;
  }
  Linear LinearFor(double in, double out) {
    Value weight = LearnedFor(in * out);
    return {std::move(weight), LearnedFor(out), in, out};
  }
  // Normalised without weights, then scaled and shifted as the condition says.
  Value Modulated(const Value& x, const Value& modulation) {
    const double sums = kFloat * kBatch * kTokens;
    const Value normed =
        Make(&tape_, {x}, x.data->bytes(), {.inputs_kept = 1, .made = {sums, sums}});
    return tokens_.Multiply(normed, modulation);
  }
  Value Gated(const Value& x, const Value& more, const Value& modulation) {
    return tokens_.Plus(x, tokens_.Multiply(more, modulation));
  }
  Value Run(const Layer& layer, const Value& x, const Value& condition) {
    const double rows = kBatch * kTokens;
    const Value modulation = tokens_.Apply(layer.modulation, tokens_.Activate(condition), kBatch);
    const Value qkv = tokens_.Apply(layer.qkv, Modulated(x, modulation), rows);
    const Value mixed =
        tokens_.FusedAttention({kBatch, kHeads, kTokens, kTokens, kWidth}, {qkv}, false);
    const Value attended = Gated(x, tokens_.Apply(layer.out, mixed, rows), modulation);
    const Value inner = tokens_.Apply(layer.in, Modulated(attended, modulation), rows);
    const Value fed = tokens_.Apply(layer.feed_out, tokens_.Activate(inner), rows);
    return Gated(attended, fed, modulation);
  }

  Tape& tape_;
  Tokens tokens_;
  std::vector<Averaged> averaged_;
  Linear patches_, time_in_, time_out_;
  Value labels_;
  std::vector<Layer> layers_;
  Linear last_modulation_, last_;
  Data places_;
};

}  // namespace

Trace T5Kernels(const Hardware& hardware, int iterations, uint64_t seed, double batch) {
  return Trained<T5>("t5-large", hardware, iterations, seed, kFused, batch);
}

Trace LlamaLoraKernels(const Hardware& hardware, int iterations, uint64_t seed) {
  return Trained<LlamaLora>("llama-7b-lora", hardware, iterations, seed, kFused);
}

Trace Wav2VecKernels(const Hardware& hardware, int iterations, uint64_t seed) {
  return Trained<Wav2Vec>("wav2vec2", hardware, iterations, seed, kFused);
}

Trace DitKernels(const Hardware& hardware, int iterations, uint64_t seed) {
  return Trained<Dit>("dit-xl-2", hardware, iterations, seed, kFused);
}

}  // namespace ravenstore::sim
