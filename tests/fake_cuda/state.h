// What the files of libfakecuda.so share.
#pragma once

#include <cuda.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

struct CUctx_st {
  int device = 0;
  int retained = 0;                           // guarded by the driver's mutex
  std::atomic<CUresult> error{CUDA_SUCCESS};  // sticky, as a GPU's
};

namespace fake_cuda {

// --- driver.cc

// The injected result of this call, or success. Every entry point begins with it.
CUresult Injected(const char* call);
// The calling thread's context, or the reason why there is none.
CUresult CurrentContext(CUcontext* context);
int DeviceCount();
uint64_t DeviceBytes();
uint64_t ContextBytes();
bool HasHostNuma();
// True for the copy that FakeCudaFailCopy named.
bool NextCopyFails();
bool CopiesHeld();

// --- allocate.cc

// Bytes that are alive on the device: of this process, or, with RAVENSTORE_FAKE_CUDA_SHARED, of all
// processes that name the same file.
std::atomic<uint64_t>& Charged(int device);
// False when the device has no such room.
bool Charge(int device, uint64_t bytes);

// --- pool.cc

CUmemoryPool CurrentPool(int device);
int DeviceOfPool(CUmemoryPool pool);
// False when the device has no room for what the pool has to reserve.
bool TakeFromPool(CUmemoryPool pool, uint64_t bytes);
void GiveToPool(CUmemoryPool pool, uint64_t bytes);
// Pools give back what they hold unused beyond their thresholds, or all of it; false: there was
// nothing.
bool ShrinkPools(bool to_nothing);

// --- memory.cc

// A run of bytes that the CPU can touch.
struct Span {
  char* begin;
  size_t bytes;
};
// Where the bytes at a device or host address are; false when nothing (or nothing accessible) is
// mapped there.
bool Resolve(CUdeviceptr address, size_t bytes, std::vector<Span>* spans);
// The registered word at a device address, or null.
std::atomic<uint64_t>* ResolveWord(CUdeviceptr address);

// --- stream.cc

// A call that a stream capture forbids, by a thread that is not exempt: it breaks the captures.
bool OffendsCapture();
// Waits until no stream of the process is held in a wait-value.
void AwaitNoHeldStream();

}  // namespace fake_cuda

#define FAKE_CUDA_ENTER(name) \
  if (CUresult injected = fake_cuda::Injected(name); injected != CUDA_SUCCESS) return injected

// For calls that need a context: declares `context`.
#define FAKE_CUDA_CONTEXT(name)                                                        \
  FAKE_CUDA_ENTER(name);                                                               \
  CUcontext context = nullptr;                                                         \
  if (CUresult missing = fake_cuda::CurrentContext(&context); missing != CUDA_SUCCESS) \
  return missing

// The same for calls that give something back: they work in a context that failed, too.
#define FAKE_CUDA_CLEAN_UP(name)       \
  FAKE_CUDA_ENTER(name);               \
  CUcontext context = nullptr;         \
  fake_cuda::CurrentContext(&context); \
  if (context == nullptr) return CUDA_ERROR_INVALID_CONTEXT
