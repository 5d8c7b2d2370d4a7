// What the other tests rely on: the fake driver's kernels, copies, mappings and graphs do what a
// GPU's do, and say so when a program does not.
#include <cuda.h>
#include <gtest/gtest.h>
#include <string.h>

#include <array>
#include <thread>
#include <vector>

#include "tests/fake_cuda/fake_cuda.h"

namespace {

constexpr size_t kPart = size_t{2} << 20;
constexpr uint64_t kWords = kPart / sizeof(uint64_t);
constexpr uint64_t kSeed = 20'250'101;

#define OK(call) ASSERT_EQ((call), CUDA_SUCCESS)

template <typename Condition>
void Await(Condition condition) {
  while (!condition()) std::this_thread::yield();
}

class KernelTest : public testing::Test {
 protected:
  void SetUp() override {
    OK(cuInit(0));
    OK(cuDevicePrimaryCtxRetain(&context_, 0));
    OK(cuCtxSetCurrent(context_));
    OK(cuStreamCreate(&stream_, CU_STREAM_NON_BLOCKING));
    OK(cuModuleLoadData(&module_,
                        "empty fill opaque add combine combine_packed combine_table check "
                        "check_sum check_combined"));
    wrong_before_ = FakeCudaWrongWords();
    torn_before_ = FakeCudaTornKernels();
  }
  void TearDown() override {
    FakeCudaHoldKernels(0);
    FakeCudaKernelNanoseconds(0);
    cuStreamSynchronize(stream_);
    OK(cuStreamDestroy(stream_));
    OK(cuModuleUnload(module_));
    for (const CUmemGenericAllocationHandle handle : handles_) OK(cuMemRelease(handle));
    OK(cuDevicePrimaryCtxRelease(0));
    EXPECT_EQ(FakeCudaContextErrors(), 0);
  }

  CUfunction Function(const char* name) {
    CUfunction function = nullptr;
    EXPECT_EQ(cuModuleGetFunction(&function, module_, name), CUDA_SUCCESS) << name;
    return function;
  }

  template <typename... Arguments>
  CUresult Launch(const char* name, Arguments... arguments) {
    // One more, since an array is never empty.
    void* parameters[] = {&arguments..., nullptr};
    return cuLaunchKernel(Function(name), 1, 1, 1, 1, 1, 1, 0, stream_, parameters, nullptr);
  }

  CUmemGenericAllocationHandle Create(bool on_host = false) {
    CUmemAllocationProp properties{};
    properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location = {on_host ? CU_MEM_LOCATION_TYPE_HOST_NUMA : CU_MEM_LOCATION_TYPE_DEVICE,
                           {0}};
    handles_.push_back(0);
    EXPECT_EQ(cuMemCreate(&handles_.back(), kPart, &properties, 0), CUDA_SUCCESS);
    return handles_.back();
  }

  static CUdeviceptr Reserve(size_t parts) {
    CUdeviceptr at = 0;
    EXPECT_EQ(cuMemAddressReserve(&at, parts * kPart, 0, 0, 0), CUDA_SUCCESS);
    return at;
  }

  static void Map(CUdeviceptr at, CUmemGenericAllocationHandle handle, bool for_host = false) {
    OK(cuMemMap(at, kPart, 0, handle, 0));
    CUmemAccessDesc access[2]{};
    access[0].location = {CU_MEM_LOCATION_TYPE_DEVICE, {0}};
    access[1].location = {CU_MEM_LOCATION_TYPE_HOST_NUMA, {0}};
    access[0].flags = access[1].flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    OK(cuMemSetAccess(at, kPart, access, for_host ? 2 : 1));
  }

  // How many words at `at` are not those of `seed`.
  uint64_t Wrong(CUdeviceptr at, uint64_t words, uint64_t seed) {
    const uint64_t before = FakeCudaWrongWords();
    EXPECT_EQ(Launch("check", at, words, seed, CUdeviceptr{0}), CUDA_SUCCESS);
    EXPECT_EQ(cuStreamSynchronize(stream_), CUDA_SUCCESS);
    return FakeCudaWrongWords() - before;
  }

