// Small CUDA programs that know nothing of Ravenstore, each another way to use the runtime: under
// ravenrun --mode elastic they are to do as they do alone (bench/elastic_bench.py, `samples`).
//
//     elastic_samples --list | NAME
//
// Prints the name and a number made of each byte of the result. Each holds a few hundred MiB.
//
//     nvcc -O2 -arch=native -o elastic_samples bench/elastic_samples.cu -lcuda
#include <cooperative_groups.h>
#include <cuda.h>
#include <cuda_runtime.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace {

namespace groups = cooperative_groups;
using Word = uint32_t;

constexpr size_t kWords = size_t{24} << 20;  // of a buffer
constexpr int kThreads = 256;
constexpr int kBlocks = 1024;

void Must(int result, const char* what) {
  if (result == 0) return;
  fprintf(stderr, "elastic_samples: %s failed with %d\n", what, result);
  exit(1);
}
#define MUST(call) Must(call, #call)

template <typename T>
T* Allocate(size_t count) {
  T* made = nullptr;
  MUST(cudaMalloc(&made, count * sizeof(T)));
  return made;
}

uint64_t Mixed(uint64_t hash, const void* bytes, size_t size) {
  const auto* words = static_cast<const Word*>(bytes);
  for (size_t i = 0; i < size / sizeof(Word); ++i) hash = (hash ^ words[i]) * 0x100000001b3;
  return hash;
}

template <typename T>
uint64_t Result(const T* device, size_t count) {
  std::vector<T> host(count);
  MUST(cudaDeviceSynchronize());
  MUST(cudaMemcpy(host.data(), device, count * sizeof(T), cudaMemcpyDeviceToHost));
  return Mixed(0xcbf29ce484222325, host.data(), count * sizeof(T));
}

#define EACH(i, count)                                                        \
  for (size_t i = blockIdx.x * size_t{blockDim.x} + threadIdx.x; i < (count); \
       i += size_t{gridDim.x} * blockDim.x)

__device__ Word Mix(Word x) {
  x = (x ^ (x >> 16)) * 0x7feb352d;
  x = (x ^ (x >> 15)) * 0x846ca68b;
  return x ^ (x >> 16);
}

__global__ void FillKernel(Word* to, size_t count, Word seed) {
  EACH(i, count) to[i] = Mix(static_cast<Word>(i) + seed);
}
__global__ void AddKernel(Word* to, const Word* from, size_t count) {
  EACH(i, count) to[i] += Mix(from[i]);
}

Word* Filled(size_t count, Word seed) {
  Word* made = Allocate<Word>(count);
  FillKernel<<<kBlocks, kThreads>>>(made, count, seed);
  return made;
}

// ---- Samples

uint64_t VectorAdd() {
  Word* a = Filled(kWords, 1);
  Word* b = Filled(kWords, 2);
  for (int i = 0; i < 4; ++i) AddKernel<<<kBlocks, kThreads>>>(a, b, kWords);
  return Result(a, kWords);
}

__global__ void MultiplyKernel(float* c, const Word* a, const Word* b, int n) {
  __shared__ float left[16][16], right[16][16];
  const int row = blockIdx.y * 16 + threadIdx.y, column = blockIdx.x * 16 + threadIdx.x;
  float sum = 0;
  for (int k = 0; k < n; k += 16) {
    left[threadIdx.y][threadIdx.x] = static_cast<float>(a[row * n + k + threadIdx.x] & 15);
    right[threadIdx.y][threadIdx.x] = static_cast<float>(b[(k + threadIdx.y) * n + column] & 15);
    __syncthreads();
    for (int i = 0; i < 16; ++i) sum += left[threadIdx.y][i] * right[i][threadIdx.x];
    __syncthreads();
  }
  c[row * n + column] = sum;
}
uint64_t MatrixMultiply() {
  constexpr int n = 4096;
  Word* a = Filled(n * n, 3);
  Word* b = Filled(n * n, 4);
  float* c = Allocate<float>(n * n);
  MultiplyKernel<<<dim3(n / 16, n / 16), dim3(16, 16)>>>(c, a, b, n);
  return Result(c, n * n);
}

