// CUDA's and NVML's types for the hooks, with the macros gone that give a function's newest version
// its oldest name: here every version has its own.
#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>

#undef cuGetProcAddress
#undef cuDevicePrimaryCtxRelease
#undef cuDevicePrimaryCtxReset
#undef cuCtxCreate
#undef cuCtxDestroy
#undef cuMemGetInfo
#undef cuDeviceTotalMem
#undef cuMemAlloc
#undef cuMemFree
#undef cuMemAllocPitch
#undef cuArrayCreate
#undef cuArray3DCreate
#undef cuGraphAddNode
#undef cuCtxSynchronize
#undef cuStreamSynchronize
#undef cuStreamDestroy
#undef cuStreamBeginCapture
#undef cuGraphInstantiate
#undef cuGraphExecUpdate
#undef cuGraphExecKernelNodeSetParams
#undef cuStreamWriteValue32
#undef cuStreamWriteValue64
#undef cuStreamWaitValue32
#undef cuStreamWaitValue64
#undef cuStreamBatchMemOp
#undef cuMemcpyBatchAsync
#undef cuMemcpy3DBatchAsync
#undef cudaGetDriverEntryPoint
#undef cudaGetDriverEntryPointByVersion

// Of NVML, whose header few toolkits bring.
using nvmlReturn_t = int;
using nvmlDevice_t = struct nvmlDevice_st*;
struct nvmlMemory_t {
  unsigned long long total;
  unsigned long long free;
  unsigned long long used;
};
struct nvmlMemory_v2_t {
  unsigned int version;
  unsigned long long total;
  unsigned long long reserved;
  unsigned long long free;
  unsigned long long used;
};

#define RAVEN_EXPORT extern "C" __attribute__((visibility("default")))

// What cuda.h does not declare: older versions, and those for per-thread default streams.
RAVEN_EXPORT void* dlsym(void* handle, const char* name) noexcept;
RAVEN_EXPORT void* dlvsym(void* handle, const char* name, const char* version) noexcept;
RAVEN_EXPORT void* dlopen(const char* file, int mode) noexcept;
RAVEN_EXPORT CUresult cuGetProcAddress(const char* symbol, void** function, int version,
                                       cuuint64_t flags);
RAVEN_EXPORT CUresult cuGetProcAddress_ptsz(const char* symbol, void** function, int version,
                                            cuuint64_t flags);
RAVEN_EXPORT CUresult cuGetProcAddress_v2_ptsz(const char* symbol, void** function, int version,
                                               cuuint64_t flags,
                                               CUdriverProcAddressQueryResult* status);
RAVEN_EXPORT CUresult cuDevicePrimaryCtxRelease(CUdevice device);
RAVEN_EXPORT CUresult cuDevicePrimaryCtxReset(CUdevice device);
RAVEN_EXPORT CUresult cuCtxCreate_v2(CUcontext* context, unsigned int flags, CUdevice device);
RAVEN_EXPORT CUresult cuCtxCreate_v3(CUcontext* context, CUexecAffinityParam* affinity, int count,
                                     unsigned int flags, CUdevice device);
RAVEN_EXPORT CUresult cuCtxCreate_v4(CUcontext* context, CUctxCreateParams* parameters,
                                     unsigned int flags, CUdevice device);
RAVEN_EXPORT CUresult cuCtxDestroy(CUcontext context);
RAVEN_EXPORT CUresult cuMemGetInfo(unsigned int* free, unsigned int* total);
RAVEN_EXPORT CUresult cuDeviceTotalMem(unsigned int* bytes, CUdevice device);
RAVEN_EXPORT CUresult cuMemAlloc(unsigned int* address, unsigned int bytes);
RAVEN_EXPORT CUresult cuMemFree(unsigned int address);
RAVEN_EXPORT CUresult cuMemAllocPitch(unsigned int* address, unsigned int* pitch,
                                      unsigned int width, unsigned int height,
                                      unsigned int element);
RAVEN_EXPORT CUresult cuMemAllocAsync_ptsz(CUdeviceptr* address, size_t bytes, CUstream stream);
RAVEN_EXPORT CUresult cuMemAllocFromPoolAsync_ptsz(CUdeviceptr* address, size_t bytes,
                                                   CUmemoryPool pool, CUstream stream);
