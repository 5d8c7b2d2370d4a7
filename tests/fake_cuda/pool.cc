// Memory pools: blocks of a fixed size, kept after what was in them is freed until somebody
// synchronizes, trims, or finds the device full.
#include <stdlib.h>

#include <algorithm>
#include <mutex>
#include <set>

#include "tests/fake_cuda/fake_cuda.h"
#include "tests/fake_cuda/state.h"

// All of it is guarded by the pools' mutex.
struct CUmemPoolHandle_st {
  int device = 0;
  uint64_t used = 0;
  uint64_t used_most = 0;  // since it was set
  uint64_t reserved = 0;
  uint64_t threshold = 0;
};

namespace fake_cuda {
namespace {

constexpr uint64_t kBlock = uint64_t{32} << 20;
constexpr int kDevicesMax = 64;

struct Pools {
  std::mutex mutex;
  CUmemPoolHandle_st standard[kDevicesMax];
  CUmemoryPool current[kDevicesMax];
  std::set<CUmemoryPool> own;
};

Pools& pools() {
  static Pools* instance = [] {
    auto* made = new Pools;
    for (int i = 0; i < kDevicesMax; ++i) {
      made->standard[i].device = i;
      made->current[i] = &made->standard[i];
    }
    return made;
  }();
  return *instance;
}

uint64_t Blocks(uint64_t bytes) {
  return (bytes + kBlock - 1) / kBlock * kBlock;
}

// Under the mutex.
bool Shrink(CUmemoryPool pool, uint64_t keep) {
  const uint64_t left = std::min(pool->reserved, std::max(Blocks(pool->used), Blocks(keep)));
  if (left == pool->reserved) return false;
  Charged(pool->device) -= pool->reserved - left;
  pool->reserved = left;
  return true;
}

// Like the driver, ends the program when the pool is none.
void Check(CUmemoryPool pool) {
  const bool standard = pool >= &pools().standard[0] && pool < &pools().standard[kDevicesMax];
  if (!standard && pools().own.count(pool) == 0) abort();
}

}  // namespace

CUmemoryPool CurrentPool(int device) {
  std::lock_guard lock(pools().mutex);
  return pools().current[device];
}

int DeviceOfPool(CUmemoryPool pool) {
  std::lock_guard lock(pools().mutex);
  Check(pool);
  return pool->device;
}

bool TakeFromPool(CUmemoryPool pool, uint64_t bytes) {
  std::unique_lock lock(pools().mutex);
  const uint64_t needed = Blocks(pool->used + bytes);
  const uint64_t more = needed > pool->reserved ? needed - pool->reserved : 0;
  if ((Charged(pool->device) += more) > DeviceBytes()) {
    Charged(pool->device) -= more;
    return false;
  }
  pool->used += bytes;
  pool->used_most = std::max(pool->used_most, pool->used);
  pool->reserved += more;
  return true;
}

void GiveToPool(CUmemoryPool pool, uint64_t bytes) {
  std::lock_guard lock(pools().mutex);
  pool->used -= bytes;
}

bool ShrinkPools(bool to_nothing) {
  std::lock_guard lock(pools().mutex);
  bool any = false;
  for (auto& pool : pools().standard) any |= Shrink(&pool, to_nothing ? 0 : pool.threshold);
  for (const CUmemoryPool pool : pools().own) any |= Shrink(pool, to_nothing ? 0 : pool->threshold);
  return any;
}

}  // namespace fake_cuda

using fake_cuda::pools;

void FakeCudaShrinkPools() {
  fake_cuda::ShrinkPools(true);
}

CUresult cuDeviceGetDefaultMemPool(CUmemoryPool* pool, CUdevice device) {
  FAKE_CUDA_ENTER("cuDeviceGetDefaultMemPool");
  if (device < 0 || device >= fake_cuda::DeviceCount()) return CUDA_ERROR_INVALID_DEVICE;
  *pool = &pools().standard[device];
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetMemPool(CUmemoryPool* pool, CUdevice device) {
  FAKE_CUDA_ENTER("cuDeviceGetMemPool");
  if (device < 0 || device >= fake_cuda::DeviceCount()) return CUDA_ERROR_INVALID_DEVICE;
  *pool = fake_cuda::CurrentPool(device);
  return CUDA_SUCCESS;
}

CUresult cuDeviceSetMemPool(CUdevice device, CUmemoryPool pool) {
  FAKE_CUDA_ENTER("cuDeviceSetMemPool");
  std::lock_guard lock(pools().mutex);
  fake_cuda::Check(pool);
  pools().current[device] = pool;
  return CUDA_SUCCESS;
}

CUresult cuMemPoolCreate(CUmemoryPool* pool, const CUmemPoolProps* properties) {
  FAKE_CUDA_ENTER("cuMemPoolCreate");
  std::lock_guard lock(pools().mutex);
  *pool = new CUmemPoolHandle_st;
  (*pool)->device = properties->location.id;
  pools().own.insert(*pool);
  return CUDA_SUCCESS;
}

CUresult cuMemPoolDestroy(CUmemoryPool pool) {
  FAKE_CUDA_ENTER("cuMemPoolDestroy");
  std::lock_guard lock(pools().mutex);
  fake_cuda::Check(pool);
  pools().own.erase(pool);
  fake_cuda::Charged(pool->device) -= pool->reserved;
  auto& current = pools().current[pool->device];
  if (current == pool) current = &pools().standard[pool->device];
  delete pool;
  return CUDA_SUCCESS;
}

// A look at a pool breaks stream captures, as the driver's does.
CUresult cuMemPoolGetAttribute(CUmemoryPool pool, CUmemPool_attribute attribute, void* value) {
  FAKE_CUDA_ENTER("cuMemPoolGetAttribute");
  if (fake_cuda::OffendsCapture()) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  std::lock_guard lock(pools().mutex);
  fake_cuda::Check(pool);
  auto* bytes = static_cast<cuuint64_t*>(value);
  switch (attribute) {
    case CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT: *bytes = pool->reserved; return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_USED_MEM_CURRENT: *bytes = pool->used; return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_USED_MEM_HIGH: *bytes = pool->used_most; return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD: *bytes = pool->threshold; return CUDA_SUCCESS;
    default: return CUDA_ERROR_INVALID_VALUE;
  }
}

CUresult cuMemPoolSetAttribute(CUmemoryPool pool, CUmemPool_attribute attribute, void* value) {
  FAKE_CUDA_ENTER("cuMemPoolSetAttribute");
  std::lock_guard lock(pools().mutex);
  fake_cuda::Check(pool);
  if (attribute == CU_MEMPOOL_ATTR_USED_MEM_HIGH) {
    if (*static_cast<cuuint64_t*>(value) != 0) return CUDA_ERROR_INVALID_VALUE;
    pool->used_most = pool->used;
    return CUDA_SUCCESS;
  }
  if (attribute != CU_MEMPOOL_ATTR_RELEASE_THRESHOLD) return CUDA_ERROR_INVALID_VALUE;
  pool->threshold = std::min<uint64_t>(*static_cast<cuuint64_t*>(value), uint64_t{1} << 62);
  return CUDA_SUCCESS;
}

CUresult cuMemPoolTrimTo(CUmemoryPool pool, size_t keep) {
  FAKE_CUDA_ENTER("cuMemPoolTrimTo");
  if (fake_cuda::OffendsCapture()) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  std::lock_guard lock(pools().mutex);
  fake_cuda::Check(pool);
  // Whole blocks, until it holds no more than that.
  fake_cuda::Shrink(pool, keep / fake_cuda::kBlock * fake_cuda::kBlock);
  return CUDA_SUCCESS;
}
