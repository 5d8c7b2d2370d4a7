// A program for the corners: takes commands as job.cc does.
#include <cuda.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <string>
#include <thread>
#include <vector>

namespace {

constexpr size_t kMiB = size_t{1} << 20;

// More than a small stack would have room for; each thread has its own.
thread_local volatile char large[256 << 10];

void* library;
CUcontext context;

template <typename Function>
Function* Get(const char* name) {
  return reinterpret_cast<Function*>(dlsym(library, name));
}
#define CALL(name, ...) Get<decltype(name)>(#name)(__VA_ARGS__)

void Begin() {
  library = dlopen("libcuda.so.1", RTLD_NOW);
  CALL(cuInit, 0);
  CALL(cuDevicePrimaryCtxRetain, &context, 0);
  CALL(cuCtxSetCurrent, context);
}

CUdeviceptr base;
std::vector<CUmemGenericAllocationHandle> handles;
constexpr int kMany = 40;

// The range becomes another thread's before the call that unmapped it has returned.
CUresult Remap() {
  Get<void(void (*)())>("FakeCudaAfterUnmap")(
      [] { std::thread([] { CALL(cuMemMap, base, 4 * kMiB, 0, handles.back(), 0); }).join(); });
  return CALL(cuMemUnmap, base, 4 * kMiB);
}

// One handle's neighbours, many times.
CUresult MapMany() {
  CALL(cuMemAddressReserve, &base, kMany * 2 * kMiB, 0, 0, 0);
  CUresult result = CUDA_SUCCESS;
  for (int i = 0; i < kMany && result == CUDA_SUCCESS; ++i) {
    result = CALL(cuMemMap, base + i * 2 * kMiB, 2 * kMiB, 0, handles.back(), 0);
  }
  return result;
}

int Vmm(const char* what) {
  CUmemAllocationProp properties{};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, {0}};
  if (strcmp(what, "create") == 0) {
    return CALL(cuMemCreate, &handles.emplace_back(), 4 * kMiB, &properties, 0);
  }
  if (strcmp(what, "map") == 0) {
    CALL(cuMemAddressReserve, &base, 4 * kMiB, 0, 0, 0);
    return CALL(cuMemMap, base, 4 * kMiB, 0, handles.back(), 0);
  }
  if (strcmp(what, "release") == 0) {
    const auto last = handles.back();
    handles.pop_back();
    return CALL(cuMemRelease, last);
  }
  if (strcmp(what, "remap") == 0) return Remap();
  if (strcmp(what, "map-many") == 0) return MapMany();
  if (strcmp(what, "unmap-many") == 0) return CALL(cuMemUnmap, base, kMany * 2 * kMiB);
  if (strcmp(what, "unmap-all") == 0) return CALL(cuMemUnmap, base, size_t{1} << 60);
  if (strcmp(what, "refuse") == 0) {
    Get<void(const char*, int, CUresult)>("FakeCudaFail")("cuMemUnmap", 1, CUDA_ERROR_UNKNOWN);
    return 0;
  }
  return CALL(cuMemUnmap, base, 4 * kMiB);
}

CUgraphExec executable;

int Graph(const char* what) {
  if (strcmp(what, "launch") == 0) return CALL(cuGraphLaunch, executable, nullptr);
  if (strcmp(what, "trim") == 0) return CALL(cuDeviceGraphMemTrim, 0);
  CUgraph graph = nullptr;
  CUgraphNode node = nullptr;
  CUDA_MEM_ALLOC_NODE_PARAMS parameters{};
  parameters.bytesize = 6 * kMiB;
  CALL(cuGraphCreate, &graph, 0);
  CALL(cuGraphAddMemAllocNode, &node, graph, nullptr, 0, &parameters);
  return CALL(cuGraphInstantiateWithFlags, &executable, graph, 0);
}

std::vector<CUdeviceptr> pieces;
CUmemoryPool own_pool;

CUmemoryPool DefaultPool() {
  CUmemoryPool pool = nullptr;
  CALL(cuDeviceGetDefaultMemPool, &pool, 0);
  return pool;
}

