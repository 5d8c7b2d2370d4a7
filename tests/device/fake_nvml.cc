#include "tests/device/fake_nvml.h"

#include <string.h>

#include <algorithm>

namespace {

struct Memory {
  unsigned long long total;
  unsigned long long free;
  unsigned long long used;
};
struct Rates {
  unsigned int gpu;
  unsigned int memory;
};
struct ProcessInfo {
  unsigned int pid;
  unsigned long long used;
  unsigned int gpu_instance;
  unsigned int compute_instance;
};

constexpr int kNotFound = 6;
constexpr int kInsufficientSize = 7;

ravenstore::device::FakeNvmlControls controls;

}  // namespace

extern "C" {

ravenstore::device::FakeNvmlControls* FakeNvml() {
  return &controls;
}

int nvmlInit_v2() {
  return controls.init_result;
}
const char* nvmlErrorString(int result) {
  return result == kNotFound ? "Not Found" : "Fake Error";
}
int nvmlDeviceGetHandleByUUID(const char* uuid, void** device) {
  if (controls.result != 0) return controls.result;
  if (strncmp(uuid, "GPU-", 4) != 0) return kNotFound;
  *device = &controls;
  return 0;
}
int nvmlDeviceGetMemoryInfo(void*, Memory* memory) {
  constexpr unsigned long long kTotal = 80ull << 30;
  const unsigned long long free = controls.free.front();
  if (controls.free.size() > 1) controls.free.erase(controls.free.begin());
  *memory = {kTotal, free, kTotal - free};
  return 0;
}
int nvmlDeviceGetUtilizationRates(void*, Rates* rates) {
  *rates = {controls.utilization, 0};
  return controls.utilization_result;
}
int nvmlDeviceGetComputeRunningProcesses_v3(void*, unsigned int* count, ProcessInfo* infos) {
  const auto there = static_cast<unsigned int>(controls.processes.size());
  const bool fits = *count >= there;
  *count = there;
  if (!fits) return kInsufficientSize;
  std::transform(controls.processes.begin(), controls.processes.end(), infos,
                 [](const auto& process) {
                   return ProcessInfo{process.first, process.second, ~0u, ~0u};
                 });
  return 0;
}

}  // extern "C"
