// Plain, pitched, managed and stream-ordered memory, at the driver's layer.
#include <string.h>

#include "interceptor/account.h"
#include "interceptor/allocate.h"
#include "interceptor/backing.h"
#include "interceptor/budgets.h"
#include "interceptor/devices.h"
#include "interceptor/graph.h"
#include "interceptor/hooks.h"
#include "interceptor/pool.h"
#include "interceptor/start.h"

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

template <typename Call>
CUresult Free(CUdeviceptr address, const Order& order, Call call) {
  const Within within;
  if (!within.outermost()) return call();
  return FreeBacked(address, order) ? CUDA_SUCCESS : FreeOf(Space::kMemory, address, call);
}

template <typename Call>
CUresult AllocatePlain(LegacyKind kind, CUdeviceptr* address, uint64_t bytes, Call call,
                       int address_bits = 64) {
  const Within within;
  if (!within.outermost() || address == nullptr || !Start()) return call();
  const Entry entry = Memory(kind, bytes);
  CUresult result = CUDA_SUCCESS;
  if (address_bits == 64 && AllocateBacked(entry, {}, address, &result)) return result;
  return Allocate(entry, call, [&] { return *address; });
}

// From the device's default pool, whose own figure follows.
template <typename Call>
CUresult AllocatePooled(Entry entry, CUdeviceptr* address, Call call) {
  entry.pooled = true;
  // No context's end frees it.
  entry.context = 0;
  if (!pool::Reserve(entry.row, entry.bytes, ReserveForDriver)) return CUDA_ERROR_OUT_OF_MEMORY;
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
  if (from == nullptr) entry.row = static_cast<int16_t>(RowOf(stream));
  const int owner = from == nullptr ? entry.row : pool::RowOf(*from);
  const bool standard = from == nullptr ? pool::IsCurrent(owner) : owner >= 0;
  Entry own;
  if (standard) {
    entry.row = static_cast<int16_t>(owner);
  } else if (from != nullptr &&
             ledger.Find(Space::kPool, reinterpret_cast<uint64_t>(*from), &own)) {
    // A pool of the program's may be of another device, or of none.
    entry.row = own.row;
  }
  CUresult result = CUDA_SUCCESS;
  if (!own.shared && AllocateBacked(entry, InOrderOf(stream, per_thread), address, &result)) {
    return result;
  }
  return standard ? AllocatePooled(entry, address, call)
                  : Allocate(entry, call, [&] { return *address; });
}

// Rows of what a backing serves are as the driver makes them.
bool AllocateBackedPitch(Entry entry, size_t width, size_t height, CUdeviceptr* address,
                         size_t* pitch) {
  constexpr size_t kPitch = 512;
  const size_t padded = (width + kPitch - 1) / kPitch * kPitch;
  entry.bytes = padded * height;
  CUresult result = CUDA_SUCCESS;
  if (!AllocateBacked(entry, {}, address, &result) || result != CUDA_SUCCESS) return false;
  *pitch = padded;
  return true;
}

// The rows' length is known only afterwards.
template <typename Call>
CUresult AllocatePitch(CUdeviceptr* address, size_t* pitch, size_t width, size_t height,
                       Call call) {
  const Within within;
  if (!within.outermost() || address == nullptr || pitch == nullptr || !Start()) return call();
  Entry entry = Memory(LegacyKind::kPitch, width * height);
  if (AllocateBackedPitch(entry, width, height, address, pitch)) return CUDA_SUCCESS;
  if (!ReserveForDriver(entry.row, entry.bytes)) return CUDA_ERROR_OUT_OF_MEMORY;
  const CUresult result = CallAndReclaim(entry.row, entry.bytes, call);
  if (result != CUDA_SUCCESS) {
    Unreserve(entry.row, entry.bytes);
    return result;
  }
  const uint64_t more = *pitch * height - entry.bytes;
  if (!ReserveForDriver(entry.row, more)) {
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
  return interceptor::Free(address, {}, [&] { return real(address); });
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
  return interceptor::Free(address, {}, [&] { return real(address); });
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
  return interceptor::Free(address, interceptor::InOrderOf(stream, false),
                           [&] { return real(address, stream); });
}

RAVEN_EXPORT CUresult cuMemFreeAsync_ptsz(CUdeviceptr address, CUstream stream) {
  RAVEN_BEGIN(cuMemFreeAsync_ptsz);
  return interceptor::Free(address, interceptor::InOrderOf(stream, true),
                           [&] { return real(address, stream); });
}
