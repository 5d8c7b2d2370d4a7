// Under --mode=elastic: reports copies, sets, waits and descriptors with the memory that they name.
#include "interceptor/copies.h"

#include <string.h>

#include "interceptor/hooks.h"

namespace ravenstore::interceptor::copies {
namespace {

void Run(Touched& touched, CUdeviceptr at, uint64_t bytes) {
  touched.Name(at);
  touched.Shape(bytes);
}

void Both(Touched& touched, CUdeviceptr to, CUdeviceptr from, uint64_t bytes) {
  touched.Name(from);
  Run(touched, to, bytes);
}

void Upload(Touched& touched, CUdeviceptr to, const void* from, uint64_t bytes) {
  Run(touched, to, bytes);
  touched.Table(to, from, bytes);
}

// From anywhere to anywhere.
void Copy(Touched& touched, CUdeviceptr to, CUdeviceptr from, uint64_t bytes) {
  Both(touched, to, from, bytes);
  touched.MaybeTable(to, from, bytes);
}

void Batch(Touched& touched, const CUdeviceptr* to, const CUdeviceptr* from, const size_t* bytes,
           size_t count) {
  if (to == nullptr || from == nullptr || bytes == nullptr) return;
  for (size_t i = 0; i < count; ++i) Copy(touched, to[i], from[i], bytes[i]);
}

void Batch3D(Touched& touched, const CUDA_MEMCPY3D_BATCH_OP* copies, size_t count) {
  for (size_t i = 0; copies != nullptr && i < count; ++i) {
    const CUmemcpy3DOperand& to = copies[i].dst;
    const CUmemcpy3DOperand& from = copies[i].src;
    const CUextent3D& extent = copies[i].extent;
    touched.Shape(extent.width * extent.height * extent.depth);
    if (from.type == CU_MEMCPY_OPERAND_TYPE_POINTER) touched.Name(from.op.ptr.ptr);
    if (to.type != CU_MEMCPY_OPERAND_TYPE_POINTER) continue;
    touched.Name(to.op.ptr.ptr);
    if (!touched.is_after() || from.type != CU_MEMCPY_OPERAND_TYPE_POINTER) continue;
    const uint64_t pitch = from.op.ptr.rowLength != 0 ? from.op.ptr.rowLength : extent.width;
    const uint64_t rows = from.op.ptr.layerHeight != 0 ? from.op.ptr.layerHeight : extent.height;
    if (extent.width * extent.height * extent.depth > kLargestTable) continue;
    for (uint64_t row = 0; row < extent.height * extent.depth; ++row) {
      const uint64_t at = (row / extent.height * rows + row % extent.height) * pitch;
      touched.MaybeTable(to.op.ptr.ptr, from.op.ptr.ptr + at, extent.width);
    }
  }
}

void AllStay(const CUstreamBatchMemOpParams* operations, unsigned int count) {
  for (unsigned int i = 0; operations != nullptr && i < count; ++i) {
    // Of waits and writes; others have no address, and what stands there names nothing of ours.
    elastic::Pin(operations[i].waitValue.address);
  }
}

void ResourceStays(const CUDA_RESOURCE_DESC* resource) {
  if (resource == nullptr) return;
  if (resource->resType == CU_RESOURCE_TYPE_LINEAR) elastic::Pin(resource->res.linear.devPtr);
  if (resource->resType == CU_RESOURCE_TYPE_PITCH2D) elastic::Pin(resource->res.pitch2D.devPtr);
}

// A descriptor is opaque, but where it holds the address in plain, every launch that gets it by
// value names that, and every table that has it.
void Described(Touched& touched, const CUtensorMap* map, const void* at) {
  if (!touched.is_after() || map == nullptr) return;
  for (const cuuint64_t word : map->opaque) {
    if (word == reinterpret_cast<uint64_t>(at)) return;
  }
  elastic::Pin(reinterpret_cast<uint64_t>(at));
}

}  // namespace
}  // namespace ravenstore::interceptor::copies

namespace copies = ravenstore::interceptor::copies;

#define RAVEN_TOUCH(symbol, per_thread, parameters, arguments, stream, ...)                  \
  RAVEN_EXPORT CUresult symbol parameters {                                                  \
    RAVEN_BEGIN(symbol);                                                                     \
    constexpr auto kKind = static_cast<uint64_t>(ravenstore::interceptor::Hook::k_##symbol); \
    return ravenstore::interceptor::Touch(                                                   \
        kKind, stream, per_thread,                                                           \
        [&]([[maybe_unused]] ravenstore::interceptor::Touched& touched) { __VA_ARGS__; },    \
        [&] { return real arguments; });                                                     \
  }
#define TOUCH(symbol, suffix, parameters, arguments, stream, ...)        \
  RAVEN_TOUCH(symbol, false, parameters, arguments, stream, __VA_ARGS__) \
  RAVEN_TOUCH(symbol##_##suffix, true, parameters, arguments, stream, __VA_ARGS__)
#define TOUCH_ONE(symbol, parameters, arguments, stream, ...) \
  RAVEN_TOUCH(symbol, false, parameters, arguments, stream, __VA_ARGS__)
#include "interceptor/touches.def"