  uint64_t wrong() const { return FakeCudaWrongWords() - wrong_before_; }
  int torn() const { return FakeCudaTornKernels() - torn_before_; }

  CUcontext context_ = nullptr;
  CUstream stream_ = nullptr;
  CUmodule module_ = nullptr;
  std::vector<CUmemGenericAllocationHandle> handles_;
  uint64_t wrong_before_ = 0;
  int torn_before_ = 0;
};

TEST_F(KernelTest, FillWritesEveryWordAndCheckCountsEachThatDiffers) {
  CUdeviceptr at = 0;
  const uint64_t words = 1001;
  OK(cuMemAlloc(&at, words * 8));
  OK(Launch("fill", at, words, kSeed));
  std::vector<uint64_t> read(words);
  OK(cuMemcpyDtoHAsync(read.data(), at, words * 8, stream_));
  OK(cuStreamSynchronize(stream_));
  for (uint64_t i = 0; i < words; ++i) ASSERT_EQ(read[i], FakeCudaMix(kSeed, i)) << i;
  OK(cuMemsetD8Async(at + 8 * 500 + 3, 0x5a, 10, stream_));  // in two words
  EXPECT_EQ(Wrong(at, words, kSeed), 2u);
  EXPECT_EQ(Wrong(at, words, kSeed + 1), words);
  OK(cuMemFree(at));
}

TEST_F(KernelTest, WrongWordsAreAlsoAddedToACounterOnDeviceOrHost) {
  CUdeviceptr at = 0;
  uint64_t on_host = 0;
  CUdeviceptr counter = 0;
  OK(cuMemAlloc(&at, 80));
  OK(cuMemHostRegister(&on_host, sizeof(on_host), 0));
  OK(cuMemHostGetDevicePointer(&counter, &on_host, 0));
  OK(Launch("fill", at, uint64_t{9}, kSeed));
  OK(cuMemsetD32Async(at + 72, 0, 2, stream_));
  OK(Launch("check", at, uint64_t{9}, kSeed + 1, counter));
  OK(Launch("check", at, uint64_t{9}, kSeed + 1, at + 72));
  uint32_t on_device = 0;
  OK(cuMemcpyDtoHAsync(&on_device, at + 72, 4, stream_));
  OK(cuStreamSynchronize(stream_));
  EXPECT_EQ(on_host, 9u);
  EXPECT_EQ(on_device, 9u);
  OK(cuMemHostUnregister(&on_host));
  OK(cuMemFree(at));
}

TEST_F(KernelTest, SumsAndCombinationsAreCheckedWordByWord) {
  CUdeviceptr at[4];
  for (CUdeviceptr& one : at) OK(cuMemAlloc(&one, 800));
  const uint64_t n = 100;
  OK(Launch("fill", at[0], n, kSeed));
  OK(Launch("fill", at[1], n, kSeed + 1));
  OK(Launch("combine", at[2], at[0], at[1], n));
  OK(Launch("check_combined", at[2], at[0], at[1], n, CUdeviceptr{0}));
  for (int i = 0; i < 3; ++i) OK(Launch("add", at[0], at[1], n));
  OK(Launch("check_sum", at[0], n, kSeed, kSeed + 1, uint64_t{3}, CUdeviceptr{0}));
  OK(cuStreamSynchronize(stream_));
  EXPECT_EQ(wrong(), 0u);
  OK(Launch("check_sum", at[0], n, kSeed, kSeed + 1, uint64_t{2}, CUdeviceptr{0}));
  OK(Launch("check_combined", at[2], at[0], at[1], n, CUdeviceptr{0}));
  OK(cuStreamSynchronize(stream_));
  EXPECT_EQ(wrong(), 2 * n);
  for (const CUdeviceptr one : at) OK(cuMemFree(one));
}

TEST_F(KernelTest, AKernelsAddressesMayLieInSeveralMappings) {
  const CUdeviceptr at = Reserve(2);
  Map(at, Create());
  Map(at + kPart, Create());
  OK(Launch("fill", at + 8, 2 * kWords - 1, kSeed));
  EXPECT_EQ(Wrong(at + 8, 2 * kWords - 1, kSeed), 0u);
  uint64_t edge[2];
  OK(cuMemcpyDtoH(edge, at + kPart - 8, 16));
  EXPECT_EQ(edge[0], FakeCudaMix(kSeed, kWords - 2));
  EXPECT_EQ(edge[1], FakeCudaMix(kSeed, kWords - 1));
  OK(cuMemUnmap(at, 2 * kPart));
  OK(cuMemAddressFree(at, 2 * kPart));
}

TEST_F(KernelTest, AHandleMappedTwiceShowsTheSameBytes) {
  for (const bool on_host : {false, true}) {
    const CUdeviceptr at = Reserve(1);
    const CUdeviceptr permanent = Reserve(1);
    const CUmemGenericAllocationHandle handle = Create(on_host);
    Map(at, handle, on_host);
    Map(permanent, handle, on_host);
    OK(Launch("fill", at, kWords, kSeed));
    EXPECT_EQ(Wrong(permanent, kWords, kSeed), 0u);
    OK(cuMemUnmap(at, kPart));
    EXPECT_EQ(Wrong(permanent, kWords, kSeed), 0u) << "the other mapping stays";
    if (on_host) {
      const auto* words = reinterpret_cast<const uint64_t*>(permanent);
      EXPECT_EQ(words[kWords - 1], FakeCudaMix(kSeed, kWords - 1));
    }
    OK(cuMemUnmap(permanent, kPart));
    OK(cuMemAddressFree(at, kPart));
    OK(cuMemAddressFree(permanent, kPart));
  }
}

TEST_F(KernelTest, AKernelFindsWhatIsMappedWhenItRuns) {
  const CUdeviceptr at = Reserve(1);
  const CUdeviceptr copies = Reserve(2);
  const CUmemGenericAllocationHandle before = Create();
  const CUmemGenericAllocationHandle after = Create(true);
  Map(at, before);
  Map(copies, before);
  Map(copies + kPart, after);
  FakeCudaHoldKernels(1);
  OK(Launch("empty"));
  OK(Launch("fill", at, kWords, kSeed));
  Await([] { return FakeCudaRunningKernels() == 1; });
  OK(cuMemUnmap(at, kPart));
  Map(at, after);
  FakeCudaHoldKernels(0);
  EXPECT_EQ(Wrong(copies + kPart, kWords, kSeed), 0u);
  EXPECT_EQ(Wrong(copies, kWords, kSeed), kWords) << "the memory that was there before";
  EXPECT_EQ(torn(), 0) << "no kernel that used it ran";
  OK(cuMemUnmap(at, kPart));
  OK(cuMemUnmap(copies, 2 * kPart));
  OK(cuMemAddressFree(at, kPart));
  OK(cuMemAddressFree(copies, 2 * kPart));
}

TEST_F(KernelTest, AMappingTakenFromARunningKernelIsCountedAndItsBytesStay) {
  const CUdeviceptr at = Reserve(1);
  const CUdeviceptr permanent = Reserve(1);
  const CUmemGenericAllocationHandle handle = Create();
  Map(at, handle);
  Map(permanent, handle);
  FakeCudaHoldKernels(1);
  OK(Launch("fill", at, kWords, kSeed));
  Await([] { return FakeCudaRunningKernels() == 1; });
  OK(cuMemUnmap(at, kPart));
  EXPECT_EQ(torn(), 1);
  FakeCudaHoldKernels(0);
  EXPECT_EQ(Wrong(permanent, kWords, kSeed), 0u);
  OK(cuMemUnmap(permanent, kPart));
  EXPECT_EQ(torn(), 1) << "the kernel has ended";
  OK(cuMemAddressFree(at, kPart));
  OK(cuMemAddressFree(permanent, kPart));
}

TEST_F(KernelTest, NothingMappedFailsTheContext) {
  const CUdeviceptr at = Reserve(1);
  OK(Launch("fill", at, uint64_t{1}, kSeed));
  EXPECT_EQ(cuStreamSynchronize(stream_), CUDA_ERROR_ILLEGAL_ADDRESS);
  EXPECT_EQ(cuCtxSynchronize(), CUDA_ERROR_ILLEGAL_ADDRESS) << "for good";
  OK(cuMemAddressFree(at, kPart));
}

TEST_F(KernelTest, OneWordBeyondAnAllocationFailsTheContext) {
  CUdeviceptr at = 0;
  OK(cuMemAlloc(&at, 80));
  OK(Launch("fill", at, uint64_t{11}, kSeed));
  EXPECT_EQ(cuStreamSynchronize(stream_), CUDA_ERROR_ILLEGAL_ADDRESS);
  OK(cuMemFree(at));
}

TEST_F(KernelTest, HostMemoryThatIsNotRegisteredFailsTheContext) {
  std::array<uint64_t, 4> words{};
  OK(Launch("fill", words.data(), uint64_t{4}, kSeed));
  EXPECT_EQ(cuStreamSynchronize(stream_), CUDA_ERROR_ILLEGAL_ADDRESS);
}

TEST_F(KernelTest, MemoryThatOnlyTheHostMayAccessFailsTheContext) {
  const CUdeviceptr at = Reserve(1);
  OK(cuMemMap(at, kPart, 0, Create(true), 0));
  CUmemAccessDesc access{};
  access.location = {CU_MEM_LOCATION_TYPE_HOST_NUMA, {0}};
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  OK(cuMemSetAccess(at, kPart, &access, 1));
  OK(Launch("fill", at, uint64_t{1}, kSeed));
  EXPECT_EQ(cuStreamSynchronize(stream_), CUDA_ERROR_ILLEGAL_ADDRESS);
  OK(cuMemUnmap(at, kPart));
  OK(cuMemAddressFree(at, kPart));
}

TEST_F(KernelTest, AFreeInStreamOrderComesBehindTheKernelsBefore) {
  CUdeviceptr at = 0;
  CUdeviceptr again = 0;
  OK(cuMemAllocAsync(&at, 800, stream_));
  FakeCudaHoldKernels(1);
  OK(Launch("empty"));
  OK(Launch("fill", at, uint64_t{100}, kSeed));
  OK(Launch("check", at, uint64_t{100}, kSeed, CUdeviceptr{0}));
  OK(cuMemFreeAsync(at, stream_));
  EXPECT_EQ(cuMemFreeAsync(at, stream_), CUDA_ERROR_INVALID_VALUE);
  OK(cuMemAllocAsync(&again, 800, stream_));
  EXPECT_NE(at, again);
  FakeCudaHoldKernels(0);
  OK(cuStreamSynchronize(stream_));
  EXPECT_EQ(wrong(), 0u);
  OK(cuMemFreeAsync(again, stream_));
  OK(Launch("fill", at, uint64_t{100}, kSeed));
  EXPECT_EQ(cuStreamSynchronize(stream_), CUDA_ERROR_ILLEGAL_ADDRESS);
}

TEST_F(KernelTest, FreeAndContextSynchronizationWaitForKernels) {
  CUdeviceptr at = 0;
  OK(cuMemAlloc(&at, kPart));
  FakeCudaKernelNanoseconds(2'000'000);
  const uint64_t done = FakeCudaKernelsDone();
  OK(Launch("fill", at, kWords, kSeed));
  OK(cuCtxSynchronize());
  EXPECT_EQ(FakeCudaKernelsDone(), done + 1);
  OK(Launch("fill", at, kWords, kSeed));
  OK(cuMemFree(at));
  EXPECT_EQ(FakeCudaKernelsDone(), done + 2);
}

TEST_F(KernelTest, AKernelTakesTheTimeThatIsAskedFor) {
  CUevent events[2];
  for (CUevent& event : events) OK(cuEventCreate(&event, CU_EVENT_DEFAULT));
  FakeCudaKernelNanoseconds(3'000'000);
  OK(cuEventRecord(events[0], stream_));
  OK(Launch("empty"));
  OK(cuEventRecord(events[1], stream_));
  OK(cuEventSynchronize(events[1]));
  float milliseconds = 0;
  OK(cuEventElapsedTime(&milliseconds, events[0], events[1]));
  EXPECT_GE(milliseconds, 2.9F);
  for (const CUevent event : events) OK(cuEventDestroy(event));
}

TEST_F(KernelTest, AnEventWithoutTimingHasNoTime) {
  CUevent event = nullptr;
  OK(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING | CU_EVENT_BLOCKING_SYNC));
  OK(cuEventRecord(event, stream_));
  OK(cuEventSynchronize(event));
  float milliseconds = 0;
  EXPECT_EQ(cuEventElapsedTime(&milliseconds, event, event), CUDA_ERROR_INVALID_HANDLE);
  OK(cuEventDestroy(event));
  EXPECT_EQ(cuEventCreate(&event, 64), CUDA_ERROR_INVALID_VALUE);
}

