// The runtime's allocations. They end in the driver, which counts them; here only what the driver's
// hooks did not see is counted, so that nothing is counted twice.
#include "interceptor/account.h"
#include "interceptor/array_bytes.h"
#include "interceptor/backing.h"
#include "interceptor/devices.h"
#include "interceptor/hooks.h"
#include "interceptor/link.h"
#include "interceptor/show.h"
#include "interceptor/start.h"

namespace ravenstore::interceptor {
namespace {

uint64_t Key(const void* name) {
  return reinterpret_cast<uint64_t>(name);
}

// Notes the allocation unless a hook of the driver did. Its budget is only checked afterwards: a
// runtime whose driver calls are not hooked is not expected, but is accounted for.
void Note(uint32_t seen_before, Space space, LegacyKind kind, const void* name, uint64_t bytes) {
  if (DriverHooksSeen() != seen_before || name == nullptr || !Start()) return;
  Entry entry;
  entry.space = space;
  entry.kind = kind;
  entry.key = Key(name);
  entry.row = static_cast<int16_t>(CurrentRow());
  entry.bytes = bytes;
  entry.by_runtime = true;
  entry.context = Key(CurrentContext());
  ChargeAgain(entry);
}

template <typename Call>
cudaError_t Free(Space space, const void* name, Call call) {
  Entry entry;
  if (!ledger.Find(space, Key(name), &entry)) return call();
  if (!entry.by_runtime || !ledger.Take(space, Key(name), &entry)) return call();
  const cudaError_t result = call();
  if (result == cudaSuccess) {
    Uncharge(entry);
  } else {
    ledger.Add(entry);
  }
  return result;
}

// What a backing serves the runtime has never heard of.
template <typename Call>
cudaError_t FreeMemory(void* address, const Order& order, Call call) {
  return FreeBacked(Key(address), order) ? cudaSuccess : Free(Space::kMemory, address, call);
}

uint64_t FormatBytes(const cudaChannelFormatDesc& format) {
  return static_cast<uint64_t>(format.x + format.y + format.z + format.w + 7) / 8;
}

// Arrays that are made without memory.
bool IsBare(unsigned int flags) {
  return (flags & (cudaArraySparse | cudaArrayDeferredMapping)) != 0;
}

}  // namespace
}  // namespace ravenstore::interceptor

