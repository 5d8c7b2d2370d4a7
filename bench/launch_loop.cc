// What a launch costs the CPU: a loop of kernels of nothing that name one allocation, by the
// driver's interface, which is loaded at run time. Prints nanoseconds of one launch, the median of
// eleven rounds.
//
//     launch_loop [LAUNCHES]
#include <cuda.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "bench/driver_call.h"

namespace {

constexpr int kRounds = 11;
constexpr size_t kBytes = size_t{4} << 20;

double Nanoseconds(CUfunction kernel, CUstream stream, CUdeviceptr words, int launches) {
  auto* launch = DRIVER_FUNCTION(cuLaunchKernel);
  void* parameters[] = {&words};
  const auto begin = std::chrono::steady_clock::now();
  for (int i = 0; i < launches; ++i)
    ravenstore::bench::MustSucceed(launch(kernel, 1, 1, 1, 1, 1, 1, 0, stream, parameters, nullptr),
                                   "cuLaunchKernel");
  const std::chrono::duration<double, std::nano> taken = std::chrono::steady_clock::now() - begin;
  CALL(cuStreamSynchronize, stream);
  return taken.count() / launches;
}

}  // namespace

int main(int argc, char** argv) {
  const int launches = argc > 1 ? atoi(argv[1]) : 20000;
  CUdevice device = 0;
  CUcontext context = nullptr;
  CUstream stream = nullptr;
  CUdeviceptr words = 0;
  CALL(cuInit, 0);
  CALL(cuDeviceGet, &device, 0);
  CALL(cuDevicePrimaryCtxRetain, &context, device);
  CALL(cuCtxSetCurrent, context);
  CUfunction kernel = ravenstore::bench::LoadKernel("empty", ravenstore::bench::kEmptyKernel);
  CALL(cuStreamCreate, &stream, CU_STREAM_NON_BLOCKING);
  CALL(cuMemAlloc, &words, kBytes);
  std::vector<double> rounds;
  Nanoseconds(kernel, stream, words, launches);
  for (int i = 0; i < kRounds; ++i) rounds.push_back(Nanoseconds(kernel, stream, words, launches));
  std::sort(rounds.begin(), rounds.end());
  printf("%.1f\n", rounds[kRounds / 2]);
}
