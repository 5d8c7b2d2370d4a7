// Networks over images of the validation set (sim/generators.h).
#pragma once

#include <cstdint>

#include "sim/hardware.h"
#include "sim/trace.h"

namespace ravenstore::sim {

// EfficientNet-B4 (Tan and Le 2019): the blocks of B0, 1.4 times as wide and 1.8 times as deep, on
// `batch` images of 380 x 380; 19.3 million parameters. Each block weighs its channels by what
// their means say, and most leave a branch out at random.
Trace EfficientNetKernels(const Hardware& hardware, int iterations, uint64_t seed,
                          double batch = 96);
// DenseNet-201 (Huang et al. 2017): 6, 12, 48 and 32 layers, each of which reads all before it in
// its stage, joined again, and adds 32 channels. 256 images of 224 x 224; 20.0 million parameters.
Trace DenseNetKernels(const Hardware& hardware, int iterations, uint64_t seed);

}  // namespace ravenstore::sim
