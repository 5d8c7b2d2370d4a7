// Kernels of transformers, each with those of its backward pass: 16-bit values of `rows` tokens,
// learned by Adam or frozen.
//
// Owns: nothing; the tape outlives it and what it records. Threads: one at a time.
#pragma once

#include "sim/tape.h"
#include "sim/tape_layers.h"

namespace ravenstore::sim {

struct Linear {
  Value weight;
  Value bias;  // no data: none
  double in;
  double out;
};

struct TokenNorm {
  Value scale;
  Value shift;  // no data: none, as of a root mean square's
};

// Of attention, over all heads together.
struct Heads {
  double batch;
  double heads;
  double queries;  // of a sequence
  double keys;
  double width;
};

class Tokens {
 public:
  explicit Tokens(Tape* tape) : tape_(*tape) {}

  Value Learned(double elements) { return tape_.LearnedByAdam(elements)->value; }
  Linear LinearFor(double in, double out, bool biased = true);
  Linear FrozenLinear(double in, double out) {
    return {tape_.Frozen(kHalf * in * out), {nullptr, nullptr}, in, out};
  }
  TokenNorm NormFor(double width, bool shifted = true);

  Value Apply(const Linear& linear, const Value& x, double rows);
  // Keeps its input, and sums of every row.
  Value Normalise(const TokenNorm& norm, const Value& x, double rows);
  // Rows of a table by `places`; the gradient is as large as the table.
  Value LookUp(const Value& table, const Data& places, double bytes);
  // A function of each element that keeps what it was of.
  Value Activate(const Value& x) { return Make(&tape_, {x}, x.data->bytes(), {.inputs_kept = 1}); }
  // Zeroes some, and keeps which.
  Value Drop(const Value& x) {
    return Make(&tape_, {x}, x.data->bytes(), {.made = {x.data->bytes() / kHalf}});
  }
  Value Copy(const Value& x) { return Make(&tape_, {x}, x.data->bytes()); }
  Value Multiply(const Value& x, const Value& by) {
    return Make(&tape_, {x, by}, x.data->bytes(), {.inputs_kept = 2});
  }
  // What a layer makes of it is added to it.
  Value Plus(const Value& x, const Value& more) { return Sum(&tape_, x, more); }
  // A product of two values, each with a backward kernel.
  Value Product(const Value& x, const Value& y, double bytes, double flops) {
    return sim::Apply(&tape_, x, y, bytes, {tape_.ProductSeconds(flops)});
  }
  // All scores are written down. `bias` without data: none.
  Value UnfusedAttention(const Heads& heads, const Value& q, const Value& k, const Value& v,
                         const Value& bias);
  // In one kernel (Dao et al., "FlashAttention", 2022): `inputs` are q, k and v, or all in one.
  Value FusedAttention(const Heads& heads, const std::vector<Value>& inputs, bool causal);
  // The cross entropy of 16-bit scores, in 32 bit, and its gradient's beginning.
  void Loss(const Value& scores, const Data& labels);

 private:
  Tape& tape_;
};

}  // namespace ravenstore::sim
