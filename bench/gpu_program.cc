#include "bench/gpu_program.h"

#include <algorithm>
#include <chrono>

#include "bench/driver_call.h"

namespace ravenstore::bench {
namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t kAllocated = size_t{1} << 20;
constexpr size_t kCopied = size_t{64} << 10;
constexpr int kRoundsPerLook = 16;  // at the clock
// Of the free memory at most a 32nd: the rest is for the pages that are mapped.
constexpr size_t kFilledMax = size_t{4} << 30;
constexpr size_t kFilledShare = 32;
constexpr int kFills = 16;  // between two events

double SecondsSince(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

}  // namespace

GpuProgram::GpuProgram() {
  CUdevice device = 0;
  CUcontext context = nullptr;
  CALL(cuInit, 0);
  CALL(cuDeviceGet, &device, 0);
  CALL(cuDevicePrimaryCtxRetain, &context, device);
  CALL(cuCtxSetCurrent, context);
  empty_ = LoadKernel("empty", kEmptyKernel);
  CALL(cuStreamCreate, &stream_, CU_STREAM_NON_BLOCKING);
  for (CUevent* event : {&begin_, &end_}) CALL(cuEventCreate, event, CU_EVENT_DEFAULT);
  size_t free = 0;
  size_t total = 0;
  CALL(cuMemGetInfo, &free, &total);
  filled_bytes_ = std::min(kFilledMax, free / kFilledShare);
  CALL(cuMemAlloc, &filled_, filled_bytes_);
}

double GpuProgram::RunMallocLoop(double seconds) {
  auto* const allocate = DRIVER_FUNCTION(cuMemAllocAsync);
  auto* const copy = DRIVER_FUNCTION(cuMemcpyAsync);
  auto* const launch = DRIVER_FUNCTION(cuLaunchKernel);
  auto* const release = DRIVER_FUNCTION(cuMemFreeAsync);
  double rounds = 0;
  const auto begin = Clock::now();
  while (SecondsSince(begin) < seconds) {
    for (int i = 0; i < kRoundsPerLook; ++i) {
      CUdeviceptr memory = 0;
      void* parameters[] = {&memory};
      MustSucceed(allocate(&memory, kAllocated, stream_), "cuMemAllocAsync");
      MustSucceed(copy(memory, filled_, kCopied, stream_), "cuMemcpyAsync");
      MustSucceed(launch(empty_, 1, 1, 1, 1, 1, 1, 0, stream_, parameters, nullptr),
                  "cuLaunchKernel");
      MustSucceed(release(memory, stream_), "cuMemFreeAsync");
    }
    rounds += kRoundsPerLook;
  }
  CALL(cuStreamSynchronize, stream_);
  return rounds / SecondsSince(begin);
}

double GpuProgram::RunFills(double seconds) {
  const auto fill = [this] { CALL(cuMemsetD8Async, filled_, 0x3c, filled_bytes_, stream_); };
  double milliseconds = 0;
  int batches = 0;
  const auto begin = Clock::now();
  do {
    // The first event is behind a fill, so that the time of these calls on the CPU does not count.
    fill();
    CALL(cuEventRecord, begin_, stream_);
    for (int i = 0; i < kFills; ++i) fill();
    CALL(cuEventRecord, end_, stream_);
    CALL(cuEventSynchronize, end_);
    float batch = 0;
    CALL(cuEventElapsedTime, &batch, begin_, end_);
    milliseconds += static_cast<double>(batch);
    ++batches;
  } while (SecondsSince(begin) < seconds);
  return milliseconds / batches / kFills;
}

}  // namespace ravenstore::bench
