// A small program that knows nothing of Ravenstore: allocates in every way its look-up reaches,
// says what it holds, and frees on command. Built several times, with one of
//
//   VIA_DRIVER      linked with libcuda
//   VIA_RUNTIME     linked with libcudart, static or not
//   VIA_DLSYM       dlopen and dlsym
//   VIA_PROC_1, _2  cuGetProcAddress, first and second version
//   VIA_PER_THREAD  the same for per-thread default streams
//   VIA_ENTRY       cudaGetDriverEntryPoint
//
// Reads commands, a line each, and answers each with a line of JSON: the bytes it holds by kind.
//
//   all       allocate one of everything
//   free      free everything
//   device N  cuMemAlloc or cudaMalloc of N; {"code"}
//   drop      free the last of those
//   grab N    allocate pieces of N until one is refused; {"count"}: how many it got
//   info      {"free", "total", "size"} as the device says
//   churn N   N pairs of allocation and free of 1 MiB; {"ns"}: nanoseconds of a pair
//   storm N   16 threads make N random allocations and frees together, keep a few; {"kept"}: bytes
//   calm      free those
//   exec      becomes itself again
//   fork      a child allocates, maybe, and exits; {"child"}: its status
//   quit
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <thread>
#include <utility>
#include <vector>

#undef cuGetProcAddress
#undef cudaGetDriverEntryPoint

