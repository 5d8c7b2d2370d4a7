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
struct CountersSupport {
  unsigned int version;
  unsigned int is_supported;
};
struct Metric {
  unsigned int id;
  int result;
  double value;
  const char* words[3];
};
struct Metrics {
  unsigned int version;
  unsigned int count;
  void* from;
  void* to;
  Metric metrics[1];
};
struct ProcessInfo {
  unsigned int pid;
  unsigned long long used;
  unsigned int gpu_instance;
  unsigned int compute_instance;
};

constexpr int kInvalidArgument = 2;
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
int nvmlGpmQueryDeviceSupport(void*, CountersSupport* support) {
  support->is_supported = controls.counted >= 0 ? 1 : 0;
  return support->version == 1 ? 0 : kInvalidArgument;
}
int nvmlGpmSampleAlloc(void** sample) {
  *sample = new int(-1);
  ++controls.samples;
  return 0;
}
int nvmlGpmSampleFree(void* sample) {
  delete static_cast<int*>(sample);
  --controls.samples;
  return 0;
}
int nvmlGpmSampleGet(void*, void* sample) {
  *static_cast<int*>(sample) = controls.counted;
  return controls.counted >= 0 ? 0 : kInvalidArgument;
}
// What the later sample says, of two that were taken.
int nvmlGpmMetricsGet(Metrics* asked) {
  const bool taken = *static_cast<int*>(asked->from) >= 0 && asked->from != asked->to;
  if (!taken || asked->version != 1 || asked->count != 1 || asked->metrics[0].id != 1)
    return kInvalidArgument;
  asked->metrics[0].value = *static_cast<int*>(asked->to) + 0.4;
  return 0;
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
