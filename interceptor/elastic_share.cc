#include "interceptor/elastic_share.h"

#include <algorithm>

#include "interceptor/account.h"
#include "interceptor/budgets.h"
#include "interceptor/devices.h"

namespace ravenstore::interceptor {
namespace {

std::atomic<uint64_t>& Physical(int row) {
  return Page()->row[row].kinds[static_cast<int>(LegacyKind::kVmm)];
}

}  // namespace

bool EngineShare::Take(int row, uint64_t bytes) {
  if (!Reserve(row, bytes)) return false;
  Physical(row).fetch_add(bytes, std::memory_order_relaxed);
  NotePeak(row);
  taken_.fetch_add(bytes);
  return true;
}

void EngineShare::Give(int row, uint64_t bytes) {
  taken_.fetch_sub(bytes);
  Physical(row).fetch_sub(bytes, std::memory_order_relaxed);
  Unreserve(row, bytes);
}

void EngineShare::RaiseTo(std::atomic<uint64_t>* high, uint64_t value) {
  uint64_t known = high->load(std::memory_order_relaxed);
  while (known < value && !high->compare_exchange_weak(known, value)) {
  }
}

uint64_t EngineShare::Others(int row) {
  const uint64_t taken = taken_.load();
  const uint64_t used = Page()->row[row].used.load(std::memory_order_relaxed);
  const uint64_t others = used > taken ? used - taken : 0;
  RaiseTo(&others_, others);
  return others;
}

uint64_t EngineShare::MostOthers(int row) {
  Others(row);
  return others_.load();
}

uint64_t EngineShare::RecentOthers(int row, uint64_t now_ns) {
  if (now_ns - recent_since_.load(std::memory_order_relaxed) > kWhileNs) {
    recent_since_.store(now_ns, std::memory_order_relaxed);
    recent_[1].store(recent_[0].exchange(0));
  }
  RaiseTo(&recent_[0], Others(row));
  return std::max(recent_[0].load(), recent_[1].load());
}

uint64_t EngineShare::Allowed(int row, uint64_t now_ns) {
  const uint64_t used = RecentOthers(row, now_ns);
  if (Page()->row[row].paused.load(std::memory_order_relaxed) != 0) return 0;
  const uint64_t visible = VisibleOf(row);
  if (visible == 0) return without_budget_.load();
  const uint64_t others = std::max(used, Others(row) + wanted_.load());
  return visible > others ? visible - others : 0;
}

bool EngineShare::MakeRoom(uint64_t bytes) {
  const uint64_t taken = taken_.load();
  if (taken < bytes) return false;
  wanted_.fetch_add(bytes);
  without_budget_.store(taken - std::min(taken, std::max(bytes, kRoomStep)));
  return true;
}

uint64_t EngineShare::FreeToJob(uint64_t free) const {
  const uint64_t with_ours = free + taken_.load();
  const uint64_t live = live_.load() + segments_.load();
  if (with_ours < free) return free;  // there is no bound
  return with_ours > live ? with_ours - live : 0;
}

}  // namespace ravenstore::interceptor