namespace {

constexpr size_t kMiB = size_t{1} << 20;

struct Held {
  size_t device = 0, pitch = 0, managed = 0, async = 0, vmm = 0, array = 0, mipmap = 0, pool = 0;
};
Held held;

[[noreturn]] void Die(const char* what, int code) {
  fprintf(stderr, "job: %s failed with %d\n", what, code);
  exit(3);
}

#define MUST(call)                                            \
  do {                                                        \
    if (const int code = (call); code != 0) Die(#call, code); \
  } while (false)

std::vector<void*> singles;

#if defined(VIA_RUNTIME)

void *plain, *managed, *pitched, *async;
cudaPitchedPtr cube;
cudaArray_t array, array3d;
cudaMipmappedArray_t mipmap;

void Begin() {
  MUST(cudaFree(nullptr));
}

int Single(size_t bytes) {
  void* at = nullptr;
  const int code = cudaMalloc(&at, bytes);
  if (code == 0) singles.push_back(at);
  if (code != 0) cudaGetLastError();
  return code;
}
void DropSingle() {
  MUST(cudaFree(singles.back()));
}

void All() {
  const cudaChannelFormatDesc texel{32, 32, 0, 0, cudaChannelFormatKindUnsigned};
  size_t pitch = 0;
  MUST(cudaMalloc(&plain, 3 * kMiB + 17));
  MUST(cudaMallocManaged(&managed, 5 * kMiB, cudaMemAttachGlobal));
  MUST(cudaMallocPitch(&pitched, &pitch, 1000, 300));
  MUST(cudaMalloc3D(&cube, {500, 20, 7}));
  MUST(cudaMallocAsync(&async, 2 * kMiB + 1, nullptr));
  MUST(cudaMallocArray(&array, &texel, 128, 64, 0));
  MUST(cudaMalloc3DArray(&array3d, &texel, {32, 16, 8}, 0));
  MUST(cudaMallocMipmappedArray(&mipmap, &texel, {64, 64, 0}, 3, 0));
  held.device += 3 * kMiB + 17;
  held.managed += 5 * kMiB;
  held.pitch += pitch * 300 + cube.pitch * 20 * 7;
  held.async += 2 * kMiB + 1;
  held.array += (128 * 64 + 32 * 16 * 8) * 8;
  held.mipmap += (64 * 64 + 32 * 32 + 16 * 16) * 8;
}

void FreeAll() {
  MUST(cudaFree(plain));
  MUST(cudaFree(managed));
  MUST(cudaFree(pitched));
  MUST(cudaFree(cube.ptr));
  MUST(cudaFreeAsync(async, nullptr));
  MUST(cudaFreeArray(array));
  MUST(cudaFreeArray(array3d));
  MUST(cudaFreeMipmappedArray(mipmap));
}

// What the device's default pool holds, once nothing is under way.
size_t PoolBytes() {
  cudaMemPool_t pool = nullptr;
  unsigned long long bytes = 0;
  MUST(cudaDeviceSynchronize());
  MUST(cudaDeviceGetDefaultMemPool(&pool, 0));
  MUST(cudaMemPoolGetAttribute(pool, cudaMemPoolAttrReservedMemCurrent, &bytes));
  return bytes;
}

void Info(size_t* free, size_t* total, size_t* size) {
  MUST(cudaMemGetInfo(free, total));
  cudaDeviceProp properties;
  MUST(cudaGetDeviceProperties(&properties, 0));
  *size = properties.totalGlobalMem;
}

#else

struct Driver {
  decltype(&cuInit) init;
  decltype(&cuDevicePrimaryCtxRetain) retain;
  decltype(&cuCtxSetCurrent) set_current;
  decltype(&cuDeviceTotalMem_v2) total;
  decltype(&cuMemGetInfo_v2) info;
  decltype(&cuMemAlloc_v2) alloc;
  decltype(&cuMemFree_v2) free;
  decltype(&cuMemAllocPitch_v2) pitch;
  decltype(&cuMemAllocManaged) managed;
  decltype(&cuMemAllocAsync) async;
  decltype(&cuMemFreeAsync) free_async;
  decltype(&cuCtxSynchronize) synchronize;
  decltype(&cuDeviceGetDefaultMemPool) default_pool;
  decltype(&cuMemPoolGetAttribute) pool_attribute;
  decltype(&cuMemCreate) create;
  decltype(&cuMemRelease) release;
  decltype(&cuArrayCreate_v2) array;
  decltype(&cuArray3DCreate_v2) array3d;
  decltype(&cuArrayDestroy) array_destroy;
  decltype(&cuMipmappedArrayCreate) mipmap;
  decltype(&cuMipmappedArrayDestroy) mipmap_destroy;
};
Driver driver;

#if defined(VIA_DRIVER)
#define FIND(member, base, symbol) driver.member = &symbol
void Load() {}
#else
void* library;
#if defined(VIA_DLSYM)
#define FIND(member, base, symbol) \
  driver.member = reinterpret_cast<decltype(driver.member)>(dlsym(library, #symbol))
#elif defined(VIA_PROC_1)
CUresult (*look_up)(const char*, void**, int, cuuint64_t);
void* Look(const char* base) {
  void* found = nullptr;
  MUST(look_up(base, &found, 11030, 0));
  return found;
}
#elif defined(VIA_ENTRY)
void* Look(const char* base) {
  void* found = nullptr;
  cudaDriverEntryPointQueryResult status;
  MUST(cudaGetDriverEntryPointByVersion(base, &found, 12000, cudaEnableDefault, &status));
  return found;
}
#else
decltype(&cuGetProcAddress_v2) look_up;
void* Look(const char* base) {
  void* found = nullptr;
#if defined(VIA_PER_THREAD)
  constexpr cuuint64_t kFlags = CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM;
#else
  constexpr cuuint64_t kFlags = CU_GET_PROC_ADDRESS_DEFAULT;
#endif
  MUST(look_up(base, &found, 12000, kFlags, nullptr));
  return found;
}
#endif
#if !defined(FIND)
#define FIND(member, base, symbol) \
  driver.member = reinterpret_cast<decltype(driver.member)>(Look(#base))
#endif

void Load() {
  library = dlopen("libcuda.so.1", RTLD_NOW);
  if (library == nullptr) Die("dlopen", 0);
#if defined(VIA_PROC_1)
  look_up = reinterpret_cast<decltype(look_up)>(dlsym(library, "cuGetProcAddress"));
#elif defined(VIA_PROC_2) || defined(VIA_PER_THREAD)
  look_up = reinterpret_cast<decltype(look_up)>(dlsym(library, "cuGetProcAddress_v2"));
#endif
}
#endif

CUdeviceptr plain, managed, pitched, async;
CUmemGenericAllocationHandle physical;
CUarray array, array3d;
CUmipmappedArray mipmap;

void Begin() {
  Load();
  FIND(init, cuInit, cuInit);
  FIND(retain, cuDevicePrimaryCtxRetain, cuDevicePrimaryCtxRetain);
  FIND(set_current, cuCtxSetCurrent, cuCtxSetCurrent);
  FIND(total, cuDeviceTotalMem, cuDeviceTotalMem_v2);
  FIND(info, cuMemGetInfo, cuMemGetInfo_v2);
  FIND(alloc, cuMemAlloc, cuMemAlloc_v2);
  FIND(free, cuMemFree, cuMemFree_v2);
  FIND(pitch, cuMemAllocPitch, cuMemAllocPitch_v2);
  FIND(managed, cuMemAllocManaged, cuMemAllocManaged);
  FIND(async, cuMemAllocAsync, cuMemAllocAsync);
  FIND(free_async, cuMemFreeAsync, cuMemFreeAsync);
  FIND(synchronize, cuCtxSynchronize, cuCtxSynchronize);
  FIND(default_pool, cuDeviceGetDefaultMemPool, cuDeviceGetDefaultMemPool);
  FIND(pool_attribute, cuMemPoolGetAttribute, cuMemPoolGetAttribute);
  FIND(create, cuMemCreate, cuMemCreate);
  FIND(release, cuMemRelease, cuMemRelease);
  FIND(array, cuArrayCreate, cuArrayCreate_v2);
  FIND(array3d, cuArray3DCreate, cuArray3DCreate_v2);
  FIND(array_destroy, cuArrayDestroy, cuArrayDestroy);
  FIND(mipmap, cuMipmappedArrayCreate, cuMipmappedArrayCreate);
  FIND(mipmap_destroy, cuMipmappedArrayDestroy, cuMipmappedArrayDestroy);
  CUcontext context = nullptr;
  MUST(driver.init(0));
  MUST(driver.retain(&context, 0));
  MUST(driver.set_current(context));
}

int Single(size_t bytes) {
  CUdeviceptr at = 0;
  const int code = driver.alloc(&at, bytes);
  if (code == 0) singles.push_back(reinterpret_cast<void*>(at));
  return code;
}
void DropSingle() {
  MUST(driver.free(reinterpret_cast<CUdeviceptr>(singles.back())));
}

void All() {
  size_t pitch = 0;
  MUST(driver.alloc(&plain, 3 * kMiB + 17));
  MUST(driver.managed(&managed, 5 * kMiB, CU_MEM_ATTACH_GLOBAL));
  MUST(driver.pitch(&pitched, &pitch, 1000, 300, 4));
  MUST(driver.async(&async, 2 * kMiB + 1, nullptr));
  CUmemAllocationProp properties{};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, {0}};
  MUST(driver.create(&physical, 4 * kMiB, &properties, 0));
  const CUDA_ARRAY_DESCRIPTOR flat{128, 64, CU_AD_FORMAT_FLOAT, 2};
  const CUDA_ARRAY3D_DESCRIPTOR deep{32, 16, 8, CU_AD_FORMAT_FLOAT, 2, 0};
  const CUDA_ARRAY3D_DESCRIPTOR levels{64, 64, 0, CU_AD_FORMAT_FLOAT, 2, 0};
  MUST(driver.array(&array, &flat));
  MUST(driver.array3d(&array3d, &deep));
  MUST(driver.mipmap(&mipmap, &levels, 3));
  held.device += 3 * kMiB + 17;
  held.managed += 5 * kMiB;
  held.pitch += pitch * 300;
  held.async += 2 * kMiB + 1;
  held.vmm += 4 * kMiB;
  held.array += (128 * 64 + 32 * 16 * 8) * 8;
  held.mipmap += (64 * 64 + 32 * 32 + 16 * 16) * 8;
}

void FreeAll() {
  MUST(driver.free(plain));
  MUST(driver.free(managed));
  MUST(driver.free(pitched));
  MUST(driver.free_async(async, nullptr));
  MUST(driver.release(physical));
  MUST(driver.array_destroy(array));
  MUST(driver.array_destroy(array3d));
  MUST(driver.mipmap_destroy(mipmap));
}

// What the device's default pool holds, once nothing is under way.
size_t PoolBytes() {
  CUmemoryPool pool = nullptr;
  cuuint64_t bytes = 0;
  MUST(driver.synchronize());
  MUST(driver.default_pool(&pool, 0));
  MUST(driver.pool_attribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &bytes));
  return bytes;
}

void Info(size_t* free, size_t* total, size_t* size) {
  MUST(driver.info(free, total));
  MUST(driver.total(size, 0));
}

#endif

void Say() {
  held.pool = PoolBytes() - held.async;
  printf(
      "{\"device\": %zu, \"pitch\": %zu, \"managed\": %zu, \"async\": %zu, \"vmm\": %zu, "
      "\"array\": %zu, \"mipmap\": %zu, \"pool\": %zu}\n",
      held.device, held.pitch, held.managed, held.async, held.vmm, held.array, held.mipmap,
      held.pool);
}

void Churn(long pairs) {
  timespec begin{};
  timespec end{};
  clock_gettime(CLOCK_MONOTONIC, &begin);
  for (long i = 0; i < pairs; ++i) {
    MUST(Single(kMiB));
    DropSingle();
    singles.pop_back();
  }
  clock_gettime(CLOCK_MONOTONIC, &end);
  const double ns = static_cast<double>(end.tv_sec - begin.tv_sec) * 1e9 +
                    static_cast<double>(end.tv_nsec - begin.tv_nsec);
  printf("{\"ns\": %.1f}\n", ns / static_cast<double>(pairs));
}

#if !defined(VIA_RUNTIME)
using Kept = std::vector<std::pair<CUdeviceptr, size_t>>;

// One thread's share; what is left at its end stays held.
Kept Storm(unsigned seed, long calls, CUcontext context) {
  MUST(driver.set_current(context));
  Kept mine;
  unsigned state = seed * 2654435761u + 1;
  auto next = [&state] { return (state = state * 1664525u + 1013904223u) >> 8; };
  for (long i = 0; i < calls; ++i) {
    if (mine.size() < 20 && (mine.empty() || next() % 2 == 0)) {
      const size_t bytes = 1 + next() % 65536;
      CUdeviceptr at = 0;
      MUST(next() % 4 == 0 ? driver.async(&at, bytes, nullptr) : driver.alloc(&at, bytes));
      mine.emplace_back(at, bytes);
    } else {
      const size_t which = next() % mine.size();
      MUST(next() % 2 == 0 ? driver.free(mine[which].first)
                           : driver.free_async(mine[which].first, nullptr));
      mine[which] = mine.back();
      mine.pop_back();
    }
  }
  return mine;
}

constexpr int kThreads = 16;
Kept kept[kThreads];

void StormAll(long calls) {
  CUcontext context = nullptr;
  MUST(driver.retain(&context, 0));
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back(
        [&, i] { kept[i] = Storm(static_cast<unsigned>(i), calls / kThreads, context); });
  }
  for (auto& thread : threads) thread.join();
  size_t all = 0;
  for (const Kept& mine : kept) {
    for (const auto& [at, bytes] : mine) all += bytes;
  }
  printf("{\"kept\": %zu}\n", all);
}

void Calm() {
  for (Kept& mine : kept) {
    for (const auto& [at, bytes] : mine) MUST(driver.free(at));
    mine.clear();
  }
  printf("{}\n");
}
#endif

void Fork() {
  fflush(stdout);
  const pid_t child = fork();
  if (child == 0) {
    // A context does not survive fork: the driver may refuse everything, but nothing may hang.
    if (getenv("JOB_CHILD_ALLOCATES") != nullptr) Single(kMiB);
    _exit(7);
  }
  int status = 0;
  waitpid(child, &status, 0);
  printf("{\"child\": %d}\n", WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status));
}

void Do(const char* command, long number, char** argv) {
  if (strcmp(command, "all") == 0) {
    All();
    Say();
  } else if (strcmp(command, "free") == 0) {
    FreeAll();
    held = {};
    Say();
  } else if (strcmp(command, "device") == 0) {
    const int code = Single(static_cast<size_t>(number));
    if (code == 0) held.device += static_cast<size_t>(number);
    printf("{\"code\": %d}\n", code);
  } else if (strcmp(command, "grab") == 0) {
    int count = 0;
    while (Single(static_cast<size_t>(number)) == 0) ++count;
    printf("{\"count\": %d}\n", count);
  } else if (strcmp(command, "drop") == 0) {
    DropSingle();
    singles.pop_back();
    printf("{}\n");
  } else if (strcmp(command, "info") == 0) {
    size_t free = 0, total = 0, size = 0;
    Info(&free, &total, &size);
    printf("{\"free\": %zu, \"total\": %zu, \"size\": %zu}\n", free, total, size);
  } else if (strcmp(command, "churn") == 0) {
    Churn(number);
#if !defined(VIA_RUNTIME)
  } else if (strcmp(command, "storm") == 0) {
    StormAll(number);
  } else if (strcmp(command, "calm") == 0) {
    Calm();
#endif
  } else if (strcmp(command, "fork") == 0) {
    Fork();
  } else if (strcmp(command, "exec") == 0) {
    execv("/proc/self/exe", argv);
    Die("execv", 0);
  } else {
    exit(0);
  }
}

}  // namespace

int main(int, char** argv) {
  setvbuf(stdout, nullptr, _IOLBF, 0);
  Begin();
  printf("{\"ready\": %d}\n", getpid());
  char line[256];
  while (fgets(line, sizeof(line), stdin) != nullptr) {
    char command[64] = "";
    long number = 0;
    sscanf(line, "%63s %ld", command, &number);
    Do(command, number, argv);
  }
  return 0;
}