int Pool(const char* what, size_t bytes) {
  if (strcmp(what, "take") == 0) {
    CUdeviceptr at = 0;
    const int code = CALL(cuMemAllocAsync, &at, bytes, nullptr);
    if (code == CUDA_SUCCESS) pieces.push_back(at);
    return code;
  }
  if (strcmp(what, "from") == 0) {
    return CALL(cuMemAllocFromPoolAsync, &pieces.emplace_back(), bytes, DefaultPool(), nullptr);
  }
  if (strcmp(what, "beside") == 0) {  // by a stream of another device than the thread's
    CUcontext other = nullptr;
    CUstream stream = nullptr;
    CALL(cuDevicePrimaryCtxRetain, &other, 1);
    CALL(cuCtxSetCurrent, other);
    CALL(cuStreamCreate, &stream, CU_STREAM_NON_BLOCKING);
    CALL(cuCtxSetCurrent, context);
    const int code = CALL(cuMemAllocAsync, &pieces.emplace_back(), bytes, stream);
    CUcontext now = nullptr;
    CALL(cuCtxGetCurrent, &now);
    return now == context ? code : -1;
  }
  if (strcmp(what, "give") == 0) {
    const CUdeviceptr first = pieces.front();
    pieces.erase(pieces.begin());
    return CALL(cuMemFreeAsync, first, nullptr);
  }
  if (strcmp(what, "keep") == 0) {
    cuuint64_t all = ~cuuint64_t{0};
    return CALL(cuMemPoolSetAttribute, DefaultPool(), CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &all);
  }
  if (strcmp(what, "trim") == 0) return CALL(cuMemPoolTrimTo, DefaultPool(), bytes);
  if (strcmp(what, "stream") == 0) return CALL(cuStreamSynchronize, nullptr);
  if (strcmp(what, "context") == 0) return CALL(cuCtxSynchronize);
  if (strcmp(what, "event") == 0) {
    CUevent event = nullptr;
    CALL(cuEventCreate, &event, 0);
    return CALL(cuEventSynchronize, event);
  }
  if (strcmp(what, "own") == 0) {
    CUmemPoolProps properties{};
    properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, {0}};
    CALL(cuMemPoolCreate, &own_pool, &properties);
    return CALL(cuDeviceSetMemPool, 0, own_pool);
  }
  if (strcmp(what, "elsewhere") == 0) {
    CUmemPoolProps properties{};
    properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, {1}};
    CALL(cuMemPoolCreate, &own_pool, &properties);
    return CALL(cuMemAllocFromPoolAsync, &pieces.emplace_back(), bytes, own_pool, nullptr);
  }
  if (strcmp(what, "destroy") == 0) return CALL(cuMemPoolDestroy, own_pool);
  // The fake's own: the pools shrink without any call that could have been seen.
  Get<void()>("FakeCudaShrinkPools")();
  return 0;
}

void Reserved() {
  cuuint64_t bytes = 0;
  CALL(cuMemPoolGetAttribute, DefaultPool(), CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &bytes);
  printf("{\"bytes\": %llu}\n", static_cast<unsigned long long>(bytes));
}

void Capture() {
  CUstream stream = nullptr;
  CUdeviceptr other = 0;
  CUgraph graph = nullptr;
  CUdeviceptr at = 0;
  CALL(cuStreamCreate, &stream, 0);
  const int begin = Get<CUresult(CUstream, CUstreamCaptureMode)>("cuStreamBeginCapture_v2")(
      stream, CU_STREAM_CAPTURE_MODE_GLOBAL);
  CALL(cuMemAllocAsync, &other, kMiB, nullptr);
  CALL(cuMemFreeAsync, other, nullptr);
  const int alloc = CALL(cuMemAllocAsync, &at, kMiB, stream);
  const int free = CALL(cuMemFreeAsync, at, stream);
  const int end = CALL(cuStreamEndCapture, stream, &graph);
  printf("{\"begin\": %d, \"alloc\": %d, \"free\": %d, \"end\": %d}\n", begin, alloc, free, end);
}

void Nvml(int version) {
  struct {
    unsigned long long words[6];
  } memory{};
  void* nvml = dlopen("libnvidia-ml.so.1", RTLD_NOW);
  void* device = nullptr;
  reinterpret_cast<int (*)()>(dlsym(nvml, "nvmlInit_v2"))();
  reinterpret_cast<int (*)(unsigned, void**)>(dlsym(nvml, "nvmlDeviceGetHandleByIndex_v2"))(
      0, &device);
  const char* name = version == 1 ? "nvmlDeviceGetMemoryInfo" : "nvmlDeviceGetMemoryInfo_v2";
  reinterpret_cast<int (*)(void*, void*)>(dlsym(nvml, name))(device, &memory);
  const auto* words = memory.words;
  // The second has a version in front and what is reserved in between.
  if (version == 1) {
    printf("{\"total\": %llu, \"free\": %llu, \"used\": %llu}\n", words[0], words[1], words[2]);
  } else {
    printf("{\"total\": %llu, \"free\": %llu, \"used\": %llu}\n", words[1], words[3], words[4]);
  }
}