__global__ void TransposeKernel(Word* to, const Word* from, int n) {
  extern __shared__ Word tile[];
  const int x = blockIdx.x * 32, y = blockIdx.y * 32;
  for (int i = threadIdx.y; i < 32; i += blockDim.y)
    tile[i * 33 + threadIdx.x] = from[size_t{1} * (y + i) * n + x + threadIdx.x];
  __syncthreads();
  for (int i = threadIdx.y; i < 32; i += blockDim.y)
    to[size_t{1} * (x + i) * n + y + threadIdx.x] = tile[threadIdx.x * 33 + i];
}
uint64_t TransposeDynamicShared() {
  constexpr int n = 4096;
  Word* from = Filled(n * n, 5);
  Word* to = Allocate<Word>(n * n);
  TransposeKernel<<<dim3(n / 32, n / 32), dim3(32, 8), 32 * 33 * sizeof(Word)>>>(to, from, n);
  return Result(to, n * n);
}

__global__ void SumKernel(unsigned long long* sum, const Word* from, size_t count) {
  unsigned long long mine = 0;
  EACH(i, count) mine += from[i];
  for (int lane = 16; lane > 0; lane /= 2) mine += __shfl_down_sync(~0u, mine, lane);
  if (threadIdx.x % 32 == 0) atomicAdd(sum, mine);
}
uint64_t Reduction() {
  Word* from = Filled(2 * kWords, 6);
  auto* sum = Allocate<unsigned long long>(1);
  MUST(cudaMemset(sum, 0, sizeof(*sum)));
  SumKernel<<<kBlocks, kThreads>>>(sum, from, 2 * kWords);
  return Result(sum, 1);
}

__global__ void HistogramKernel(unsigned* bins, const Word* from, size_t count) {
  __shared__ unsigned mine[256];
  mine[threadIdx.x] = 0;
  __syncthreads();
  EACH(i, count) atomicAdd(&mine[from[i] & 255], 1u);
  __syncthreads();
  atomicAdd(&bins[threadIdx.x], mine[threadIdx.x]);
}
uint64_t Histogram() {
  Word* from = Filled(2 * kWords, 7);
  unsigned* bins = Allocate<unsigned>(256);
  MUST(cudaMemset(bins, 0, 256 * sizeof(unsigned)));
  HistogramKernel<<<kBlocks, 256>>>(bins, from, 2 * kWords);
  return Result(bins, 256);
}

__global__ void ScanStepKernel(Word* to, const Word* from, size_t count, size_t distance) {
  EACH(i, count) to[i] = from[i] + (i >= distance ? from[i - distance] : 0);
}
uint64_t Scan() {
  Word* a = Filled(kWords, 8);
  Word* b = Allocate<Word>(kWords);
  for (size_t distance = 1; distance < kWords; distance *= 2) {
    ScanStepKernel<<<kBlocks, kThreads>>>(b, a, kWords, distance);
    std::swap(a, b);
  }
  return Result(a, kWords);
}

__global__ void SortStepKernel(Word* words, size_t count, size_t size, size_t distance) {
  EACH(i, count) {
    const size_t other = i ^ distance;
    if (other <= i) continue;
    const bool rises = (i & size) == 0;
    const Word a = words[i], b = words[other];
    if ((a > b) == rises) words[i] = b, words[other] = a;
  }
}
uint64_t BitonicSort() {
  constexpr size_t count = size_t{1} << 24;
  Word* words = Filled(count, 9);
  for (size_t size = 2; size <= count; size *= 2) {
    for (size_t distance = size / 2; distance > 0; distance /= 2)
      SortStepKernel<<<kBlocks, kThreads>>>(words, count, size, distance);
  }
  return Result(words, count);
}

__global__ void StencilKernel(Word* to, const Word* from, int n) {
  EACH(i, size_t{1} * n * n) {
    const int x = i % n, y = i / n;
    if (x == 0 || y == 0 || x == n - 1 || y == n - 1) {
      to[i] = from[i];
    } else {
      to[i] = from[i - 1] + from[i + 1] + from[i - n] + from[i + n] - 3 * from[i];
    }
  }
}
uint64_t Stencil() {
  constexpr int n = 5000;
  Word* a = Filled(n * n, 10);
  Word* b = Allocate<Word>(n * n);
  for (int i = 0; i < 50; ++i) {
    StencilKernel<<<kBlocks, kThreads>>>(b, a, n);
    std::swap(a, b);
  }
  return Result(a, n * n);
}

