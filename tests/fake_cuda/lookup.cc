// The look-up by which runtimes find the driver's functions.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/fake_cuda/fake_cuda.h"
#include "tests/fake_cuda/state.h"

#undef cuGetProcAddress

extern "C" {
CUresult cuGetProcAddress(const char* symbol, void** function, int version, cuuint64_t flags);

// The variants for per-thread default streams, which <cuda.h> declares for programs that ask for
// them.
decltype(cuMemAllocAsync) cuMemAllocAsync_ptsz;
decltype(cuMemAllocFromPoolAsync) cuMemAllocFromPoolAsync_ptsz;
decltype(cuMemFreeAsync) cuMemFreeAsync_ptsz;
decltype(cuStreamSynchronize) cuStreamSynchronize_ptsz;
decltype(cuStreamQuery) cuStreamQuery_ptsz;
decltype(cuStreamWaitEvent) cuStreamWaitEvent_ptsz;
decltype(cuStreamIsCapturing) cuStreamIsCapturing_ptsz;
decltype(cuEventRecord) cuEventRecord_ptsz;
decltype(cuLaunchKernel) cuLaunchKernel_ptsz;
decltype(cuLaunchKernelEx) cuLaunchKernelEx_ptsz;
decltype(cuLaunchCooperativeKernel) cuLaunchCooperativeKernel_ptsz;
decltype(cuLaunchHostFunc) cuLaunchHostFunc_ptsz;
decltype(cuMemcpyAsync) cuMemcpyAsync_ptsz;
decltype(cuMemcpyHtoDAsync_v2) cuMemcpyHtoDAsync_v2_ptsz;
decltype(cuMemcpyDtoHAsync_v2) cuMemcpyDtoHAsync_v2_ptsz;
decltype(cuMemcpyDtoDAsync_v2) cuMemcpyDtoDAsync_v2_ptsz;
decltype(cuMemcpy2DAsync_v2) cuMemcpy2DAsync_v2_ptsz;
decltype(cuMemsetD8Async) cuMemsetD8Async_ptsz;
decltype(cuMemsetD16Async) cuMemsetD16Async_ptsz;
decltype(cuMemsetD32Async) cuMemsetD32Async_ptsz;
decltype(cuGraphLaunch) cuGraphLaunch_ptsz;
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
// With its variant for per-thread default streams.
#define EXPORT_BOTH(base, since, function)                          \
  {#base, since, false, reinterpret_cast<void*>(&function)}, {      \
#base, since, true, reinterpret_cast < void*>(&function##_ptsz) \
  }
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
    EXPORT(cuStreamCreate),
    EXPORT(cuStreamCreateWithPriority),
    EXPORT_AS("cuStreamDestroy", 4000, cuStreamDestroy_v2),
    EXPORT_BOTH(cuStreamSynchronize, 7000, cuStreamSynchronize),
    EXPORT_BOTH(cuStreamQuery, 7000, cuStreamQuery),
    EXPORT_BOTH(cuStreamWaitEvent, 7000, cuStreamWaitEvent),
    EXPORT_BOTH(cuStreamIsCapturing, 10000, cuStreamIsCapturing),
    EXPORT_AS("cuStreamBeginCapture", 10010, cuStreamBeginCapture_v2),
    EXPORT(cuStreamEndCapture),
    EXPORT(cuThreadExchangeStreamCaptureMode),
    EXPORT(cuEventCreate),
    EXPORT_AS("cuEventDestroy", 4000, cuEventDestroy_v2),
    EXPORT_BOTH(cuEventRecord, 7000, cuEventRecord),
    EXPORT(cuEventQuery),
    EXPORT(cuEventSynchronize),
    EXPORT_AS("cuEventElapsedTime", 12080, cuEventElapsedTime_v2),
    EXPORT(cuModuleLoadData),
    EXPORT(cuModuleLoadDataEx),
    EXPORT(cuModuleUnload),
    EXPORT(cuModuleGetFunction),
    EXPORT(cuLibraryLoadData),
    EXPORT(cuLibraryUnload),
    EXPORT(cuLibraryGetKernel),
    EXPORT(cuKernelGetFunction),
    EXPORT(cuKernelGetParamInfo),
    EXPORT(cuFuncGetParamInfo),
    EXPORT(cuFuncGetName),
    EXPORT_BOTH(cuLaunchKernel, 7000, cuLaunchKernel),
    EXPORT_BOTH(cuLaunchKernelEx, 11060, cuLaunchKernelEx),
    EXPORT_BOTH(cuLaunchCooperativeKernel, 9000, cuLaunchCooperativeKernel),
    EXPORT_BOTH(cuLaunchHostFunc, 10000, cuLaunchHostFunc),
    EXPORT(cuMemcpy),
    EXPORT_AS("cuMemcpyHtoD", 3020, cuMemcpyHtoD_v2),
    EXPORT_AS("cuMemcpyDtoH", 3020, cuMemcpyDtoH_v2),
    EXPORT_AS("cuMemcpyDtoD", 3020, cuMemcpyDtoD_v2),
    EXPORT_BOTH(cuMemcpyAsync, 4000, cuMemcpyAsync),
    EXPORT_BOTH(cuMemcpyHtoDAsync, 3020, cuMemcpyHtoDAsync_v2),
    EXPORT_BOTH(cuMemcpyDtoHAsync, 3020, cuMemcpyDtoHAsync_v2),
    EXPORT_BOTH(cuMemcpyDtoDAsync, 3020, cuMemcpyDtoDAsync_v2),
    EXPORT_BOTH(cuMemcpy2DAsync, 3020, cuMemcpy2DAsync_v2),
    EXPORT_AS("cuMemcpyBatchAsync", 13000, cuMemcpyBatchAsync_v2),
    EXPORT_AS("cuMemsetD8", 3020, cuMemsetD8_v2),
    EXPORT_AS("cuMemsetD32", 3020, cuMemsetD32_v2),
    EXPORT_BOTH(cuMemsetD8Async, 3020, cuMemsetD8Async),
    EXPORT_BOTH(cuMemsetD16Async, 3020, cuMemsetD16Async),
    EXPORT_BOTH(cuMemsetD32Async, 3020, cuMemsetD32Async),
    EXPORT(cuPointerGetAttribute),
    EXPORT(cuPointerGetAttributes),
    EXPORT_AS("cuMemGetAddressRange", 3020, cuMemGetAddressRange_v2),
    EXPORT(cuDriverGetVersion),
    EXPORT_AS("cuDeviceTotalMem", 3020, cuDeviceTotalMem_v2),
    EXPORT_AS("cuMemGetInfo", 3020, cuMemGetInfo_v2),
    EXPORT_AS("cuMemAlloc", 3020, cuMemAlloc_v2),
    EXPORT_AS("cuMemFree", 3020, cuMemFree_v2),
    EXPORT_AS("cuMemAllocPitch", 3020, cuMemAllocPitch_v2),
    EXPORT(cuMemAllocManaged),
    EXPORT_BOTH(cuMemAllocAsync, 0, cuMemAllocAsync),
    EXPORT_BOTH(cuMemAllocFromPoolAsync, 0, cuMemAllocFromPoolAsync),
    EXPORT_BOTH(cuMemFreeAsync, 0, cuMemFreeAsync),
    EXPORT(cuDeviceGetDefaultMemPool),
    EXPORT(cuMemPoolGetAttribute),
    EXPORT(cuMemPoolSetAttribute),
    EXPORT(cuMemPoolTrimTo),
    EXPORT(cuMemCreate),
    EXPORT(cuMemRelease),
    EXPORT(cuMemMap),
    EXPORT(cuMemUnmap),
    EXPORT(cuMemSetAccess),
    EXPORT(cuMemAddressReserve),
    EXPORT(cuMemAddressFree),
    EXPORT(cuMemGetAllocationGranularity),
    EXPORT(cuMemHostRegister),
    EXPORT(cuMemHostUnregister),
    EXPORT_AS("cuMemHostGetDevicePointer", 3020, cuMemHostGetDevicePointer_v2),
    EXPORT_AS("cuArrayCreate", 3020, cuArrayCreate_v2),
    EXPORT_AS("cuArray3DCreate", 3020, cuArray3DCreate_v2),
    EXPORT(cuArrayDestroy),
    EXPORT(cuMipmappedArrayCreate),
    EXPORT(cuMipmappedArrayDestroy),
    EXPORT(cuGraphCreate),
    EXPORT(cuGraphDestroy),
    EXPORT(cuGraphGetNodes),
    EXPORT(cuGraphNodeGetType),
    EXPORT_AS("cuGraphKernelNodeGetParams", 12000, cuGraphKernelNodeGetParams_v2),
    EXPORT_AS("cuGraphInstantiate", 12000, cuGraphInstantiateWithFlags),
    EXPORT(cuGraphInstantiateWithFlags),
    EXPORT(cuGraphInstantiateWithParams),
    EXPORT(cuGraphExecDestroy),
    EXPORT_BOTH(cuGraphLaunch, 10000, cuGraphLaunch),
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
