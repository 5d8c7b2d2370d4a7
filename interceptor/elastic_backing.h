// --mode=elastic: allocations of 2 MiB and more are stored where there is room, on the device or in
// pinned memory of the host, and move while their addresses stay (elastic/elastic.h). The engine is
// libravenstore_elastic.so, a file next to this library. The first such allocation loads it
// privately. There is one engine for each device.
//
// An engine works in the context in which it was opened: what is asked for in another context of
// the same device is the driver's. When that context ends, so does the engine, with all it has
// made.
//
// What the job holds of a device is what the engine took of it; what it has allocated may be more.
//
// Threads: any.
#pragma once

#include <atomic>
#include <cstdint>

#include "elastic/elastic.h"
#include "interceptor/backing.h"

namespace ravenstore::interceptor::elastic {

extern const Backing kBacking;

// The addresses that any engine's allocations may ever have: none while there is no engine.
struct Bounds {
  std::atomic<uint64_t> begin;
  std::atomic<uint64_t> bytes;
};
extern Bounds bounds;

inline bool On() {
  return bounds.bytes.load(std::memory_order_relaxed) != 0;
}
inline bool MayBeOurs(uint64_t word) {
  return word - bounds.begin.load(std::memory_order_relaxed) <
         bounds.bytes.load(std::memory_order_relaxed);
}

// Something was pinned: from now on kernels may touch memory that they do not name, and when it is
// freed the engine has to know of them.
extern std::atomic<bool> any_pinned;

// One call that touches memory: from its begin to its end nothing that it names moves. What it
// names of other devices' than the stream's stays where it is for good.
class Use {
 public:
  // `addresses` are `use`'s; some may be taken out. A use that was not begun ends as well.
  void Begin(raven_elastic_use_t use, CUdeviceptr* addresses);
  void End(bool enqueued);

 private:
  raven_elastic_t* engine_ = nullptr;
  raven_elastic_token_t token_;
};

// The allocation at the address stays where it is for good.
void Pin(uint64_t address);
// The same; kernels read the address in a table.
void PinFollowed(uint64_t address);
// All memory can be reached from now on, also by addresses that no use names.
void ReachAll();
// What a call returned.
void NoteResult(CUresult result);
// The allocation that holds the address: false where none does.
struct Allocation {
  CUdeviceptr begin;
  uint64_t bytes;
  CUdevice device;
  CUcontext context;
};
bool Find(uint64_t address, Allocation* allocation);
// What the job has allocated of the engine on the row's device, and the most of that since the
// reset before.
struct Served {
  uint64_t live;
  uint64_t high;
};
Served ServedOf(int row);
void ResetHigh(int row);
void StreamEnds(CUstream stream);

// Segments: memory of the job's own cuMemCreate, which the engine holds under handles of ours
// until something is asked of it that only the driver's own can do (vmm.cc).
// Addresses for them, in the engine of the current context; false: the driver shall reserve.
bool ReserveAddresses(uint64_t bytes, CUdeviceptr* address);
// False: they are not ours.
bool FreeAddresses(CUdeviceptr address, uint64_t bytes, CUresult* result);
// Fills in the entry's object and context. CUDA_ERROR_NOT_SUPPORTED: the driver shall.
CUresult CreateSegment(Entry* entry);
void DestroySegment(const Entry& entry);
CUresult MapSegment(const Entry& entry, CUdeviceptr address);
CUresult UnmapSegment(const Entry& entry);
// Its bytes go to the driver's `handle`, at *address from now on; 0: mapped nowhere.
CUresult HandOver(const Entry& entry, CUmemGenericAllocationHandle handle, CUdeviceptr* address);

}  // namespace ravenstore::interceptor::elastic
