#include "device/nvml.h"

#include <dlfcn.h>
#include <stdlib.h>

#include <cmath>
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
struct CountersSupport {
  unsigned int version;
  unsigned int is_supported;
};
using Sample = void*;
struct Metric {
  unsigned int id;
  Return result;
  double value;
  const char* words[3];
};
struct Metrics {
  unsigned int version;
  unsigned int count;
  Sample from;
  Sample to;
  Metric metrics[512] = {};  // more than any NVML knows
};
constexpr unsigned int kVersion = 1;
constexpr unsigned int kComputeUtilization = 1;  // of compute and graphics, in percent

constexpr Return kSuccess = 0;
constexpr Return kNotSupported = 3;
constexpr Return kInsufficientSize = 7;

// Extra room for this many processes above NVML's count: others may start meanwhile.
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
  // Of what is counted; null where one of them is missing.
  Return (*counters_support)(Handle, CountersSupport*);
  Return (*make_sample)(Sample*);
  Return (*free_sample)(Sample);
  Return (*take_sample)(Handle, Sample);
  Return (*compare)(Metrics*);
};

Result<std::shared_ptr<const Nvml>> Nvml::Load(const std::string& library) {
  void* handle = dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) return Unavailable(library, dlerror());
  auto calls = std::make_shared<Calls>();
  const char* missing = nullptr;
  FindCall(handle, "nvmlDeviceGetComputeRunningProcesses_v3", &calls->processes, &missing);
  missing = nullptr;
  FindCall(handle, "nvmlGpmSampleAlloc", &calls->make_sample, &missing);
  FindCall(handle, "nvmlGpmSampleFree", &calls->free_sample, &missing);
  FindCall(handle, "nvmlGpmSampleGet", &calls->take_sample, &missing);
  FindCall(handle, "nvmlGpmMetricsGet", &calls->compare, &missing);
  FindCall(handle, "nvmlGpmQueryDeviceSupport", &calls->counters_support, &missing);
  if (missing != nullptr) calls->counters_support = nullptr;
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

Nvml::Activity::Activity(std::shared_ptr<const Nvml> nvml, std::string uuid)
    : nvml_(std::move(nvml)), uuid_(std::move(uuid)) {
  const Calls& calls = *nvml_->calls_;
  const auto device = nvml_->Find(uuid_);
  if (!device.ok() || calls.counters_support == nullptr) return;
  CountersSupport support{kVersion, 0};
  has_counters_ = calls.counters_support(*device, &support) == kSuccess &&
                  support.is_supported != 0 && calls.make_sample(&samples_[0]) == kSuccess &&
                  calls.make_sample(&samples_[1]) == kSuccess;
}

Nvml::Activity::~Activity() {
  for (void* sample : samples_) {
    if (sample != nullptr) nvml_->calls_->free_sample(sample);
  }
}

Result<uint32_t> Nvml::Activity::Read(Clock::time_point now) {
  std::lock_guard lock(mutex_);
  if (has_counters_ && now >= due_) {
    counted_ = ByCounters();
    due_ = now + kCountersEvery;
  }
  if (counted_) return *counted_;
  return nvml_->Utilization(uuid_);
}

std::optional<uint32_t> Nvml::Activity::ByCounters() {
  const Calls& calls = *nvml_->calls_;
  const auto device = nvml_->Find(uuid_);
  if (!device.ok()) return std::nullopt;
  const Sample to = samples_[taken_ % 2];
  if (calls.take_sample(*device, to) != kSuccess) {
    taken_ = 0;
    return std::nullopt;
  }
  if (taken_++ == 0) return std::nullopt;
  Metrics metrics{.version = kVersion, .count = 1, .from = samples_[taken_ % 2], .to = to};
  metrics.metrics[0].id = kComputeUtilization;
  if (calls.compare(&metrics) != kSuccess || metrics.metrics[0].result != kSuccess)
    return std::nullopt;
  return static_cast<uint32_t>(std::lround(metrics.metrics[0].value));
}

core::Error Nvml::Failure(int result, const char* call, const std::string& uuid) const {
  return {result == kNotSupported ? core::ErrorCode::kUnsupported : core::ErrorCode::kDevice,
          uuid + ": " + call + ": " + calls_->error_string(result) + " (" + std::to_string(result) +
              ")"};
}

}  // namespace ravenstore::device
