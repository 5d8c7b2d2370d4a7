// A fake CUDA runtime, static and shared: it finds the driver as the real one does, by dlopen,
// dlsym for cuGetProcAddress, and that for everything else.
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

#undef cudaGetDriverEntryPoint
#undef cudaGetDriverEntryPointByVersion

namespace {

struct Driver {
  void* library = nullptr;
  decltype(&cuGetProcAddress_v2) find = nullptr;
  CUresult (*init)(unsigned int) = nullptr;
  CUresult (*retain)(CUcontext*, CUdevice) = nullptr;
  CUresult (*set_current)(CUcontext) = nullptr;
  CUresult (*get_current)(CUcontext*) = nullptr;
  CUresult (*total)(size_t*, CUdevice) = nullptr;
  CUresult (*info)(size_t*, size_t*) = nullptr;
  CUresult (*alloc)(CUdeviceptr*, size_t) = nullptr;
  CUresult (*free)(CUdeviceptr) = nullptr;
  CUresult (*pitch)(CUdeviceptr*, size_t*, size_t, size_t, unsigned int) = nullptr;
  CUresult (*managed)(CUdeviceptr*, size_t, unsigned int) = nullptr;
  CUresult (*async)(CUdeviceptr*, size_t, CUstream) = nullptr;
  CUresult (*free_async)(CUdeviceptr, CUstream) = nullptr;
  CUresult (*default_pool)(CUmemoryPool*, CUdevice) = nullptr;
  CUresult (*pool_attribute)(CUmemoryPool, CUmemPool_attribute, void*) = nullptr;
  CUresult (*synchronize)() = nullptr;
  CUresult (*array)(CUarray*, const CUDA_ARRAY3D_DESCRIPTOR*) = nullptr;
  CUresult (*array_destroy)(CUarray) = nullptr;
  CUresult (*mipmap)(CUmipmappedArray*, const CUDA_ARRAY3D_DESCRIPTOR*, unsigned int) = nullptr;
  CUresult (*mipmap_destroy)(CUmipmappedArray) = nullptr;
};

template <typename Function>
void Find(const Driver& driver, const char* name, Function* function) {
  void* found = nullptr;
  CUdriverProcAddressQueryResult status{};
  driver.find(name, &found, CUDA_VERSION, 0, &status);
  *function = reinterpret_cast<Function>(found);
}

Driver Load() {
  Driver driver;
  driver.library = dlopen("libcuda.so.1", RTLD_NOW);
  if (driver.library == nullptr) return driver;
  driver.find =
      reinterpret_cast<decltype(driver.find)>(dlsym(driver.library, "cuGetProcAddress_v2"));
  Find(driver, "cuInit", &driver.init);
  Find(driver, "cuDevicePrimaryCtxRetain", &driver.retain);
  Find(driver, "cuCtxSetCurrent", &driver.set_current);
  Find(driver, "cuCtxGetCurrent", &driver.get_current);
  Find(driver, "cuDeviceTotalMem", &driver.total);
  Find(driver, "cuMemGetInfo", &driver.info);
  Find(driver, "cuMemAlloc", &driver.alloc);
  Find(driver, "cuMemFree", &driver.free);
  Find(driver, "cuMemAllocPitch", &driver.pitch);
  Find(driver, "cuMemAllocManaged", &driver.managed);
  Find(driver, "cuMemAllocAsync", &driver.async);
  Find(driver, "cuMemFreeAsync", &driver.free_async);
  Find(driver, "cuDeviceGetDefaultMemPool", &driver.default_pool);
  Find(driver, "cuMemPoolGetAttribute", &driver.pool_attribute);
  Find(driver, "cuCtxSynchronize", &driver.synchronize);
  Find(driver, "cuArray3DCreate", &driver.array);
  Find(driver, "cuArrayDestroy", &driver.array_destroy);
  Find(driver, "cuMipmappedArrayCreate", &driver.mipmap);
  Find(driver, "cuMipmappedArrayDestroy", &driver.mipmap_destroy);
  driver.init(0);
  return driver;
}

const Driver& driver() {
  static const Driver instance = Load();
  return instance;
}

// The device's primary context becomes current on first use, as with the real runtime.
const Driver& Ready() {
  static CUcontext primary = nullptr;
  static const CUresult retained = driver().retain(&primary, 0);
  CUcontext current = nullptr;
  driver().get_current(&current);
  if (current == nullptr && retained == CUDA_SUCCESS) driver().set_current(primary);
  return driver();
}

cudaError_t Translate(CUresult result) {
  switch (result) {
    case CUDA_SUCCESS: return cudaSuccess;
    case CUDA_ERROR_OUT_OF_MEMORY: return cudaErrorMemoryAllocation;
    default: return cudaErrorInvalidValue;
  }
}

CUDA_ARRAY3D_DESCRIPTOR Describe(const cudaChannelFormatDesc& format, cudaExtent extent,
                                 unsigned int flags) {
  const unsigned int channels =
      (format.x != 0) + (format.y != 0) + (format.z != 0) + (format.w != 0);
  const CUarray_format kind = format.x == 8    ? CU_AD_FORMAT_UNSIGNED_INT8
                              : format.x == 16 ? CU_AD_FORMAT_UNSIGNED_INT16
                                               : CU_AD_FORMAT_UNSIGNED_INT32;
  return {extent.width, extent.height, extent.depth, kind, channels, flags};
}

CUdeviceptr Address(void* pointer) {
  return reinterpret_cast<CUdeviceptr>(pointer);
}
CUdeviceptr* Address(void** pointer) {
  return reinterpret_cast<CUdeviceptr*>(pointer);
}

}  // namespace

