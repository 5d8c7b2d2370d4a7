// How much of each device this job holds, and how much it may: its own budget, and its tenant's for
// all processes of the user together (tenant.h).
//
// Threads: any. What is held costs two atomic additions and no system call; a budget costs reading
// a word for each of the tenant's processes.
#pragma once

#include <cstdint>

#include "proto/ledger_page.h"

namespace ravenstore::interceptor {

using proto::LegacyKind;

// The size of the device that the job is shown; 0: its own.
uint64_t VisibleOf(int row);
// What the tenant's jobs may hold together; 0: there is no limit.
uint64_t TogetherLimit(int row);
// What this job may still allocate.
uint64_t Room(int row);
// By how much what is held and `bytes` more exceed the budgets.
uint64_t Excess(int row, uint64_t bytes);
// False: `bytes` are over a budget though nothing else were held.
bool CanEverFit(int row, uint64_t bytes);

// Adds to what the process holds; bytes may be negative. The sum before.
uint64_t Hold(int row, uint64_t bytes);
// Holds `bytes` more if they fit.
bool HoldIfRoom(int row, uint64_t bytes);
// The kinds' sum has grown: it may be the largest so far. So may `would_have` be: what an elastic
// job would have held of a larger device.
void NotePeak(int row, uint64_t would_have = 0);
// Sets the absolute figure of a kind, and in the same step holds `freed` bytes less. Nothing for
// row -1.
void Gauge(int row, LegacyKind kind, uint64_t bytes, uint64_t freed = 0);

}  // namespace ravenstore::interceptor