extern "C" {
void* OldDlsym(void*, const char*);
void* NewDlsym(void*, const char*);
}
__asm__(".symver OldDlsym, dlsym@GLIBC_2.2.5");
__asm__(".symver NewDlsym, dlsym@GLIBC_2.34");

bool FromInterceptor(void* function) {
  Dl_info info{};
  return function != nullptr && dladdr(function, &info) != 0 &&
         strstr(info.dli_fname, "libravenstore_intercept.so") != nullptr;
}

// No runtime is loaded here: our own definition is none, and dlerror reports that as ever.
bool IsAbsent(void* handle) {
  dlerror();
  const bool absent = dlsym(handle, "cudaMalloc") == nullptr;
  const char* error = dlerror();
  return absent && error != nullptr && strstr(error, "undefined symbol: cudaMalloc") != nullptr;
}

void LookUps() {
  auto yes = [](bool value) { return value ? "true" : "false"; };
  const char* name = "cuMemAlloc_v2";
  printf(
      "{\"old\": %s, \"new\": %s, \"default\": %s, \"next of none of ours\": %s, "
      "\"absent\": %s, \"absent from the program\": %s, \"not ours\": %s, "
      "\"caller's path\": %s}\n",
      yes(FromInterceptor(OldDlsym(library, name))), yes(FromInterceptor(NewDlsym(library, name))),
      yes(FromInterceptor(dlsym(RTLD_DEFAULT, name))), yes(dlsym(RTLD_NEXT, "malloc") != nullptr),
      yes(IsAbsent(RTLD_DEFAULT)), yes(IsAbsent(dlopen(nullptr, RTLD_NOW))),
      yes(!FromInterceptor(dlsym(library, "cuCtxGetDevice"))),
      // Found by this program's own rpath alone.
      yes(dlopen("libprobe.so", RTLD_NOW) != nullptr));
}

// Asks cuGetProcAddress for all that stands in the file: {"NAME VERSION FLAGS": from the
// interceptor}. What this driver does not have is left out.
void Answers(const char* path) {
  FILE* file = fopen(path, "r");
  char line[256] = "";
  printf("{\"\": false");
  while (file != nullptr && fgets(line, sizeof(line), file) != nullptr) {
    char name[200] = "";
    int version = 0;
    unsigned long long flags = 0;
    void* found = nullptr;
    // A runtime also asks for a function without a name.
    if (sscanf(line, "%199s %d %llu", name, &version, &flags) != 3) continue;
    CALL(cuGetProcAddress_v2, name, &found, version, flags, nullptr);
    const char* ours = FromInterceptor(found) ? "true" : "false";
    if (found != nullptr) printf(", \"%s %d %llu\": %s", name, version, flags, ours);
  }
  if (file != nullptr) fclose(file);
  printf("}\n");
}

// Levels, of 64 by 64 texels of 8 bytes on each of the cube's faces, or of one such face.
int Mipmap(bool cube, unsigned levels) {
  CUmipmappedArray made = nullptr;
  const CUDA_ARRAY3D_DESCRIPTOR shape{
      64, 64, cube ? 6u : 0u, CU_AD_FORMAT_FLOAT, 2, cube ? CUDA_ARRAY3D_CUBEMAP : 0u};
  return CALL(cuMipmappedArrayCreate, &made, &shape, levels);
}

// Memory of each device by a context that is destroyed again, but for the last one's.
void Contexts() {
  CUresult code = CUDA_SUCCESS;
  for (int device = 0; device < 2 && code == CUDA_SUCCESS; ++device) {
    CUcontext own = nullptr;
    CUdeviceptr at = 0;
    Get<CUresult(CUcontext*, unsigned, CUdevice)>("cuCtxCreate_v2")(&own, 0, device);
    code = CALL(cuMemAlloc_v2, &at, (device + 1) * kMiB);
    if (device == 0) Get<CUresult(CUcontext)>("cuCtxDestroy_v2")(own);
  }
  CALL(cuCtxSetCurrent, context);
  printf("{\"code\": %d}\n", code);
}

// Memory in a context of the program's own.
int Own(const char* what) {
  static CUcontext own;
  CUdeviceptr at = 0;
  if (strcmp(what, "take") == 0) {
    Get<CUresult(CUcontext*, unsigned, CUdevice)>("cuCtxCreate_v2")(&own, 0, 0);
    return CALL(cuMemAlloc_v2, &at, 4 * kMiB);
  }
  const int code = Get<CUresult(CUcontext)>("cuCtxDestroy_v2")(own);
  CALL(cuCtxSetCurrent, context);
  return code;
}

