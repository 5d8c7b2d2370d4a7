// cuInit, and contexts: what making one takes of a device is counted as the job's, and what lived
// in one goes with it.
#include <dlfcn.h>

#include <atomic>

#include "interceptor/account.h"
#include "interceptor/backing.h"
#include "interceptor/devices.h"
#include "interceptor/elf.h"
#include "interceptor/hooks.h"
#include "interceptor/start.h"
#include "interceptor/turn.h"

namespace ravenstore::interceptor {
namespace {

constinit std::atomic<int> retained[proto::kLedgerDevices]{};
constinit std::atomic<uint64_t> primary[proto::kLedgerDevices]{};

// The device memory in use by all processes, as NVML reports it. Nothing else reports it before
// there is a context.
class DeviceUse {
 public:
  static constexpr uint64_t kUnknown = ~uint64_t{0};

  uint64_t Of(const char* uuid) {
    if (!Load()) return kUnknown;
    nvmlDevice_t device = nullptr;
    nvmlMemory_t memory{};
    if (by_uuid_(uuid, &device) != 0 || memory_(device, &memory) != 0) return kUnknown;
    return memory.used;
  }

 private:
  bool Load() {
    if (tried_.load(std::memory_order_acquire)) return memory_ != nullptr;
    void* library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
    auto* init =
        reinterpret_cast<nvmlReturn_t (*)()>(FindInLibrary("libnvidia-ml.so", "nvmlInit_v2"));
    by_uuid_ = reinterpret_cast<decltype(by_uuid_)>(
        FindInLibrary("libnvidia-ml.so", "nvmlDeviceGetHandleByUUID"));
    auto* memory = reinterpret_cast<decltype(memory_)>(
        FindInLibrary("libnvidia-ml.so", "nvmlDeviceGetMemoryInfo"));
    if (library != nullptr && init != nullptr && by_uuid_ != nullptr && init() == 0) {
      memory_ = memory;
    }
    tried_.store(true, std::memory_order_release);
    return memory_ != nullptr;
  }

  std::atomic<bool> tried_{false};
  nvmlReturn_t (*by_uuid_)(const char*, nvmlDevice_t*) = nullptr;
  nvmlReturn_t (*memory_)(nvmlDevice_t, nvmlMemory_t*) = nullptr;
};

constinit DeviceUse device_use{};

void AddContext(int row, uint64_t context, uint64_t before) {
  NoteContextChange();
  if (row < 0) return;
  const uint64_t after = before == DeviceUse::kUnknown ? 0 : device_use.Of(Page()->row[row].uuid);
  // Another process may have allocated or freed meanwhile; a context is not larger than this.
  constexpr uint64_t kMost = uint64_t{2} << 30;
  uint64_t bytes = after != DeviceUse::kUnknown && after > before ? after - before : 0;
  if (bytes > kMost) bytes = kMost;
  Entry entry;
  entry.space = Space::kContext;
  entry.kind = LegacyKind::kContext;
  entry.key = context;
  entry.row = static_cast<int16_t>(row);
  entry.bytes = bytes;
  entry.context = context;
  // A context is not refused for a budget: it would be no ordinary error.
  ChargeAgain(entry);
}

void DropContext(uint64_t context) {
  NoteContextChange();
  ledger.TakeContext(
      context,
      [](const Entry& entry, void*) {
        if (entry.space == Space::kMapping) return;
        Uncharge(entry);
        // To the driver it is no memory of the context's: it would stay for ever.
        if (entry.backing != nullptr) entry.backing->free(entry, {});
      },
      nullptr);
}

uint64_t UseBefore(int row) {
  return row < 0 ? DeviceUse::kUnknown : device_use.Of(Page()->row[row].uuid);
}

template <typename Call>
CUresult Create(CUcontext* context, CUdevice device, Call call) {
  const Within within;
  if (!within.outermost() || context == nullptr || !Start()) return call();
  const int row = RowOf(device);
  if (!turn::Await(row)) return CUDA_ERROR_OUT_OF_MEMORY;
  const uint64_t before = UseBefore(row);
  const CUresult result = call();
  if (result == CUDA_SUCCESS) AddContext(row, reinterpret_cast<uint64_t>(*context), before);
  return result;
}

// The last reference to the device's context goes, or all that is in it.
void BeforeRelease(int row, bool all) {
  if (row < 0 || (!all && retained[row].load() > 1)) return;
  if (const uint64_t context = primary[row].load()) {
    Serving().context_ends(reinterpret_cast<CUcontext>(context));
  }
}

template <typename Call>
CUresult Destroy(CUcontext context, Call call) {
  const Within within;
  if (!within.outermost()) return call();
  Serving().context_ends(context);
  const CUresult result = call();
  if (result == CUDA_SUCCESS) DropContext(reinterpret_cast<uint64_t>(context));
  return result;
}

template <typename Call>
CUresult Release(CUdevice device, bool all, Call call) {
  const Within within;
  const int row = within.outermost() ? RowOf(device) : -1;
  BeforeRelease(row, all);
  const CUresult result = call();
  if (result != CUDA_SUCCESS || row < 0) return result;
  const int left = all ? 0 : retained[row].fetch_sub(1) - 1;
  if (left > 0) return result;
  if (!all) retained[row].store(0);
  // A reset leaves the references, and a context that is empty until it is used again.
  if (const uint64_t context = primary[row].exchange(0)) DropContext(context);
  return result;
}

}  // namespace
}  // namespace ravenstore::interceptor