uint64_t StreamsAndEvents() {
  cudaStream_t streams[4];
  cudaEvent_t filled[4];
  Word* buffers[4];
  for (int i = 0; i < 4; ++i) {
    MUST(cudaStreamCreateWithFlags(&streams[i], cudaStreamNonBlocking));
    MUST(cudaEventCreateWithFlags(&filled[i], cudaEventDisableTiming));
    buffers[i] = Allocate<Word>(kWords);
    FillKernel<<<kBlocks, kThreads, 0, streams[i]>>>(buffers[i], kWords, 11 + i);
    MUST(cudaEventRecord(filled[i], streams[i]));
  }
  for (int i = 1; i < 4; ++i) {
    MUST(cudaStreamWaitEvent(streams[0], filled[i]));
    AddKernel<<<kBlocks, kThreads, 0, streams[0]>>>(buffers[0], buffers[i], kWords);
  }
  return Result(buffers[0], kWords);
}

uint64_t Graphs() {
  Word* a = Filled(kWords, 15);
  Word* b = Filled(kWords, 16);
  MUST(cudaDeviceSynchronize());
  cudaStream_t stream = nullptr;
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t made = nullptr;
  MUST(cudaStreamCreate(&stream));
  MUST(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
  AddKernel<<<kBlocks, kThreads, 0, stream>>>(a, b, kWords);
  MUST(cudaMemcpyAsync(b, a, kWords / 2 * sizeof(Word), cudaMemcpyDeviceToDevice, stream));
  MUST(cudaStreamEndCapture(stream, &graph));
  MUST(cudaGraphInstantiate(&made, graph, 0));
  for (int i = 0; i < 10; ++i) MUST(cudaGraphLaunch(made, stream));
  return Result(a, kWords);
}

__global__ void CooperativeKernel(Word* words, size_t count) {
  for (int round = 0; round < 4; ++round) {
    EACH(i, count / 2) words[i] += Mix(words[count - 1 - i]);
    groups::this_grid().sync();
    EACH(i, count / 2) words[count - 1 - i] ^= words[i];
    groups::this_grid().sync();
  }
}
uint64_t Cooperative() {
  Word* words = Filled(2 * kWords, 17);
  size_t count = 2 * kWords;
  void* parameters[] = {&words, &count};
  MUST(cudaLaunchCooperativeKernel(reinterpret_cast<void*>(CooperativeKernel), 64, kThreads,
                                   parameters));
  return Result(words, count);
}

uint64_t LaunchEx() {
  Word* a = Filled(kWords, 18);
  Word* b = Filled(kWords, 19);
  cudaLaunchAttribute attributes[1] = {};
  attributes[0].id = cudaLaunchAttributeClusterDimension;
  attributes[0].val.clusterDim = {2, 1, 1};
  int major = 0;
  MUST(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0));
  cudaLaunchConfig_t config = {};
  config.gridDim = kBlocks;
  config.blockDim = kThreads;
  config.attrs = attributes;
  config.numAttrs = major >= 9 ? 1 : 0;
  const Word* from = b;
  MUST(cudaLaunchKernelEx(&config, AddKernel, a, from, kWords));
  return Result(a, kWords);
}

__constant__ Word table[4096];
__global__ void LookUpKernel(Word* words, size_t count) {
  EACH(i, count) words[i] = table[words[i] % 4096];
}
uint64_t ConstantMemory() {
  std::vector<Word> values(4096);
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<Word>(i * 2654435761u);
  MUST(cudaMemcpyToSymbol(table, values.data(), sizeof(table)));
  Word* words = Filled(2 * kWords, 20);
  LookUpKernel<<<kBlocks, kThreads>>>(words, 2 * kWords);
  return Result(words, 2 * kWords);
}

