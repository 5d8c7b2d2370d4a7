// Devices, contexts, errors and the controls.
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <map>
#include <mutex>
#include <string>

#include "tests/fake_cuda/fake_cuda.h"
#include "tests/fake_cuda/state.h"

namespace fake_cuda {
namespace {

constexpr int kDevicesMax = 8;

struct Fault {
  int countdown;
  CUresult result;
  int signal = 0;  // what the process gets first
};

struct Driver {
  std::mutex mutex;
  bool started = false;
  int devices = 2;
  uint64_t bytes = uint64_t{1} << 30;
  bool host_numa = true;
  bool mig = false;
  std::map<std::string, Fault> faults;
  CUctx_st contexts[kDevicesMax];
  std::atomic<int> faults_set{0};
  std::atomic<int> copies_until_failure{0};
  std::atomic<bool> held{false};
  std::atomic<int> context_errors{0};
};

// Never destroyed: streams of the process may outlive its static objects.
Driver& driver() {
  static Driver* instance = new Driver;
  return *instance;
}

thread_local CUcontext current_context = nullptr;

uint64_t Number(const char* name, uint64_t otherwise) {
  const char* text = getenv(name);
  return text != nullptr ? strtoull(text, nullptr, 10) : otherwise;
}

bool IsDevice(CUdevice device) {
  return device >= 0 && device < driver().devices;
}

void FillUuid(CUuuid* uuid, CUdevice device, char first) {
  for (int i = 0; i < 16; ++i) uuid->bytes[i] = static_cast<char>(first + i);
  uuid->bytes[15] = static_cast<char>(device);
}

void SetFault(const char* call, const Fault& fault) {
  std::lock_guard lock(driver().mutex);
  if (driver().faults.insert_or_assign(call, fault).second) ++driver().faults_set;
}

}  // namespace

CUresult Injected(const char* call) {
  if (driver().faults_set.load(std::memory_order_relaxed) == 0) return CUDA_SUCCESS;
  std::unique_lock lock(driver().mutex);
  const auto fault = driver().faults.find(call);
  if (fault == driver().faults.end() || --fault->second.countdown > 0) return CUDA_SUCCESS;
  const Fault injected = fault->second;
  driver().faults.erase(fault);
  --driver().faults_set;
  lock.unlock();
  if (injected.signal != 0) raise(injected.signal);
  return injected.result;
}

CUresult CurrentContext(CUcontext* context) {
  *context = current_context;
  if (current_context == nullptr) {
    ++driver().context_errors;
    return CUDA_ERROR_INVALID_CONTEXT;
  }
  return current_context->error.load(std::memory_order_relaxed);
}

int DeviceCount() {
  return driver().devices;
}
uint64_t DeviceBytes() {
  return driver().bytes;
}
uint64_t ContextBytes() {
  static const uint64_t bytes = Number("RAVENSTORE_FAKE_CUDA_CONTEXT", 0);
  return bytes;
}
bool HasHostNuma() {
  return driver().host_numa;
}
bool NextCopyFails() {
  return driver().copies_until_failure.load() > 0 && --driver().copies_until_failure == 0;
}
bool CopiesHeld() {
  return driver().held.load(std::memory_order_relaxed);
}

}  // namespace fake_cuda

using fake_cuda::driver;
using fake_cuda::IsDevice;

void FakeCudaFail(const char* call, int nth, CUresult result) {
  fake_cuda::SetFault(call, {nth, result});
}

void FakeCudaSignal(const char* call, int nth, int number) {
  fake_cuda::SetFault(call, {nth, CUDA_SUCCESS, number});
}

void FakeCudaFailCopy(int nth) {
  driver().copies_until_failure = nth;
}

void FakeCudaHoldCopies(int hold) {
  driver().held = hold != 0;
}

int FakeCudaContexts() {
  std::lock_guard lock(driver().mutex);
  int count = 0;
  for (const auto& context : driver().contexts) count += context.retained > 0 ? 1 : 0;
  return count;
}

