// What ordinary programs allocate with: plain, pitched, managed and stream-ordered memory, arrays.
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <map>
#include <memory>
#include <mutex>
#include <utility>

#include "tests/fake_cuda/fake_cuda.h"
#include "tests/fake_cuda/state.h"

#undef cuMemAlloc
#undef cuMemFree

struct CUarray_st {
  int device;
  uint64_t bytes;
};
struct CUmipmappedArray_st {
  int device;
  uint64_t bytes;
};

namespace fake_cuda {
namespace {

constexpr size_t kPage = 4096;
constexpr size_t kPitch = 512;
constexpr int kDevicesMax = 64;

struct Piece {
  size_t bytes;
  int device;
  CUmemoryPool pool;  // null: of the device itself
  bool managed;
  std::shared_ptr<Shadow> shadow;  // null until something touches it
};

struct Pieces {
  std::mutex mutex;
  std::map<CUdeviceptr, Piece> at;
  // Freed, while something enqueued before may touch them.
  std::map<CUdeviceptr, Piece> going;
};
Pieces& mappings() {
  static Pieces* instance = new Pieces;
  return *instance;
}

// The one that holds `address`, or null. Under the mutex.
std::pair<const CUdeviceptr, Piece>* Holding(std::map<CUdeviceptr, Piece>& pieces,
                                             CUdeviceptr address) {
  auto piece = pieces.upper_bound(address);
  if (piece == pieces.begin()) return nullptr;
  --piece;
  return address - piece->first < piece->second.bytes ? &*piece : nullptr;
}

std::atomic<uint64_t>* Shared() {
  static std::atomic<uint64_t> own[kDevicesMax];
  const char* path = getenv("RAVENSTORE_FAKE_CUDA_SHARED");
  if (path == nullptr) return own;
  const int file = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (file < 0 || ftruncate(file, kPage) != 0) abort();
  void* mapped = mmap(nullptr, kPage, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  close(file);
  if (mapped == MAP_FAILED) abort();
  return static_cast<std::atomic<uint64_t>*>(mapped);
}

bool Capturing(CUstream stream) {
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  return stream != nullptr && cuStreamIsCapturing(stream, &status) == CUDA_SUCCESS &&
         status == CU_STREAM_CAPTURE_STATUS_ACTIVE;
}

void Uncharge(const Piece& mapping) {
  if (mapping.pool != nullptr) {
    GiveToPool(mapping.pool, mapping.bytes);
  } else {
    Charged(mapping.device) -= mapping.bytes;
  }
}

CUresult Take(CUdeviceptr* address, size_t bytes, int device, CUmemoryPool pool = nullptr,
              bool managed = false) {
  if (bytes == 0) return CUDA_ERROR_INVALID_VALUE;
  const bool fits = pool != nullptr ? TakeFromPool(pool, bytes) : Charge(device, bytes);
  if (!fits) return CUDA_ERROR_OUT_OF_MEMORY;
  const Piece mapping{bytes, device, pool, managed, nullptr};
  void* at = mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (at == MAP_FAILED) {
    Uncharge(mapping);
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  *address = reinterpret_cast<CUdeviceptr>(at);
  std::lock_guard lock(mappings().mutex);
  mappings().at[*address] = mapping;
  return CUDA_SUCCESS;
}

// Until End its bytes are there, and no other allocation gets its address.
CUresult Retire(CUdeviceptr address) {
  std::lock_guard lock(mappings().mutex);
  auto piece = mappings().at.extract(address);
  if (piece.empty()) return CUDA_ERROR_INVALID_VALUE;
  Uncharge(piece.mapped());
  mappings().going.insert(std::move(piece));
  return CUDA_SUCCESS;
}

void End(CUdeviceptr address) {
  std::lock_guard lock(mappings().mutex);
  const auto piece = mappings().going.find(address);
  munmap(reinterpret_cast<void*>(address), piece->second.bytes);
  mappings().going.erase(piece);
}

uint64_t TexelBytes(CUarray_format format) {
  switch (format) {
    case CU_AD_FORMAT_UNSIGNED_INT8:
    case CU_AD_FORMAT_SIGNED_INT8: return 1;
    case CU_AD_FORMAT_UNSIGNED_INT32:
    case CU_AD_FORMAT_SIGNED_INT32:
    case CU_AD_FORMAT_FLOAT: return 4;
    default: return 2;
  }
}

uint64_t BytesOf(const CUDA_ARRAY3D_DESCRIPTOR& shape) {
  return shape.Width * std::max<size_t>(shape.Height, 1) * std::max<size_t>(shape.Depth, 1) *
         TexelBytes(shape.Format) * shape.NumChannels;
}

template <typename Array>
CUresult Make(Array** array, uint64_t bytes, int device) {
  if (!Charge(device, bytes)) return CUDA_ERROR_OUT_OF_MEMORY;
  *array = new Array{device, bytes};
  return CUDA_SUCCESS;
}

template <typename Array>
CUresult Destroy(Array* array) {
  Charged(array->device) -= array->bytes;
  delete array;
  return CUDA_SUCCESS;
}

}  // namespace

std::shared_ptr<Shadow> ShadowOfPiece(CUdeviceptr address, CUdeviceptr* begin) {
  std::lock_guard lock(mappings().mutex);
  auto* piece = Holding(mappings().at, address);
  if (piece == nullptr) piece = Holding(mappings().going, address);
  if (piece == nullptr) return nullptr;
  auto& shadow = piece->second.shadow;
  if (shadow == nullptr) shadow = MakeShadow(piece->second.bytes);
  *begin = piece->first;
  return shadow;
}

bool LocatePiece(CUdeviceptr address, Place* place) {
  std::lock_guard lock(mappings().mutex);
  const auto* piece = Holding(mappings().at, address);
  if (piece == nullptr) return false;
  *place = {piece->first, piece->second.bytes, piece->second.device, false, piece->second.managed};
  return true;
}

std::atomic<uint64_t>& Charged(int device) {
  static std::atomic<uint64_t>* const all = Shared();
  return all[device];
}

bool Charge(int device, uint64_t bytes) {
  do {
    if ((Charged(device) += bytes) <= DeviceBytes()) return true;
    Charged(device) -= bytes;
    // What pools only keep for later is there for others before anybody is refused.
  } while (ShrinkPools(true));
  return false;
}

}  // namespace fake_cuda

using fake_cuda::Charged;

uint64_t FakeCudaUsed(int device) {
  return Charged(device);
}

CUresult cuMemAlloc_v2(CUdeviceptr* address, size_t bytes) {
  FAKE_CUDA_CONTEXT("cuMemAlloc");
  return fake_cuda::Take(address, bytes, context->device);
}

CUresult cuMemFree_v2(CUdeviceptr address) {
  FAKE_CUDA_CLEAN_UP("cuMemFree");
  if (address == 0) return CUDA_SUCCESS;
  const CUresult result = fake_cuda::Retire(address);
  if (result != CUDA_SUCCESS) return result;
  // It waits for the device.
  fake_cuda::Synchronize(context);
  fake_cuda::End(address);
  fake_cuda::ShrinkPools(false);
  return CUDA_SUCCESS;
}

CUresult cuMemAllocPitch(CUdeviceptr* address, size_t* pitch, size_t width, size_t height,
                         unsigned int) {
  FAKE_CUDA_CONTEXT("cuMemAllocPitch");
  *pitch = (width + fake_cuda::kPitch - 1) / fake_cuda::kPitch * fake_cuda::kPitch;
  return fake_cuda::Take(address, *pitch * height, context->device);
}

CUresult cuMemAllocManaged(CUdeviceptr* address, size_t bytes, unsigned int) {
  FAKE_CUDA_CONTEXT("cuMemAllocManaged");
  return fake_cuda::Take(address, bytes, context->device, nullptr, true);
}

CUresult cuMemAllocAsync(CUdeviceptr* address, size_t bytes, CUstream stream) {
  FAKE_CUDA_CONTEXT("cuMemAllocAsync");
  if (fake_cuda::Capturing(stream)) {
    // An address of the graph's; nothing is there before it is launched.
    static std::atomic<CUdeviceptr> next{CUdeviceptr{1} << 46};
    *address = next.fetch_add(bytes + fake_cuda::kPage);
    return CUDA_SUCCESS;
  }
  // From the pool of the stream's device, whatever context is current.
  const bool standard =
      stream == nullptr || stream == CU_STREAM_LEGACY || stream == CU_STREAM_PER_THREAD;
  if (!standard && cuStreamGetCtx(stream, &context) != CUDA_SUCCESS) {
    return CUDA_ERROR_INVALID_HANDLE;
  }
  return fake_cuda::Take(address, bytes, context->device, fake_cuda::CurrentPool(context->device));
}

CUresult cuMemAllocFromPoolAsync(CUdeviceptr* address, size_t bytes, CUmemoryPool pool, CUstream) {
  FAKE_CUDA_CONTEXT("cuMemAllocFromPoolAsync");
  return fake_cuda::Take(address, bytes, fake_cuda::DeviceOfPool(pool), pool);
}

CUresult cuMemFreeAsync(CUdeviceptr address, CUstream stream) {
  FAKE_CUDA_CLEAN_UP("cuMemFreeAsync");
  if (fake_cuda::Capturing(stream) || address == 0) return CUDA_SUCCESS;
  const CUresult result = fake_cuda::Retire(address);
  if (result != CUDA_SUCCESS) return result;
  const auto end = [address] { fake_cuda::End(address); };
  // A stream that is gone has nothing left to do.
  if (!fake_cuda::RunInOrder(stream, context, end)) end();
  return CUDA_SUCCESS;
}

// The variants for per-thread default streams.
extern "C" {
CUresult cuMemAllocAsync_ptsz(CUdeviceptr* address, size_t bytes, CUstream stream) {
  return cuMemAllocAsync(address, bytes, stream);
}
CUresult cuMemAllocFromPoolAsync_ptsz(CUdeviceptr* address, size_t bytes, CUmemoryPool pool,
                                      CUstream stream) {
  return cuMemAllocFromPoolAsync(address, bytes, pool, stream);
}
CUresult cuMemFreeAsync_ptsz(CUdeviceptr address, CUstream stream) {
  return cuMemFreeAsync(address, stream);
}
}

CUresult cuArrayCreate(CUarray* array, const CUDA_ARRAY_DESCRIPTOR* shape) {
  FAKE_CUDA_CONTEXT("cuArrayCreate");
  return fake_cuda::Make(
      array,
      fake_cuda::BytesOf({shape->Width, shape->Height, 0, shape->Format, shape->NumChannels, 0}),
      context->device);
}

CUresult cuArray3DCreate(CUarray* array, const CUDA_ARRAY3D_DESCRIPTOR* shape) {
  FAKE_CUDA_CONTEXT("cuArray3DCreate");
  return fake_cuda::Make(array, fake_cuda::BytesOf(*shape), context->device);
}

CUresult cuArrayDestroy(CUarray array) {
  return fake_cuda::Destroy(array);
}

CUresult cuMipmappedArrayCreate(CUmipmappedArray* array, const CUDA_ARRAY3D_DESCRIPTOR* shape,
                                unsigned int levels) {
  FAKE_CUDA_CONTEXT("cuMipmappedArrayCreate");
  uint64_t bytes = 0;
  CUDA_ARRAY3D_DESCRIPTOR level = *shape;
  const size_t longest = std::max({shape->Width, shape->Height, shape->Depth, size_t{1}});
  const auto most = static_cast<unsigned int>(std::bit_width(longest));
  for (unsigned int i = 0; i < std::clamp(levels, 1u, most); ++i) {
    bytes += fake_cuda::BytesOf(level);
    level.Width = std::max<size_t>(level.Width / 2, 1);
    if (level.Height > 1) level.Height /= 2;
    if (level.Depth > 1) level.Depth /= 2;
  }
  return fake_cuda::Make(array, bytes, context->device);
}

CUresult cuMipmappedArrayDestroy(CUmipmappedArray array) {
  return fake_cuda::Destroy(array);
}

CUresult cuDevicePrimaryCtxReset(CUdevice device) {
  std::lock_guard lock(fake_cuda::mappings().mutex);
  auto& at = fake_cuda::mappings().at;
  for (auto mapping = at.begin(); mapping != at.end();) {
    // What a pool holds outlives contexts.
    if (mapping->second.device != device || mapping->second.pool != nullptr) {
      ++mapping;
      continue;
    }
    munmap(reinterpret_cast<void*>(mapping->first), mapping->second.bytes);
    Charged(device) -= mapping->second.bytes;
    mapping = at.erase(mapping);
  }
  return CUDA_SUCCESS;
}

CUresult cuCtxGetDevice(CUdevice* device) {
  FAKE_CUDA_CONTEXT("cuCtxGetDevice");
  *device = context->device;
  return CUDA_SUCCESS;
}

CUresult cuCtxSynchronize() {
  FAKE_CUDA_CONTEXT("cuCtxSynchronize");
  fake_cuda::Synchronize(context);
  fake_cuda::ShrinkPools(false);
  return context->error;
}

CUresult FakeCudaTotal(size_t* bytes, CUdevice) {
  *bytes = fake_cuda::DeviceBytes();
  return CUDA_SUCCESS;
}
