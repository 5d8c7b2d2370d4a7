// What the files of libfakecuda.so share.
#pragma once

#include <cuda.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
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
// Pools release what they hold unused beyond their thresholds, or all of it; false: there was
// nothing.
bool ShrinkPools(bool to_nothing);

// --- memory.cc

// Where the streams' threads reach a mapping's bytes; it goes when neither the mapping nor work
// that has resolved it is left. `users`, the work under way on it, only grows under the lock under
// which mappings go.
struct Shadow {
  ~Shadow();
  char* at = nullptr;
  size_t bytes = 0;
  std::atomic<int> users{0};
};
// Of no file; null: no room.
std::shared_ptr<Shadow> MakeShadow(size_t bytes);

// A run of bytes that the CPU can touch.
struct Span {
  char* begin;
  size_t bytes;
};

// What work that runs has found at a range of addresses: unmapping it before this is gone is a
// fault of the program, which is counted, and the bytes stay.
class Resolved {
 public:
  Resolved() = default;
  Resolved(Resolved&& other) = default;
  Resolved& operator=(Resolved&&) = delete;
  ~Resolved();
  void Add(char* begin, size_t bytes, std::shared_ptr<Shadow> shadow);
  const std::vector<Span>& spans() const { return spans_; }

 private:
  std::vector<Span> spans_;
  std::vector<std::shared_ptr<Shadow>> shadows_;
};

enum class Reach {
  kDevice,  // device memory and registered memory at its device address, as kernels reach
  kCopy,    // ordinary host memory, too
};
// Where the bytes at an address are now; false when nothing (or nothing accessible) is mapped
// there.
bool Resolve(CUdeviceptr address, size_t bytes, Reach reach, Resolved* found);
// The registered word at a device address, or null.
std::atomic<uint64_t>* ResolveWord(CUdeviceptr address);

// The allocation, mapping or registration that holds an address.
struct Place {
  CUdeviceptr begin = 0;
  size_t bytes = 0;
  int device = 0;
  bool on_host = false;
  bool managed = false;
};
bool Locate(CUdeviceptr address, Place* place);

// --- allocate.cc

// The shadow of what cuMemAlloc and its like made at an address, and where it begins. Null: none.
std::shared_ptr<Shadow> ShadowOfPiece(CUdeviceptr address, CUdeviceptr* begin);
bool LocatePiece(CUdeviceptr address, Place* place);

// --- stream.cc

// A GPU polls without a core; a thread that polls for long has to leave its core to others.
void Pause(int turn);
// Of a clock that only goes on.
uint64_t Nanoseconds();
// At most so long.
void Nap(uint64_t nanoseconds);

// What a kernel node of a graph returns: the launch, with its parameters' bytes.
struct Launch;

// Something that a stream does in its order. On a captured stream it becomes a node of the graph.
struct Work {
  CUgraphNodeType type = CU_GRAPH_NODE_TYPE_EMPTY;
  std::function<void(CUcontext)> run;
  std::shared_ptr<const Launch> launch;  // of kernels
};
CUresult Enqueue(CUstream stream, CUcontext context, Work work);
// Does it now if the stream has nothing to do, else in the stream's order, also when the context
// has failed. False: no such stream.
bool RunInOrder(CUstream stream, CUcontext context, std::function<void()> work);
// Waits for all streams of the context, or for those that the legacy default stream waits for.
void Synchronize(CUcontext context, bool non_blocking_too = true);

// A call that a stream capture forbids, by a thread that is not exempt: it breaks the captures.
bool OffendsCapture();
// Waits until no stream of the process is held in a wait-value.
void AwaitNoHeldStream();

// --- graph.cc

// Of the graph that EndCapture gives.
CUgraph NewGraph();
void AddNode(CUgraph graph, Work work);

// --- module.cc

// Of a kernel node; the pointers in it live as long as the launch.
void Describe(const Launch& launch, CUDA_KERNEL_NODE_PARAMS* parameters);

// --- kernel.cc

// A kernel that the driver itself implements.
struct Kernel {
  const char* name;
  std::vector<size_t> sizes;  // of its parameters, multiples of 8 bytes
  bool exposes_parameters;
  // False: an address with nothing there.
  bool (*run)(const char* parameters);

  size_t OffsetOf(size_t parameter) const;
  size_t ParameterBytes() const { return OffsetOf(sizes.size()); }
};
const Kernel* FindKernel(const char* name);
// On the stream's thread.
void RunKernel(const Kernel& kernel, const char* parameters, CUcontext context);

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

// The stream that the variant of a call for per-thread default streams means.
#define FAKE_CUDA_PER_THREAD(stream) ((stream) == nullptr ? CU_STREAM_PER_THREAD : (stream))