TEST_F(KernelTest, ParametersAreReported) {
  size_t offset = 0;
  size_t size = 0;
  for (size_t i = 0; i < 4; ++i) {
    OK(cuFuncGetParamInfo(Function("combine"), i, &offset, &size));
    EXPECT_EQ(offset, 8 * i);
    EXPECT_EQ(size, 8u);
  }
  EXPECT_EQ(cuFuncGetParamInfo(Function("combine"), 4, &offset, &size), CUDA_ERROR_INVALID_VALUE);
  OK(cuFuncGetParamInfo(Function("combine_packed"), 0, &offset, &size));
  EXPECT_EQ(size, 32u);
  EXPECT_EQ(cuFuncGetParamInfo(Function("empty"), 0, &offset, &size), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuFuncGetParamInfo(Function("opaque"), 0, &offset, &size), CUDA_ERROR_NOT_SUPPORTED);
}

TEST_F(KernelTest, ALibrarysKernelIsLaunchedAsAFunction) {
  CUlibrary library = nullptr;
  CUkernel kernel = nullptr;
  CUfunction function = nullptr;
  CUdeviceptr at = 0;
  OK(cuLibraryLoadData(&library, "fill", nullptr, nullptr, 0, nullptr, nullptr, 0));
  OK(cuLibraryGetKernel(&kernel, library, "fill"));
  EXPECT_EQ(cuLibraryGetKernel(&kernel, library, "add"), CUDA_ERROR_NOT_FOUND);
  OK(cuKernelGetFunction(&function, kernel));
  size_t offset = 0;
  size_t size = 0;
  OK(cuKernelGetParamInfo(kernel, 2, &offset, &size));
  EXPECT_EQ(offset, 16u);
  OK(cuMemAlloc(&at, 800));
  uint64_t words = 100;
  uint64_t seed = kSeed;
  void* parameters[] = {&at, &words, &seed};
  OK(cuLaunchKernel(reinterpret_cast<CUfunction>(kernel), 1, 1, 1, 1, 1, 1, 0, stream_, parameters,
                    nullptr));
  EXPECT_EQ(Wrong(at, 100, kSeed), 0u);
  OK(cuLibraryUnload(library));
  EXPECT_EQ(cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, stream_, parameters, nullptr),
            CUDA_ERROR_INVALID_HANDLE);
  OK(cuMemFree(at));
}