RAVEN_EXPORT CUresult cuStreamSynchronize_ptsz(CUstream stream);
RAVEN_EXPORT CUresult cuCtxSynchronize_v2(CUcontext context);
RAVEN_EXPORT CUresult cuMemFreeAsync_ptsz(CUdeviceptr address, CUstream stream);
RAVEN_EXPORT CUresult cuGraphAddNode(CUgraphNode* node, CUgraph graph,
                                     const CUgraphNode* dependencies, size_t count,
                                     CUgraphNodeParams* parameters);
RAVEN_EXPORT CUresult cuGraphAddNode_v2(CUgraphNode* node, CUgraph graph,
                                        const CUgraphNode* dependencies,
                                        const CUgraphEdgeData* edges, size_t count,
                                        CUgraphNodeParams* parameters);
RAVEN_EXPORT CUresult cuGraphLaunch_ptsz(CUgraphExec graph, CUstream stream);
RAVEN_EXPORT decltype(cuLaunchKernel) cuLaunchKernel_ptsz;
RAVEN_EXPORT decltype(cuLaunchKernelEx) cuLaunchKernelEx_ptsz;
RAVEN_EXPORT decltype(cuLaunchCooperativeKernel) cuLaunchCooperativeKernel_ptsz;
RAVEN_EXPORT CUresult cuMemMapArrayAsync_ptsz(CUarrayMapInfo* maps, unsigned int count,
                                              CUstream stream);
RAVEN_EXPORT CUresult cuStreamDestroy(CUstream stream);
RAVEN_EXPORT CUresult cuStreamBeginCapture(CUstream stream);
RAVEN_EXPORT decltype(cuStreamBeginCapture) cuStreamBeginCapture_ptsz;
RAVEN_EXPORT decltype(cuStreamBeginCapture_v2) cuStreamBeginCapture_v2_ptsz;
RAVEN_EXPORT decltype(cuStreamBeginCaptureToGraph) cuStreamBeginCaptureToGraph_ptsz;
RAVEN_EXPORT decltype(cuStreamEndCapture) cuStreamEndCapture_ptsz;
RAVEN_EXPORT CUresult cuGraphInstantiate(CUgraphExec* executable, CUgraph graph, CUgraphNode* node,
                                         char* text, size_t room);
RAVEN_EXPORT decltype(cuGraphInstantiate) cuGraphInstantiate_v2;
RAVEN_EXPORT decltype(cuGraphInstantiateWithParams) cuGraphInstantiateWithParams_ptsz;
RAVEN_EXPORT CUresult cuGraphExecUpdate(CUgraphExec executable, CUgraph graph, CUgraphNode* node,
                                        CUgraphExecUpdateResult* how);
RAVEN_EXPORT CUresult cuGraphExecKernelNodeSetParams(CUgraphExec executable, CUgraphNode node,
                                                     const CUDA_KERNEL_NODE_PARAMS_v1* kernel);
#define TOUCH(symbol, suffix, parameters, ...) \
  RAVEN_EXPORT CUresult symbol parameters;     \
  RAVEN_EXPORT CUresult symbol##_##suffix parameters;
#define TOUCH_ONE(symbol, parameters, ...) RAVEN_EXPORT CUresult symbol parameters;
#include "interceptor/touches.def"
RAVEN_EXPORT cudaError_t cudaGetDriverEntryPoint(const char* symbol, void** function,
                                                 unsigned long long flags,
                                                 cudaDriverEntryPointQueryResult* status);
RAVEN_EXPORT cudaError_t cudaGetDriverEntryPoint_ptsz(const char* symbol, void** function,
                                                      unsigned long long flags,
                                                      cudaDriverEntryPointQueryResult* status);
RAVEN_EXPORT cudaError_t cudaGetDriverEntryPointByVersion(const char* symbol, void** function,
                                                          unsigned int version,
                                                          unsigned long long flags,
                                                          cudaDriverEntryPointQueryResult* status);
RAVEN_EXPORT cudaError_t cudaGetDriverEntryPointByVersion_ptsz(
    const char* symbol, void** function, unsigned int version, unsigned long long flags,
    cudaDriverEntryPointQueryResult* status);
RAVEN_EXPORT cudaError_t cudaMallocAsync_ptsz(void** address, size_t bytes, cudaStream_t stream);
RAVEN_EXPORT cudaError_t cudaMallocFromPoolAsync_ptsz(void** address, size_t bytes,
                                                      cudaMemPool_t pool, cudaStream_t stream);
RAVEN_EXPORT cudaError_t cudaFreeAsync_ptsz(void* address, cudaStream_t stream);
RAVEN_EXPORT nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t* memory);
RAVEN_EXPORT nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t* memory);
