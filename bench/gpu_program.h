// What a CUDA program does while its memory is mapped: it allocates in stream order, or its kernels
// stream through memory. The driver's interface is loaded at run time.
//
// Threads: one. Errors: what fails ends the process, with its reason on standard error.
#pragma once

#include <cuda.h>

#include <cstddef>

namespace ravenstore::bench {

// Works on the first visible device, in its primary context.
// Owns: a stream, and the memory that its kernels fill, until the process ends.
class GpuProgram {
 public:
  GpuProgram();

  // Allocates, copies, launches and frees on the stream for `seconds`. Rounds per second.
  double RunMallocLoop(double seconds);
  // Fills some GiB again and again for `seconds`. Milliseconds of one fill, by the stream's events.
  double RunFills(double seconds);

 private:
  CUstream stream_ = nullptr;
  CUfunction empty_ = nullptr;
  CUevent begin_ = nullptr;
  CUevent end_ = nullptr;
  CUdeviceptr filled_ = 0;
  size_t filled_bytes_ = 0;
};

}  // namespace ravenstore::bench
