// Runs a network kernel by kernel and writes what a framework's allocator would see of it: every
// kernel gets its inputs, creates its outputs and its workspace, computes, and puts or frees them.
//
// A small reverse-mode tape: what a backward kernel needs is held by it, and a tensor is freed with
// its last holder, as reference counts do it in PyTorch. A kernel takes the longer of its
// arithmetic and its memory traffic (the roofline of Williams et al., CACM 2009), and its launch,
// times a factor from 0.98 to 1.02 by the seed.
//
// Owns: the trace until it is taken, and what is learned. A holder of Data releases it before
// Take. Threads: one at a time. Units: bytes and seconds, as fractions go through many sums.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <initializer_list>
#include <memory>
#include <optional>
#include <random>
#include <string_view>
#include <utility>
#include <vector>

#include "sim/hardware.h"
#include "sim/trace.h"
#include "sim/trace_builder.h"

namespace ravenstore::sim {

// Bytes of an element, of a sum over many or of one in 32 bit, and of an index.
inline constexpr double kHalf = 2;
inline constexpr double kFloat = 4;
inline constexpr double kIndex = 8;

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
  // Null: it is not needed, as of what is frozen or read from a data set.
  std::shared_ptr<Gradient> gradient = std::make_shared<Gradient>();
};

// A weight, or what else is learned, and what the optimiser keeps of it: a momentum, for instance.
struct Parameter {
  Value value;
  // Behind a pointer, as what a deque frees first depends on the size of its elements, and traces
  // stay as they are.
  std::shared_ptr<const std::vector<Data>> states;
};

class Tape {
 public:
  Tape(std::string_view name, const Hardware& hardware, uint64_t seed)
      : builder_(name), hardware_(hardware), random_(seed) {}

  // With a momentum of its size.
  Parameter* Learned(double bytes) { return Learned(bytes, {bytes}); }
  Parameter* Learned(double bytes, std::initializer_list<double> states);
  // In 16 bit with Adam: a copy in 32 bit and two moments.
  Parameter* LearnedByAdam(double elements) {
    return Learned(kHalf * elements, {kFloat * elements, kFloat * elements, kFloat * elements});
  }
  Data Filled(double bytes);
  // What is read and never learned.
  Value Frozen(double bytes) { return {Filled(bytes), nullptr}; }
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
    // Bytes that it reads and writes; none: all of what it names.
    std::optional<double> traffic = std::nullopt;
  };
  // Runs it and returns its outputs, of these sizes in bytes.
  std::vector<Data> Run(const Kernel& kernel, const std::vector<double>& outputs);
  std::vector<Data> Run(const Kernel& kernel, std::initializer_list<double> outputs) {
    return Run(kernel, std::vector<double>(outputs));
  }
  Data Run(const Kernel& kernel, double output) { return Run(kernel, {output}).front(); }

  double ConvolutionSeconds(double flops) const;
  double ProductSeconds(double flops) const { return flops / hardware_.flops; }
  double FloatProductSeconds(double flops) const { return flops / hardware_.flops32; }
  double TrafficSeconds(double bytes) const { return bytes / hardware_.memory_rate; }
  // From 0 to 1: what of a network is chance. It shares the seed with the noise of the times.
  std::mt19937_64& random() { return random_; }

  // `backward` runs after that of all that is recorded later.
  void Record(std::function<void()> backward) {
    if (recording_) backward_.push_back(std::move(backward));
  }
  // Another contribution to the value's gradient.
  void Add(const std::shared_ptr<Gradient>& gradient, Data more);
  // `part` of `x`, of which nothing is kept for the backward pass but `x`: that runs it again (Chen
  // et al., "Training Deep Nets with Sublinear Memory Cost", 2016).
  Value Checkpoint(const Value& x, std::function<Value(const Value&)> part);
  void Backward();
  struct Optimiser {
    size_t together = 1;  // how many parameters a kernel takes
    bool clips = false;   // gradients by the norm of all of them
  };
  // Every parameter that has a gradient by it.
  void Update(const Optimiser& optimiser);
  void Update() { Update({}); }
  void Step() { builder_.Step(); }
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
  bool recording_ = true;
};

// Iterations of a network that is made of the tape, the rest of the arguments, and has
//   void Train();    forward, with the loss; it is recorded
//   void Average();  if it does something after each update
template <typename Network, typename... Arguments>
Trace Trained(std::string_view name, const Hardware& hardware, int iterations, uint64_t seed,
              const Tape::Optimiser& optimiser, Arguments... arguments) {
  Tape tape(name, hardware, seed);
  {
    Network network(&tape, arguments...);
    tape.EndSetUp();
    for (int i = 0; i < iterations; ++i) {
      network.Train();
      tape.Backward();
      tape.Update(optimiser);
      if constexpr (requires { network.Average(); }) network.Average();
      tape.Step();
    }
  }
  return tape.Take();
}

}  // namespace ravenstore::sim
