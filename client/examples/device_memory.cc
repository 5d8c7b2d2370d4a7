#include "client/examples/device_memory.h"

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstring>
#include <stdexcept>

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <c10/util/Exception.h>
#include <torch/version.h>

#ifdef RAVENSTORE_TORCH_CUDA
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#endif

namespace ravenstore::examples {
namespace {

// Until torch 2.3 an allocator was const and had no copy_data.
#if TORCH_VERSION_MAJOR > 2 || (TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR >= 3)
#define RAVENSTORE_ALLOCATOR_CONST
#define RAVENSTORE_ALLOCATOR_COPIES 1
#else
#define RAVENSTORE_ALLOCATOR_CONST const
#define RAVENSTORE_ALLOCATOR_COPIES 0
#endif

class SimulatedDevice final : public DeviceMemory, public c10::Allocator {
 public:
  SimulatedDevice() : behind_(c10::GetCPUAllocator()) { c10::SetCPUAllocator(this, 1); }

  c10::DataPtr allocate(size_t bytes) RAVENSTORE_ALLOCATOR_CONST override {
    const uint64_t used = used_.fetch_add(bytes) + bytes;
    const uint64_t limit = limit_.load();
    if (limit && used > limit) {
      used_.fetch_sub(bytes);
      TORCH_CHECK_WITH(OutOfMemoryError, false,
                       "simulated device out of memory: tried to allocate ", bytes, " bytes while ",
                       used - bytes, " of the limit of ", limit, " bytes are in use");
    }
    uint64_t peak = peak_.load();
    while (used > peak && !peak_.compare_exchange_weak(peak, used)) {
    }
    // Torch wants to find the allocation by its address alone: the size stands before it.
    auto* block = static_cast<std::byte*>(behind_->raw_allocate(bytes + kHeader));
    std::memcpy(block, &bytes, sizeof(bytes));
    void* data = block + kHeader;
    return {data, data, &Free, c10::Device(c10::kCPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &Free; }
#if RAVENSTORE_ALLOCATOR_COPIES
  void copy_data(void* to, const void* from, std::size_t count) const override {
    default_copy_data(to, from, count);
  }
#endif

  void SetLimit(uint64_t bytes) override {
    limit_ = bytes;
  }
  void ResetPeak() override {
    peak_ = used_.load();
  }
  uint64_t Peak() override {
    return peak_;
  }
  uint64_t PeakReserved() override {
    return peak_;
  }
  void Synchronize() override {}

 private:
  static constexpr size_t kHeader = 64;  // keeps torch's alignment

  static void Free(void* data) {
    if (!data) return;
    auto& device = static_cast<SimulatedDevice&>(DeviceMemory::Simulated());
    auto* block = static_cast<std::byte*>(data) - kHeader;
    size_t bytes = 0;
    std::memcpy(&bytes, block, sizeof(bytes));
    device.used_.fetch_sub(bytes);
    device.behind_->raw_deallocate(block);
  }

  c10::Allocator* const behind_;
  std::atomic<uint64_t> limit_{0};
  mutable std::atomic<uint64_t> used_{0};
  mutable std::atomic<uint64_t> peak_{0};
};

#ifdef RAVENSTORE_TORCH_CUDA
class CudaDevice final : public DeviceMemory {
 public:
  void SetLimit(uint64_t bytes) override {
    namespace cache = c10::cuda::CUDACachingAllocator;
    cache::emptyCache();
    const auto device = c10::cuda::current_device();
    const size_t total = c10::getDeviceAllocator(c10::kCUDA)->getMemoryInfo(device).second;
    const double fraction = bytes ? static_cast<double>(bytes) / static_cast<double>(total) : 1.0;
    cache::setMemoryFraction(std::min(fraction, 1.0), device);
  }
  void ResetPeak() override {
    c10::cuda::CUDACachingAllocator::emptyCache();
    c10::cuda::CUDACachingAllocator::resetPeakStats(c10::cuda::current_device());
  }
  uint64_t Peak() override { return Stats().allocated_bytes[0].peak; }
  uint64_t PeakReserved() override { return Stats().reserved_bytes[0].peak; }
  void Synchronize() override { c10::cuda::device_synchronize(); }

 private:
  static c10::CachingDeviceAllocator::DeviceStats Stats() {
    return c10::cuda::CUDACachingAllocator::getDeviceStats(c10::cuda::current_device());
  }
};
#endif

}  // namespace

DeviceMemory& DeviceMemory::Simulated() {
  // Never destroyed: tensors that live until the end of the process are freed through it.
  static auto* device = new SimulatedDevice;
  return *device;
}

DeviceMemory& DeviceMemory::Cuda() {
#ifdef RAVENSTORE_TORCH_CUDA
  static auto* device = new CudaDevice;
  return *device;
#else
  throw std::runtime_error("this train_gpt was built against a torch without CUDA");
#endif
}

}  // namespace ravenstore::examples
