// --mode=store: larger allocations come from the daemon's slabs, through libravenstore.so, which
// lies beside this library and is loaded privately, on the first such allocation.
//
// A tensor made here stays in use as long as the job holds it: the store never moves it.
//
// Threads: any.
#pragma once

#include <cstdint>

#include "interceptor/cuda_api.h"
#include "interceptor/ledger.h"

namespace ravenstore::interceptor::served {

inline constexpr uint64_t kLeastBytes = uint64_t{2} << 20;

// The job runs with --mode=store and allocations of this size are the store's.
bool Wants(uint64_t bytes);
// The tensor and its address, or null: the driver shall serve it.
void* Create(int row, uint64_t bytes, CUdeviceptr* address);
// Waits for the context's work, as the driver's own free does, and frees the tensor.
void Free(void* tensor);
void ForgetInChild();

}  // namespace ravenstore::interceptor::served