int FakeCudaContextErrors() {
  return driver().context_errors;
}

CUresult cuInit(unsigned int) {
  FAKE_CUDA_ENTER("cuInit");
  std::lock_guard lock(driver().mutex);
  if (driver().started) return CUDA_SUCCESS;
  driver().started = true;
  driver().devices =
      std::min<int>(static_cast<int>(fake_cuda::Number("RAVENSTORE_FAKE_CUDA_DEVICES", 2)),
                    fake_cuda::kDevicesMax);
  driver().bytes = fake_cuda::Number("RAVENSTORE_FAKE_CUDA_MEMORY", driver().bytes);
  driver().host_numa = fake_cuda::Number("RAVENSTORE_FAKE_CUDA_HOST_NUMA", 1) != 0;
  driver().mig = fake_cuda::Number("RAVENSTORE_FAKE_CUDA_MIG", 0) != 0;
  for (int i = 0; i < fake_cuda::kDevicesMax; ++i) driver().contexts[i].device = i;
  char call[64];
  int nth = 0;
  int result = 0;
  const char* faults = getenv("RAVENSTORE_FAKE_CUDA_FAIL");
  if (faults != nullptr && sscanf(faults, "%63[^:]:%d:%d", call, &nth, &result) == 3) {
    driver().faults[call] = {nth, static_cast<CUresult>(result)};
    ++driver().faults_set;
  }
  int number = 0;
  const char* signals = getenv("RAVENSTORE_FAKE_CUDA_SIGNAL");
  if (signals != nullptr && sscanf(signals, "%63[^:]:%d:%d", call, &nth, &number) == 3) {
    driver().faults[call] = {nth, CUDA_SUCCESS, number};
    ++driver().faults_set;
  }
  return CUDA_SUCCESS;
}

CUresult cuDriverGetVersion(int* version) {
  *version = CUDA_VERSION;
  return CUDA_SUCCESS;
}

CUresult cuGetErrorName(CUresult error, const char** name) {
  switch (error) {
    case CUDA_SUCCESS: *name = "CUDA_SUCCESS"; break;
    case CUDA_ERROR_INVALID_VALUE: *name = "CUDA_ERROR_INVALID_VALUE"; break;
    case CUDA_ERROR_OUT_OF_MEMORY: *name = "CUDA_ERROR_OUT_OF_MEMORY"; break;
    case CUDA_ERROR_NO_DEVICE: *name = "CUDA_ERROR_NO_DEVICE"; break;
    case CUDA_ERROR_INVALID_CONTEXT: *name = "CUDA_ERROR_INVALID_CONTEXT"; break;
    case CUDA_ERROR_NOT_SUPPORTED: *name = "CUDA_ERROR_NOT_SUPPORTED"; break;
    case CUDA_ERROR_ILLEGAL_ADDRESS: *name = "CUDA_ERROR_ILLEGAL_ADDRESS"; break;
    case CUDA_ERROR_UNKNOWN: *name = "CUDA_ERROR_UNKNOWN"; break;
    default: return CUDA_ERROR_INVALID_VALUE;
  }
  return CUDA_SUCCESS;
}

