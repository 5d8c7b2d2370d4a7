#include "interceptor/account.h"

#include <stdio.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>

#include "interceptor/backing.h"
#include "interceptor/budgets.h"
#include "interceptor/devices.h"
#include "interceptor/pool.h"
#include "interceptor/settings.h"

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

constinit std::atomic<bool> said_outgrown{false};

// The job was admitted as less than it wants: the next estimate knows, though no more than doubles
// by it, since some programs ask for whatever there may be. Elastic jobs have the rest on the host.
void NoteOutgrown(int row, uint64_t bytes) {
  const uint64_t visible = VisibleOf(row);
  if (Asked().estimate[0] == 0 || visible == 0 || Asked().mode == Mode::kElastic) return;
  const uint64_t used = Page()->row[row].used.load(std::memory_order_relaxed);
  if (bytes <= visible && used + bytes <= visible) return;  // its user's other jobs are in the way
  const uint64_t wanted = bytes > 2 * visible ? 2 * visible : std::min(used + bytes, 2 * visible);
  NotePeak(row, wanted);
  if (said_outgrown.exchange(true)) return;
  dprintf(STDERR_FILENO,
          "ravenstore[%d]: the job has outgrown the %.2f GiB that it was admitted with (%s): it "
          "wants %.2f GiB and is out of memory, unless it frees some. Run it again, which is known "
          "then; or with --admit=SIZE; or with --mode elastic, where the rest lies on the host\n",
          getpid(), static_cast<double>(visible) / (1 << 30), Asked().estimate,
          static_cast<double>(wanted) / (1 << 30));
}

}  // namespace

bool Reserve(int row, uint64_t bytes) {
  if (row < 0) return true;
  // What can never fit shall not stand in others' sums, not even for an instant.
  if (!CanEverFit(row, bytes)) {
    NoteOutgrown(row, bytes);
    return false;
  }
  if (HoldIfRoom(row, bytes) || (pool::MakeRoom(row, bytes) && HoldIfRoom(row, bytes))) return true;
  NoteOutgrown(row, bytes);
  return false;
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

void ChargeAgain(const Entry& entry) {
  if (entry.row >= 0) Hold(entry.row, entry.bytes);
  Commit(entry);
}

}  // namespace ravenstore::interceptor
