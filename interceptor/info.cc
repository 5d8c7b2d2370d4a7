// What the driver and NVML report to the job about a device's memory.
#include "interceptor/devices.h"
#include "interceptor/driver.h"
#include "interceptor/elastic_backing.h"
#include "interceptor/hooks.h"
#include "interceptor/pool.h"
#include "interceptor/show.h"
#include "interceptor/start.h"

namespace interceptor = ravenstore::interceptor;

namespace {

// All of these report the budget instead of the device.
template <typename T>
CUresult ShowInfo(CUresult result, T* free, T* total) {
  if (result != CUDA_SUCCESS || free == nullptr || total == nullptr || !interceptor::Start()) {
    return result;
  }
  uint64_t left = *free;
  uint64_t size = *total;
  interceptor::Show(interceptor::CurrentRow(), &size, &left);
  *free = static_cast<T>(left);
  *total = static_cast<T>(size);
  return result;
}

template <typename T>
CUresult ShowTotal(CUresult result, T* bytes, CUdevice device) {
  if (result != CUDA_SUCCESS || bytes == nullptr || !interceptor::Start()) return result;
  uint64_t size = *bytes;
  interceptor::Show(interceptor::RowOf(device), &size, nullptr);
  *bytes = static_cast<T>(size);
  return result;
}

}  // namespace

RAVEN_EXPORT CUresult cuMemGetInfo_v2(size_t* free, size_t* total) {
  RAVEN_BEGIN(cuMemGetInfo_v2);
  const interceptor::Within within;
  return ShowInfo(real(free, total), free, total);
}

RAVEN_EXPORT CUresult cuMemGetInfo(unsigned int* free, unsigned int* total) {
  RAVEN_BEGIN(cuMemGetInfo);
  const interceptor::Within within;
  return ShowInfo(real(free, total), free, total);
}

RAVEN_EXPORT CUresult cuDeviceTotalMem_v2(size_t* bytes, CUdevice device) {
  RAVEN_BEGIN(cuDeviceTotalMem_v2);
  const interceptor::Within within;
  return ShowTotal(real(bytes, device), bytes, device);
}

RAVEN_EXPORT CUresult cuDeviceTotalMem(unsigned int* bytes, CUdevice device) {
  RAVEN_BEGIN(cuDeviceTotalMem);
  const interceptor::Within within;
  return ShowTotal(real(bytes, device), bytes, device);
}

// What the engine serves counts as the default pool's, where the program asked for it: frameworks
// tell from there what is allocated. The peaks of both are added up, though they may have been at
// different times.
RAVEN_EXPORT CUresult cuMemPoolGetAttribute(CUmemoryPool pool, CUmemPool_attribute attribute,
                                            void* value) {
  RAVEN_BEGIN(cuMemPoolGetAttribute);
  const interceptor::Within within;
  const CUresult result = real(pool, attribute, value);
  if (result != CUDA_SUCCESS || value == nullptr || !interceptor::elastic::On()) return result;
  const int row = interceptor::pool::RowOf(pool);
  if (row < 0) return result;
  const interceptor::elastic::Served served = interceptor::elastic::ServedOf(row);
  auto* bytes = static_cast<cuuint64_t*>(value);
  switch (attribute) {
    case CU_MEMPOOL_ATTR_USED_MEM_CURRENT:
    case CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT: *bytes += served.live; break;
    case CU_MEMPOOL_ATTR_USED_MEM_HIGH:
    case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH: *bytes += served.high; break;
    default: break;
  }
  return result;
}

RAVEN_EXPORT CUresult cuMemPoolSetAttribute(CUmemoryPool pool, CUmemPool_attribute attribute,
                                            void* value) {
  RAVEN_BEGIN(cuMemPoolSetAttribute);
  const interceptor::Within within;
  const CUresult result = real(pool, attribute, value);
  if (result != CUDA_SUCCESS || attribute != CU_MEMPOOL_ATTR_USED_MEM_HIGH ||
      !interceptor::elastic::On()) {
    return result;
  }
  const int row = interceptor::pool::RowOf(pool);
  if (row >= 0) interceptor::elastic::ResetHigh(row);
  return result;
}

namespace {

// The row of NVML's device: both name it by UUID. Before the driver is loaded there are no rows,
// and NVML shows the whole device.
int RowOfNvml(nvmlDevice_t device) {
  using GetUuid = nvmlReturn_t(nvmlDevice_t, char*, unsigned int);
  static std::atomic<GetUuid*> slot{nullptr};
  GetUuid* get = slot.load(std::memory_order_relaxed);
  if (get == nullptr) {
    void* real = interceptor::RealOf(interceptor::Hook::k_nvmlDeviceGetMemoryInfo);
    if (real == nullptr) return -1;
    get = reinterpret_cast<GetUuid*>(interceptor::NvmlFunction("nvmlDeviceGetUUID"));
    slot.store(get, std::memory_order_relaxed);
  }
  char uuid[96] = "";
  if (get == nullptr || get(device, uuid, sizeof(uuid)) != 0) return -1;
  return interceptor::RowOfUuid(uuid);
}

// Memory is one of NVML's structs.
template <typename Memory>
nvmlReturn_t ShowMemory(nvmlReturn_t result, nvmlDevice_t device, Memory* memory) {
  if (result != 0 || memory == nullptr) return result;
  uint64_t total = memory->total;
  uint64_t free = memory->free;
  interceptor::Show(RowOfNvml(device), &total, &free);
  if (total != memory->total) {
    memory->used = total - free;
    if constexpr (requires { memory->reserved; }) memory->reserved = 0;
  }
  memory->total = total;
  memory->free = free;
  return result;
}

constexpr nvmlReturn_t kUninitialized = 1;

}  // namespace

RAVEN_EXPORT nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t* memory) {
  auto* real = RAVEN_REAL(nvmlDeviceGetMemoryInfo);
  return real == nullptr ? kUninitialized : ShowMemory(real(device, memory), device, memory);
}

RAVEN_EXPORT nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t* memory) {
  auto* real = RAVEN_REAL(nvmlDeviceGetMemoryInfo_v2);
  return real == nullptr ? kUninitialized : ShowMemory(real(device, memory), device, memory);
}
