// A fake libnvidia-ml: the fake driver's devices and their memory, by UUID.
#include <cuda.h>
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#include "tests/fake_cuda/fake_cuda.h"

namespace {

struct Device {
  int ordinal;
};
Device devices[8] = {{0}, {1}, {2}, {3}, {4}, {5}, {6}, {7}};

constexpr int kOk = 0;
constexpr int kNotFound = 6;

template <typename Function>
Function* Driver(const char* name) {
  static void* library = dlopen("libcuda.so.1", RTLD_NOW);
  return reinterpret_cast<Function*>(dlsym(library, name));
}

void FillUuid(int ordinal, char* text, size_t room) {
  CUuuid uuid{};
  Driver<CUresult(unsigned int)>("cuInit")(0);
  Driver<CUresult(CUuuid*, CUdevice)>("cuDeviceGetUuid_v2")(&uuid, ordinal);
  const auto* b = reinterpret_cast<const unsigned char*>(uuid.bytes);
  snprintf(text, room, "GPU-%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x",
           b[0], b[1], b[2], b[3], b[4], b[5], b[6], b[7], b[8], b[9], b[10], b[11], b[12], b[13],
           b[14], b[15]);
}

struct Memory {
  unsigned long long total;
  unsigned long long free;
  unsigned long long used;
};
struct Memory2 {
  unsigned int version;
  unsigned long long total;
  unsigned long long reserved;
  unsigned long long free;
  unsigned long long used;
};

Memory MemoryOf(const Device* device) {
  size_t total = 0;
  // By its second name: the interposed look-up knows the newest.
  Driver<CUresult(size_t*, CUdevice)>("FakeCudaTotal")(&total, device->ordinal);
  const uint64_t used = Driver<uint64_t(int)>("FakeCudaUsed")(device->ordinal);
  return {total, total - used, used};
}

}  // namespace

extern "C" {

int nvmlInit_v2() {
  return kOk;
}
int nvmlShutdown() {
  return kOk;
}
int nvmlDeviceGetHandleByIndex_v2(unsigned int index, Device** device) {
  *device = &devices[index];
  return kOk;
}
int nvmlDeviceGetUUID(const Device* device, char* text, unsigned int room) {
  FillUuid(device->ordinal, text, room);
  return kOk;
}
int nvmlDeviceGetHandleByUUID(const char* uuid, Device** device) {
  for (Device& one : devices) {
    char text[96];
    FillUuid(one.ordinal, text, sizeof(text));
    if (strcmp(text, uuid) != 0) continue;
    *device = &one;
    return kOk;
  }
  return kNotFound;
}
int nvmlDeviceGetMemoryInfo(const Device* device, Memory* memory) {
  *memory = MemoryOf(device);
  return kOk;
}
int nvmlDeviceGetMemoryInfo_v2(const Device* device, Memory2* memory) {
  const Memory plain = MemoryOf(device);
  *memory = {memory->version, plain.total, 0, plain.free, plain.used};
  return kOk;
}

}  // extern "C"
