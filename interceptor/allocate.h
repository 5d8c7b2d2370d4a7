// The steps of every allocation: budget, the driver, the daemon when the driver has no more,
// ledger.
#pragma once

#include <time.h>

#include "interceptor/account.h"
#include "interceptor/backing.h"
#include "interceptor/link.h"

namespace ravenstore::interceptor {

// Repeats `attempt` until it returns true, for 2 s at most, if the backing can make room.
template <typename Attempt>
bool AttemptWithRoom(int row, uint64_t bytes, Attempt attempt) {
  if (attempt()) return true;
  const Backing& serving = Serving();
  if (!serving.make_room(row, bytes)) return false;
  constexpr uint64_t kPatienceNs = 2'000'000'000;
  constexpr timespec kPause{0, 100'000};
  const uint64_t began = MonotonicNs();
  bool done = attempt();
  while (!done && MonotonicNs() - began < kPatienceNs) {
    nanosleep(&kPause, nullptr);
    done = attempt();
  }
  serving.room_made(row, bytes, MonotonicNs() - began);
  return done;
}

// As Reserve, for what the driver serves.
inline bool ReserveForDriver(int row, uint64_t bytes) {
  return AttemptWithRoom(row, bytes, [&] { return Reserve(row, bytes); });
}

// Calls the driver, and again as long as the store gives memory for it.
template <typename Call>
CUresult CallAndReclaim(int row, uint64_t bytes, Call call) {
  constexpr int kRounds = 16;
  CUresult result = CUDA_SUCCESS;
  AttemptWithRoom(row, bytes, [&] { return (result = call()) != CUDA_ERROR_OUT_OF_MEMORY; });
  if (result != CUDA_ERROR_OUT_OF_MEMORY || !link::Attached()) return result;
  const int64_t deadline = link::ReclaimDeadline();
  for (int i = 0; i < kRounds && result == CUDA_ERROR_OUT_OF_MEMORY; ++i) {
    const bool given = link::Reclaim(row, bytes, deadline);
    // Also when the store gave nothing: it need not, where others have freed enough meanwhile.
    result = call();
    if (!given) break;
  }
  return result;
}

// Allocates `entry.bytes` by `call`; `key()` then says under which name.
template <typename Call, typename Key>
CUresult Allocate(Entry entry, Call call, Key key) {
  if (!ReserveForDriver(entry.row, entry.bytes)) return CUDA_ERROR_OUT_OF_MEMORY;
  const CUresult result = CallAndReclaim(entry.row, entry.bytes, call);
  if (result != CUDA_SUCCESS) {
    Unreserve(entry.row, entry.bytes);
    return result;
  }
  entry.key = key();
  Commit(entry);
  return result;
}

// Takes the entry out around `call`, which frees it; what the ledger does not know goes to the
// driver as it is. Out before, since its name may come again while `call` returns.
template <typename Call>
CUresult FreeOf(Space space, uint64_t key, Call call) {
  Entry entry;
  if (!ledger.Take(space, key, &entry)) return call();
  const CUresult result = call();
  if (result == CUDA_SUCCESS) {
    Uncharge(entry);
  } else {
    // Its sums still stand.
    ledger.Add(entry);
  }
  return result;
}

}  // namespace ravenstore::interceptor
