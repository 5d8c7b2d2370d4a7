// What memory-bound kernels lose while another thread of the same context remaps pages of 32 MiB as
// the elastic engine does, to parts of the device's memory or of the host's.
//
//     remap_kernels [SECONDS]
//
// SECONDS: with each kind of parts, in turns of a tenth of a second (3). Prints a JSON object: the
// median of a kernel in microseconds while nothing else runs, "kernel_us"; its median over that
// while pages are mapped to "device" and to "host"; and what a remapping took.
#include <cuda.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <vector>

#include "bench/driver_call.h"

namespace ravenstore::bench {
namespace {

using Clock = std::chrono::steady_clock;

// As the fake driver's kernel of that name (tests/fake_cuda/fake_cuda.h): to[i] += from[i].
constexpr char kAdd[] = R"(.version 7.0
.target sm_50
.address_size 64
.visible .entry add(.param .u64 to, .param .u64 from, .param .u64 count) {
  .reg .pred %p<3>;
  .reg .b32 %r<5>;
  .reg .b64 %rd<16>;
  ld.param.u64 %rd1, [to];
  ld.param.u64 %rd2, [from];
  ld.param.u64 %rd3, [count];
  cvta.to.global.u64 %rd1, %rd1;
  cvta.to.global.u64 %rd2, %rd2;
  mov.u32 %r1, %ctaid.x;
  mov.u32 %r2, %ntid.x;
  mov.u32 %r3, %tid.x;
  mov.u32 %r4, %nctaid.x;
  mul.wide.u32 %rd4, %r1, %r2;
  cvt.u64.u32 %rd5, %r3;
  add.s64 %rd4, %rd4, %rd5;
  mul.wide.u32 %rd6, %r4, %r2;
LOOP:
  setp.ge.u64 %p1, %rd4, %rd3;
  @%p1 bra DONE;
  shl.b64 %rd7, %rd4, 3;
  add.s64 %rd8, %rd1, %rd7;
  add.s64 %rd9, %rd2, %rd7;
  ld.global.u64 %rd10, [%rd8];
  ld.global.u64 %rd11, [%rd9];
  add.s64 %rd10, %rd10, %rd11;
  st.global.u64 [%rd8], %rd10;
  add.s64 %rd4, %rd4, %rd6;
  bra LOOP;
DONE:
  ret;
}
)";
constexpr size_t kPage = size_t{32} << 20;
constexpr size_t kPages = 4;
constexpr size_t kBytes = size_t{256} << 20;  // of each operand, beyond any cache
constexpr size_t kSmallBytes = size_t{8} << 20;
constexpr size_t kSmallDevice = size_t{8} << 30;
constexpr int kKernels = 10;  // between two events
constexpr double kTurn = 0.1;

enum Way : size_t { kQuiet, kToDevice, kToHost, kWays };

double Microseconds(Clock::time_point since) {
  return std::chrono::duration<double, std::micro>(Clock::now() - since).count();
}

double Median(std::vector<double> values) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

// Pages that change their memory, by a thread of its own. Owns: the addresses and the memory, until
// the process ends.
class Remapper {
 public:
  Remapper(CUcontext context, CUdevice device) : context_(context) {
    access_.location = {CU_MEM_LOCATION_TYPE_DEVICE, device};
    access_.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    CALL(cuMemAddressReserve, &base_, kPage * kPages, 0, 0, 0);
    for (size_t i = 0; i < kPages; ++i) {
      parts_[kToDevice][i] = Create({CU_MEM_LOCATION_TYPE_DEVICE, device});
      parts_[kToHost][i] = Create({CU_MEM_LOCATION_TYPE_HOST_NUMA, 0});
      Map(i, kToDevice);
    }
  }
  ~Remapper() { Stop(); }
  Remapper(const Remapper&) = delete;
  Remapper& operator=(const Remapper&) = delete;

  // Until Stop each page in turn is unmapped, and mapped to its part of that kind.
  void Start(Way way) {
    stopping_ = false;
    thread_ = std::thread([this, way] {
      CALL(cuCtxSetCurrent, context_);
      for (size_t i = 0; !stopping_; i = (i + 1) % kPages) {
        const auto begun = Clock::now();
        CALL(cuMemUnmap, base_ + i * kPage, kPage);
        Map(i, way);
        took_[way].push_back(Microseconds(begun));
      }
    });
  }
  void Stop() {
    stopping_ = true;
    if (thread_.joinable()) thread_.join();
  }
  double Took(Way way) const { return Median(took_[way]); }