int stolen[64];

void CloseAll() {
  for (int i = 3; i < 64; ++i) close(i);
  // Whatever had our numbers is now this.
  for (int& file : stolen) file = open("/dev/null", O_RDWR);
  printf("{}\n");
}

void Intact() {
  bool intact = true;
  for (const int file : stolen) intact = intact && fcntl(file, F_GETFD) >= 0;
  printf("{\"intact\": %s}\n", intact ? "true" : "false");
}

void Race() {
  std::vector<std::thread> threads;
  for (int i = 0; i < 16; ++i) {
    threads.emplace_back([] {
      void* own = dlopen("libcuda.so.1", RTLD_NOW);
      library = own;
      CUcontext primary = nullptr;
      CUdeviceptr at = 0;
      CALL(cuInit, 0);
      CALL(cuDevicePrimaryCtxRetain, &primary, 0);
      CALL(cuCtxSetCurrent, primary);
      CALL(cuMemAlloc_v2, &at, kMiB);
    });
  }
  for (auto& thread : threads) thread.join();
  printf("{}\n");
}

// What the library calls of its own, and not of the program's, says how it was bound.
extern "C" __attribute__((visibility("default"))) int ProbeVersion() {
  return 1;
}

void Deep(const char* path) {
  void* probe = dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_DEEPBIND);
  // Nothing of it is looked up, so no look-up has hooked it.
  if (getenv("PROBER_ONLY_LOADS") != nullptr) return;
  if (probe == nullptr) {
    printf("{\"code\": -1}\n");
    return;
  }
  const int code = reinterpret_cast<int (*)(size_t)>(dlsym(probe, "ProbeAllocate"))(kMiB);
  const int version = reinterpret_cast<int (*)()>(dlsym(probe, "ProbeFinds"))();
  printf("{\"code\": %d, \"version\": %d}\n", code, version);
}

void Do(const std::string& command, const std::string& word, size_t bytes) {
  if (command == "vmm") {
    printf("{\"code\": %d}\n", Vmm(word.c_str()));
  } else if (command == "device") {
    CUdeviceptr at = 0;
    printf("{\"code\": %d}\n", CALL(cuMemAlloc_v2, &at, strtoull(word.c_str(), nullptr, 10)));
  } else if (command == "graph") {
    printf("{\"code\": %d}\n", Graph(word.c_str()));
  } else if (command == "pool") {
    printf("{\"code\": %d}\n", Pool(word.c_str(), bytes));
  } else if (command == "reserved") {
    Reserved();
  } else if (command == "reset") {
    printf("{\"code\": %d}\n", Get<CUresult(CUdevice)>("cuDevicePrimaryCtxReset_v2")(0));
  } else if (command == "own") {
    printf("{\"code\": %d}\n", Own(word.c_str()));
  } else if (command == "mipmap") {
    printf("{\"code\": %d}\n", Mipmap(word == "cube", static_cast<unsigned>(bytes)));
  } else if (command == "contexts") {
    Contexts();
  } else if (command == "capture") {
    Capture();
  } else if (command == "nvml") {
    Nvml(atoi(word.c_str()));
  } else if (command == "lookups") {
    LookUps();
  } else if (command == "answers") {
    Answers(word.c_str());
  } else if (command == "close") {
    CloseAll();
  } else if (command == "intact") {
    Intact();
  } else if (command == "unknown") {
    printf("{\"free\": %d, \"release\": %d}\n", CALL(cuMemFree_v2, 0x1234000),
           CALL(cuMemRelease, 0x777));
  } else if (command == "race") {
    Race();
  } else if (command == "deep") {
    Deep(word.c_str());
  } else {
    exit(0);
  }
}

}  // namespace

int main() {
  setvbuf(stdout, nullptr, _IOLBF, 0);
  large[0] = 1;
  if (getenv("PROBER_LATE") == nullptr) Begin();
  if (const char* path = getenv("PROBER_DEEP")) Deep(path);
  printf("{\"ready\": %d}\n", getpid());
  char line[4096];
  while (fgets(line, sizeof(line), stdin) != nullptr) {
    char command[64] = "";
    char word[4000] = "";
    size_t bytes = 0;
    sscanf(line, "%63s %3999s %zu", command, word, &bytes);
    Do(command, word, bytes);
  }
  return 0;
}