TEST_F(KernelTest, EveryWayToLaunchTakesTheParametersAtTheCall) {
  struct Packed {
    CUdeviceptr to, a, b;
    uint64_t count;
  };
  CUdeviceptr at[6];
  for (CUdeviceptr& one : at) OK(cuMemAlloc(&one, 800));
  OK(Launch("fill", at[0], uint64_t{100}, kSeed));
  OK(Launch("fill", at[1], uint64_t{100}, kSeed + 1));
  FakeCudaHoldKernels(1);
  Packed packed{at[2], at[0], at[1], 100};
  size_t bytes = sizeof(packed);
  void* extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, &packed, CU_LAUNCH_PARAM_BUFFER_SIZE, &bytes,
                   CU_LAUNCH_PARAM_END};
  OK(cuLaunchKernel(Function("combine_packed"), 1, 1, 1, 1, 1, 1, 0, stream_, nullptr, extra));
  packed.to = at[3];
  CUlaunchConfig config{1, 1, 1, 1, 1, 1, 0, stream_, nullptr, 0};
  OK(cuLaunchKernelEx(&config, Function("combine"), nullptr, extra));
  packed.to = at[4];
  void* parameters[] = {&packed};
  OK(cuLaunchCooperativeKernel(Function("combine_packed"), 1, 1, 1, 1, 1, 1, 0, stream_,
                               parameters));
  packed = {};
  bytes = 0;
  EXPECT_EQ(cuLaunchKernel(Function("combine"), 1, 1, 1, 1, 1, 1, 0, stream_, nullptr, extra),
            CUDA_ERROR_INVALID_VALUE);
  const std::array<CUdeviceptr, 3> table{at[5], at[0], at[1]};
  CUdeviceptr on_device = 0;
  OK(cuMemAlloc(&on_device, sizeof(table)));
  OK(cuMemcpyHtoDAsync(on_device, table.data(), sizeof(table), stream_));
  OK(Launch("combine_table", on_device, uint64_t{100}));
  for (int i = 2; i < 6; ++i) {
    OK(Launch("check_combined", at[i], at[0], at[1], uint64_t{100}, CUdeviceptr{0}));
  }
  const uint64_t done = FakeCudaKernelsDone();
  FakeCudaHoldKernels(0);
  OK(cuStreamSynchronize(stream_));
  EXPECT_GE(FakeCudaKernelsDone(), done + 8);
  EXPECT_EQ(wrong(), 0u);
  OK(cuMemFree(on_device));
  for (const CUdeviceptr one : at) OK(cuMemFree(one));
}

