#include "device/nvml.h"

#include <dlfcn.h>
#include <stdlib.h>

#include <utility>

namespace ravenstore::device {

namespace {

// As nvml.h has them.
using Return = int;
using Handle = void*;
struct Memory {
  unsigned long long total;
  unsigned long long free;
  unsigned long long used;
};
struct Rates {
  unsigned int gpu;  // percent
  unsigned int memory;
};
struct ProcessInfo {
  unsigned int pid;
  unsigned long long used;  // ~0: not known
  unsigned int gpu_instance;
  unsigned int compute_instance;
};

constexpr Return kSuccess = 0;
constexpr Return kNotSupported = 3;
constexpr Return kInsufficientSize = 7;

// Room for so many processes more than NVML counted: others may start meanwhile.
constexpr unsigned int kNewcomers = 16;

core::Error Unavailable(const std::string& library, const std::string& what) {
  return {core::ErrorCode::kUnavailable, "NVML " + library + ": " + what};
}

template <typename Function>
void FindCall(void* library, const char* name, Function** call, const char** missing) {
  *call = reinterpret_cast<Function*>(dlsym(library, name));
  if (*call == nullptr) *missing = name;
}

}  // namespace

struct Nvml::Calls {
  Return (*init)();
  const char* (*error_string)(Return);
  Return (*find)(const char*, Handle*);
  Return (*memory)(Handle, Memory*);
  Return (*utilization)(Handle, Rates*);
  // Null in drivers before 510.
  Return (*processes)(Handle, unsigned int*, ProcessInfo*);
};

Result<std::shared_ptr<const Nvml>> Nvml::Load(const std::string& library) {
  void* handle = dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) return Unavailable(library, dlerror());
  auto calls = std::make_shared<Calls>();
  const char* missing = nullptr;
  FindCall(handle, "nvmlDeviceGetComputeRunningProcesses_v3", &calls->processes, &missing);
  missing = nullptr;
  FindCall(handle, "nvmlInit_v2", &calls->init, &missing);
  FindCall(handle, "nvmlErrorString", &calls->error_string, &missing);
  FindCall(handle, "nvmlDeviceGetHandleByUUID", &calls->find, &missing);
  FindCall(handle, "nvmlDeviceGetMemoryInfo", &calls->memory, &missing);
  FindCall(handle, "nvmlDeviceGetUtilizationRates", &calls->utilization, &missing);
  if (missing != nullptr) return Unavailable(library, std::string("has no ") + missing);
  const Return begun = calls->init();
  if (begun != kSuccess)
    return Unavailable(library, std::string("nvmlInit_v2: ") + calls->error_string(begun));
  return std::shared_ptr<const Nvml>(new Nvml(std::move(calls)));
}

std::string Nvml::DefaultLibrary() {
  const char* named = getenv("RAVENSTORE_LIBNVML");
  return named != nullptr && *named != '\0' ? named : "libnvidia-ml.so.1";
}

Result<void*> Nvml::Find(const std::string& uuid) const {
  Handle found = nullptr;
  const Return result = calls_->find(uuid.c_str(), &found);
  if (result != kSuccess) return Failure(result, "nvmlDeviceGetHandleByUUID", uuid);
  return found;
}

Result<Bytes> Nvml::FreeBytes(const std::string& uuid) const {
  RAVEN_ASSIGN_OR_RETURN(const Handle device, Find(uuid));
  Memory memory{};
  const Return result = calls_->memory(device, &memory);
  if (result != kSuccess) return Failure(result, "nvmlDeviceGetMemoryInfo", uuid);
  return Bytes(memory.free);
}

Result<std::vector<DeviceProcess>> Nvml::Processes(const std::string& uuid) const {
  constexpr const char* kCall = "nvmlDeviceGetComputeRunningProcesses_v3";
  if (calls_->processes == nullptr) return Failure(kNotSupported, kCall, uuid);
  RAVEN_ASSIGN_OR_RETURN(const Handle device, Find(uuid));
  std::vector<ProcessInfo> infos;
  Return result = kInsufficientSize;
  for (int tries = 0; tries < 3 && result == kInsufficientSize; ++tries) {
    auto count = static_cast<unsigned int>(infos.size());
    result = calls_->processes(device, &count, infos.empty() ? nullptr : infos.data());
    infos.resize(result == kInsufficientSize ? count + kNewcomers : count);
  }
  if (result != kSuccess) return Failure(result, kCall, uuid);
  std::vector<DeviceProcess> processes;
  for (const ProcessInfo& info : infos) {
    constexpr unsigned long long kNotKnown = ~0ull;
    processes.push_back({info.pid, Bytes(info.used == kNotKnown ? 0 : info.used)});
  }
  return processes;
}

Result<uint32_t> Nvml::Utilization(const std::string& uuid) const {
  RAVEN_ASSIGN_OR_RETURN(const Handle device, Find(uuid));
  Rates rates{};
  const Return result = calls_->utilization(device, &rates);
  if (result != kSuccess) return Failure(result, "nvmlDeviceGetUtilizationRates", uuid);
  return rates.gpu;
}

core::Error Nvml::Failure(int result, const char* call, const std::string& uuid) const {
  return {result == kNotSupported ? core::ErrorCode::kUnsupported : core::ErrorCode::kDevice,
          uuid + ": " + call + ": " + calls_->error_string(result) + " (" + std::to_string(result) +
              ")"};
}

}  // namespace ravenstore::device
