// Kernels of several networks, each with those of its backward pass.
//
// Owns: nothing; the tape outlives it and what it records. Threads: one at a time.
#pragma once

#include <cstddef>
#include <vector>

#include "sim/tape.h"

namespace ravenstore::sim {

// What a kernel does with values, and what its backward kernel wants of it.
struct Form {
  double seconds = 0;           // of arithmetic
  double backward_seconds = 0;  // of the one kernel that makes the gradients of all inputs
  size_t inputs_kept = 0;       // how many of the first are read again
  bool output_kept = false;
  std::vector<double> made = {};  // further outputs that only it reads: masks, sums
  std::vector<Data> also = {};    // read both ways, without gradients: places, say
  double workspace = 0;
  std::optional<double> traffic = std::nullopt;  // forward
};
// One output of this many bytes. It has a gradient if an input has one.
Value Make(Tape* tape, const std::vector<Value>& inputs, double bytes, const Form& form = {});
// x + y, whose gradients are that of the sum itself.
Value Sum(Tape* tape, const Value& x, const Value& y);
// A weight applied: the gradients of both are kernels of their own, as long as this one, and those
// of a weight that is used again are summed up in place.
struct Weighted {
  double seconds;
  double workspace = 0;
};
Value Apply(Tape* tape, const Value& x, const Value& weight, double bytes, const Weighted& form);

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
  double batch() const { return batch_; }
  // `groups` convolutions next to one another, over `window` x `window` each.
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
  Image Convolve(const Image& x, const Shape& shape, const Parameter& weight);
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
  Image Relu(const Image& x);
  Image Pool(const Image& x, double window);
  Image Join(const Image& a, const Image& b);
  // Of any number, each of whose gradients is summed up as it is cut out.
  Image Join(const std::vector<Image>& parts);
  Image Sum(const Image& a, const Image& b);
  // What is wrong, and with it the gradient of `x`.
  void Loss(const Image& x);

 private:
  Image Convolve(const Image& x, const Shape& shape, const Parameter& weight, double side);

  Tape& tape_;
  double batch_;
};

// A convolution, its normalisation, and mostly a rectifier.
struct Layer {
  Images::Shape shape;
  Parameter* weight;
  Images::Norm norm;
  bool activated = true;
};
Layer Made(Images* images, double channels, const Images::Shape& shape, bool activated = true);
Image Run(Images* images, const Layer& layer, const Image& x);

// Matrix products and what is done to each element, over sequences.
class Sequences {
 public:
  explicit Sequences(Tape* tape) : tape_(*tape) {}

  // x (rows x in) times a weight (in x out).
  Value Product(const Value& x, const Value& weight, double rows, double in, double out) {
    return Apply(&tape_, x, weight, kHalf * rows * out,
                 {tape_.ProductSeconds(2 * rows * in * out)});
  }
  // One output of this many bytes from the inputs, each of which has its gradient from the output's
  // and, if the product rule wants it, from the others.
  Value Combine(const std::vector<Value>& inputs, double bytes, bool multiplies = false);
  // A function that its own output gives the slope of.
  Value Activate(const Value& x, double bytes);
  Value Part(const Value& x, double bytes) { return Combine({x}, bytes); }

 private:
  Tape& tape_;
};

}  // namespace ravenstore::sim