__global__ void FetchKernel(Word* to, cudaTextureObject_t from, size_t count) {
  EACH(i, count) to[i] = tex1Dfetch<Word>(from, static_cast<int>(count - 1 - i));
}
uint64_t Textures() {
  Word* from = Filled(kWords, 21);
  Word* to = Allocate<Word>(kWords);
  cudaResourceDesc resource = {};
  resource.resType = cudaResourceTypeLinear;
  resource.res.linear.devPtr = from;
  resource.res.linear.desc = cudaCreateChannelDesc<Word>();
  resource.res.linear.sizeInBytes = kWords * sizeof(Word);
  cudaTextureDesc how = {};
  how.readMode = cudaReadModeElementType;
  cudaTextureObject_t texture = 0;
  MUST(cudaCreateTextureObject(&texture, &resource, &how, nullptr));
  FetchKernel<<<kBlocks, kThreads>>>(to, texture, kWords);
  return Result(to, kWords);
}

uint64_t PitchedCopies() {
  constexpr size_t width = 3000, height = 8000;
  Word* a = nullptr;
  size_t pitch = 0;
  MUST(cudaMallocPitch(&a, &pitch, width * sizeof(Word), height));
  Word* flat = Filled(width * height, 22);
  MUST(cudaMemcpy2D(a, pitch, flat, width * sizeof(Word), width * sizeof(Word), height,
                    cudaMemcpyDeviceToDevice));
  MUST(cudaMemset2D(a, pitch, 0x5a, width, height / 2));
  MUST(cudaMemcpy2D(flat, width * sizeof(Word), a, pitch, width * sizeof(Word), height,
                    cudaMemcpyDeviceToDevice));
  return Result(flat, width * height);
}

uint64_t Copies3D() {
  const cudaExtent extent = make_cudaExtent(400 * sizeof(Word), 300, 150);
  cudaPitchedPtr box = {};
  MUST(cudaMalloc3D(&box, extent));
  Word* flat = Filled(400 * 300 * 150, 23);
  cudaMemcpy3DParms copy = {};
  copy.srcPtr = make_cudaPitchedPtr(flat, 400 * sizeof(Word), 400, 300);
  copy.dstPtr = box;
  copy.extent = extent;
  copy.kind = cudaMemcpyDeviceToDevice;
  MUST(cudaMemcpy3D(&copy));
  FillKernel<<<kBlocks, kThreads>>>(flat, 400 * 300 * 150, 24);
  std::swap(copy.srcPtr, copy.dstPtr);
  copy.extent.depth = 75;
  MUST(cudaMemcpy3D(&copy));
  return Result(flat, 400 * 300 * 150);
}

uint64_t StreamOrderedPool() {
  cudaStream_t stream = nullptr;
  MUST(cudaStreamCreate(&stream));
  Word* sum = Filled(kWords, 25);
  MUST(cudaDeviceSynchronize());
  for (Word i = 0; i < 20; ++i) {
    Word* temporary = nullptr;
    MUST(cudaMallocAsync(&temporary, kWords * sizeof(Word), stream));
    FillKernel<<<kBlocks, kThreads, 0, stream>>>(temporary, kWords, 100 + i);
    AddKernel<<<kBlocks, kThreads, 0, stream>>>(sum, temporary, kWords);
    MUST(cudaFreeAsync(temporary, stream));
  }
  return Result(sum, kWords);
}

__global__ void TableKernel(Word** rows, size_t count, size_t size) {
  EACH(i, size) {
    for (size_t row = 1; row < count; ++row) rows[0][i] += Mix(rows[row][i]);
  }
}
uint64_t PointerTable() {
  std::vector<Word*> rows;
  for (Word i = 0; i < 8; ++i) rows.push_back(Filled(kWords / 4, 26 + i));
  Word** on_device = Allocate<Word*>(rows.size());
  MUST(cudaMemcpy(on_device, rows.data(), rows.size() * sizeof(Word*), cudaMemcpyHostToDevice));
  for (int i = 0; i < 3; ++i)
    TableKernel<<<kBlocks, kThreads>>>(on_device, rows.size(), kWords / 4);
  return Result(rows[0], kWords / 4);
}

struct Operand {
  size_t count;
  const Word* words;
};
struct Operands {
  char kind;
  Operand from[3];
  Word* to;
};
__global__ void StructKernel(Operands all) {
  EACH(i, all.from[0].count) {
    all.to[i] = all.from[0].words[i] + all.from[1].words[i] * all.from[2].words[i] + all.kind;
  }
}
uint64_t StructArguments() {
  Operands all = {'x', {}, Allocate<Word>(kWords)};
  for (Word i = 0; i < 3; ++i) all.from[i] = {kWords, Filled(kWords, 40 + i)};
  StructKernel<<<kBlocks, kThreads>>>(all);
  return Result(all.to, kWords);
}