CUresult cuGetErrorString(CUresult, const char** words) {
  *words = "said by the fake driver";
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetCount(int* count) {
  FAKE_CUDA_ENTER("cuDeviceGetCount");
  *count = driver().devices;
  return CUDA_SUCCESS;
}

CUresult cuDeviceGet(CUdevice* device, int ordinal) {
  FAKE_CUDA_ENTER("cuDeviceGet");
  if (!IsDevice(ordinal)) return CUDA_ERROR_INVALID_DEVICE;
  *device = ordinal;
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetName(char* name, int length, CUdevice device) {
  FAKE_CUDA_ENTER("cuDeviceGetName");
  snprintf(name, static_cast<size_t>(length), "Fake GPU %d", device);
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetAttribute(int* value, CUdevice_attribute attribute, CUdevice) {
  FAKE_CUDA_ENTER("cuDeviceGetAttribute");
  switch (attribute) {
    case CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED: *value = 1; break;
    case CU_DEVICE_ATTRIBUTE_HOST_NUMA_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED:
      *value = driver().host_numa ? 1 : 0;
      break;
    case CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID: *value = 0; break;
    default: return CUDA_ERROR_INVALID_VALUE;
  }
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetUuid(CUuuid* uuid, CUdevice device) {
  FAKE_CUDA_ENTER("cuDeviceGetUuid");
  fake_cuda::FillUuid(uuid, device, driver().mig ? 0x40 : 0x10);
  return CUDA_SUCCESS;
}

// The first version, which knows whole GPUs only; <cuda.h> hides its name behind a macro.
#undef cuDeviceGetUuid
extern "C" CUresult cuDeviceGetUuid(CUuuid* uuid, CUdevice device) {
  fake_cuda::FillUuid(uuid, device, 0x10);
  return CUDA_SUCCESS;
}

CUresult cuDeviceTotalMem(size_t* bytes, CUdevice) {
  FAKE_CUDA_ENTER("cuDeviceTotalMem");
  *bytes = driver().bytes;
  return CUDA_SUCCESS;
}

CUresult cuDeviceCanAccessPeer(int* reaches, CUdevice device, CUdevice peer) {
  FAKE_CUDA_ENTER("cuDeviceCanAccessPeer");
  *reaches = device != peer ? 1 : 0;
  return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice device) {
  FAKE_CUDA_ENTER("cuDevicePrimaryCtxRetain");
  if (!IsDevice(device)) return CUDA_ERROR_INVALID_DEVICE;
  std::lock_guard lock(driver().mutex);
  *context = &driver().contexts[device];
  // The first user gets a new context, as after the reset of a GPU.
  if ((*context)->retained++ == 0) {
    (*context)->error = CUDA_SUCCESS;
    fake_cuda::Charge(device, fake_cuda::ContextBytes());
  }
  return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxRelease(CUdevice device) {
  if (!IsDevice(device)) return CUDA_ERROR_INVALID_DEVICE;
  std::lock_guard lock(driver().mutex);
  if (driver().contexts[device].retained == 0) return CUDA_ERROR_INVALID_CONTEXT;
  if (--driver().contexts[device].retained == 0) {
    fake_cuda::Charged(device) -= fake_cuda::ContextBytes();
  }
  return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned int* flags, int* active) {
  FAKE_CUDA_ENTER("cuDevicePrimaryCtxGetState");
  if (!IsDevice(device)) return CUDA_ERROR_INVALID_DEVICE;
  std::lock_guard lock(driver().mutex);
  *flags = 0;
  *active = driver().contexts[device].retained > 0 ? 1 : 0;
  return CUDA_SUCCESS;
}

// One context of the program's own at a time; its address comes again, as the driver's do.
#undef cuCtxDestroy
extern "C" {
CUresult cuCtxCreate_v2(CUcontext* context, unsigned int, CUdevice device) {
  static CUctx_st own;
  if (!IsDevice(device)) return CUDA_ERROR_INVALID_DEVICE;
  own.device = device;
  *context = fake_cuda::current_context = &own;
  return CUDA_SUCCESS;
}
CUresult cuCtxDestroy_v2(CUcontext context) {
  if (fake_cuda::current_context == context) fake_cuda::current_context = nullptr;
  return CUDA_SUCCESS;
}
}

CUresult cuCtxGetCurrent(CUcontext* context) {
  *context = fake_cuda::current_context;
  return CUDA_SUCCESS;
}

CUresult cuCtxSetCurrent(CUcontext context) {
  FAKE_CUDA_ENTER("cuCtxSetCurrent");
  fake_cuda::current_context = context;
  return CUDA_SUCCESS;
}
