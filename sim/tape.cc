#include "sim/tape.h"

#include <algorithm>
#include <span>

namespace ravenstore::sim {

namespace {

constexpr double kLaunchSeconds = 3e-6;
constexpr double kNoise = 0.02;
// Convolutions reach about a third of what matrix products do.
constexpr double kConvolutionShare = 0.3;

}  // namespace

Parameter* Tape::Learned(double bytes, std::initializer_list<double> states) {
  Value value{Filled(bytes)};
  auto filled = std::make_shared<std::vector<Data>>();
  for (const double state : states) filled->push_back(Filled(state));
  parameters_.push_back({std::move(value), std::move(filled)});
  return &parameters_.back();
}

Data Tape::Filled(double bytes) {
  auto data = std::make_shared<const Buffer>(&builder_, bytes);
  builder_.Put(data->tensor(), true);
  return data;
}

double Tape::ConvolutionSeconds(double flops) const {
  return flops / (hardware_.flops * kConvolutionShare);
}

std::vector<Data> Tape::Run(const Kernel& kernel, const std::vector<double>& outputs) {
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
    const double seconds =
        std::max(kernel.seconds, kernel.traffic.value_or(traffic) / hardware_.memory_rate);
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

void Tape::Add(const std::shared_ptr<Gradient>& gradient, Data more) {
  Data& sum = gradient->sum;
  sum = sum == nullptr ? std::move(more) : Run({.reads = {sum, more}}, sum->bytes());
}

Value Tape::Checkpoint(const Value& x, std::function<Value(const Value&)> part) {
  recording_ = false;
  Value y{part(x).data};
  recording_ = true;
  Record([x, part = std::move(part), from = y.gradient] {
    // What this records is what runs next.
    const Value again = part(x);
    again.gradient->sum = std::move(from->sum);
  });
  return y;
}

void Tape::Backward() {
  while (!backward_.empty()) {
    const auto one = std::move(backward_.back());
    backward_.pop_back();
    one();
  }
}

void Tape::Update(const Optimiser& optimiser) {
  std::vector<Parameter*> changed;
  for (Parameter& parameter : parameters_) {
    if (parameter.value.gradient->sum != nullptr) changed.push_back(&parameter);
  }
  std::vector<std::span<Parameter*>> chunks;
  for (size_t i = 0; i < changed.size(); i += optimiser.together) {
    const size_t size = std::min(optimiser.together, changed.size() - i);
    chunks.push_back(std::span(changed).subspan(i, size));
  }
  Data norm;
  if (optimiser.clips) {
    std::vector<Data> norms;
    for (const auto& chunk : chunks) {
      Kernel kernel;
      for (const Parameter* one : chunk) kernel.reads.push_back(one->value.gradient->sum);
      norms.push_back(Run(kernel, kFloat * static_cast<double>(chunk.size())));
    }
    norm = Run({.reads = norms}, kFloat);
  }
  for (const auto& chunk : chunks) {
    Kernel kernel;
    for (Parameter* one : chunk) {
      kernel.reads.push_back(std::move(one->value.gradient->sum));
      kernel.changes.push_back(one->value.data);
      for (const Data& state : *one->states) kernel.changes.push_back(state);
    }
    if (norm != nullptr) kernel.reads.push_back(norm);
    Run(kernel, {});
  }
}

}  // namespace ravenstore::sim