TEST_F(KernelTest, AGraphDoesWhatWasCapturedEachTimeItIsLaunched) {
  CUdeviceptr at[3];
  for (CUdeviceptr& one : at) OK(cuMemAlloc(&one, 800));
  OK(Launch("fill", at[0], uint64_t{100}, kSeed));
  OK(cuStreamSynchronize(stream_));
  const uint64_t done = FakeCudaKernelsDone();
  OK(cuStreamBeginCapture(stream_, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
  OK(Launch("fill", at[1], uint64_t{100}, kSeed + 1));
  OK(cuMemsetD8Async(at[2], 0, 800, stream_));
  OK(Launch("add", at[2], at[1], uint64_t{100}));
  OK(cuMemcpyDtoDAsync(at[1], at[2], 400, stream_));
  OK(Launch("add", at[0], at[1], uint64_t{100}));
  CUgraph graph = nullptr;
  OK(cuStreamEndCapture(stream_, &graph));
  EXPECT_EQ(FakeCudaKernelsDone(), done) << "a capture runs nothing";
  size_t count = 0;
  OK(cuGraphGetNodes(graph, nullptr, &count));
  std::vector<CUgraphNode> nodes(count);
  OK(cuGraphGetNodes(graph, nodes.data(), &count));
  std::vector<CUgraphNodeType> types(count);
  for (size_t i = 0; i < count; ++i) OK(cuGraphNodeGetType(nodes[i], &types[i]));
  EXPECT_EQ(types,
            (std::vector<CUgraphNodeType>{CU_GRAPH_NODE_TYPE_KERNEL, CU_GRAPH_NODE_TYPE_MEMSET,
                                          CU_GRAPH_NODE_TYPE_KERNEL, CU_GRAPH_NODE_TYPE_MEMCPY,
                                          CU_GRAPH_NODE_TYPE_KERNEL}));
  CUDA_KERNEL_NODE_PARAMS parameters{};
  EXPECT_EQ(cuGraphKernelNodeGetParams(nodes[1], &parameters), CUDA_ERROR_INVALID_VALUE);
  OK(cuGraphKernelNodeGetParams(nodes[4], &parameters));
  EXPECT_EQ(parameters.func, Function("add"));
  EXPECT_EQ(parameters.extra, nullptr);
  EXPECT_EQ(*static_cast<CUdeviceptr*>(parameters.kernelParams[1]), at[1]);
  CUgraphExec executable = nullptr;
  OK(cuGraphInstantiateWithFlags(&executable, graph, 0));
  OK(cuGraphDestroy(graph));
  EXPECT_EQ(cuGraphGetNodes(graph, nullptr, &count), CUDA_ERROR_INVALID_VALUE);
  for (int i = 0; i < 3; ++i) OK(cuGraphLaunch(executable, stream_));
  OK(cuGraphExecDestroy(executable));
  OK(Launch("check_sum", at[0], uint64_t{100}, kSeed, kSeed + 1, uint64_t{3}, CUdeviceptr{0}));
  OK(cuStreamSynchronize(stream_));
  EXPECT_EQ(wrong(), 0u);
  EXPECT_EQ(FakeCudaKernelsDone(), done + 3 * 3 + 1);
  for (const CUdeviceptr one : at) OK(cuMemFree(one));
}

TEST_F(KernelTest, SetsRowsAndHostFunctionsAreInStreamOrder) {
  CUdeviceptr at = 0;
  OK(cuMemAlloc(&at, 64));
  OK(cuMemsetD32Async(at, 0x01020304, 8, stream_));
  OK(cuMemsetD16Async(at + 32, 0x0506, 16, stream_));
  std::array<unsigned char, 24> rows{};
  CUDA_MEMCPY2D copy{};
  copy.srcMemoryType = CU_MEMORYTYPE_DEVICE;
  copy.srcDevice = at;
  copy.srcPitch = 16;
  copy.srcXInBytes = 4;
  copy.dstMemoryType = CU_MEMORYTYPE_HOST;
  copy.dstHost = rows.data();
  copy.WidthInBytes = 6;
  copy.Height = 4;
  OK(cuMemcpy2DAsync(&copy, stream_));
  unsigned char seen = 0;
  std::pair<unsigned char*, const unsigned char*> pointers{&seen, &rows[23]};
  OK(cuLaunchHostFunc(
      stream_,
      [](void* data) {
        const auto& to_from = *static_cast<decltype(pointers)*>(data);
        *to_from.first = *to_from.second;
      },
      &pointers));
  OK(cuStreamSynchronize(stream_));
  const std::array<unsigned char, 24> expected{4, 3, 2, 1, 4, 3, 4, 3, 2, 1, 4, 3,
                                               6, 5, 6, 5, 6, 5, 6, 5, 6, 5, 6, 5};
  EXPECT_EQ(rows, expected);
  EXPECT_EQ(seen, 5);
  OK(cuMemFree(at));
}

TEST_F(KernelTest, CopiesWithoutAStreamComeBehindStreamsThatBlock) {
  CUstream blocking = nullptr;
  CUdeviceptr at = 0;
  OK(cuStreamCreate(&blocking, CU_STREAM_DEFAULT));
  OK(cuMemAlloc(&at, 16));
  FakeCudaKernelNanoseconds(2'000'000);
  uint64_t words = 2;
  uint64_t seed = kSeed;
  void* parameters[] = {&at, &words, &seed};
  OK(cuLaunchKernel(Function("fill"), 1, 1, 1, 1, 1, 1, 0, blocking, parameters, nullptr));
  uint64_t read[2];
  OK(cuMemcpyDtoH(read, at, 16));
  EXPECT_EQ(read[1], FakeCudaMix(kSeed, 1));
  OK(cuStreamDestroy(blocking));
  OK(cuMemFree(at));
}

TEST_F(KernelTest, AddressesAreReported) {
  CUdeviceptr at = 0;
  CUdeviceptr begin = 0;
  size_t bytes = 0;
  unsigned int type = 0;
  OK(cuMemAlloc(&at, 1000));
  OK(cuMemGetAddressRange(&begin, &bytes, at + 999));
  EXPECT_EQ(begin, at);
  EXPECT_EQ(bytes, 1000u);
  EXPECT_EQ(cuMemGetAddressRange(&begin, &bytes, at + 1000), CUDA_ERROR_NOT_FOUND);
  OK(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, at));
  EXPECT_EQ(type, unsigned{CU_MEMORYTYPE_DEVICE});
  EXPECT_EQ(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
                                  reinterpret_cast<CUdeviceptr>(&type)),
            CUDA_ERROR_INVALID_VALUE);
  CUpointer_attribute attributes[] = {CU_POINTER_ATTRIBUTE_RANGE_START_ADDR,
                                      CU_POINTER_ATTRIBUTE_RANGE_SIZE,
                                      CU_POINTER_ATTRIBUTE_DEVICE_POINTER};
  CUdeviceptr same = 0;
  begin = bytes = 0;
  void* data[] = {&begin, &bytes, &same};
  OK(cuPointerGetAttributes(3, attributes, data, at + 8));
  EXPECT_EQ(begin, at);
  EXPECT_EQ(bytes, 1000u);
  EXPECT_EQ(same, at + 8);
  OK(cuMemFree(at));
}

