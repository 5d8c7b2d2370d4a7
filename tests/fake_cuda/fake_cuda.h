// libfakecuda.so: the part of the CUDA driver API that Ravenstore uses, done by the CPU.
//
// Load it instead of libcuda.so.1 ($RAVENSTORE_LIBCUDA). It is strict where a GPU is: device memory
// is inaccessible to the CPU at its address, calls need a current context, words must be
// registered, and unregistering waits for streams that are held in a wait-value. Memory is memfds,
// so that descriptors pass between processes as the real ones do. It has no kernels, no graphs, and
// no ordering between the legacy default stream and others.
//
// Environment, read by cuInit:
//   RAVENSTORE_FAKE_CUDA_DEVICES    how many GPUs (2)
//   RAVENSTORE_FAKE_CUDA_MEMORY     bytes of each (1 GiB); charged to the process that creates
//   RAVENSTORE_FAKE_CUDA_HOST_NUMA  0: no host memory through cuMemCreate
//   RAVENSTORE_FAKE_CUDA_SHARED     a file by which processes share the devices' memory
//   RAVENSTORE_FAKE_CUDA_CONTEXT    bytes that a device's primary context takes (0)
//   RAVENSTORE_FAKE_CUDA_MIG        1: the devices are MIG instances
//   RAVENSTORE_FAKE_CUDA_ASKED      a file for all that cuGetProcAddress is asked: "NAME VERSION
//   FLAGS" RAVENSTORE_FAKE_CUDA_FAIL       "cuMemCreate:3:2": the third call of it returns CUresult
//   2
#pragma once

#include <cuda.h>
#include <stdint.h>

// Controls for tests, found with dlsym.
extern "C" {
// The `nth` call of `call` from now on (1: the next) returns `result` and does nothing.
void FakeCudaFail(const char* call, int nth, CUresult result);
// The `nth` copy from now on fails when it is executed, and with it its whole context.
void FakeCudaFailCopy(int nth);
// While `hold` is not zero no copy is executed.
void FakeCudaHoldCopies(int hold);
// How many primary contexts are retained.
int FakeCudaContexts();
// How many calls failed because no context was current; a caller of ours never makes one.
int FakeCudaContextErrors();
// Bytes that are alive on the device.
uint64_t FakeCudaUsed(int device);
// As cuDeviceTotalMem, by a name that nobody hooks.
CUresult FakeCudaTotal(size_t* bytes, CUdevice device);
// `call` runs at the end of the next cuMemUnmap that succeeds: the addresses are free, and the
// caller does not know yet.
void FakeCudaAfterUnmap(void (*call)());
// Memory pools give back all that they hold unused, by no call that anybody could have seen.
void FakeCudaShrinkPools();
}
