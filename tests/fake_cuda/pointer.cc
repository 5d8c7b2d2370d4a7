// The attributes of an address, as the driver returns them.
#include <string.h>

#include "tests/fake_cuda/fake_cuda.h"
#include "tests/fake_cuda/state.h"

namespace fake_cuda {
namespace {

template <typename Value>
CUresult Give(void* data, Value value) {
  memcpy(data, &value, sizeof(value));
  return CUDA_SUCCESS;
}

CUresult GetAttribute(const Place& place, CUpointer_attribute attribute, CUdeviceptr address,
                      void* data) {
  switch (attribute) {
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
      return Give<unsigned int>(data, place.on_host ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE);
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER: return Give(data, address);
    case CU_POINTER_ATTRIBUTE_IS_MANAGED: return Give<unsigned int>(data, place.managed ? 1 : 0);
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL: return Give(data, place.device);
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR: return Give(data, place.begin);
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE: return Give(data, place.bytes);
    default: return CUDA_ERROR_NOT_SUPPORTED;
  }
}

}  // namespace
}  // namespace fake_cuda

CUresult cuPointerGetAttribute(void* data, CUpointer_attribute attribute, CUdeviceptr address) {
  FAKE_CUDA_CONTEXT("cuPointerGetAttribute");
  fake_cuda::Place place;
  if (!fake_cuda::Locate(address, &place)) return CUDA_ERROR_INVALID_VALUE;
  return fake_cuda::GetAttribute(place, attribute, address, data);
}

// An address that the driver does not know has attributes of value 0.
CUresult cuPointerGetAttributes(unsigned int count, CUpointer_attribute* attributes, void** data,
                                CUdeviceptr address) {
  FAKE_CUDA_CONTEXT("cuPointerGetAttributes");
  fake_cuda::Place place;
  const bool known = fake_cuda::Locate(address, &place);
  for (unsigned int i = 0; i < count; ++i) {
    const CUresult result =
        fake_cuda::GetAttribute(place, attributes[i], known ? address : CUdeviceptr{0}, data[i]);
    if (result != CUDA_SUCCESS) return result;
    if (!known && attributes[i] == CU_POINTER_ATTRIBUTE_MEMORY_TYPE) memset(data[i], 0, 4);
  }
  return CUDA_SUCCESS;
}

CUresult cuMemGetAddressRange_v2(CUdeviceptr* base, size_t* bytes, CUdeviceptr address) {
  FAKE_CUDA_CONTEXT("cuMemGetAddressRange");
  fake_cuda::Place place;
  if (!fake_cuda::Locate(address, &place)) return CUDA_ERROR_NOT_FOUND;
  if (base != nullptr) *base = place.begin;
  if (bytes != nullptr) *bytes = place.bytes;
  return CUDA_SUCCESS;
}
