// The few calls of the CUDA runtime and cuBLAS that the benchmarks need, loaded at run time: so
// that they build without a toolkit and start without a GPU.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "core/result.h"

namespace ravenstore::bench {

// A process that trains: a stream with matrix products on it. Threads: one.
class GpuWork {
 public:
  // Errors: kUnavailable when no GPU, runtime or cuBLAS is found; the message says which. The
  // libraries are looked up by their usual names, so LD_LIBRARY_PATH must name the folders of a
  // wheel's copies.
  static core::Result<std::unique_ptr<GpuWork>> Create();
  ~GpuWork();

  void* stream() const { return stream_; }
  // Enqueues a bf16 product of n x n matrices, n <= 8192.
  void Multiply(int n);
  void Synchronize();
  // Milliseconds of `count` products, each timed by events on the stream; the median.
  double ProductMilliseconds(int n, int count);

  // Marks the stream's time; Elapsed is the milliseconds between the two marks.
  void MarkBegin();
  void MarkEnd();
  double Elapsed();

 private:
  struct Calls;
  GpuWork();

  std::unique_ptr<Calls> calls_;
  void* stream_ = nullptr;
  void* blas_ = nullptr;
  void* matrices_[3] = {};
  void* begin_ = nullptr;
  void* end_ = nullptr;
};

}  // namespace ravenstore::bench
