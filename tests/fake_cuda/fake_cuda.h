// libfakecuda.so: the part of the CUDA driver API that Ravenstore uses, done by the CPU.
//
// Load it instead of libcuda.so.1 ($RAVENSTORE_LIBCUDA). It is strict where a GPU is: device memory
// is inaccessible to the CPU at its address, calls need a current context, words must be
// registered, and unregistering waits for streams that are held in a wait-value. Memory is memfds,
// so that descriptors pass between processes as the real ones do. It has no ordering between the
// legacy default stream and others, but that copies and sets without a stream wait for streams that
// were created without CU_STREAM_NON_BLOCKING.
//
// Kernels, copies and sets find out what is mapped at their addresses when they run, not when they
// are enqueued; where nothing is, the context fails with CUDA_ERROR_ILLEGAL_ADDRESS. A graph is
// what a stream capture recorded on one stream, done in that order.
//
// A module's image is a text: the names of the fake's own kernels, with spaces between them. All
// work on 64-bit words at addresses that are multiples of 8; mix is FakeCudaMix.
//   empty()
//   fill(to, count, seed)                  to[i] = mix(seed, i)
//   opaque(to, count, seed)                the same, without information about its parameters
//   add(to, from, count)                   to[i] += from[i]
//   combine(to, a, b, count)               to[i] = mix(a[i], 0) + b[i]
//   combine_packed({to, {a, b}, count})    the same, in one struct by value
//   combine_table(table, count)            the same, table[0..2] in device memory are to, a, b
//   make_table(table, to, a, b)            writes table[0..2]
//   FAKE_CUDA_NCCL_KERNEL(table, count)    the same, under a name as NCCL's kernels have it
//   check(from, count, seed, wrong)        from[i] != mix(seed, i) is a wrong word
//   check_sum(from, count, seed, step, times, wrong)
//                                          the same for mix(seed, i) + times * mix(step, i)
//   check_combined(from, a, b, count, wrong)
//                                          the same for mix(a[i], 0) + b[i]
// Wrong words are counted in FakeCudaWrongWords and, unless `wrong` is null, added to the 32-bit
// word there.
//
// Environment, read by cuInit:
//   RAVENSTORE_FAKE_CUDA_DEVICES    how many GPUs (2)
//   RAVENSTORE_FAKE_CUDA_MEMORY     bytes of each (1 GiB); charged to the process that creates
//   RAVENSTORE_FAKE_CUDA_HOST_NUMA  0: no host memory through cuMemCreate
//   RAVENSTORE_FAKE_CUDA_SHARED     a file by which processes share the devices' memory
//   RAVENSTORE_FAKE_CUDA_CONTEXT    bytes that a device's primary context takes (0)
//   RAVENSTORE_FAKE_CUDA_MIG        1: the devices are MIG instances
//   RAVENSTORE_FAKE_CUDA_LINK       bytes per second of a copy between host and device (no limit)
//   RAVENSTORE_FAKE_CUDA_KERNEL_NS  what each kernel takes at least, in nanoseconds (0)
//   RAVENSTORE_FAKE_CUDA_ASKED      a file for what cuGetProcAddress is asked: NAME VERSION FLAGS
//   RAVENSTORE_FAKE_CUDA_FAIL       "cuMemCreate:3:2": its third call returns CUresult 2
//   RAVENSTORE_FAKE_CUDA_SIGNAL     "cuMemCreate:3:9": at its third call the process gets signal 9
#pragma once

#include <cuda.h>
#include <stdint.h>

// As libnccl.so.2 names it, and as the driver reports it.
#define FAKE_CUDA_NCCL_KERNEL \
  "_Z40ncclDevKernel_AllReduce_Sum_bf16_RING_LL24ncclDevKernelArgsStorageILm4096EE"

// Controls for tests, found with dlsym.
extern "C" {
// The `nth` call of `call` from now on (1: the next) returns `result` and does nothing.
void FakeCudaFail(const char* call, int nth, CUresult result);
// At the `nth` call of `call` from now on the process gets the signal `number`.
void FakeCudaSignal(const char* call, int nth, int number);
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
// As cuDeviceTotalMem, by a name that has no hook.
CUresult FakeCudaTotal(size_t* bytes, CUdevice device);
// `call` runs at the end of the next cuMemUnmap that succeeds: the addresses are free, and the
// caller does not know yet.
void FakeCudaAfterUnmap(void (*call)());
// The pseudo-random word of `seed` at `index`.
static inline uint64_t FakeCudaMix(uint64_t seed, uint64_t index) {
  uint64_t word = seed + (index + 1) * 0x9e3779b97f4a7c15u;
  word = (word ^ (word >> 30)) * 0xbf58476d1ce4e5b9u;
  word = (word ^ (word >> 27)) * 0x94d049bb133111ebu;
  return word ^ (word >> 31);
}
// Each kernel takes at least so long, with its addresses resolved.
void FakeCudaKernelNanoseconds(uint64_t nanoseconds);
// While `hold` is not zero no kernel ends: those that begin resolve their addresses and stay.
void FakeCudaHoldKernels(int hold);
// How many kernels have resolved their addresses and have not ended.
int FakeCudaRunningKernels();
// How many kernels have run to their ends.
uint64_t FakeCudaKernelsDone();
// Words that were not what the check kernels want, in all.
uint64_t FakeCudaWrongWords();
// How many mappings were unmapped while a kernel, copy or set that had resolved them ran.
int FakeCudaTornKernels();
// Memory pools release all that they hold unused, without any call that a hook could have seen.
void FakeCudaShrinkPools();
}