namespace interceptor = ravenstore::interceptor;

RAVEN_EXPORT CUresult cuInit(unsigned int flags) {
  RAVEN_BEGIN(cuInit);
  const interceptor::Within within;
  const CUresult result = real(flags);
  if (result == CUDA_SUCCESS && within.outermost()) interceptor::Start();
  return result;
}

RAVEN_EXPORT CUresult cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice device) {
  RAVEN_BEGIN(cuDevicePrimaryCtxRetain);
  const interceptor::Within within;
  if (!within.outermost() || context == nullptr || !interceptor::Start()) {
    return real(context, device);
  }
  const int row = interceptor::RowOf(device);
  if (!interceptor::turn::Await(row)) return CUDA_ERROR_OUT_OF_MEMORY;
  const bool first = row >= 0 && interceptor::primary[row].load() == 0;
  const uint64_t before = first ? interceptor::UseBefore(row) : interceptor::DeviceUse::kUnknown;
  const CUresult result = real(context, device);
  if (result != CUDA_SUCCESS || row < 0) return result;
  interceptor::retained[row].fetch_add(1);
  const auto made = reinterpret_cast<uint64_t>(*context);
  uint64_t none = 0;
  if (interceptor::primary[row].compare_exchange_strong(none, made)) {
    interceptor::AddContext(row, made, before);
  }
  return result;
}

RAVEN_EXPORT CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device) {
  RAVEN_BEGIN(cuDevicePrimaryCtxRelease_v2);
  return interceptor::Release(device, false, [&] { return real(device); });
}

RAVEN_EXPORT CUresult cuDevicePrimaryCtxRelease(CUdevice device) {
  RAVEN_BEGIN(cuDevicePrimaryCtxRelease);
  return interceptor::Release(device, false, [&] { return real(device); });
}

RAVEN_EXPORT CUresult cuDevicePrimaryCtxReset_v2(CUdevice device) {
  RAVEN_BEGIN(cuDevicePrimaryCtxReset_v2);
  return interceptor::Release(device, true, [&] { return real(device); });
}

RAVEN_EXPORT CUresult cuDevicePrimaryCtxReset(CUdevice device) {
  RAVEN_BEGIN(cuDevicePrimaryCtxReset);
  return interceptor::Release(device, true, [&] { return real(device); });
}

RAVEN_EXPORT CUresult cuCtxCreate_v2(CUcontext* context, unsigned int flags, CUdevice device) {
  RAVEN_BEGIN(cuCtxCreate_v2);
  return interceptor::Create(context, device, [&] { return real(context, flags, device); });
}

RAVEN_EXPORT CUresult cuCtxCreate_v3(CUcontext* context, CUexecAffinityParam* affinity, int count,
                                     unsigned int flags, CUdevice device) {
  RAVEN_BEGIN(cuCtxCreate_v3);
  return interceptor::Create(context, device,
                             [&] { return real(context, affinity, count, flags, device); });
}

RAVEN_EXPORT CUresult cuCtxCreate_v4(CUcontext* context, CUctxCreateParams* parameters,
                                     unsigned int flags, CUdevice device) {
  RAVEN_BEGIN(cuCtxCreate_v4);
  return interceptor::Create(context, device,
                             [&] { return real(context, parameters, flags, device); });
}

RAVEN_EXPORT CUresult cuCtxDestroy_v2(CUcontext context) {
  RAVEN_BEGIN(cuCtxDestroy_v2);
  return interceptor::Destroy(context, [&] { return real(context); });
}

RAVEN_EXPORT CUresult cuCtxDestroy(CUcontext context) {
  RAVEN_BEGIN(cuCtxDestroy);
  return interceptor::Destroy(context, [&] { return real(context); });
}
