// A job for the elastic mode: it reads commands from stdin, a line each, and answers with JSON.
// It finds the driver by dlsym, or, with the argument "proc", by cuGetProcAddress; with
// "per_thread", by that for per-thread default streams.
//
//   take KIND BYTES     plain, async, pool or pitch; {"code", "at"}: `at` is a number for later
//   give KIND N         plain or async
//   launch HOW [N...]   a kernel that names the N-th allocations
//   copy HOW BYTES N M  of up to two allocations, and of host memory
//   touches PATH        every function of touches.def, from the library at PATH, on 0 and 1
//   used [anew]         {"now", "most"} of the default pool; the most from now on
//   graph, captured, update, unload, pointer x N, unusual x N, table HOW N, info, stream
//   context, fork
//   loop x N            launches a kernel of nothing N times; {"ns"} of one
//   owner SYMBOL        whose function the program is handed
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <string>
#include <tuple>
#include <vector>

#include "interceptor/cuda_api.h"
#include "tests/fake_cuda/fake_cuda.h"

namespace {

void* library;
std::string way = "dlsym";

[[noreturn]] void Die(const char* what, int code) {
  fprintf(stderr, "elastic_job: %s failed with %d\n", what, code);
  exit(3);
}
#define MUST(call)                                            \
  do {                                                        \
    if (const int code = (call); code != 0) Die(#call, code); \
  } while (false)

// `symbol` is an exported name, of which cuGetProcAddress wants the base.
void* Look(const std::string& symbol) {
  void* found = nullptr;
  if (way == "dlsym") {
    found = dlsym(library, symbol.c_str());
  } else {
    auto* find =
        reinterpret_cast<decltype(&cuGetProcAddress_v2)>(dlsym(library, "cuGetProcAddress_v2"));
    std::string base = symbol;
    const size_t version = base.rfind("_v");
    if (version != std::string::npos) base.resize(version);
    find(base.c_str(), &found, CUDA_VERSION,
         way == "per_thread" ? CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM : 0, nullptr);
  }
  if (found == nullptr) Die(symbol.c_str(), -1);
  return found;
}
#define CALL(symbol) reinterpret_cast<decltype(&(symbol))>(Look(#symbol))

CUstream stream;
CUcontext context;
CUmodule module;
CUmemoryPool pool;
std::vector<CUdeviceptr> taken;
std::vector<char> host(size_t{4} << 20);
int numbers[8];

CUdeviceptr At(int n) {
  return taken.at(static_cast<size_t>(n));
}

CUfunction Function(const char* name) {
  CUfunction function = nullptr;
  MUST(CALL(cuModuleGetFunction)(&function, module, name));
  return function;
}

void Begin() {
  library = dlopen("libcuda.so.1", RTLD_NOW);
  if (library == nullptr) Die("dlopen", 0);
  MUST(CALL(cuInit)(0));
  MUST(CALL(cuDevicePrimaryCtxRetain)(&context, 0));
  MUST(CALL(cuCtxSetCurrent)(context));
  MUST(CALL(cuStreamCreate)(&stream, CU_STREAM_NON_BLOCKING));
  MUST(CALL(cuModuleLoadData)(
      &module,
      "empty fill opaque add combine combine_packed combine_table check " FAKE_CUDA_NCCL_KERNEL));
}

int Take(const std::string& kind, size_t bytes) {
  CUdeviceptr at = 0;
  size_t pitch = 0;
  int code = 1;
  if (kind == "plain") code = CALL(cuMemAlloc_v2)(&at, bytes);
  if (kind == "async") code = CALL(cuMemAllocAsync)(&at, bytes, stream);
  if (kind == "default") code = CALL(cuMemAllocAsync)(&at, bytes, nullptr);
  if (kind == "pitch") code = CALL(cuMemAllocPitch_v2)(&at, &pitch, 1000, bytes / 1024, 4);
  if (kind == "managed") code = CALL(cuMemAllocManaged)(&at, bytes, CU_MEM_ATTACH_GLOBAL);
  if (kind == "pool") {
    MUST(CALL(cuDeviceGetDefaultMemPool)(&pool, 0));
    code = CALL(cuMemAllocFromPoolAsync)(&at, bytes, pool, stream);
  }
  if (code == 0) taken.push_back(at);
  printf("{\"code\": %d, \"at\": %zu}\n", code, taken.size() - 1);
  return code;
}

void Give(const std::string& kind, int n) {
  int code = 1;
  if (kind == "plain") code = CALL(cuMemFree_v2)(At(n));
  if (kind == "async") code = CALL(cuMemFreeAsync)(At(n), stream);
  if (kind == "default") code = CALL(cuMemFreeAsync)(At(n), nullptr);
  printf("{\"code\": %d}\n", code);
}

struct Packed {
  CUdeviceptr to;
  struct {
    CUdeviceptr a;
    CUdeviceptr b;
  } from;
  uint64_t count;
};

int Launch(const std::string& how, CUstream on) {
  uint64_t count = 16;
  uint64_t seed = 7;
  CUdeviceptr to = At(numbers[0]);
  CUdeviceptr a = At(numbers[1]) + 64;
  CUdeviceptr b = At(numbers[2]) + 128;
  void* combine[] = {&to, &a, &b, &count};
  void* fill[] = {&to, &count, &seed};
  if (how == "params") {
    return CALL(cuLaunchKernel)(Function("combine"), 2, 1, 1, 32, 1, 1, 0, on, combine, nullptr);
  }
  if (how == "wide") {
    return CALL(cuLaunchKernel)(Function("combine"), 4, 1, 1, 32, 1, 1, 0, on, combine, nullptr);
  }
  if (how == "opaque") {
    return CALL(cuLaunchKernel)(Function("opaque"), 1, 1, 1, 1, 1, 1, 0, on, fill, nullptr);
  }
  if (how == "nccl") {
    uint64_t none = 0;
    void* table[] = {&to, &none};
    return CALL(cuLaunchKernel)(Function(FAKE_CUDA_NCCL_KERNEL), 1, 1, 1, 1, 1, 1, 0, on, table,
                                nullptr);
  }
  if (how == "ex") {
    CUlaunchConfig config{};
    config.gridDimX = config.gridDimY = config.gridDimZ = 1;
    config.blockDimX = config.blockDimY = config.blockDimZ = 1;
    config.hStream = on;
    return CALL(cuLaunchKernelEx)(&config, Function("combine"), combine, nullptr);
  }
  if (how == "cooperative") {
    return CALL(cuLaunchCooperativeKernel)(Function("combine"), 1, 1, 1, 1, 1, 1, 0, on, combine);
  }
  if (how == "struct") {
    Packed packed{to, {a, b}, count};
    void* parameters[] = {&packed};
    return CALL(cuLaunchKernel)(Function("combine_packed"), 1, 1, 1, 1, 1, 1, 0, on, parameters,
                                nullptr);
  }
  if (how == "extra") {
    uint64_t words[] = {to, a, b, count};
    size_t bytes = sizeof(words);
    void* extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, words, CU_LAUNCH_PARAM_BUFFER_SIZE, &bytes,
                     CU_LAUNCH_PARAM_END};
    return CALL(cuLaunchKernel)(Function("combine"), 1, 1, 1, 1, 1, 1, 0, on, nullptr, extra);
  }
  if (how == "fill") {
    return CALL(cuLaunchKernel)(Function("fill"), 1, 1, 1, 1, 1, 1, 0, on, fill, nullptr);
  }
  if (how == "empty") {
    return CALL(cuLaunchKernel)(Function("empty"), 1, 1, 1, 1, 1, 1, 0, on, nullptr, nullptr);
  }
  return 1;
}

int Copy(const std::string& how, size_t bytes) {
  CUdeviceptr a = At(numbers[0]);
  CUdeviceptr b = At(numbers[1]);
  const auto at = reinterpret_cast<CUdeviceptr>(host.data());
  if (how == "htod") return CALL(cuMemcpyHtoD_v2)(a, host.data(), bytes);
  if (how == "htod_async") return CALL(cuMemcpyHtoDAsync_v2)(a, host.data(), bytes, stream);
  if (how == "htod_default") return CALL(cuMemcpyHtoDAsync_v2)(a, host.data(), bytes, nullptr);
  if (how == "dtoh") return CALL(cuMemcpyDtoH_v2)(host.data(), a, bytes);
  if (how == "dtod") return CALL(cuMemcpyDtoDAsync_v2)(a, b, bytes, stream);
  if (how == "any") return CALL(cuMemcpyAsync)(a, b, bytes, stream);
  if (how == "any_host") return CALL(cuMemcpyAsync)(a, at, bytes, stream);
  if (how == "set") return CALL(cuMemsetD8Async)(a, 1, bytes, stream);
  return 1;
}

// Two captured kernels, and a copy of nothing of ours: {"begin", "kernel", "end", "make", "run"}.
void Graph(bool with_copy) {
  CUgraph graph = nullptr;
  CUgraphExec executable = nullptr;
  const int begin = CALL(cuStreamBeginCapture_v2)(stream, CU_STREAM_CAPTURE_MODE_GLOBAL);
  const int first = Launch("params", stream);
  std::swap(numbers[0], numbers[3]);
  const int second = Launch("fill", stream);
  if (with_copy) MUST(CALL(cuMemcpyDtoDAsync_v2)(At(0), At(1), 64, stream));
  const int end = CALL(cuStreamEndCapture)(stream, &graph);
  const int make = CALL(cuGraphInstantiateWithFlags)(&executable, graph, 0);
  const int run = CALL(cuGraphLaunch)(executable, stream);
  MUST(CALL(cuStreamSynchronize)(stream));
  const int drop = CALL(cuGraphExecDestroy)(executable);
  printf("{\"codes\": [%d, %d, %d, %d, %d, %d, %d]}\n", begin, first, second, end, make, run, drop);
}

// What is allocated and freed in a capture.
void Captured() {
  CUgraph graph = nullptr;
  CUdeviceptr at = 0;
  MUST(CALL(cuStreamBeginCapture_v2)(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
  const int alloc = CALL(cuMemAllocAsync)(&at, size_t{4} << 20, stream);
  const int free = CALL(cuMemFreeAsync)(at, stream);
  MUST(CALL(cuStreamEndCapture)(stream, &graph));
  printf("{\"alloc\": %d, \"free\": %d}\n", alloc, free);
}

void Pointer(int n) {
  CUdeviceptr address = At(n) + 4096;
  unsigned int type = 0;
  unsigned int managed = 9;
  int device = -1;
  CUdeviceptr begin = 0;
  size_t bytes = 0;
  size_t range = 0;
  CUdeviceptr base = 0;
  MUST(CALL(cuPointerGetAttribute)(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, address));
  CUpointer_attribute names[] = {
      CU_POINTER_ATTRIBUTE_IS_MANAGED, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
      CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, CU_POINTER_ATTRIBUTE_RANGE_SIZE};
  void* data[] = {&managed, &device, &begin, &bytes};
  MUST(CALL(cuPointerGetAttributes)(4, names, data, address));
  MUST(CALL(cuMemGetAddressRange_v2)(&base, &range, address));
  printf(
      "{\"type\": %u, \"managed\": %u, \"device\": %d, \"begin\": %d, \"bytes\": %zu, \"base\": "
      "%d, \"range\": %zu}\n",
      type, managed, device, begin == At(n), bytes, base == At(n), range);
}

// What the engine knows nothing of.
void Unusual(int n) {
  unsigned int is_set = 0;
  CUpointer_attribute name = CU_POINTER_ATTRIBUTE_SYNC_MEMOPS;
  void* data = &is_set;
  const int one = CALL(cuPointerGetAttribute)(data, name, At(n));
  const int all = CALL(cuPointerGetAttributes)(1, &name, &data, At(n));
  printf("{\"codes\": [%d, %d]}\n", one, all);
}

// A table of addresses goes to the device.
int Table(const std::string& how) {
  CUdeviceptr words[4] = {1, At(numbers[1]) + 8, 3, At(numbers[2])};
  if (how == "odd") {
    // Not aligned where it will lie, and so no address.
    memcpy(host.data(), words, sizeof(words));
    return CALL(cuMemcpyHtoD_v2)(At(numbers[0]) + 4, host.data(), sizeof(words));
  }
  memset(host.data(), 0, host.size());
  memcpy(host.data() + 800, words, sizeof(words));
  return how == "large" ? Copy("htod", size_t{2} << 20) : Copy(how, 4096);
}

// Fills in arguments by their types: addresses are in turn those of the first two allocations.
struct Filler {
  int next = 0;
  CUDA_MEMCPY2D flat{};
  CUDA_MEMCPY3D deep{};
  CUDA_MEMCPY3D_PEER peer{};
  CUdeviceptr addresses[2]{};
  size_t ones[1] = {1};
  CUDA_MEMCPY3D_BATCH_OP operation{};
  CUstreamBatchMemOpParams word{};
  CUDA_RESOURCE_DESC resource{};
  CUtensorMap map{};
  CUDA_MEMSET_NODE_PARAMS set{};
  CUgraphNodeParams node{};

  template <typename Description>
  Description* Describe(Description* copy) {
    copy->srcMemoryType = copy->dstMemoryType = CU_MEMORYTYPE_DEVICE;
    copy->srcDevice = At(1);
    copy->dstDevice = At(0);
    copy->WidthInBytes = copy->Height = 1;
    return copy;
  }
  template <typename Type>
  Type Fill() {
    using Plain = std::remove_cv_t<std::remove_pointer_t<Type>>;
    if constexpr (std::is_same_v<Type, CUdeviceptr>) return At(next++ % 2);
    if constexpr (std::is_same_v<Type, void*>) return reinterpret_cast<void*>(At(0));
    if constexpr (std::is_same_v<Type, CUstream>) return stream;
    if constexpr (std::is_same_v<Plain, CUDA_MEMCPY2D>) return Describe(&flat);
    if constexpr (std::is_same_v<Plain, CUDA_MEMCPY3D>) return Describe(&deep);
    if constexpr (std::is_same_v<Plain, CUDA_MEMCPY3D_PEER>) return Describe(&peer);
    if constexpr (std::is_same_v<Type, CUdeviceptr*>) {
      addresses[next % 2] = At(next % 2);
      return &addresses[next++ % 2];
    }
    if constexpr (std::is_same_v<Type, size_t*>) return ones;
    if constexpr (std::is_same_v<Plain, CUDA_MEMCPY3D_BATCH_OP>) {
      operation.src.type = operation.dst.type = CU_MEMCPY_OPERAND_TYPE_POINTER;
      operation.dst.op.ptr.ptr = At(0);
      operation.src.op.ptr.ptr = At(1);
      operation.extent = {1, 1, 1};
      return &operation;
    }
    if constexpr (std::is_same_v<Plain, CUstreamBatchMemOpParams>) {
      word.waitValue.address = At(0);
      return &word;
    }
    if constexpr (std::is_same_v<Plain, CUDA_RESOURCE_DESC>) {
      resource.resType = CU_RESOURCE_TYPE_LINEAR;
      resource.res.linear.devPtr = At(0);
      return &resource;
    }
    if constexpr (std::is_same_v<Type, CUtensorMap*>) return &map;
    if constexpr (std::is_same_v<Plain, CUDA_MEMSET_NODE_PARAMS>) {
      set.dst = At(0);
      return &set;
    }
    if constexpr (std::is_same_v<Plain, CUgraphNodeParams>) {
      node.type = CU_GRAPH_NODE_TYPE_MEMCPY;
      Describe(&node.memcpy.copyParams);
      return &node;
    }
    if constexpr (std::is_integral_v<Type>) return Type{1};
    return Type{};
  }
  template <typename... Types>
  CUresult Call(CUresult (*function)(Types...)) {
    // In the order of the parameters.
    std::tuple<Types...> arguments{Fill<Types>()...};
    return std::apply(function, arguments);
  }
};

void Mark(const char* symbol) {
  if (FILE* file = fopen(getenv("RECORDER"), "a")) {
    fprintf(file, "call %s\n", symbol);
    fclose(file);
  }
}

void Touches(const char* path) {
  void* stubs = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (stubs == nullptr) Die(dlerror(), 0);
  int count = 0;
#define TOUCH_ONE(symbol, ...)                                                       \
  Mark(#symbol);                                                                     \
  MUST(Filler().Call(reinterpret_cast<decltype(&(symbol))>(dlsym(stubs, #symbol)))); \
  ++count;
#define TOUCH(symbol, suffix, ...) TOUCH_ONE(symbol) TOUCH_ONE(symbol##_##suffix)
#include "interceptor/touches.def"
  printf("{\"count\": %d}\n", count);
}

void Descriptor(bool plain) {
  void* stubs = dlopen(getenv("STUBS"), RTLD_NOW | RTLD_LOCAL);
  auto* replace = reinterpret_cast<decltype(&cuTensorMapReplaceAddress)>(
      dlsym(stubs, "cuTensorMapReplaceAddress"));
  CUtensorMap map{};
  if (plain) map.opaque[2] = At(0);
  printf("{\"code\": %d}\n", replace(&map, reinterpret_cast<void*>(At(0))));
}

void Used(bool resets) {
  CUmemoryPool pool = nullptr;
  MUST(CALL(cuDeviceGetDefaultMemPool)(&pool, 0));
  cuuint64_t now = 0;
  cuuint64_t most = 0;
  cuuint64_t nothing = 0;
  if (resets) MUST(CALL(cuMemPoolSetAttribute)(pool, CU_MEMPOOL_ATTR_USED_MEM_HIGH, &nothing));
  MUST(CALL(cuMemPoolGetAttribute)(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &now));
  MUST(CALL(cuMemPoolGetAttribute)(pool, CU_MEMPOOL_ATTR_USED_MEM_HIGH, &most));
  printf("{\"now\": %llu, \"most\": %llu}\n", static_cast<unsigned long long>(now),
         static_cast<unsigned long long>(most));
}

void Loop(long count) {
  const CUfunction function = Function("fill");
  auto* launch = CALL(cuLaunchKernel);
  auto* synchronize = CALL(cuStreamSynchronize);
  CUdeviceptr to = At(0);
  uint64_t none = 0;
  void* parameters[] = {&to, &none, &none};
  timespec begin{};
  timespec end{};
  // The stream's thread is not what is measured: it has little to do meanwhile.
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &begin);
  for (long i = 0; i < count; ++i) {
    MUST(launch(function, 1, 1, 1, 1, 1, 1, 0, stream, parameters, nullptr));
  }
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &end);
  MUST(synchronize(stream));
  const double ns = static_cast<double>(end.tv_sec - begin.tv_sec) * 1e9 +
                    static_cast<double>(end.tv_nsec - begin.tv_nsec);
  printf("{\"ns\": %.1f}\n", ns / static_cast<double>(count));
}

// Another kernel's parameters under a name that was used before.
void Unload() {
  MUST(CALL(cuModuleUnload)(module));
  MUST(CALL(cuModuleLoadData)(&module, "combine fill"));
  printf("{}\n");
}

void Fork() {
  fflush(stdout);
  const pid_t child = fork();
  if (child == 0) {
    CUdeviceptr at = 0;
    CALL(cuMemAlloc_v2)(&at, size_t{4} << 20);
    _exit(7);
  }
  int status = 0;
  waitpid(child, &status, 0);
  printf("{\"child\": %d}\n", WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status));
}

void Do(const std::string& command, const char* word) {
  if (command == "take") {
    Take(word, static_cast<size_t>(numbers[0]));
  } else if (command == "give") {
    Give(word, numbers[0]);
  } else if (command == "launch") {
    printf("{\"code\": %d}\n", Launch(word, stream));
  } else if (command == "launch_default") {
    printf("{\"code\": %d}\n", Launch(word, nullptr));
  } else if (command == "copy") {
    const auto bytes = static_cast<size_t>(numbers[2]);
    printf("{\"code\": %d}\n", Copy(word, bytes));
  } else if (command == "graph") {
    Graph(strcmp(word, "copy") == 0);
  } else if (command == "captured") {
    Captured();
  } else if (command == "unusual") {
    Unusual(numbers[0]);
  } else if (command == "pointer") {
    Pointer(numbers[0]);
  } else if (command == "table") {
    printf("{\"code\": %d}\n", Table(word));
  } else if (command == "touches") {
    Touches(getenv("STUBS"));
  } else if (command == "descriptor") {
    Descriptor(strcmp(word, "plain") == 0);
  } else if (command == "info") {
    size_t free = 0;
    size_t total = 0;
    MUST(CALL(cuMemGetInfo_v2)(&free, &total));
    printf("{\"free\": %zu, \"total\": %zu}\n", free, total);
  } else if (command == "used") {
    Used(strcmp(word, "anew") == 0);
  } else if (command == "stream") {
    MUST(CALL(cuStreamDestroy_v2)(stream));
    MUST(CALL(cuStreamCreate)(&stream, CU_STREAM_NON_BLOCKING));
    printf("{}\n");
  } else if (command == "reset") {
    printf("{\"code\": %d}\n", CALL(cuDevicePrimaryCtxReset_v2)(0));
  } else if (command == "unload") {
    Unload();
  } else if (command == "loop") {
    Loop(numbers[0]);
  } else if (command == "fork") {
    Fork();
  } else if (command == "owner") {
    Dl_info info{};
    dladdr(Look(word), &info);
    printf("{\"ours\": %s}\n",
           strstr(info.dli_fname, "libravenstore_intercept") != nullptr ? "true" : "false");
  } else {
    exit(0);
  }
}

}  // namespace

int main(int count, char** arguments) {
  if (count > 1) way = arguments[1];
  setvbuf(stdout, nullptr, _IOLBF, 0);
  Begin();
  printf("{\"ready\": %d}\n", getpid());
  char line[256];
  while (fgets(line, sizeof(line), stdin) != nullptr) {
    char command[64] = "";
    char word[64] = "";
    memset(numbers, 0, sizeof(numbers));
    sscanf(line, "%63s %63s %d %d %d %d", command, word, &numbers[0], &numbers[1], &numbers[2],
           &numbers[3]);
    Do(command, word);
  }
  return 0;
}
