// The steps by which every allocation counts: it is taken of the budgets (budgets.h), for which a
// default pool may give up what it has left over (pool.h), and stands in the ledger (ledger.h).
//
// Threads: any. Costs what budgets.h says, and an atomic addition for the figure of its kind.
#pragma once

#include <cstdint>

#include "interceptor/ledger.h"

namespace ravenstore::interceptor {

// Takes `bytes` of the budgets, the job's and its tenant's, for an allocation that is about to be
// made; false: over one of them.
bool Reserve(int row, uint64_t bytes);
void Unreserve(int row, uint64_t bytes);
// The allocation was made and its bytes reserved: it is counted. `true` when the ledger took it;
// else its bytes are no longer reserved.
bool Commit(const Entry& entry);
// The entry, taken out of the ledger, no longer counts / counts again.
void Uncharge(const Entry& entry);
void ChargeAgain(const Entry& entry);

}  // namespace ravenstore::interceptor