// How the runtime's hooks begin.
#define RAVEN_BEGIN_RUNTIME(symbol)                                          \
  auto* real = RAVEN_REAL(symbol);                                           \
  if (real == nullptr) return cudaErrorInitializationError;                  \
  ravenstore::interceptor::Count(ravenstore::interceptor::Hook::k_##symbol); \
  [[maybe_unused]] const uint32_t seen = ravenstore::interceptor::DriverHooksSeen()

namespace interceptor = ravenstore::interceptor;
using interceptor::LegacyKind;
using interceptor::Note;
using interceptor::Space;

RAVEN_EXPORT cudaError_t cudaMalloc(void** address, size_t bytes) {
  RAVEN_BEGIN_RUNTIME(cudaMalloc);
  const cudaError_t result = real(address, bytes);
  if (result == cudaSuccess) Note(seen, Space::kMemory, LegacyKind::kDevice, *address, bytes);
  return result;
}

RAVEN_EXPORT cudaError_t cudaFree(void* address) {
  RAVEN_BEGIN_RUNTIME(cudaFree);
  return interceptor::FreeMemory(address, {}, [&] { return real(address); });
}

RAVEN_EXPORT cudaError_t cudaMallocManaged(void** address, size_t bytes, unsigned int flags) {
  RAVEN_BEGIN_RUNTIME(cudaMallocManaged);
  const cudaError_t result = real(address, bytes, flags);
  if (result == cudaSuccess) Note(seen, Space::kMemory, LegacyKind::kManaged, *address, bytes);
  return result;
}

RAVEN_EXPORT cudaError_t cudaMallocPitch(void** address, size_t* pitch, size_t width,
                                         size_t height) {
  RAVEN_BEGIN_RUNTIME(cudaMallocPitch);
  const cudaError_t result = real(address, pitch, width, height);
  if (result == cudaSuccess) {
    Note(seen, Space::kMemory, LegacyKind::kPitch, *address, *pitch * height);
  }
  return result;
}

RAVEN_EXPORT cudaError_t cudaMalloc3D(cudaPitchedPtr* address, cudaExtent extent) {
  RAVEN_BEGIN_RUNTIME(cudaMalloc3D);
  const cudaError_t result = real(address, extent);
  if (result == cudaSuccess) {
    Note(seen, Space::kMemory, LegacyKind::kPitch, address->ptr,
         address->pitch * extent.height * extent.depth);
  }
  return result;
}

RAVEN_EXPORT cudaError_t cudaMallocAsync(void** address, size_t bytes, cudaStream_t stream) {
  RAVEN_BEGIN_RUNTIME(cudaMallocAsync);
  const cudaError_t result = real(address, bytes, stream);
  if (result == cudaSuccess) Note(seen, Space::kMemory, LegacyKind::kAsync, *address, bytes);
  return result;
}

RAVEN_EXPORT cudaError_t cudaMallocAsync_ptsz(void** address, size_t bytes, cudaStream_t stream) {
  RAVEN_BEGIN_RUNTIME(cudaMallocAsync_ptsz);
  const cudaError_t result = real(address, bytes, stream);
  if (result == cudaSuccess) Note(seen, Space::kMemory, LegacyKind::kAsync, *address, bytes);
  return result;
}

RAVEN_EXPORT cudaError_t cudaMallocFromPoolAsync(void** address, size_t bytes, cudaMemPool_t pool,
                                                 cudaStream_t stream) {
  RAVEN_BEGIN_RUNTIME(cudaMallocFromPoolAsync);
  const cudaError_t result = real(address, bytes, pool, stream);
  if (result == cudaSuccess) Note(seen, Space::kMemory, LegacyKind::kAsync, *address, bytes);
  return result;
}

RAVEN_EXPORT cudaError_t cudaMallocFromPoolAsync_ptsz(void** address, size_t bytes,
                                                      cudaMemPool_t pool, cudaStream_t stream) {
  RAVEN_BEGIN_RUNTIME(cudaMallocFromPoolAsync_ptsz);
  const cudaError_t result = real(address, bytes, pool, stream);
  if (result == cudaSuccess) Note(seen, Space::kMemory, LegacyKind::kAsync, *address, bytes);
  return result;
}

RAVEN_EXPORT cudaError_t cudaFreeAsync(void* address, cudaStream_t stream) {
  RAVEN_BEGIN_RUNTIME(cudaFreeAsync);
  return interceptor::FreeMemory(address, interceptor::InOrderOf(stream, false),
                                 [&] { return real(address, stream); });
}

RAVEN_EXPORT cudaError_t cudaFreeAsync_ptsz(void* address, cudaStream_t stream) {
  RAVEN_BEGIN_RUNTIME(cudaFreeAsync_ptsz);
  return interceptor::FreeMemory(address, interceptor::InOrderOf(stream, true),
                                 [&] { return real(address, stream); });
}

RAVEN_EXPORT cudaError_t cudaMallocArray(cudaArray_t* array, const cudaChannelFormatDesc* format,
                                         size_t width, size_t height, unsigned int flags) {
  RAVEN_BEGIN_RUNTIME(cudaMallocArray);
  const cudaError_t result = real(array, format, width, height, flags);
  if (result == cudaSuccess && !interceptor::IsBare(flags)) {
    Note(seen, Space::kArray, LegacyKind::kArray, *array,
         interceptor::ArrayBytes(width, height, 1, interceptor::FormatBytes(*format)));
  }
  return result;
}

RAVEN_EXPORT cudaError_t cudaMalloc3DArray(cudaArray_t* array, const cudaChannelFormatDesc* format,
                                           cudaExtent extent, unsigned int flags) {
  RAVEN_BEGIN_RUNTIME(cudaMalloc3DArray);
  const cudaError_t result = real(array, format, extent, flags);
  if (result == cudaSuccess && !interceptor::IsBare(flags)) {
    Note(seen, Space::kArray, LegacyKind::kArray, *array,
         interceptor::ArrayBytes(extent.width, extent.height, extent.depth,
                                 interceptor::FormatBytes(*format)));
  }
  return result;
}

RAVEN_EXPORT cudaError_t cudaFreeArray(cudaArray_t array) {
  RAVEN_BEGIN_RUNTIME(cudaFreeArray);
  return interceptor::Free(Space::kArray, array, [&] { return real(array); });
}

RAVEN_EXPORT cudaError_t cudaMallocMipmappedArray(cudaMipmappedArray_t* array,
                                                  const cudaChannelFormatDesc* format,
                                                  cudaExtent extent, unsigned int levels,
                                                  unsigned int flags) {
  RAVEN_BEGIN_RUNTIME(cudaMallocMipmappedArray);
  const cudaError_t result = real(array, format, extent, levels, flags);
  if (result == cudaSuccess && !interceptor::IsBare(flags)) {
    Note(seen, Space::kMipmap, LegacyKind::kMipmap, *array,
         interceptor::MipmapBytes(extent.width, extent.height, extent.depth,
                                  interceptor::FormatBytes(*format), flags, levels));
  }
  return result;
}

RAVEN_EXPORT cudaError_t cudaFreeMipmappedArray(cudaMipmappedArray_t array) {
  RAVEN_BEGIN_RUNTIME(cudaFreeMipmappedArray);
  return interceptor::Free(Space::kMipmap, array, [&] { return real(array); });
}

RAVEN_EXPORT cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
  RAVEN_BEGIN_RUNTIME(cudaMemGetInfo);
  const cudaError_t result = real(free, total);
  if (result != cudaSuccess || free == nullptr || total == nullptr || !interceptor::Start()) {
    return result;
  }
  uint64_t left = *free;
  uint64_t size = *total;
  interceptor::Show(interceptor::CurrentRow(), &size, &left);
  *free = left;
  *total = size;
  return result;
}
