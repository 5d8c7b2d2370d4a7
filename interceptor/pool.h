// The devices' default memory pools, and what they hold beyond what was asked of them.
//
// Stream-ordered memory comes from a pool of the device's, unless the program made or set another.
// The pool reserves more than it is asked for: it rounds up, and keeps what was freed. The driver
// is asked how much, and the rest is the kind `pool`. Only of the default pools: they are never
// destroyed, while a look at a pool that the program has destroyed would be the end of the program.
//
// What a pool holds outlives contexts, and a pool may be asked without one. A look costs some tens
// of nanoseconds, and is exempt from stream captures: otherwise it would break them.
//
// Threads: any.
#pragma once

#include <cstdint>

#include "interceptor/cuda_api.h"

namespace ravenstore::interceptor::pool {

// cuMemAllocAsync takes from the default pool of the row's device now.
bool IsCurrent(int row);
// The row of the device whose default pool this is; -1: it is the program's own.
int RowOf(CUmemoryPool pool);

// Takes `bytes` of the budgets for memory of the default pool: what that has left over is counted
// already, the rest is taken by `reserve`, whose false means a refusal. REQUIRES: IsCurrent(row) or
// RowOf(pool) said so. A look follows when the memory was allocated, freed or refused.
bool Reserve(int row, uint64_t bytes, bool (*reserve)(int row, uint64_t bytes));
// Brings the figure up to date; `freed` bytes that were reserved are asked for no longer.
void RefreshUsage(int row, uint64_t freed);
// The same for all pools that have something left over.
void RefreshAll();
// Lets the pool give up to `bytes` of what it has left over back to the device.
void Trim(int row, uint64_t bytes);
// `bytes` exceed a budget: false when no pool is the reason.
bool MakeRoom(int row, uint64_t bytes);

void ForgetInChild();

}  // namespace ravenstore::interceptor::pool