extern "C" {

cudaError_t cudaMalloc(void** pointer, size_t bytes) {
  return Translate(Ready().alloc(Address(pointer), bytes));
}
cudaError_t cudaGetLastError() {
  return cudaSuccess;
}
cudaError_t cudaFree(void* pointer) {
  return Translate(Ready().free(Address(pointer)));
}
cudaError_t cudaMallocManaged(void** pointer, size_t bytes, unsigned int flags) {
  return Translate(Ready().managed(Address(pointer), bytes, flags));
}
cudaError_t cudaMallocPitch(void** pointer, size_t* pitch, size_t width, size_t height) {
  return Translate(Ready().pitch(Address(pointer), pitch, width, height, 4));
}
cudaError_t cudaMalloc3D(cudaPitchedPtr* pointer, cudaExtent extent) {
  pointer->xsize = extent.width;
  pointer->ysize = extent.height;
  return Translate(Ready().pitch(Address(&pointer->ptr), &pointer->pitch, extent.width,
                                 extent.height * extent.depth, 4));
}
cudaError_t cudaMallocAsync(void** pointer, size_t bytes, cudaStream_t stream) {
  return Translate(Ready().async(Address(pointer), bytes, stream));
}
cudaError_t cudaFreeAsync(void* pointer, cudaStream_t stream) {
  return Translate(Ready().free_async(Address(pointer), stream));
}
cudaError_t cudaMallocArray(cudaArray_t* array, const cudaChannelFormatDesc* format, size_t width,
                            size_t height, unsigned int flags) {
  const auto shape = Describe(*format, {width, height, 0}, flags);
  return Translate(Ready().array(reinterpret_cast<CUarray*>(array), &shape));
}
cudaError_t cudaMalloc3DArray(cudaArray_t* array, const cudaChannelFormatDesc* format,
                              cudaExtent extent, unsigned int flags) {
  const auto shape = Describe(*format, extent, flags);
  return Translate(Ready().array(reinterpret_cast<CUarray*>(array), &shape));
}
cudaError_t cudaFreeArray(cudaArray_t array) {
  return Translate(Ready().array_destroy(reinterpret_cast<CUarray>(array)));
}
cudaError_t cudaMallocMipmappedArray(cudaMipmappedArray_t* array,
                                     const cudaChannelFormatDesc* format, cudaExtent extent,
                                     unsigned int levels, unsigned int flags) {
  const auto shape = Describe(*format, extent, flags);
  return Translate(Ready().mipmap(reinterpret_cast<CUmipmappedArray*>(array), &shape, levels));
}
cudaError_t cudaFreeMipmappedArray(cudaMipmappedArray_t array) {
  return Translate(Ready().mipmap_destroy(reinterpret_cast<CUmipmappedArray>(array)));
}
cudaError_t cudaDeviceGetDefaultMemPool(cudaMemPool_t* pool, int device) {
  return Translate(driver().default_pool(pool, device));
}
cudaError_t cudaMemPoolGetAttribute(cudaMemPool_t pool, cudaMemPoolAttr attribute, void* value) {
  return Translate(
      driver().pool_attribute(pool, static_cast<CUmemPool_attribute>(attribute), value));
}
cudaError_t cudaDeviceSynchronize() {
  return Translate(Ready().synchronize());
}
cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
  return Translate(Ready().info(free, total));
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  memset(properties, 0, sizeof(*properties));
  return Translate(driver().total(&properties->totalGlobalMem, device));
}
cudaError_t cudaGetDriverEntryPoint(const char* symbol, void** function, unsigned long long flags,
                                    cudaDriverEntryPointQueryResult* status) {
  CUdriverProcAddressQueryResult found{};
  const CUresult result = driver().find(symbol, function, CUDA_VERSION, flags, &found);
  if (status != nullptr) *status = static_cast<cudaDriverEntryPointQueryResult>(found);
  return Translate(result);
}
cudaError_t cudaGetDriverEntryPointByVersion(const char* symbol, void** function,
                                             unsigned int version, unsigned long long flags,
                                             cudaDriverEntryPointQueryResult* status) {
  CUdriverProcAddressQueryResult found{};
  const CUresult result = driver().find(symbol, function, static_cast<int>(version), flags, &found);
  if (status != nullptr) *status = static_cast<cudaDriverEntryPointQueryResult>(found);
  return Translate(result);
}

}  // extern "C"