void CountCall(void* calls) {
  ++*static_cast<int*>(calls);
}
uint64_t HostFunctions() {
  static int calls = 0;
  Word* a = Filled(kWords, 43);
  Word* b = Filled(kWords, 44);
  for (int i = 0; i < 5; ++i) {
    AddKernel<<<kBlocks, kThreads>>>(a, b, kWords);
    MUST(cudaLaunchHostFunc(nullptr, CountCall, &calls));
  }
  return Result(a, kWords) + static_cast<uint64_t>(calls);
}

uint64_t MappedHostMemory() {
  Word* host = nullptr;
  Word* seen = nullptr;
  MUST(cudaHostAlloc(&host, kWords / 4 * sizeof(Word), cudaHostAllocMapped));
  MUST(cudaHostGetDevicePointer(&seen, host, 0));
  Word* words = Filled(kWords, 45);
  FillKernel<<<kBlocks, kThreads>>>(seen, kWords / 4, 46);
  AddKernel<<<kBlocks, kThreads>>>(words, seen, kWords / 4);
  AddKernel<<<kBlocks, kThreads>>>(seen, words, kWords / 4);
  MUST(cudaDeviceSynchronize());
  return Mixed(Result(words, kWords), host, kWords / 4 * sizeof(Word));
}

// Little of it: more than the device has free is no thing to do on a shared machine.
uint64_t ManagedMemory() {
  Word* managed = nullptr;
  MUST(cudaMallocManaged(&managed, kWords / 8 * sizeof(Word)));
  for (size_t i = 0; i < kWords / 8; ++i) managed[i] = static_cast<Word>(i);
  Word* words = Filled(kWords, 47);
  AddKernel<<<kBlocks, kThreads>>>(words, managed, kWords / 8);
  AddKernel<<<kBlocks, kThreads>>>(managed, words, kWords / 8);
  MUST(cudaDeviceSynchronize());
  return Mixed(Result(words, kWords), managed, kWords / 8 * sizeof(Word));
}

__global__ void HeapKernel(Word* to, size_t count) {
  EACH(i, count) {
    auto* mine = static_cast<Word*>(malloc(16 * sizeof(Word)));
    if (mine == nullptr) return;
    for (Word k = 0; k < 16; ++k) mine[k] = Mix(static_cast<Word>(i) + k);
    to[i] = mine[i % 16];
    free(mine);
  }
}
uint64_t DeviceHeap() {
  Word* words = Filled(kWords, 48);
  MUST(cudaDeviceSetLimit(cudaLimitMallocHeapSize, 64 << 20));
  HeapKernel<<<64, kThreads>>>(words, size_t{1} << 18);
  return Result(words, kWords);
}

