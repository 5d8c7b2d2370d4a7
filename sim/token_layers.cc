#include "sim/token_layers.h"

#include <memory>
#include <utility>
#include <vector>

namespace ravenstore::sim {

namespace {

// A backward pass of attention in one kernel computes the scores again: five products for two.
constexpr double kBackwardOfAttention = 2.5;
// Bytes of a softmax that is computed in 32 bit, by those in 16.
constexpr double kWider = kFloat / kHalf;

}  // namespace

Linear Tokens::LinearFor(double in, double out, bool biased) {
  Linear linear{Learned(in * out), {nullptr, nullptr}, in, out};
  if (biased) linear.bias = Learned(out);
  return linear;
}

TokenNorm Tokens::NormFor(double width, bool shifted) {
  TokenNorm norm{Learned(width), {nullptr, nullptr}};
  if (shifted) norm.shift = Learned(width);
  return norm;
}

Value Tokens::Apply(const Linear& linear, const Value& x, double rows) {
  const double bytes = kHalf * rows * linear.out;
  const double seconds = tape_.ProductSeconds(2 * rows * linear.in * linear.out);
  if (linear.bias.data == nullptr) return sim::Apply(&tape_, x, linear.weight, bytes, {seconds});
  // The bias goes with the product; its gradient is a sum of its own, which runs first.
  Value y{tape_.Run({seconds, {x.data, linear.weight.data, linear.bias.data}}, bytes)};
  tape_.Record([&tape = tape_, x, linear, from = y.gradient, seconds] {
    const Data gradient = std::move(from->sum);
    if (gradient == nullptr) return;
    const Value& w = linear.weight;
    tape.Add(linear.bias.gradient, tape.Run({.reads = {gradient}}, linear.bias.data->bytes()));
    if (x.gradient != nullptr)
      tape.Add(x.gradient, tape.Run({seconds, {gradient, w.data}}, x.data->bytes()));
    tape.Add(w.gradient, tape.Run({seconds, {x.data, gradient}}, w.data->bytes()));
  });
  return y;
}

Value Tokens::Normalise(const TokenNorm& norm, const Value& x, double rows) {
  Form form{.inputs_kept = 2, .made = {kFloat * rows}};
  std::vector<Value> inputs = {x, norm.scale};
  if (norm.shift.data != nullptr) {
    inputs.push_back(norm.shift);
    form.made.push_back(kFloat * rows);
  }
  return Make(&tape_, inputs, x.data->bytes(), form);
}

Value Tokens::LookUp(const Value& table, const Data& places, double bytes) {
  return Make(&tape_, {table}, bytes, {.also = {places}, .traffic = 2 * bytes});
}

Value Tokens::UnfusedAttention(const Heads& heads, const Value& q, const Value& k, const Value& v,
                               const Value& bias) {
  const double pairs = heads.batch * heads.queries * heads.keys;
  const double flops = 2 * pairs * heads.width;
  const double bytes = kHalf * pairs * heads.heads;
  Value scores = Product(q, k, bytes, flops);
  if (bias.data != nullptr) scores = Make(&tape_, {scores, bias}, bytes);
  scores = Make(&tape_, {scores}, kWider * bytes);
  scores = Make(&tape_, {scores}, kWider * bytes, {.output_kept = true});
  scores = Drop(Make(&tape_, {scores}, bytes));
  return Product(scores, v, q.data->bytes(), flops);
}

Value Tokens::FusedAttention(const Heads& heads, const std::vector<Value>& inputs, bool causal) {
  const double pairs = heads.batch * heads.queries * heads.keys / (causal ? 2 : 1);
  const double seconds = tape_.ProductSeconds(4 * pairs * heads.width);
  const double bytes = kHalf * heads.batch * heads.queries * heads.width;
  return Make(&tape_, inputs, bytes,
              {.seconds = seconds,
               .backward_seconds = kBackwardOfAttention * seconds,
               .inputs_kept = inputs.size(),
               .output_kept = true,
               .made = {kFloat * heads.batch * heads.heads * heads.queries}});
}

void Tokens::Loss(const Value& scores, const Data& labels) {
  const double bytes = kWider * scores.data->bytes();
  const Value wide = Make(&tape_, {scores}, bytes);
  const Value likely = Make(&tape_, {wide}, bytes, {.output_kept = true});
  const Value loss = Make(&tape_, {likely}, kFloat, {.also = {labels}});
  tape_.Add(loss.gradient, tape_.Run({.reads = {loss.data}}, kFloat));
}

}  // namespace ravenstore::sim
