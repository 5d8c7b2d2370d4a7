// Under --mode=elastic: the job's own cuMemCreate gets a handle of ours, behind which the engine
// holds a segment, on the device or on the host, that moves while it is mapped.
//
// Whatever only the driver's own memory can do (a second mapping, one of a part, exports, other
// devices, arrays, multicast) turns the segment into that first: its bytes go to a handle of the
// driver's, which is mapped where it was and stays. Our handle then stands for that one.
//
// Threads: any. The program does not use a handle while another thread ends it.
#pragma once

#include "interceptor/cuda_api.h"
#include "interceptor/ledger.h"

namespace ravenstore::interceptor::segments {

// The driver's are addresses, and small numbers with a fake one.
inline constexpr uint64_t kOurs = uint64_t{1} << 62;
inline bool IsOurs(CUmemGenericAllocationHandle handle) {
  return handle >> 62 == 1;
}

// `entry` is a handle's, with all but its key filled in. False: the driver shall make it.
bool Create(Entry entry, const CUmemAllocationProp& properties, unsigned long long flags,
            CUmemGenericAllocationHandle* handle);
// The driver's handle for ours, with the segment's bytes; others are as they were.
CUresult DriverHandle(CUmemGenericAllocationHandle handle, CUmemGenericAllocationHandle* own);
// The same for what is mapped there. REQUIRES: `mapping` is in the ledger and has a backing.
CUresult TurnMapped(const Entry& mapping);
// The handle's entry is out of the ledger, and no mapping holds its memory.
void End(const Entry& entry);

// Calls `visit(entry, &result)` for each mapping that begins within, and `gap(begin, bytes)` for
// the gaps between those for which `visit` returned true. Ends with the first result that is no
// success.
template <typename Visit, typename Gap>
CUresult ForEachMapping(CUdeviceptr address, uint64_t bytes, Visit visit, Gap gap) {
  constexpr uint64_t kStep = uint64_t{2} << 20;  // no mapping is smaller
  CUdeviceptr done = address;
  CUresult result = CUDA_SUCCESS;
  for (CUdeviceptr at = address; at < address + bytes && result == CUDA_SUCCESS;) {
    Entry mapping;
    const bool known = ledger.Find(Space::kMapping, at, &mapping) && mapping.bytes > 0;
    const CUdeviceptr next = at + (known ? mapping.bytes : kStep);
    if (known && visit(mapping, &result)) {
      if (at > done && result == CUDA_SUCCESS) result = gap(done, at - done);
      done = next;
    }
    at = next;
  }
  if (result == CUDA_SUCCESS && done < address + bytes) result = gap(done, address + bytes - done);
  return result;
}

}  // namespace ravenstore::interceptor::segments
