#include "sim/tape_layers.h"

#include <cmath>
#include <memory>
#include <utility>
#include <vector>

namespace ravenstore::sim {

Value Make(Tape* tape, const std::vector<Value>& inputs, double bytes, const Form& form) {
  Tape::Kernel kernel{.seconds = form.seconds,
                      .reads = form.also,
                      .workspace = form.workspace,
                      .traffic = form.traffic};
  Tape::Kernel backward{.seconds = form.backward_seconds, .reads = form.also};
  std::vector<std::shared_ptr<Gradient>> to;
  std::vector<double> sizes;
  for (size_t i = 0; i < inputs.size(); ++i) {
    kernel.reads.push_back(inputs[i].data);
    if (i < form.inputs_kept) backward.reads.push_back(inputs[i].data);
    if (inputs[i].gradient == nullptr) continue;
    to.push_back(inputs[i].gradient);
    sizes.push_back(inputs[i].data->bytes());
  }
  std::vector<double> outputs = {bytes};
  if (!to.empty()) outputs.insert(outputs.end(), form.made.begin(), form.made.end());
  const std::vector<Data> made = tape->Run(kernel, outputs);
  Value y{made[0]};
  if (to.empty()) {
    y.gradient = nullptr;
    return y;
  }
  if (form.output_kept) backward.reads.push_back(made[0]);
  backward.reads.insert(backward.reads.end(), made.begin() + 1, made.end());
  tape->Record([tape, to, sizes, from = y.gradient, backward]() mutable {
    if (from->sum == nullptr) return;
    backward.reads.push_back(std::move(from->sum));
    const std::vector<Data> gradients = tape->Run(backward, sizes);
    backward = {};
    for (size_t i = 0; i < to.size(); ++i) tape->Add(to[i], gradients[i]);
  });
  return y;
}

Value Sum(Tape* tape, const Value& x, const Value& y) {
  Value sum{tape->Run({.reads = {x.data, y.data}}, x.data->bytes())};
  tape->Record([tape, from = sum.gradient, first = x.gradient, second = y.gradient] {
    const Data gradient = std::move(from->sum);
    if (gradient == nullptr) return;
    if (first != nullptr) tape->Add(first, gradient);
    if (second != nullptr) tape->Add(second, gradient);
  });
  return sum;
}

Value Apply(Tape* tape, const Value& x, const Value& weight, double bytes, const Weighted& form) {
  Value y{tape->Run({form.seconds, {x.data, weight.data}, {}, form.workspace}, bytes)};
  if (x.gradient == nullptr && weight.gradient == nullptr) {
    y.gradient = nullptr;
    return y;
  }
  // A frozen weight has no use for what it was applied to.
  const Data input = weight.gradient == nullptr ? nullptr : x.data;
  tape->Record(
      [tape, input, to = x.gradient, size = x.data->bytes(), w = weight, from = y.gradient, form] {
        const Data gradient = std::move(from->sum);
        if (gradient == nullptr) return;
        if (to != nullptr)
          tape->Add(to, tape->Run({form.seconds, {gradient, w.data}, {}, form.workspace}, size));
        if (w.gradient == nullptr) return;
        Data& sum = w.gradient->sum;
        if (sum == nullptr) {
          sum = tape->Run({form.seconds, {input, gradient}, {}, form.workspace}, w.data->bytes());
        } else {
          tape->Run({form.seconds, {input, gradient}, {sum}, form.workspace}, {});
        }
      });
  return y;
}

Image Images::Convolve(const Image& x, const Shape& shape, const Parameter& weight) {
  return Convolve(x, shape, weight, std::ceil(x.side / shape.stride));
}

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
    if (to == nullptr) return;
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

Image Images::Relu(const Image& x) {
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

Image Images::Join(const std::vector<Image>& parts) {
  struct Part {
    std::shared_ptr<Gradient> gradient;
    double bytes;
  };
  Image y{{}, 0, parts.front().side};
  Tape::Kernel kernel;
  std::vector<Part> to;
  for (const Image& part : parts) {
    y.channels += part.channels;
    kernel.reads.push_back(part.value.data);
    to.push_back({part.value.gradient, part.value.data->bytes()});
  }
  y.value.data = tape_.Run(kernel, Bytes(y.channels, y.side));
  tape_.Record([&tape = tape_, from = y.value.gradient, to] {
    const Data gradient = std::move(from->sum);
    for (const Part& part : to) {
      Tape::Kernel cut{.reads = {gradient}, .traffic = 2 * part.bytes};
      Data& sum = part.gradient->sum;
      if (sum != nullptr) {
        cut.reads.push_back(sum);
        cut.traffic = 3 * part.bytes;
      }
      sum = tape.Run(cut, part.bytes);
    }
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

void Images::Loss(const Image& x) {
  const auto made = tape_.Run({.reads = {x.value.data}}, {x.value.data->bytes(), kFloat});
  tape_.Add(x.value.gradient, tape_.Run({.reads = {made[0], made[1]}}, x.value.data->bytes()));
}

Layer Made(Images* images, double channels, const Images::Shape& shape, bool activated) {
  Parameter* weight = images->WeightFor(channels, shape);
  return {shape, weight, images->NormFor(shape.channels), activated};
}

Image Run(Images* images, const Layer& layer, const Image& x) {
  const Image y = images->Normalise(images->Convolve(x, layer.shape, *layer.weight), layer.norm);
  return layer.activated ? images->Relu(y) : y;
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

Value Sequences::Activate(const Value& x, double bytes) {
  Value y{tape_.Run({.reads = {x.data}}, bytes)};
  tape_.Record([&tape = tape_, output = y.data, to = x.gradient, from = y.gradient] {
    const Data gradient = std::move(from->sum);
    if (gradient == nullptr) return;
    tape.Add(to, tape.Run({.reads = {gradient, output}}, output->bytes()));
  });
  return y;
}

}  // namespace ravenstore::sim
