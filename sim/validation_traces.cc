#include "sim/validation_traces.h"

#include <utility>

#include "core/check.h"
#include "sim/validation_images.h"
#include "sim/validation_serving.h"
#include "sim/validation_sparse.h"
#include "sim/validation_transformers.h"

namespace ravenstore::sim {

namespace {

// Two that know nothing of each other, each at half its batch. The images go by quickly: there are
// more iterations of them.
Trace EfficientNetAndT5(const Hardware& hardware, int iterations, uint64_t seed) {
  return Together("efficientnet-t5", EfficientNetKernels(hardware, 3 * iterations, seed, 48),
                  T5Kernels(hardware, iterations, seed + 1, 12));
}

Trace T5(const Hardware& hardware, int iterations, uint64_t seed) {
  return T5Kernels(hardware, iterations, seed);
}

Trace EfficientNet(const Hardware& hardware, int iterations, uint64_t seed) {
  return EfficientNetKernels(hardware, iterations, seed);
}

}  // namespace

const std::vector<ValidationTrace>& ValidationTraces() {
  static const std::vector<ValidationTrace> traces = {
      {"t5-large", true, T5},
      {"llama-7b-lora", true, LlamaLoraKernels},
      {"efficientnet-b4", true, EfficientNet},
      {"densenet-201", true, DenseNetKernels},
      {"graphsage", false, GraphSageKernels},
      {"dlrm", false, DlrmKernels},
      {"wav2vec2", true, Wav2VecKernels},
      {"dit-xl-2", true, DitKernels},
      {"efficientnet-t5", true, EfficientNetAndT5},
      {"prefix-cache", false, PrefixCache},
  };
  return traces;
}

Trace Together(std::string name, Trace one, Trace other) {
  RAVEN_CHECK(one.clients == 1);
  RAVEN_CHECK(other.clients == 1);
  Trace both = std::move(one);
  both.name = std::move(name);
  both.clients = 2;
  const auto first = static_cast<uint32_t>(both.tensors.size());
  for (TraceTensor& tensor : other.tensors) {
    tensor.client = 1;
    both.tensors.push_back(std::move(tensor));
  }
  for (Op& op : other.ops) {
    op.client = 1;
    if (op.kind != OpKind::kCompute && op.kind != OpKind::kStep) op.tensor += first;
    both.ops.push_back(op);
  }
  return both;
}

}  // namespace ravenstore::sim
