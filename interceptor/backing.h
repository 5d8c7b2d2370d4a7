// Who serves an allocation: the driver, unless the job's mode names another ($RAVENSTORE_MODE).
//
// A backing is asked where the driver alone would have been: for an allocation and its free, when a
// context ends, when the driver has no room, and for the free memory that the job is shown. All
// other code finds the backing that made an entry in the ledger.
//
// Threads: any.
#pragma once

#include <time.h>

#include <cstdint>

#include "interceptor/cuda_api.h"
#include "interceptor/ledger.h"

namespace ravenstore::interceptor {

// Where a call stands among others: in the order of `stream`, or, without one, after all before it.
struct Order {
  bool ordered = false;
  CUstream stream = nullptr;
};
// `per_thread`: the call means the thread's own stream by none.
inline Order InOrderOf(CUstream stream, bool per_thread) {
  return {true, stream == nullptr && per_thread ? CU_STREAM_PER_THREAD : stream};
}

struct Backing {
  // What it makes is taken of the budgets byte for byte, and shown as served. Else it accounts for
  // what it holds by itself.
  bool counted;
  // It would serve this entry, of which all but the key is filled in.
  bool (*wants)(const Entry& entry);
  // Makes the entry's memory: fills in key and object. False: the driver shall.
  bool (*create)(Entry* entry, const Order& order);
  // The entry is out of the ledger.
  void (*free)(const Entry& entry, const Order& order);
  // The context is about to be destroyed, or emptied by a reset.
  void (*context_ends)(CUcontext context);
  // The driver lacks `bytes` on the row's device: true when it may soon have them from this
  // backing.
  bool (*make_room)(int row, uint64_t bytes);
  // The driver has them now, or does without, after so long.
  void (*room_made)(int row, uint64_t bytes, uint64_t waited_ns);
  // Corrects the free memory of a device that the job is shown.
  uint64_t (*free_to_job)(int row, uint64_t free);
  void (*forget_in_child)();
};

// The one of the job's mode.
const Backing& Serving();

inline uint64_t MonotonicNs() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(now.tv_nsec);
}

// Memory of the mode's backing; false: the driver shall serve, and `result` stands as it was.
bool AllocateBacked(Entry entry, const Order& order, CUdeviceptr* address, CUresult* result);
// Frees what a backing has made at the address; false: none has.
bool FreeBacked(CUdeviceptr address, const Order& order);

}  // namespace ravenstore::interceptor
