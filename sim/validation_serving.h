// Serving, of the validation set (sim/generators.h).
#pragma once

#include <cstdint>

#include "sim/hardware.h"
#include "sim/trace.h"

namespace ravenstore::sim {

// A server of Llama-3-8B (32 layers, 8 heads of 128 for keys and values: 128 KiB a token) whose
// requests share what they begin with, as in SGLang's RadixAttention (Zheng et al. 2023). Blocks
// are of 16 tokens, 2 MiB (Kwon et al., "PagedAttention", 2023). A tree: system prompts, documents
// by Zipf's law, conversations. 24 requests run together; each in turn decodes a block of tokens,
// for which it reads all blocks on its path in the tree. Weights are not in the trace, as they are
// always in use.
Trace PrefixCache(const Hardware& hardware, int iterations, uint64_t seed);

}  // namespace ravenstore::sim
