#include "interceptor/pool.h"

#include <pthread.h>

#include <algorithm>
#include <atomic>

#include "interceptor/budgets.h"
#include "interceptor/devices.h"
#include "interceptor/driver.h"

namespace ravenstore::interceptor::pool {
namespace {

struct Functions {
  decltype(&cuDeviceGetDefaultMemPool) default_of;
  decltype(&cuDeviceGetMemPool) current_of;
  decltype(&cuMemPoolGetAttribute) attribute;
  decltype(&cuMemPoolTrimTo) trim;
  decltype(&cuThreadExchangeStreamCaptureMode) exchange_mode;
};
enum class Phase : uint32_t { kUnknown, kAbsent, kReady };

constinit pthread_mutex_t functions_mutex = PTHREAD_MUTEX_INITIALIZER;
constinit std::atomic<Phase> phase{Phase::kUnknown};
constinit Functions functions{};

struct Pool {
  // Held while the driver is asked: the last look is the one that stands. Zeros are valid.
  pthread_mutex_t mutex;
  std::atomic<CUmemoryPool> handle;
  std::atomic<uint64_t> asked;  // from before the driver is called until it has freed it
};
constinit Pool pools[proto::kLedgerDevices]{};

template <typename Function>
bool Find(const char* symbol, Function* function) {
  *function = reinterpret_cast<Function>(DriverFunction(symbol));
  return *function != nullptr;
}

// False with a driver that is older than pools.
bool Ready() {
  const Phase known = phase.load(std::memory_order_acquire);
  if (known != Phase::kUnknown) return known == Phase::kReady;
  pthread_mutex_lock(&functions_mutex);
  const bool all = Find("cuDeviceGetDefaultMemPool", &functions.default_of) &&
                   Find("cuDeviceGetMemPool", &functions.current_of) &&
                   Find("cuMemPoolGetAttribute", &functions.attribute) &&
                   Find("cuMemPoolTrimTo", &functions.trim) &&
                   Find("cuThreadExchangeStreamCaptureMode", &functions.exchange_mode);
  phase.store(all ? Phase::kReady : Phase::kAbsent, std::memory_order_release);
  pthread_mutex_unlock(&functions_mutex);
  return all;
}

// While it lives, no call of this thread is an offence against anybody's stream capture.
class CaptureExempt {
 public:
  CaptureExempt() { functions.exchange_mode(&mode_); }
  ~CaptureExempt() { functions.exchange_mode(&mode_); }
  CaptureExempt(const CaptureExempt&) = delete;
  CaptureExempt& operator=(const CaptureExempt&) = delete;

 private:
  CUstreamCaptureMode mode_ = CU_STREAM_CAPTURE_MODE_RELAXED;
};

CUmemoryPool HandleOf(int row) {
  CUmemoryPool handle = pools[row].handle.load(std::memory_order_relaxed);
  if (handle != nullptr) return handle;
  const CaptureExempt exempt;
  if (functions.default_of(&handle, DeviceOf(row)) != CUDA_SUCCESS) return nullptr;
  pools[row].handle.store(handle, std::memory_order_relaxed);
  return handle;
}

uint64_t Reserved(CUmemoryPool handle) {
  cuuint64_t bytes = 0;
  const CaptureExempt exempt;
  const CUresult result = functions.attribute(handle, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &bytes);
  return result == CUDA_SUCCESS ? bytes : 0;
}

uint64_t LeftOver(int row, uint64_t reserved) {
  const uint64_t asked = pools[row].asked.load();
  return reserved > asked ? reserved - asked : 0;
}

std::atomic<uint64_t>& Figure(int row) {
  return Page()->row[row].kinds[static_cast<int>(LegacyKind::kPool)];
}

// Up to `bytes` of what is left over are the allocation's now.
uint64_t TakeLeftOver(int row, uint64_t bytes) {
  auto& figure = Figure(row);
  uint64_t left = figure.load(std::memory_order_relaxed);
  while (!figure.compare_exchange_weak(left, left - std::min(left, bytes))) {
  }
  return std::min(left, bytes);
}

}  // namespace

bool IsCurrent(int row) {
  if (row < 0 || !Ready()) return false;
  CUmemoryPool current = nullptr;
  const CUmemoryPool handle = HandleOf(row);
  const CaptureExempt exempt;
  return handle != nullptr && functions.current_of(&current, DeviceOf(row)) == CUDA_SUCCESS &&
         current == handle;
}

int RowOf(CUmemoryPool pool) {
  const int rows = pool != nullptr && Ready() ? static_cast<int>(Page()->rows) : 0;
  for (int row = 0; row < rows; ++row) {
    if (HandleOf(row) == pool) return row;
  }
  return -1;
}

bool Reserve(int row, uint64_t bytes, bool (*reserve)(int row, uint64_t bytes)) {
  pools[row].asked.fetch_add(bytes);
  const uint64_t left_over = TakeLeftOver(row, bytes);
  if (left_over == bytes || reserve(row, bytes - left_over)) return true;
  pools[row].asked.fetch_sub(bytes);
  Figure(row).fetch_add(left_over);
  RefreshUsage(row, 0);
  return false;
}

void RefreshUsage(int row, uint64_t freed) {
  Pool& pool = pools[row];
  pthread_mutex_lock(&pool.mutex);
  pool.asked.fetch_sub(freed);
  const CUmemoryPool handle = HandleOf(row);
  const uint64_t reserved = handle == nullptr ? 0 : Reserved(handle);
  Gauge(row, LegacyKind::kPool, LeftOver(row, reserved), freed);
  pthread_mutex_unlock(&pool.mutex);
}

void RefreshAll() {
  const int rows = static_cast<int>(Page()->rows);
  for (int row = 0; row < rows; ++row) {
    if (Figure(row).load(std::memory_order_relaxed) != 0) RefreshUsage(row, 0);
  }
}

void Trim(int row, uint64_t bytes) {
  const CUmemoryPool handle = HandleOf(row);
  if (handle == nullptr) return;
  const uint64_t reserved = Reserved(handle);
  const uint64_t gives = std::min(bytes, LeftOver(row, reserved));
  if (gives == 0) return;
  {
    const CaptureExempt exempt;
    functions.trim(handle, reserved - gives);
  }
  RefreshUsage(row, 0);
}

bool MakeRoom(int row, uint64_t bytes) {
  if (Figure(row).load(std::memory_order_relaxed) == 0) return false;
  RefreshUsage(row, 0);
  if (const uint64_t excess = Excess(row, bytes)) Trim(row, excess);
  return true;
}

void ForgetInChild() {
  functions_mutex = PTHREAD_MUTEX_INITIALIZER;
  for (Pool& pool : pools) {
    pool.mutex = PTHREAD_MUTEX_INITIALIZER;
    pool.handle.store(nullptr);
    pool.asked.store(0);
  }
}

}  // namespace ravenstore::interceptor::pool
