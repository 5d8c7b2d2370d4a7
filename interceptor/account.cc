#include "interceptor/account.h"

#include "interceptor/backing.h"
#include "interceptor/budgets.h"
#include "interceptor/devices.h"
#include "interceptor/pool.h"

namespace ravenstore::interceptor {
namespace {

// What a backing made that accounts for itself.
bool IsUncounted(const Entry& entry) {
  return entry.backing != nullptr && !entry.backing->counted;
}

// Of what is in the ledger, a mapping and a handle's second name hold nothing.
void AddToKind(const Entry& entry, uint64_t bytes) {
  if (entry.row < 0 || IsUncounted(entry)) return;
  proto::LedgerRow& row = Page()->row[entry.row];
  row.kinds[static_cast<int>(entry.kind)].fetch_add(bytes, std::memory_order_relaxed);
  if (entry.backing != nullptr) row.served.fetch_add(bytes, std::memory_order_relaxed);
}

}  // namespace

bool Reserve(int row, uint64_t bytes) {
  if (row < 0) return true;
  // What can never fit shall not stand in others' sums, not even for an instant.
  if (!CanEverFit(row, bytes)) return false;
  return HoldIfRoom(row, bytes) || (pool::MakeRoom(row, bytes) && HoldIfRoom(row, bytes));
}

void Unreserve(int row, uint64_t bytes) {
  if (row >= 0) Hold(row, 0 - bytes);
}

bool Commit(const Entry& entry) {
  // First the sums: once it is in the ledger another thread may free it.
  AddToKind(entry, entry.bytes);
  if (entry.row >= 0 && !IsUncounted(entry)) NotePeak(entry.row);
  if (ledger.Add(entry)) return true;
  Uncharge(entry);
  return false;
}

void Uncharge(const Entry& entry) {
  if (IsUncounted(entry)) return;
  AddToKind(entry, 0 - entry.bytes);
  if (entry.pooled) {
    pool::RefreshUsage(entry.row, entry.bytes);
  } else {
    Unreserve(entry.row, entry.bytes);
  }
}

void Recharge(const Entry& entry) {
  if (entry.row >= 0) Hold(entry.row, entry.bytes);
  Commit(entry);
}

}  // namespace ravenstore::interceptor
