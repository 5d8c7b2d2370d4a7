// Transformers of the validation set (sim/generators.h).
#pragma once

#include <cstdint>

#include "sim/hardware.h"
#include "sim/trace.h"

namespace ravenstore::sim {

// T5-large (Raffel et al. 2020; the configuration published as t5-large: 24 + 24 layers of 1024,
// feed-forward 4096, 16 heads, 32128 words shared by encoder, decoder and scores): 738 million
// parameters, trained by Adam with gradients clipped. `batch` pairs of 512 and 114 tokens, the
// paper's lengths of spans cut out. Attention writes its scores and biases down, as Hugging Face's
// does.
Trace T5Kernels(const Hardware& hardware, int iterations, uint64_t seed, double batch = 24);
// LLaMA-7B (Touvron et al. 2023: 32 layers of 4096, feed-forward 11008, 32000 words; 6.74 billion
// parameters), frozen in 16 bit and read. Learned are products of rank 16 next to those of queries
// and values (Hu et al., "LoRA", 2021): 8.4 million. 8 sequences of 2048; each layer is run again
// in the backward pass.
Trace LlamaLoraKernels(const Hardware& hardware, int iterations, uint64_t seed);
// wav2vec 2.0 base (Baevski et al. 2020): seven convolutions over the sound, 12 layers of 768, a
// quantiser of two books of 320, 95 million parameters. 24 clips of 250,000 samples, 49% of the
// frames masked, 100 wrong answers for each.
Trace Wav2VecKernels(const Hardware& hardware, int iterations, uint64_t seed);
// DiT-XL/2 (Peebles and Xie 2023): 28 layers of 1152, 16 heads, 675 million parameters, trained by
// Adam with their moving average. 96 latent images of 32 x 32 x 4 as 256 tokens each.
Trace DitKernels(const Hardware& hardware, int iterations, uint64_t seed);

}  // namespace ravenstore::sim
