// Arrays and mipmapped arrays. Their size is computed from what was asked for: what the driver adds
// for its layout it does not tell.
#include "interceptor/allocate.h"
#include "interceptor/array_bytes.h"
#include "interceptor/devices.h"
#include "interceptor/hooks.h"
#include "interceptor/start.h"

namespace ravenstore::interceptor {
namespace {

template <typename Handle, typename Call>
CUresult Make(Space space, LegacyKind kind, uint64_t bytes, unsigned int flags, Handle* handle,
              Call call) {
  const Within within;
  // Without memory of their own: it is mapped in later, by cuMemCreate's handles.
  const bool bare = (flags & (CUDA_ARRAY3D_SPARSE | CUDA_ARRAY3D_DEFERRED_MAPPING)) != 0;
  if (!within.outermost() || handle == nullptr || bare || !Start()) return call();
  Entry entry;
  entry.space = space;
  entry.kind = kind;
  entry.row = static_cast<int16_t>(CurrentRow());
  entry.bytes = bytes;
  entry.context = reinterpret_cast<uint64_t>(CurrentContext());
  return Allocate(entry, call, [&] { return reinterpret_cast<uint64_t>(*handle); });
}

template <typename Handle, typename Call>
CUresult Destroy(Space space, Handle handle, Call call) {
  const Within within;
  if (!within.outermost()) return call();
  return FreeOf(space, reinterpret_cast<uint64_t>(handle), call);
}

}  // namespace

uint64_t TexelBytes(CUarray_format format, unsigned int channels) {
  switch (format) {
    case CU_AD_FORMAT_UNSIGNED_INT8:
    case CU_AD_FORMAT_SIGNED_INT8: return channels;
    case CU_AD_FORMAT_UNSIGNED_INT16:
    case CU_AD_FORMAT_SIGNED_INT16:
    case CU_AD_FORMAT_HALF: return uint64_t{2} * channels;
    case CU_AD_FORMAT_UNSIGNED_INT32:
    case CU_AD_FORMAT_SIGNED_INT32:
    case CU_AD_FORMAT_FLOAT: return uint64_t{4} * channels;
    default: break;
  }
  // Formats of one byte to sixteen bytes a texel that few ask for: as large as their channels say.
  return channels == 0 ? 1 : channels;
}

uint64_t ArrayBytes(uint64_t width, uint64_t height, uint64_t depth, uint64_t texel) {
  return width * (height == 0 ? 1 : height) * (depth == 0 ? 1 : depth) * texel;
}

uint64_t MipmapBytes(uint64_t width, uint64_t height, uint64_t depth, uint64_t texel,
                     unsigned int flags, unsigned int levels) {
  // Neither layers nor a cube's faces are levels: only a volume shrinks in depth.
  const bool volume = (flags & (CUDA_ARRAY3D_LAYERED | CUDA_ARRAY3D_CUBEMAP)) == 0;
  // Of levels asked for the driver makes one at least, and none behind that of a single texel.
  uint64_t bytes = ArrayBytes(width, height, depth, texel);
  for (unsigned int level = 1; level < levels; ++level) {
    if (width <= 1 && height <= 1 && (!volume || depth <= 1)) break;
    width = width > 1 ? width / 2 : 1;
    height = height > 1 ? height / 2 : height;
    if (volume && depth > 1) depth /= 2;
    bytes += ArrayBytes(width, height, depth, texel);
  }
  return bytes;
}

}  // namespace ravenstore::interceptor

namespace interceptor = ravenstore::interceptor;
using interceptor::LegacyKind;
using interceptor::Space;

RAVEN_EXPORT CUresult cuArrayCreate_v2(CUarray* array, const CUDA_ARRAY_DESCRIPTOR* descriptor) {
  RAVEN_BEGIN(cuArrayCreate_v2);
  auto call = [&] { return real(array, descriptor); };
  if (descriptor == nullptr) return call();
  const uint64_t texel = interceptor::TexelBytes(descriptor->Format, descriptor->NumChannels);
  return interceptor::Make(Space::kArray, LegacyKind::kArray,
                           interceptor::ArrayBytes(descriptor->Width, descriptor->Height, 1, texel),
                           0, array, call);
}

RAVEN_EXPORT CUresult cuArray3DCreate_v2(CUarray* array,
                                         const CUDA_ARRAY3D_DESCRIPTOR* descriptor) {
  RAVEN_BEGIN(cuArray3DCreate_v2);
  auto call = [&] { return real(array, descriptor); };
  if (descriptor == nullptr) return call();
  const uint64_t texel = interceptor::TexelBytes(descriptor->Format, descriptor->NumChannels);
  return interceptor::Make(
      Space::kArray, LegacyKind::kArray,
      interceptor::ArrayBytes(descriptor->Width, descriptor->Height, descriptor->Depth, texel),
      descriptor->Flags, array, call);
}

RAVEN_EXPORT CUresult cuArrayDestroy(CUarray array) {
  RAVEN_BEGIN(cuArrayDestroy);
  return interceptor::Destroy(Space::kArray, array, [&] { return real(array); });
}

RAVEN_EXPORT CUresult cuMipmappedArrayCreate(CUmipmappedArray* array,
                                             const CUDA_ARRAY3D_DESCRIPTOR* descriptor,
                                             unsigned int levels) {
  RAVEN_BEGIN(cuMipmappedArrayCreate);
  auto call = [&] { return real(array, descriptor, levels); };
  if (descriptor == nullptr) return call();
  const uint64_t texel = interceptor::TexelBytes(descriptor->Format, descriptor->NumChannels);
  const uint64_t bytes = interceptor::MipmapBytes(
      descriptor->Width, descriptor->Height, descriptor->Depth, texel, descriptor->Flags, levels);
  return interceptor::Make(Space::kMipmap, LegacyKind::kMipmap, bytes, descriptor->Flags, array,
                           call);
}

RAVEN_EXPORT CUresult cuMipmappedArrayDestroy(CUmipmappedArray array) {
  RAVEN_BEGIN(cuMipmappedArrayDestroy);
  return interceptor::Destroy(Space::kMipmap, array, [&] { return real(array); });
}
