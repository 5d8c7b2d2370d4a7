// Plain, pitched, managed and stream-ordered memory, at the driver's layer.
#include <string.h>

#include <atomic>

#include "interceptor/account.h"
#include "interceptor/allocate.h"
#include "interceptor/graph.h"
#include "interceptor/hooks.h"
#include "interceptor/pool.h"
#include "interceptor/served.h"

namespace ravenstore::interceptor {
namespace {

Entry Memory(LegacyKind kind, uint64_t bytes) {
  Entry entry;
  entry.space = Space::kMemory;
  entry.kind = kind;
  entry.row = static_cast<int16_t>(CurrentRow());
  entry.bytes = bytes;
  entry.context = reinterpret_cast<uint64_t>(CurrentContext());
  return entry;
}

// A tensor of the store's in place of the driver's memory; false: the driver shall serve.
bool AllocateServed(Entry entry, CUdeviceptr* address, CUresult* result) {
  if (!served::Wants(entry.bytes) || entry.row < 0) return false;
  if (!Reserve(entry.row, entry.bytes)) {
    *result = CUDA_ERROR_OUT_OF_MEMORY;
    return true;
  }
  CUdeviceptr at = 0;
  entry.served = served::Create(entry.row, entry.bytes, &at);
  entry.key = at;
  if (entry.served == nullptr) {
    Unreserve(entry.row, entry.bytes);
    return false;
  }
  if (!Commit(entry)) {
    served::Free(entry.served);
    return false;
  }
  *address = at;
  *result = CUDA_SUCCESS;
  return true;
}

template <typename Call>
CUresult Free(CUdeviceptr address, Call call) {
  const Within within;
  if (!within.outermost()) return call();
  Entry entry;
  if (ledger.Find(Space::kMemory, address, &entry) && entry.served != nullptr &&
      ledger.Take(Space::kMemory, address, &entry)) {
    Uncharge(entry);
    served::Free(entry.served);
    return CUDA_SUCCESS;
  }
  return FreeOf(Space::kMemory, address, call);
}

template <typename Call>
CUresult AllocatePlain(LegacyKind kind, CUdeviceptr* address, uint64_t bytes, Call call,
                       int address_bits = 64) {
  const Within within;
  if (!within.outermost() || address == nullptr || !Start()) return call();
  const Entry entry = Memory(kind, bytes);
  CUresult result = CUDA_SUCCESS;
  const bool may_serve = kind == LegacyKind::kDevice && address_bits == 64;
  if (may_serve && AllocateServed(entry, address, &result)) return result;
  return Allocate(entry, call, [&] { return *address; });
}

// From the device's default pool, whose own figure follows.
template <typename Call>
CUresult AllocatePooled(Entry entry, CUdeviceptr* address, Call call) {
  entry.pooled = true;
  // No context's end frees it.
  entry.context = 0;
  if (!pool::Reserve(entry.row, entry.bytes)) return CUDA_ERROR_OUT_OF_MEMORY;
  const CUresult result = CallAndReclaim(entry.row, entry.bytes, call);
  if (result != CUDA_SUCCESS) {
    pool::RefreshUsage(entry.row, entry.bytes);
    return result;
  }
  entry.key = *address;
  if (Commit(entry)) pool::RefreshUsage(entry.row, 0);
  // What the pool had left over was in pieces, or not free yet, and it took more.
  if (const uint64_t excess = Excess(entry.row, 0)) pool::Trim(entry.row, excess);
  return result;
}

// The row of the stream's device: its pool serves, whatever context is the thread's.
int RowOfStream(CUstream stream) {
  using GetContext = CUresult(CUstream, CUcontext*);
  using SetCurrent = CUresult(CUcontext);
  static std::atomic<GetContext*> get_slot{nullptr};
  static std::atomic<SetCurrent*> set_slot{nullptr};
  if (stream == nullptr || stream == CU_STREAM_LEGACY || stream == CU_STREAM_PER_THREAD) {
    return CurrentRow();
  }
  GetContext* get = Cached(&get_slot, "cuStreamGetCtx");
  SetCurrent* set = Cached(&set_slot, "cuCtxSetCurrent");
  CUcontext before = CurrentContext();
  CUcontext own = before;
  if (get == nullptr || set == nullptr || get(stream, &own) != CUDA_SUCCESS || own == before ||
      set(own) != CUDA_SUCCESS) {
    return CurrentRow();
  }
  const int row = CurrentRow();
  set(before);
  return row;
}

// `from` is null where the device's current pool serves.
template <typename Call>
CUresult AllocateAsync(CUdeviceptr* address, uint64_t bytes, CUstream stream, bool per_thread,
                       const CUmemoryPool* from, Call call) {
  const Within within;
  if (!within.outermost() || address == nullptr || !Start()) return call();
  if (graph::Capturing(stream, per_thread)) {
    // This makes a node of a graph; its memory is the graph's.
    graph::HasMemory();
    return call();
  }
  Entry entry = Memory(LegacyKind::kAsync, bytes);
  if (from == nullptr) entry.row = static_cast<int16_t>(RowOfStream(stream));
  const int owner = from == nullptr ? entry.row : pool::RowOf(*from);
  if (from == nullptr ? pool::IsCurrent(owner) : owner >= 0) {
    entry.row = static_cast<int16_t>(owner);
    return AllocatePooled(entry, address, call);
  }
  // A pool of the program's may be of another device, or of none.
  Entry own;
  if (from != nullptr && ledger.Find(Space::kPool, reinterpret_cast<uint64_t>(*from), &own)) {
    entry.row = own.row;
  }
  return Allocate(entry, call, [&] { return *address; });
}

// The rows' length is known only afterwards.
template <typename Call>
CUresult AllocatePitch(CUdeviceptr* address, size_t* pitch, size_t width, size_t height,
                       Call call) {
  const Within within;
  if (!within.outermost() || address == nullptr || pitch == nullptr || !Start()) return call();
  Entry entry = Memory(LegacyKind::kPitch, width * height);
  if (!Reserve(entry.row, entry.bytes)) return CUDA_ERROR_OUT_OF_MEMORY;
  const CUresult result = CallAndReclaim(entry.row, entry.bytes, call);
  if (result != CUDA_SUCCESS) {
    Unreserve(entry.row, entry.bytes);
    return result;
  }
  const uint64_t more = *pitch * height - entry.bytes;
  if (!Reserve(entry.row, more)) {
    Unreserve(entry.row, entry.bytes);
    RAVEN_REAL(cuMemFree_v2)(*address);
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  entry.bytes += more;
  entry.key = *address;
  Commit(entry);
  return CUDA_SUCCESS;
}

}  // namespace
}  // namespace ravenstore::interceptor

using ravenstore::interceptor::LegacyKind;
namespace interceptor = ravenstore::interceptor;

RAVEN_EXPORT CUresult cuMemAlloc_v2(CUdeviceptr* address, size_t bytes) {
  RAVEN_BEGIN(cuMemAlloc_v2);
  return interceptor::AllocatePlain(LegacyKind::kDevice, address, bytes,
                                    [&] { return real(address, bytes); });
}

RAVEN_EXPORT CUresult cuMemFree_v2(CUdeviceptr address) {
  RAVEN_BEGIN(cuMemFree_v2);
  return interceptor::Free(address, [&] { return real(address); });
}

// The first versions have 32-bit addresses; a driver may still answer them.
RAVEN_EXPORT CUresult cuMemAlloc(unsigned int* address, unsigned int bytes) {
  RAVEN_BEGIN(cuMemAlloc);
  CUdeviceptr wide = 0;
  return interceptor::AllocatePlain(
      LegacyKind::kDevice, &wide, bytes,
      [&] {
        const CUresult result = real(address, bytes);
        if (result == CUDA_SUCCESS) wide = *address;
        return result;
      },
      32);
}

RAVEN_EXPORT CUresult cuMemFree(unsigned int address) {
  RAVEN_BEGIN(cuMemFree);
  return interceptor::Free(address, [&] { return real(address); });
}

RAVEN_EXPORT CUresult cuMemAllocPitch_v2(CUdeviceptr* address, size_t* pitch, size_t width,
                                         size_t height, unsigned int element) {
  RAVEN_BEGIN(cuMemAllocPitch_v2);
  return interceptor::AllocatePitch(address, pitch, width, height,
                                    [&] { return real(address, pitch, width, height, element); });
}

RAVEN_EXPORT CUresult cuMemAllocPitch(unsigned int* address, unsigned int* pitch,
                                      unsigned int width, unsigned int height,
                                      unsigned int element) {
  RAVEN_BEGIN(cuMemAllocPitch);
  CUdeviceptr wide = 0;
  size_t wide_pitch = 0;
  return interceptor::AllocatePitch(&wide, &wide_pitch, width, height, [&] {
    const CUresult result = real(address, pitch, width, height, element);
    if (result == CUDA_SUCCESS) {
      wide = *address;
      wide_pitch = *pitch;
    }
    return result;
  });
}

RAVEN_EXPORT CUresult cuMemAllocManaged(CUdeviceptr* address, size_t bytes, unsigned int flags) {
  RAVEN_BEGIN(cuMemAllocManaged);
  return interceptor::AllocatePlain(LegacyKind::kManaged, address, bytes,
                                    [&] { return real(address, bytes, flags); });
}

RAVEN_EXPORT CUresult cuMemAllocAsync(CUdeviceptr* address, size_t bytes, CUstream stream) {
  RAVEN_BEGIN(cuMemAllocAsync);
  return interceptor::AllocateAsync(address, bytes, stream, false, nullptr,
                                    [&] { return real(address, bytes, stream); });
}

RAVEN_EXPORT CUresult cuMemAllocAsync_ptsz(CUdeviceptr* address, size_t bytes, CUstream stream) {
  RAVEN_BEGIN(cuMemAllocAsync_ptsz);
  return interceptor::AllocateAsync(address, bytes, stream, true, nullptr,
                                    [&] { return real(address, bytes, stream); });
}

RAVEN_EXPORT CUresult cuMemAllocFromPoolAsync(CUdeviceptr* address, size_t bytes, CUmemoryPool pool,
                                              CUstream stream) {
  RAVEN_BEGIN(cuMemAllocFromPoolAsync);
  return interceptor::AllocateAsync(address, bytes, stream, false, &pool,
                                    [&] { return real(address, bytes, pool, stream); });
}

RAVEN_EXPORT CUresult cuMemAllocFromPoolAsync_ptsz(CUdeviceptr* address, size_t bytes,
                                                   CUmemoryPool pool, CUstream stream) {
  RAVEN_BEGIN(cuMemAllocFromPoolAsync_ptsz);
  return interceptor::AllocateAsync(address, bytes, stream, true, &pool,
                                    [&] { return real(address, bytes, pool, stream); });
}

RAVEN_EXPORT CUresult cuMemFreeAsync(CUdeviceptr address, CUstream stream) {
  RAVEN_BEGIN(cuMemFreeAsync);
  return interceptor::Free(address, [&] { return real(address, stream); });
}

RAVEN_EXPORT CUresult cuMemFreeAsync_ptsz(CUdeviceptr address, CUstream stream) {
  RAVEN_BEGIN(cuMemFreeAsync_ptsz);
  return interceptor::Free(address, [&] { return real(address, stream); });
}
