// Traces of training, kernel by kernel (sim/tape.h), that choices of the planner's are made on.
//
// Weights and momenta live from iteration to iteration; gradients do not. Batches are such that the
// largest tensors have hundreds of megabytes; the smallest, a normalisation's sums, have hundreds
// of bytes.
#pragma once

#include <cstdint>

#include "sim/hardware.h"
#include "sim/trace.h"

namespace ravenstore::sim {

// Ronneberger et al. 2015: five levels of two convolutions, 64 to 1024 channels, 16 images of
// 512 x 512.
Trace UNetKernels(const Hardware& hardware, int iterations, uint64_t seed);
// After Zaremba et al. 2014: four layers of 1500 cells, 32 steps of 256 sequences, 10,000 words.
// Every gate and product is a kernel of its own.
Trace LstmKernels(const Hardware& hardware, int iterations, uint64_t seed);
// MobileNetV2 (Sandler et al. 2018), 256 images of 224 x 224.
Trace MobileNetKernels(const Hardware& hardware, int iterations, uint64_t seed);

}  // namespace ravenstore::sim
