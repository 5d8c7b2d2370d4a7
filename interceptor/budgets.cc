#include "interceptor/budgets.h"

#include <sched.h>

#include "interceptor/devices.h"
#include "interceptor/tenant.h"

namespace ravenstore::interceptor {
namespace {

// What is left of a limit; 0 as a limit is none.
uint64_t Left(uint64_t limit, uint64_t used) {
  if (limit == 0) return ~uint64_t{0};
  return used < limit ? limit - used : 0;
}

}  // namespace

uint64_t TogetherLimit(int row) {
  return Page()->row[row].together.load(std::memory_order_relaxed);
}

uint64_t VisibleOf(int row) {
  if (row < 0) return 0;
  const proto::LedgerRow& at = Page()->row[row];
  const uint64_t granted = at.visible.load(std::memory_order_relaxed);
  const uint64_t asked = at.asked.load(std::memory_order_relaxed);
  if (granted == 0 || asked == 0) return granted + asked;
  return granted < asked ? granted : asked;
}

uint64_t Hold(int row, uint64_t bytes) {
  tenant::Hold(row, bytes);
  return Page()->row[row].used.fetch_add(bytes, std::memory_order_relaxed);
}

// Within its own size, and with its tenant's other jobs.
uint64_t Room(int row) {
  const uint64_t own = Left(VisibleOf(row), Page()->row[row].used.load(std::memory_order_relaxed));
  const uint64_t limit = TogetherLimit(row);
  const uint64_t together = limit == 0 ? Left(0, 0) : Left(limit, tenant::TotalOf(row));
  return own < together ? own : together;
}

bool HoldIfRoom(int row, uint64_t bytes) {
  const uint64_t visible = VisibleOf(row);
  const uint64_t limit = TogetherLimit(row);
  // The bytes are added to the sum before the sum is read. If several callers do so together and do
  // not fit, each sees the others. All of them may be refused then, though one of them has room: it
  // tries again.
  constexpr int kTries = 16;
  for (int i = 0; i < kTries; ++i) {
    const uint64_t before = Hold(row, bytes);
    const bool own = Left(visible, before) >= bytes;
    if (own && (limit == 0 || tenant::TotalOf(row) <= limit)) return true;
    Hold(row, 0 - bytes);
    if (Room(row) < bytes) return false;
    sched_yield();
  }
  return false;
}

uint64_t Excess(int row, uint64_t bytes) {
  const auto over = [bytes](uint64_t limit, uint64_t used) {
    return limit != 0 && used + bytes > limit ? used + bytes - limit : 0;
  };
  const uint64_t limit = TogetherLimit(row);
  const uint64_t own = over(VisibleOf(row), Page()->row[row].used.load(std::memory_order_relaxed));
  const uint64_t together = limit == 0 ? 0 : over(limit, tenant::TotalOf(row));
  return own > together ? own : together;
}

bool CanEverFit(int row, uint64_t bytes) {
  return Left(VisibleOf(row), 0) >= bytes && Left(TogetherLimit(row), 0) >= bytes;
}

void NotePeak(int row, uint64_t would_have) {
  proto::LedgerRow& at = Page()->row[row];
  // Not `used`: that has what is being tried, too.
  uint64_t sum = 0;
  for (const auto& kind : at.kinds) sum += kind.load(std::memory_order_relaxed);
  // A kind that another thread is taking from may be below zero for an instant.
  if (static_cast<int64_t>(sum) < 0) sum = 0;
  if (sum < would_have) sum = would_have;
  uint64_t peak = at.peak.load(std::memory_order_relaxed);
  while (peak < sum && !at.peak.compare_exchange_weak(peak, sum, std::memory_order_relaxed)) {
  }
}

void Gauge(int row, LegacyKind kind, uint64_t bytes, uint64_t freed) {
  if (row < 0) return;
  proto::LedgerRow& at = Page()->row[row];
  const uint64_t before =
      at.kinds[static_cast<int>(kind)].exchange(bytes, std::memory_order_relaxed);
  Hold(row, bytes - before - freed);
  if (bytes > before) NotePeak(row);
}

}  // namespace ravenstore::interceptor
