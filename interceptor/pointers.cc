// Under --mode=elastic: what the job learns about an address of ours, which is the device's memory
// on the host, too; and streams that end.
#include "interceptor/elastic_backing.h"
#include "interceptor/hooks.h"
#include "interceptor/touch.h"

namespace ravenstore::interceptor {
namespace {

template <typename Value>
bool Put(void* data, Value value) {
  *static_cast<Value*>(data) = value;
  return true;
}

// False: the driver knows as well as anybody, if something is there.
bool Answer(const elastic::Allocation& at, CUpointer_attribute attribute, CUdeviceptr address,
            void* data) {
  switch (attribute) {
    case CU_POINTER_ATTRIBUTE_CONTEXT: return Put(data, at.context);
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE: return Put<unsigned int>(data, CU_MEMORYTYPE_DEVICE);
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER: return Put(data, address);
    case CU_POINTER_ATTRIBUTE_BUFFER_ID: return Put<unsigned long long>(data, at.begin);
    case CU_POINTER_ATTRIBUTE_IS_MANAGED: return Put<unsigned int>(data, 0);
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL: return Put<int>(data, at.device);
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE: return Put<unsigned int>(data, 0);
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR: return Put(data, at.begin);
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE: return Put<size_t>(data, at.bytes);
    case CU_POINTER_ATTRIBUTE_MAPPED: return Put<unsigned int>(data, 1);
    case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES: return Put<cuuint64_t>(data, 0);
    case CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE: return Put<unsigned int>(data, 0);
    case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE: return Put<CUmemoryPool>(data, nullptr);
    case CU_POINTER_ATTRIBUTE_MAPPING_SIZE: return Put<size_t>(data, at.bytes);
    case CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR: return Put(data, at.begin);
    default: return false;
  }
}

// What only the driver knows of the address is asked while that is mapped.
template <typename Call>
CUresult AskDriver(Hook hook, CUdeviceptr address, Call call) {
  return Touch(
      static_cast<uint64_t>(hook), nullptr, false,
      [address](Touched& touched) { touched.Name(address); }, call);
}

}  // namespace
}  // namespace ravenstore::interceptor

namespace interceptor = ravenstore::interceptor;
namespace elastic = interceptor::elastic;

RAVEN_EXPORT CUresult cuPointerGetAttribute(void* data, CUpointer_attribute attribute,
                                            CUdeviceptr address) {
  RAVEN_BEGIN(cuPointerGetAttribute);
  elastic::Allocation at;
  if (data == nullptr || !elastic::Find(address, &at)) return real(data, attribute, address);
  // No CPU reaches it, also where the driver would say so.
  if (attribute == CU_POINTER_ATTRIBUTE_HOST_POINTER) return CUDA_ERROR_INVALID_VALUE;
  if (interceptor::Answer(at, attribute, address, data)) return CUDA_SUCCESS;
  return interceptor::AskDriver(interceptor::Hook::k_cuPointerGetAttribute, address,
                                [&] { return real(data, attribute, address); });
}

RAVEN_EXPORT CUresult cuPointerGetAttributes(unsigned int count, CUpointer_attribute* attributes,
                                             void** data, CUdeviceptr address) {
  RAVEN_BEGIN(cuPointerGetAttributes);
  elastic::Allocation at;
  if (attributes == nullptr || data == nullptr || !elastic::Find(address, &at)) {
    return real(count, attributes, data, address);
  }
  CUresult result = CUDA_SUCCESS;
  for (unsigned int i = 0; i < count && result == CUDA_SUCCESS; ++i) {
    if (attributes[i] == CU_POINTER_ATTRIBUTE_HOST_POINTER) {
      *static_cast<void**>(data[i]) = nullptr;
    } else if (!interceptor::Answer(at, attributes[i], address, data[i])) {
      result = interceptor::AskDriver(interceptor::Hook::k_cuPointerGetAttributes, address,
                                      [&] { return real(1, &attributes[i], &data[i], address); });
    }
  }
  return result;
}

RAVEN_EXPORT CUresult cuMemGetAddressRange_v2(CUdeviceptr* begin, size_t* bytes,
                                              CUdeviceptr address) {
  RAVEN_BEGIN(cuMemGetAddressRange_v2);
  elastic::Allocation at;
  if (!elastic::Find(address, &at)) return real(begin, bytes, address);
  if (begin != nullptr) *begin = at.begin;
  if (bytes != nullptr) *bytes = at.bytes;
  return CUDA_SUCCESS;
}

RAVEN_EXPORT CUresult cuStreamDestroy(CUstream stream) {
  RAVEN_BEGIN(cuStreamDestroy);
  elastic::StreamEnds(stream);
  return real(stream);
}

RAVEN_EXPORT CUresult cuStreamDestroy_v2(CUstream stream) {
  RAVEN_BEGIN(cuStreamDestroy_v2);
  elastic::StreamEnds(stream);
  return real(stream);
}