TEST_F(KernelTest, TheLookUpGivesThePerThreadVariants) {
  void* plain = nullptr;
  void* per_thread = nullptr;
  OK(cuGetProcAddress("cuLaunchKernel", &plain, 12000, CU_GET_PROC_ADDRESS_DEFAULT, nullptr));
  OK(cuGetProcAddress("cuLaunchKernel", &per_thread, 12000,
                      CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM, nullptr));
  EXPECT_EQ(plain, reinterpret_cast<void*>(&cuLaunchKernel));
  EXPECT_NE(per_thread, plain);
  // The per-thread variant's null stream is another than the legacy one.
  CUdeviceptr at = 0;
  OK(cuMemAlloc(&at, 16));
  FakeCudaHoldKernels(1);
  uint64_t words = 2;
  uint64_t seed = kSeed;
  void* parameters[] = {&at, &words, &seed};
  OK(reinterpret_cast<decltype(&cuLaunchKernel)>(per_thread)(Function("fill"), 1, 1, 1, 1, 1, 1, 0,
                                                             nullptr, parameters, nullptr));
  EXPECT_EQ(cuStreamQuery(CU_STREAM_LEGACY), CUDA_SUCCESS);
  EXPECT_EQ(cuStreamQuery(CU_STREAM_PER_THREAD), CUDA_ERROR_NOT_READY);
  FakeCudaHoldKernels(0);
  OK(cuStreamSynchronize(CU_STREAM_PER_THREAD));
  EXPECT_EQ(Wrong(at, 2, kSeed), 0u);
  OK(cuMemFree(at));
}

}  // namespace
