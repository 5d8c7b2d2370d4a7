// What this process holds as a part of what its user's processes hold together, on the page that
// the daemon gives them all (proto::TenantPage).
//
// Without such a page the sums are kept for this process alone, and move to the page that comes:
// of the first daemon, or of the next one. A page that was left stays mapped, because a thread may
// be about to add to it; it costs addresses, and memory for one page per device.
//
// Threads: any may call Hold and TotalOf; Join and Commit are the link's. Nothing here locks or
// waits.
#pragma once

#include <cstdint>

#include "proto/ledger_page.h"

namespace ravenstore::interceptor::tenant {

// The row of the device on the page, claimed if it was free; null: the page has no more.
proto::TenantRow* ReserveRow(proto::TenantPage* page, const char* uuid);
// The sum of the row's first `slots`. A slot that is being moved may be below zero for an instant.
uint64_t Sum(const proto::TenantRow& row, uint64_t slots);

// From now on this process counts at `slot` of the page behind `descriptor`, which stays the
// caller's. -1: at none. `ledger` has the devices' UUIDs.
void Join(int descriptor, uint32_t slot, const proto::LedgerPage& ledger);
// Moves what threads added to the last page while it was left.
void Commit();

// Adds to what this process holds of the device; bytes may be negative.
void Hold(int row, uint64_t bytes);
// The sum that the user's processes hold of the device, of those that this one knows.
uint64_t TotalOf(int row);

// What an elastic engine wants of a device, in bytes; as proto::TenantDemand.
struct Demand {
  uint64_t in_use;
  uint64_t waits_for;
  uint64_t expected;
  uint64_t alive;
  uint64_t held;
};
// This process's engine wants that; the zeros of an engine that has ended.
void PublishDemand(int row, const Demand& demand);
// What the engines want, at most `most` of them, in the order of their slots.
struct Demands {
  uint32_t count = 0;
  uint32_t own = 0;     // the number of this process's
  uint64_t others = 0;  // bytes of the device that the processes hold outside of engines
};
// `own` is `count` where this process has none.
Demands DemandsOf(int row, Demand* all, uint32_t most);

void ForgetInChild();

}  // namespace ravenstore::interceptor::tenant
