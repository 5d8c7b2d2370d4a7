// What ordinary programs allocate with: plain, pitched, managed and stream-ordered memory, arrays,
// memory nodes of graphs, contexts of their own, and the look-up by which runtimes find all of it.
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <map>
#include <mutex>

#include "tests/fake_cuda/fake_cuda.h"
#include "tests/fake_cuda/state.h"

#undef cuGetProcAddress
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
struct CUgraph_st {
  uint64_t bytes;
};
struct CUgraphExec_st {
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
};

struct Pieces {
  std::mutex mutex;
  std::map<CUdeviceptr, Piece> at;
};
Pieces& mappings() {
  static Pieces* instance = new Pieces;
  return *instance;
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

std::atomic<uint64_t> graph_bytes[kDevicesMax];

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

CUresult Take(CUdeviceptr* address, size_t bytes, int device, CUmemoryPool pool = nullptr) {
  if (bytes == 0) return CUDA_ERROR_INVALID_VALUE;
  const bool fits = pool != nullptr ? TakeFromPool(pool, bytes) : Charge(device, bytes);
  if (!fits) return CUDA_ERROR_OUT_OF_MEMORY;
  const Piece mapping{bytes, device, pool};
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

CUresult GiveBack(CUdeviceptr address) {
  if (address == 0) return CUDA_SUCCESS;
  Piece mapping;
  {
    std::lock_guard lock(mappings().mutex);
    const auto found = mappings().at.find(address);
    if (found == mappings().at.end()) return CUDA_ERROR_INVALID_VALUE;
    mapping = found->second;
    mappings().at.erase(found);
  }
  munmap(reinterpret_cast<void*>(address), mapping.bytes);
  Uncharge(mapping);
  return CUDA_SUCCESS;
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
  const CUresult result = fake_cuda::GiveBack(address);
  // It waits for the device.
  fake_cuda::ShrinkPools(false);
  return result;
}

CUresult cuMemAllocPitch(CUdeviceptr* address, size_t* pitch, size_t width, size_t height,
                         unsigned int) {
  FAKE_CUDA_CONTEXT("cuMemAllocPitch");
  *pitch = (width + fake_cuda::kPitch - 1) / fake_cuda::kPitch * fake_cuda::kPitch;
  return fake_cuda::Take(address, *pitch * height, context->device);
}

CUresult cuMemAllocManaged(CUdeviceptr* address, size_t bytes, unsigned int) {
  FAKE_CUDA_CONTEXT("cuMemAllocManaged");
  return fake_cuda::Take(address, bytes, context->device);
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
  if (fake_cuda::Capturing(stream)) return CUDA_SUCCESS;
  return fake_cuda::GiveBack(address);
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
  fake_cuda::ShrinkPools(false);
  return CUDA_SUCCESS;
}

CUresult cuGraphCreate(CUgraph* graph, unsigned int) {
  *graph = new CUgraph_st{0};
  return CUDA_SUCCESS;
}

CUresult cuGraphAddMemAllocNode(CUgraphNode* node, CUgraph graph, const CUgraphNode*, size_t,
                                CUDA_MEM_ALLOC_NODE_PARAMS* parameters) {
  graph->bytes += parameters->bytesize;
  *node = reinterpret_cast<CUgraphNode>(graph);
  parameters->dptr = CUdeviceptr{1} << 45;
  return CUDA_SUCCESS;
}

CUresult cuGraphInstantiateWithFlags(CUgraphExec* executable, CUgraph graph, unsigned long long) {
  *executable = new CUgraphExec_st{graph->bytes};
  return CUDA_SUCCESS;
}

CUresult cuGraphLaunch(CUgraphExec executable, CUstream) {
  FAKE_CUDA_CONTEXT("cuGraphLaunch");
  // The pool keeps what its largest graph needed, until it is trimmed.
  auto& pool = fake_cuda::graph_bytes[context->device];
  if (pool < executable->bytes) {
    if (!fake_cuda::Charge(context->device, executable->bytes - pool)) {
      return CUDA_ERROR_OUT_OF_MEMORY;
    }
    pool = executable->bytes;
  }
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetGraphMemAttribute(CUdevice device, CUgraphMem_attribute, void* value) {
  *static_cast<cuuint64_t*>(value) = fake_cuda::graph_bytes[device];
  return CUDA_SUCCESS;
}

CUresult cuDeviceGraphMemTrim(CUdevice device) {
  Charged(device) -= fake_cuda::graph_bytes[device].exchange(0);
  return CUDA_SUCCESS;
}

CUresult cuGraphDestroy(CUgraph graph) {
  delete graph;
  return CUDA_SUCCESS;
}

CUresult cuGraphExecDestroy(CUgraphExec executable) {
  delete executable;
  return CUDA_SUCCESS;
}

extern "C" {
CUresult cuGetProcAddress(const char* symbol, void** function, int version, cuuint64_t flags);
}

namespace {

struct Export {
  const char* base;
  int since;
  bool per_thread;
  void* function;
};

#define EXPORT(name) \
  { #name, 0, false, reinterpret_cast < void*>(&name) }
#define EXPORT_AS(name, since, function) \
  { name, since, false, reinterpret_cast<void*>(&function) }
const Export kExports[] = {
    EXPORT(cuInit),
    EXPORT(cuDeviceGetCount),
    EXPORT(cuDeviceGet),
    EXPORT(cuDevicePrimaryCtxRetain),
    EXPORT_AS("cuDevicePrimaryCtxRelease", 7000, cuDevicePrimaryCtxRelease_v2),
    EXPORT_AS("cuDevicePrimaryCtxReset", 7000, cuDevicePrimaryCtxReset_v2),
    EXPORT(cuCtxGetCurrent),
    EXPORT(cuCtxSetCurrent),
    EXPORT(cuCtxGetDevice),
    EXPORT(cuCtxSynchronize),
    EXPORT(cuStreamSynchronize),
    EXPORT(cuEventSynchronize),
    EXPORT(cuDriverGetVersion),
    EXPORT_AS("cuDeviceTotalMem", 3020, cuDeviceTotalMem_v2),
    EXPORT_AS("cuMemGetInfo", 3020, cuMemGetInfo_v2),
    EXPORT_AS("cuMemAlloc", 3020, cuMemAlloc_v2),
    EXPORT_AS("cuMemFree", 3020, cuMemFree_v2),
    EXPORT_AS("cuMemAllocPitch", 3020, cuMemAllocPitch_v2),
    EXPORT(cuMemAllocManaged),
    EXPORT(cuMemAllocAsync),
    {"cuMemAllocAsync", 0, true, reinterpret_cast<void*>(&cuMemAllocAsync_ptsz)},
    EXPORT(cuMemAllocFromPoolAsync),
    {"cuMemAllocFromPoolAsync", 0, true, reinterpret_cast<void*>(&cuMemAllocFromPoolAsync_ptsz)},
    EXPORT(cuMemFreeAsync),
    {"cuMemFreeAsync", 0, true, reinterpret_cast<void*>(&cuMemFreeAsync_ptsz)},
    EXPORT(cuDeviceGetDefaultMemPool),
    EXPORT(cuMemPoolGetAttribute),
    EXPORT(cuMemPoolTrimTo),
    EXPORT(cuMemCreate),
    EXPORT(cuMemRelease),
    EXPORT(cuMemMap),
    EXPORT(cuMemUnmap),
    EXPORT_AS("cuArrayCreate", 3020, cuArrayCreate_v2),
    EXPORT_AS("cuArray3DCreate", 3020, cuArray3DCreate_v2),
    EXPORT(cuArrayDestroy),
    EXPORT(cuMipmappedArrayCreate),
    EXPORT(cuMipmappedArrayDestroy),
    EXPORT(cuGraphLaunch),
    EXPORT(cuGraphAddMemAllocNode),
    EXPORT(cuDeviceGraphMemTrim),
    EXPORT_AS("cuGetProcAddress", 11030, cuGetProcAddress),
    EXPORT_AS("cuGetProcAddress", 12000, cuGetProcAddress_v2),
};

// Who asked for what, for a test that asks again.
void NoteAsked(const char* symbol, int version, cuuint64_t flags) {
  static const char* path = getenv("RAVENSTORE_FAKE_CUDA_ASKED");
  if (path == nullptr) return;
  static FILE* file = fopen(path, "ae");
  if (file == nullptr) abort();
  fprintf(file, "%s %d %llu\n", symbol, version, static_cast<unsigned long long>(flags));
  fflush(file);
}

}  // namespace

CUresult cuGetProcAddress_v2(const char* symbol, void** function, int version, cuuint64_t flags,
                             CUdriverProcAddressQueryResult* status) {
  NoteAsked(symbol, version, flags);
  const bool per_thread = (flags & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM) != 0;
  const Export* best = nullptr;
  for (const Export& one : kExports) {
    if (strcmp(one.base, symbol) != 0 || one.since > version) continue;
    if (one.per_thread && !per_thread) continue;
    best = &one;  // later ones are newer, and per-thread ones behind their fellows
  }
  *function = best == nullptr ? nullptr : best->function;
  if (status != nullptr) {
    *status = best == nullptr ? CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND : CU_GET_PROC_ADDRESS_SUCCESS;
  }
  return best == nullptr ? CUDA_ERROR_NOT_FOUND : CUDA_SUCCESS;
}

CUresult cuGetProcAddress(const char* symbol, void** function, int version, cuuint64_t flags) {
  return cuGetProcAddress_v2(symbol, function, version, flags, nullptr);
}

CUresult FakeCudaTotal(size_t* bytes, CUdevice) {
  *bytes = fake_cuda::DeviceBytes();
  return CUDA_SUCCESS;
}