uint64_t VirtualMemory() {
  constexpr size_t part = size_t{32} << 20, parts = 4;
  CUmemAllocationProp prop = {};
  prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  prop.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
  CUmemAccessDesc access = {{CU_MEM_LOCATION_TYPE_DEVICE, 0}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  Word* other = Filled(part * parts / sizeof(Word), 49);
  CUdeviceptr base = 0;
  MUST(cuMemAddressReserve(&base, part * parts, 0, 0, 0));
  for (size_t i = 0; i < parts; ++i) {
    CUmemGenericAllocationHandle handle = 0;
    MUST(cuMemCreate(&handle, part, &prop, 0));
    MUST(cuMemMap(base + i * part, part, 0, handle, 0));
    MUST(cuMemSetAccess(base + i * part, part, &access, 1));
    MUST(cuMemRelease(handle));
  }
  auto* words = reinterpret_cast<Word*>(base);
  FillKernel<<<kBlocks, kThreads>>>(words, part * parts / sizeof(Word), 50);
  for (int i = 0; i < 4; ++i)
    AddKernel<<<kBlocks, kThreads>>>(words, other, part * parts / sizeof(Word));
  return Result(words, part * parts / sizeof(Word));
}

__global__ void LifeKernel(uint8_t* to, const uint8_t* from, int n) {
  EACH(i, size_t{1} * n * n) {
    const int x = i % n, y = i / n;
    int around = 0;
    for (int dy = -1; dy <= 1; ++dy) {
      for (int dx = -1; dx <= 1; ++dx)
        around += from[size_t{1} * ((y + dy + n) % n) * n + (x + dx + n) % n] & 1;
    }
    const int alive = from[i] & 1;
    to[i] = around - alive == 3 || (alive != 0 && around - alive == 2);
  }
}
uint64_t GameOfLife() {
  constexpr int n = 8192;
  auto* a = reinterpret_cast<uint8_t*>(Filled(n * n / sizeof(Word), 51));
  auto* b = Allocate<uint8_t>(n * n);
  for (int i = 0; i < 20; ++i) {
    LifeKernel<<<kBlocks, kThreads>>>(b, a, n);
    std::swap(a, b);
  }
  return Result(a, n * n);
}

__global__ void SparseKernel(Word* to, const Word* columns, const Word* values, const Word* from,
                             size_t rows) {
  EACH(row, rows) {
    Word sum = 0;
    for (size_t k = row * 16; k < row * 16 + 16; ++k) sum += values[k] * from[columns[k] % rows];
    to[row] = sum;
  }
}
uint64_t SparseMultiply() {
  constexpr size_t rows = size_t{1} << 20;
  Word* columns = Filled(rows * 16, 52);
  Word* values = Filled(rows * 16, 53);
  Word* a = Filled(rows, 54);
  Word* b = Allocate<Word>(rows);
  for (int i = 0; i < 10; ++i) {
    SparseKernel<<<kBlocks, kThreads>>>(b, columns, values, a, rows);
    std::swap(a, b);
  }
  return Result(a, rows);
}

uint64_t FreeAndAllocateAgain() {
  uint64_t hash = 0;
  for (Word i = 0; i < 10; ++i) {
    Word* words = Filled(kWords / 2 + i * 100000, 60 + i);
    hash = hash * 31 + Result(words, kWords / 4);
    Word* other = Filled(kWords, 80 + i);
    MUST(cudaFree(words));
    AddKernel<<<kBlocks, kThreads>>>(other, other + kWords / 2, kWords / 2);
    hash = hash * 31 + Result(other, kWords / 2);
    MUST(cudaFree(other));
  }
  return hash;
}

const std::map<std::string, uint64_t (*)()> kSamples = {
    {"vector_add", VectorAdd},
    {"matrix_multiply", MatrixMultiply},
    {"transpose_dynamic_shared", TransposeDynamicShared},
    {"reduction", Reduction},
    {"histogram", Histogram},
    {"scan", Scan},
    {"bitonic_sort", BitonicSort},
    {"stencil", Stencil},
    {"streams_and_events", StreamsAndEvents},
    {"graphs", Graphs},
    {"cooperative", Cooperative},
    {"launch_ex", LaunchEx},
    {"constant_memory", ConstantMemory},
    {"textures", Textures},
    {"pitched_copies", PitchedCopies},
    {"copies_3d", Copies3D},
    {"stream_ordered_pool", StreamOrderedPool},
    {"pointer_table", PointerTable},
    {"struct_arguments", StructArguments},
    {"host_functions", HostFunctions},
    {"mapped_host_memory", MappedHostMemory},
    {"managed_memory", ManagedMemory},
    {"device_heap", DeviceHeap},
    {"virtual_memory", VirtualMemory},
    {"game_of_life", GameOfLife},
    {"sparse_multiply", SparseMultiply},
    {"free_and_allocate_again", FreeAndAllocateAgain},
};

}  // namespace

int main(int argc, char** argv) {
  const std::string name = argc == 2 ? argv[1] : "";
  if (name == "--list") {
    for (const auto& [known, run] : kSamples) puts(known.c_str());
    return 0;
  }
  const auto sample = kSamples.find(name);
  if (sample == kSamples.end()) {
    fprintf(stderr, "usage: elastic_samples --list | NAME\n");
    return 2;
  }
  MUST(cudaFree(nullptr));
  printf("%s %016llx\n", name.c_str(), static_cast<unsigned long long>(sample->second()));
  MUST(cudaGetLastError());
}