 private:
  static CUmemGenericAllocationHandle Create(CUmemLocation location) {
    CUmemAllocationProp prop{};
    prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    prop.location = location;
    CUmemGenericAllocationHandle handle = 0;
    CALL(cuMemCreate, &handle, kPage, &prop, 0);
    return handle;
  }
  void Map(size_t page, Way way) {
    CALL(cuMemMap, base_ + page * kPage, kPage, 0, parts_[way][page], 0);
    CALL(cuMemSetAccess, base_ + page * kPage, kPage, &access_, 1);
  }

  const CUcontext context_;
  CUmemAccessDesc access_{};
  CUdeviceptr base_ = 0;
  std::array<std::array<CUmemGenericAllocationHandle, kPages>, kWays> parts_{};
  std::array<std::vector<double>, kWays> took_;
  std::atomic<bool> stopping_{false};
  std::thread thread_;
};

class Kernels {
 public:
  Kernels() {
    add_ = LoadKernel("add", kAdd);
    CALL(cuStreamCreate, &stream_, CU_STREAM_NON_BLOCKING);
    size_t free = 0;
    size_t total = 0;
    CALL(cuMemGetInfo, &free, &total);
    const size_t bytes = total < kSmallDevice ? kSmallBytes : kBytes;
    words_ = bytes / sizeof(uint64_t);
    CALL(cuMemAlloc, &to_, bytes);
    CALL(cuMemAlloc, &from_, bytes);
    for (CUevent* event : {&begin_, &end_}) CALL(cuEventCreate, event, CU_EVENT_DEFAULT);
  }

  // Runs kernels for `seconds`. Appends microseconds of one to `took`.
  void Run(double seconds, std::vector<double>* took) {
    const auto begun = Clock::now();
    while (Microseconds(begun) < seconds * 1e6) {
      CALL(cuEventRecord, begin_, stream_);
      for (int i = 0; i < kKernels; ++i) Launch();
      CALL(cuEventRecord, end_, stream_);
      CALL(cuEventSynchronize, end_);
      float milliseconds = 0;
      CALL(cuEventElapsedTime, &milliseconds, begin_, end_);
      took->push_back(static_cast<double>(milliseconds) * 1e3 / kKernels);
    }
  }

 private:
  void Launch() {
    void* parameters[] = {&to_, &from_, &words_};
    CALL(cuLaunchKernel, add_, 1056, 1, 1, 512, 1, 1, 0, stream_, parameters, nullptr);
  }

  CUfunction add_ = nullptr;
  CUstream stream_ = nullptr;
  CUevent begin_ = nullptr;
  CUevent end_ = nullptr;
  CUdeviceptr to_ = 0;
  CUdeviceptr from_ = 0;
  uint64_t words_ = 0;
};

int Main(double seconds) {
  CUdevice device = 0;
  CUcontext context = nullptr;
  CALL(cuInit, 0);
  CALL(cuDeviceGet, &device, 0);
  CALL(cuDevicePrimaryCtxRetain, &context, device);
  CALL(cuCtxSetCurrent, context);
  Kernels kernels;
  Remapper remapper(context, device);
  std::vector<double> warm;
  kernels.Run(std::min(seconds, kTurn), &warm);
  std::array<std::vector<double>, kWays> took;
  for (double done = 0; done < seconds; done += kTurn) {
    for (const Way way : {kQuiet, kToDevice, kQuiet, kToHost}) {
      if (way != kQuiet) remapper.Start(way);
      kernels.Run(std::min(seconds, kTurn), &took[way]);
      remapper.Stop();
    }
  }
  const double quiet = Median(took[kQuiet]);
  printf(
      "{\"kernel_us\": %.2f, \"device\": %.4f, \"host\": %.4f, \"device_remap_us\": %.1f, "
      "\"host_remap_us\": %.1f}\n",
      quiet, Median(took[kToDevice]) / quiet, Median(took[kToHost]) / quiet,
      remapper.Took(kToDevice), remapper.Took(kToHost));
  return 0;
}

}  // namespace
}  // namespace ravenstore::bench

int main(int argc, char** argv) {
  const double seconds = argc > 1 ? atof(argv[1]) : 3;
  if (seconds <= 0) {
    fprintf(stderr, "usage: remap_kernels [SECONDS]\n");
    return 2;
  }
  return ravenstore::bench::Main(seconds);
}
