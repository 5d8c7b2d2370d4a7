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
  return Merge("efficientnet-t5", EfficientNetKernels(hardware, 3 * iterations, seed, 48),
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
      {"t5-large",
       "training, 24 + 24 layers of 1024, batch 24, sequences 512 and 114, 16 bit, Adam", true, T5},
      {"llama-7b-lora",
       "fine-tuning by LoRA of rank 16, 32 layers of 4096, batch 8, sequence 2048, 16 bit", true,
       LlamaLoraKernels},
      {"efficientnet-b4", "training, 96 images of 380 x 380, 16 bit", true, EfficientNet},
      {"densenet-201", "training, 256 images of 224 x 224, 16 bit", true, DenseNetKernels},
      {"graphsage", "training, ogbn-products, four batches of 16384 nodes, 32 bit", false,
       GraphSageKernels},
      {"dlrm", "training, 26 tables of 64 columns, 2048 samples, 32 bit", false, DlrmKernels},
      {"wav2vec2", "pre-training of base, 24 clips of 250000 samples, 16 bit, Adam", true,
       Wav2VecKernels},
      {"dit-xl-2", "training, 28 layers of 1152, 96 images of 256 tokens, 16 bit, Adam", true,
       DitKernels},
      {"efficientnet-t5",
       "efficientnet-b4 with 48 images and t5-large with batch 12, two clients of one device", true,
       EfficientNetAndT5},
      {"prefix-cache",
       "serving of Llama-3-8B, 24 requests at once in blocks of 16 tokens, shared prefixes, 16 bit",
       false, PrefixCache},
  };
  return traces;
}

Trace Merge(std::string name, Trace one, Trace other) {
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
