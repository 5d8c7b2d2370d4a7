// libprobe.so: allocates through libcuda.so.1 as a plug-in may: bound deeply, or while it is
// loaded.
#include <cuda.h>
#include <dlfcn.h>
#include <stdlib.h>

extern "C" int ProbeAllocate(size_t bytes) {
  void* library = dlopen("libcuda.so.1", RTLD_NOW);
  auto* init = reinterpret_cast<decltype(&cuInit)>(dlsym(library, "cuInit"));
  auto* retain = reinterpret_cast<decltype(&cuDevicePrimaryCtxRetain)>(
      dlsym(library, "cuDevicePrimaryCtxRetain"));
  auto* set_current =
      reinterpret_cast<decltype(&cuCtxSetCurrent)>(dlsym(library, "cuCtxSetCurrent"));
  auto* allocate = reinterpret_cast<decltype(&cuMemAlloc_v2)>(dlsym(library, "cuMemAlloc_v2"));
  CUcontext context = nullptr;
  CUdeviceptr at = 0;
  if (int code = init(0)) return code;
  if (int code = retain(&context, 0)) return code;
  if (int code = set_current(context)) return code;
  return allocate(&at, bytes);
}

// The program has one, too: which of the two is this library's?
extern "C" __attribute__((weak)) int ProbeVersion() {
  return 2;
}
extern "C" int ProbeFinds() {
  return ProbeVersion();
}

__attribute__((constructor)) static void AtLoad() {
  if (getenv("PROBE_AT_LOAD") != nullptr) ProbeAllocate(size_t{1} << 20);
}
