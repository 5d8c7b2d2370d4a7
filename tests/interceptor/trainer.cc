// A small "training" that knows nothing of Ravenstore and allocates as PyTorch does on the async
// allocator: activations live from the forward pass to the backward pass, temporaries for a few
// kernels, weights and optimizer state for good. Its kernels are the fake driver's
// (tests/fake_cuda/fake_cuda.h), which check every word.
//
//   forward, layer l    temporary = mix(activation[l - 1]) + weight[l]
//                       activation[l] = mix(temporary) + weight[l]
//   backward            gradient = mix(activation[l]) + the gradient before
//                       each word of the gradient and of activation[l] is checked against what it
//                       was made from, some words against what the CPU makes of the seeds alone,
//                       and activation[0], the input, against its seed
//   optimizer           weight[l] += delta[l], state[l] += delta[l]
//
// Where two operands differ in size the smaller one is read again and again. At the end weights,
// states and deltas are checked against their seeds.
//
//   --layers N (6) --bytes N (4 MiB; the size of the largest activation) --steps N (4) --seed N (1)
//   --streams 2   the checks, the optimizer and the frees are on a second stream, in order by
//   events
//   --graph       the optimizer's kernels are captured once and launched as a graph
//   --opaque      the input is filled by a kernel without parameter information
//   --packed      temporaries come of a kernel whose parameters are passed packed, in one struct
//   --table       activations come of a kernel that takes a table of pointers in device memory
//   --made        the same, and a kernel makes the table, which is done when it is used
//   --segments    all memory is carved, as PyTorch's expandable segments are, out of one run of
//                 addresses that the program maps handles at, neither of them aligned with the
//                 other; what is free at its end is unmapped after each step. At last a handle is
//                 mapped a second time, and another exported. With one stream alone
//   --sleep N     milliseconds of nothing between steps (0)
//   --wait        after the first step it prints "waiting" and reads lines until standard input
//                 ends: "CALL NTH SIGNAL" sends the process the signal at the NTH call from then
//                 on, and is answered with "set"
//   --lose N      the N-th kernel is not launched, for a test of the checks (0: none)
//
// Prints one line of JSON and exits with 0 if every call succeeded and every word was right:
//   steps          that were completed
//   wrong_words    that the check kernels found; counted: the same by their counter on the device
//   wrong_samples  words that differ from what the CPU computes
//   torn           kernels beneath which memory was unmapped, where the fake driver counts them
//   ms_per_step    without the first, if there are more
//   peak_bytes     the most that was allocated at any time
//   call, code     the first CUDA call that failed; "" and 0: none
#include <cuda.h>
#include <dlfcn.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <deque>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "tests/fake_cuda/fake_cuda.h"
#include "tests/interceptor/cuda_calls.h"

namespace {

struct Options {
  uint64_t layers = 6, bytes = 4 << 20, steps = 4, seed = 1, streams = 1, sleep = 0, lose = 0;
  bool graph = false, opaque = false, packed = false, table = false, made = false, segments = false;
  bool wait = false;
};

double Now() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<double>(now.tv_sec) * 1e3 + static_cast<double>(now.tv_nsec) / 1e6;
}

// Memory that the program maps by itself. Owns: its addresses and handles, until End.
class Segments {
 public:
  // Reserves more than the training needs at any time.
  void Begin() { MUST(cuMemAddressReserve, &base_, kReserved, 0, 0, 0); }
  CUdeviceptr Take(uint64_t bytes);
  void Give(CUdeviceptr at);
  // Unmaps what is free at the end.
  void Trim();
  // The handle that holds all of [at, at + bytes), and where it begins; 0: there is none.
  CUmemGenericAllocationHandle Holding(CUdeviceptr at, uint64_t bytes, CUdeviceptr* begin) const;
  // Where the handle is mapped a second time, until End.
  CUdeviceptr MapAgain(CUmemGenericAllocationHandle handle);
  void End();

  static constexpr uint64_t kHandle = 6 << 20;
  // To the first `devices`.
  static void Show(CUdeviceptr at, int devices = 1);
  static void Export(CUmemGenericAllocationHandle handle);

 private:
  static constexpr uint64_t kReserved = uint64_t{1} << 30;
  void Grow();
  CUdeviceptr base_ = 0;
  CUdeviceptr again_ = 0;
  std::vector<CUmemGenericAllocationHandle> handles_;
  std::map<uint64_t, uint64_t> free_;  // by offset; no two touch
  std::map<uint64_t, uint64_t> taken_;
};

void Segments::Show(CUdeviceptr at, int devices) {
  CUmemAccessDesc access[2] = {};
  for (int i = 0; i < devices; ++i) {
    access[i].location = {CU_MEM_LOCATION_TYPE_DEVICE, i};
    access[i].flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  }
  MUST(cuMemSetAccess, at, kHandle, access, static_cast<size_t>(devices));
}

void Segments::Export(CUmemGenericAllocationHandle handle) {
  int file = -1;
  MUST(cuMemExportToShareableHandle, &file, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
  close(file);
}

void Segments::Grow() {
  CUmemAllocationProp prop{};
  prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  prop.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
  CUmemGenericAllocationHandle handle = 0;
  MUST(cuMemCreate, &handle, kHandle, &prop, 0);
  const uint64_t at = handles_.size() * kHandle;
  handles_.push_back(handle);
  MUST(cuMemMap, base_ + at, kHandle, 0, handle, 0);
  Show(base_ + at);
  taken_[at] = kHandle;
  Give(base_ + at);
}

CUdeviceptr Segments::Take(uint64_t bytes) {
  bytes = (bytes + 511) / 512 * 512;
  while (true) {
    for (auto run = free_.begin(); run != free_.end(); ++run) {
      const auto [at, size] = *run;
      if (size < bytes) continue;
      free_.erase(run);
      if (size > bytes) free_[at + bytes] = size - bytes;
      taken_[at] = bytes;
      return base_ + at;
    }
    Grow();
  }
}

void Segments::Give(CUdeviceptr address) {
  auto taken = taken_.extract(address - base_);
  uint64_t at = taken.key();
  uint64_t size = taken.mapped();
  if (const auto after = free_.find(at + size); after != free_.end()) {
    size += after->second;
    free_.erase(after);
  }
  auto before = free_.lower_bound(at);
  if (before != free_.begin() && (--before)->first + before->second == at) {
    before->second += size;
  } else {
    free_[at] = size;
  }
}

void Segments::Trim() {
  while (!free_.empty() && !handles_.empty()) {
    const uint64_t last = (handles_.size() - 1) * kHandle;
    const auto run = std::prev(free_.end());
    if (run->first + run->second != last + kHandle || run->first > last) return;
    run->second = last - run->first;
    if (run->second == 0) free_.erase(run);
    MUST(cuMemUnmap, base_ + last, kHandle);
    MUST(cuMemRelease, handles_.back());
    handles_.pop_back();
  }
}

CUmemGenericAllocationHandle Segments::Holding(CUdeviceptr at, uint64_t bytes,
                                               CUdeviceptr* begin) const {
  const uint64_t index = (at - base_) / kHandle;
  *begin = base_ + index * kHandle;
  return at + bytes <= *begin + kHandle ? handles_[index] : 0;
}

CUdeviceptr Segments::MapAgain(CUmemGenericAllocationHandle handle) {
  MUST(cuMemAddressReserve, &again_, kHandle, 0, 0, 0);
  MUST(cuMemMap, again_, kHandle, 0, handle, 0);
  Show(again_);
  return again_;
}

void Segments::End() {
  if (again_ != 0) {
    MUST(cuMemUnmap, again_, kHandle);
    MUST(cuMemAddressFree, again_, kHandle);
  }
  Trim();
  // All was given back: nothing is mapped any more.
  MUST(cuMemAddressFree, base_, kReserved);
}

class Trainer {
 public:
  explicit Trainer(const Options& options) : options_(options) {}

  void Begin();
  void Step();
  void End();

  uint64_t steps() const { return step_; }
  uint64_t counted() const { return counted_; }
  uint64_t wrong_samples() const { return wrong_samples_; }
  uint64_t peak_bytes() const { return peak_bytes_; }

 private:
  struct Layer {
    Words activation, weight, state, delta;
  };
  // A word that was copied to the host, and what it has to be.
  struct Sample {
    uint64_t is;
    uint64_t wanted;
  };

  uint64_t Seed(uint64_t what, uint64_t layer) const {
    return FakeCudaMix(options_.seed * 8 + what, layer);
  }
  uint64_t InputSeed() const { return Seed(0, step_); }
  uint64_t WordsOf(uint64_t layer) const;

  Words Keep(uint64_t count);
  Words Take(uint64_t count, CUstream stream);
  void Give(Words* words, CUstream stream);
  void Charge(uint64_t bytes);

  template <typename... Arguments>
  void Launch(const char* name, CUstream stream, Arguments... arguments);
  void LaunchPacked(CUstream stream, CUdeviceptr to, CUdeviceptr a, CUdeviceptr b, uint64_t count);
  void LaunchTable(CUstream stream, CUdeviceptr to, CUdeviceptr a, CUdeviceptr b, uint64_t count);
  enum class How { kPlain, kPacked, kTable, kCheck };
  void Combine(const Words& to, const Words& a, const Words& b, CUstream stream, How how);
  void After(CUstream stream, CUstream before);

  void CheckWeightElsewhere();
  void Free(CUdeviceptr at);
  void Forward();
  void Backward();
  void CheckLayer(uint64_t layer);
  void Optimize(const Layer& layer, CUstream stream);
  void Capture();
  void SampleLayer(uint64_t layer);
  uint64_t Expected(uint64_t layer, uint64_t word) const;

  const Options options_;
  CUcontext context_ = nullptr;
  CUstream main_ = nullptr;
  CUstream side_ = nullptr;
  CUmodule module_ = nullptr;
  CUevent event_ = nullptr;
  CUgraphExec graph_ = nullptr;
  std::map<std::string, CUfunction> functions_;
  std::vector<Layer> layers_;
  Words zeroed_;   // by the graph, which then adds the first layer's delta
  Words counter_;  // of wrong words
  Segments segments_;
  Words tables_;
  // The host's side of the step's copies, which have to stay until the step is done.
  std::deque<std::array<CUdeviceptr, 3>> tables_on_host_;
  std::deque<Sample> samples_;
  uint64_t step_ = 0;
  uint64_t launches_ = 0;
  uint64_t counted_ = 0;
  uint64_t wrong_samples_ = 0;
  uint64_t bytes_ = 0;
  uint64_t peak_bytes_ = 0;
};

// Of many sizes, the largest --bytes; all odd.
uint64_t Trainer::WordsOf(uint64_t layer) const {
  constexpr uint64_t kEighths[] = {4, 8, 5, 1, 7, 3};
  const uint64_t most = options_.bytes / sizeof(uint64_t);
  return (most * kEighths[layer % std::size(kEighths)] / 8) | 1;
}

void Trainer::Charge(uint64_t bytes) {
  bytes_ += bytes;
  peak_bytes_ = std::max(peak_bytes_, bytes_);
}

Words Trainer::Keep(uint64_t count) {
  Words words{0, count};
  if (options_.segments) {
    words.at = segments_.Take(count * sizeof(uint64_t));
  } else {
    MUST(cuMemAlloc, &words.at, count * sizeof(uint64_t));
  }
  Charge(count * sizeof(uint64_t));
  return words;
}

Words Trainer::Take(uint64_t count, CUstream stream) {
  Words words{0, count};
  if (options_.segments) {
    words.at = segments_.Take(count * sizeof(uint64_t));
  } else {
    MUST(cuMemAllocAsync, &words.at, count * sizeof(uint64_t), stream);
  }
  Charge(count * sizeof(uint64_t));
  return words;
}

void Trainer::Give(Words* words, CUstream stream) {
  if (options_.segments) {
    segments_.Give(words->at);
  } else {
    MUST(cuMemFreeAsync, words->at, stream);
  }
  bytes_ -= words->count * sizeof(uint64_t);
  *words = {};
}

template <typename... Arguments>
void Trainer::Launch(const char* name, CUstream stream, Arguments... arguments) {
  if (++launches_ == options_.lose) return;
  void* parameters[] = {&arguments...};
  MUST(cuLaunchKernel, functions_[name], 1, 1, 1, 1, 1, 1, 0, stream, parameters, nullptr);
}

void Trainer::LaunchPacked(CUstream stream, CUdeviceptr to, CUdeviceptr a, CUdeviceptr b,
                           uint64_t count) {
  struct {
    CUdeviceptr to;
    struct {
      CUdeviceptr a, b;
    } from;
    uint64_t count;
  } packed{to, {a, b}, count};
  size_t bytes = sizeof(packed);
  void* extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, &packed, CU_LAUNCH_PARAM_BUFFER_SIZE, &bytes,
                   CU_LAUNCH_PARAM_END};
  if (++launches_ == options_.lose) return;
  MUST(cuLaunchKernel, functions_["combine_packed"], 1, 1, 1, 1, 1, 1, 0, stream, nullptr, extra);
}

void Trainer::LaunchTable(CUstream stream, CUdeviceptr to, CUdeviceptr a, CUdeviceptr b,
                          uint64_t count) {
  auto& table = tables_on_host_.emplace_back(std::array<CUdeviceptr, 3>{to, a, b});
  if (tables_on_host_.size() * 3 > tables_.count) Must(CUDA_ERROR_INVALID_VALUE, "table");
  const CUdeviceptr at = tables_.From((tables_on_host_.size() - 1) * 3);
  if (options_.made) {
    Launch("make_table", stream, at, to, a, b);
    // The matrices in the table are idle now, and may leave.
    MUST(cuStreamSynchronize, stream);
  } else {
    MUST(cuMemcpyHtoDAsync, at, table.data(), sizeof(table), stream);
  }
  Launch("combine_table", stream, at, count);
}

// All of `to` is made (or checked) from `a` and `b`.
void Trainer::Combine(const Words& to, const Words& a, const Words& b, CUstream stream, How how) {
  for (uint64_t word = 0; word < to.count;) {
    const uint64_t count =
        std::min({to.count - word, a.count - word % a.count, b.count - word % b.count});
    const CUdeviceptr at = to.From(word);
    switch (how) {
      case How::kPlain: Launch("combine", stream, at, a.From(word), b.From(word), count); break;
      case How::kPacked: LaunchPacked(stream, at, a.From(word), b.From(word), count); break;
      case How::kTable: LaunchTable(stream, at, a.From(word), b.From(word), count); break;
      case How::kCheck:
        Launch("check_combined", stream, at, a.From(word), b.From(word), count, counter_.at);
        break;
    }
    word += count;
  }
}

// What is enqueued on `stream` from now on comes behind what is on `before`.
void Trainer::After(CUstream stream, CUstream before) {
  if (stream == before) return;
  MUST(cuEventRecord, event_, before);
  MUST(cuStreamWaitEvent, stream, event_, 0);
}

void Trainer::Begin() {
  constexpr const char* kKernels[] = {"fill",           "opaque",    "add",       "combine",
                                      "combine_packed", "check",     "check_sum", "combine_table",
                                      "check_combined", "make_table"};
  MUST(cuInit, 0);
  MUST(cuDevicePrimaryCtxRetain, &context_, 0);
  MUST(cuCtxSetCurrent, context_);
  CUmemoryPool pool = nullptr;
  cuuint64_t threshold = ~cuuint64_t{0};
  MUST(cuDeviceGetDefaultMemPool, &pool, 0);
  MUST(cuMemPoolSetAttribute, pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &threshold);
  std::string image;
  for (const char* name : kKernels) image += std::string(name) + " ";
  MUST(cuModuleLoadData, &module_, image.c_str());
  for (const char* name : kKernels) {
    MUST(cuModuleGetFunction, &functions_[name], module_, name);
  }
  MUST(cuStreamCreate, &main_, CU_STREAM_NON_BLOCKING);
  side_ = main_;
  if (options_.streams == 2) MUST(cuStreamCreate, &side_, CU_STREAM_NON_BLOCKING);
  MUST(cuEventCreate, &event_, CU_EVENT_DISABLE_TIMING);
  if (options_.segments) segments_.Begin();
  counter_ = Keep(1);
  MUST(cuMemsetD8Async, counter_.at, 0, sizeof(uint64_t), main_);
  tables_ = Keep(4096);
  layers_.resize(options_.layers + 1);
  for (uint64_t i = 1; i < layers_.size(); ++i) {
    Layer& layer = layers_[i];
    const uint64_t count = WordsOf(i) / 4 | 1;
    layer.weight = Keep(count);
    layer.state = Keep(count);
    layer.delta = Keep(count);
    Launch("fill", main_, layer.weight.at, count, Seed(1, i));
    Launch("fill", main_, layer.state.at, count, Seed(2, i));
    Launch("fill", main_, layer.delta.at, count, Seed(3, i));
  }
  zeroed_ = Keep(layers_[1].delta.count);
  MUST(cuStreamSynchronize, main_);
  if (options_.graph) Capture();
}

void Trainer::Optimize(const Layer& layer, CUstream stream) {
  Launch("add", stream, layer.weight.at, layer.delta.at, layer.delta.count);
  Launch("add", stream, layer.state.at, layer.delta.at, layer.delta.count);
}

void Trainer::Capture() {
  CUgraph graph = nullptr;
  MUST(cuStreamBeginCapture, main_, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
  for (uint64_t i = 1; i < layers_.size(); ++i) Optimize(layers_[i], main_);
  MUST(cuMemsetD8Async, zeroed_.at, 0, zeroed_.count * sizeof(uint64_t), main_);
  Launch("add", main_, zeroed_.at, layers_[1].delta.at, zeroed_.count);
  MUST(cuStreamEndCapture, main_, &graph);
  MUST(cuGraphInstantiateWithFlags, &graph_, graph, 0);
  MUST(cuGraphDestroy, graph);
}

void Trainer::Forward() {
  Words& input = layers_[0].activation;
  input = Take(WordsOf(0), main_);
  Launch(options_.opaque ? "opaque" : "fill", main_, input.at, input.count, InputSeed());
  for (uint64_t i = 1; i < layers_.size(); ++i) {
    Layer& layer = layers_[i];
    layer.activation = Take(WordsOf(i), main_);
    Words temporary = Take(WordsOf(i), main_);
    Combine(temporary, layers_[i - 1].activation, layer.weight, main_,
            options_.packed ? How::kPacked : How::kPlain);
    Combine(layer.activation, temporary, layer.weight, main_,
            options_.table || options_.made ? How::kTable : How::kPlain);
    Give(&temporary, main_);
  }
}

// What activation[layer] has at `word` in this step, from the seeds alone.
uint64_t Trainer::Expected(uint64_t layer, uint64_t word) const {
  if (layer == 0) return FakeCudaMix(InputSeed(), word);
  const uint64_t before = Expected(layer - 1, word % WordsOf(layer - 1));
  const uint64_t at = word % layers_[layer].weight.count;
  const uint64_t weight = FakeCudaMix(Seed(1, layer), at) + step_ * FakeCudaMix(Seed(3, layer), at);
  return FakeCudaMix(FakeCudaMix(before, 0) + weight, 0) + weight;
}

void Trainer::SampleLayer(uint64_t layer) {
  const Words& activation = layers_[layer].activation;
  const uint64_t any = FakeCudaMix(Seed(4, layer), step_) % activation.count;
  for (const uint64_t word : {uint64_t{0}, any, activation.count - 1}) {
    Sample& sample = samples_.emplace_back(Sample{0, Expected(layer, word)});
    MUST(cuMemcpyDtoHAsync, &sample.is, activation.From(word), sizeof(sample.is), main_);
  }
}

// Behind the layer's last use; frees its activation.
void Trainer::CheckLayer(uint64_t i) {
  Layer& layer = layers_[i];
  Words temporary = Take(WordsOf(i), side_);
  Combine(temporary, layers_[i - 1].activation, layer.weight, side_, How::kPlain);
  Combine(layer.activation, temporary, layer.weight, side_, How::kCheck);
  Give(&temporary, side_);
  Give(&layer.activation, side_);
  if (!options_.graph) Optimize(layer, side_);
}

void Trainer::Backward() {
  Words gradient = Take(layers_.back().activation.count, main_);
  Launch("fill", main_, gradient.at, gradient.count, Seed(5, step_));
  for (uint64_t i = layers_.size() - 1; i > 0; --i) {
    const Words& activation = layers_[i].activation;
    Words next = Take(WordsOf(i - 1), main_);
    Combine(next, activation, gradient, main_, How::kPlain);
    Combine(next, activation, gradient, main_, How::kCheck);
    Give(&gradient, main_);
    gradient = next;
    SampleLayer(i);
    After(side_, main_);
    CheckLayer(i);
  }
  Give(&gradient, main_);
  After(side_, main_);
  Words& input = layers_[0].activation;
  Launch("check", side_, input.at, input.count, InputSeed(), counter_.at);
  Give(&input, side_);
  After(main_, side_);
}

void Trainer::Step() {
  Forward();
  Backward();
  if (options_.graph) MUST(cuGraphLaunch, graph_, main_);
  uint32_t counted = 0;
  MUST(cuMemcpyDtoHAsync, &counted, counter_.at, sizeof(counted), main_);
  MUST(cuStreamSynchronize, main_);
  counted_ = counted;
  for (const Sample& sample : samples_) wrong_samples_ += sample.is != sample.wanted ? 1 : 0;
  samples_.clear();
  tables_on_host_.clear();
  if (options_.segments) segments_.Trim();
  ++step_;
}

void Trainer::Free(CUdeviceptr at) {
  if (options_.segments) {
    segments_.Give(at);
  } else {
    MUST(cuMemFree, at);
  }
}

// By what the driver alone can do: an export of one handle, access of another device to one, and a
// second mapping of one.
void Trainer::CheckWeightElsewhere() {
  uint64_t ways = 0;
  for (uint64_t i = 1; i < layers_.size() && ways < 3; ++i) {
    const Words& words = layers_[i].weight;
    CUdeviceptr begin = 0;
    const auto handle = segments_.Holding(words.at, words.count * sizeof(uint64_t), &begin);
    if (handle == 0) continue;
    CUdeviceptr at = words.at;
    switch (ways++) {
      case 0: Segments::Export(handle); break;
      case 1: Segments::Show(begin, 2); break;
      default: at = segments_.MapAgain(handle) + (words.at - begin);
    }
    Launch("check_sum", main_, at, words.count, Seed(1, i), Seed(3, i), step_, counter_.at);
  }
  if (ways < 3) Must(CUDA_ERROR_INVALID_VALUE, "three weights within a handle each");
}

void Trainer::End() {
  for (uint64_t i = 1; i < layers_.size(); ++i) {
    const Layer& layer = layers_[i];
    const auto check = [&](const Words& words, uint64_t what, uint64_t times) {
      Launch("check_sum", main_, words.at, words.count, Seed(what, i), Seed(3, i), times,
             counter_.at);
    };
    check(layer.weight, 1, step_);
    check(layer.state, 2, step_);
    check(layer.delta, 3, 0);
  }
  if (options_.graph && step_ > 0) {
    Launch("check", main_, zeroed_.at, zeroed_.count, Seed(3, 1), counter_.at);
  }
  if (options_.segments) CheckWeightElsewhere();
  uint32_t counted = 0;
  MUST(cuMemcpyDtoHAsync, &counted, counter_.at, sizeof(counted), main_);
  MUST(cuCtxSynchronize);
  counted_ = counted;
  for (uint64_t i = 1; i < layers_.size(); ++i) {
    for (const Words& words : {layers_[i].weight, layers_[i].state, layers_[i].delta})
      Free(words.at);
  }
  for (const Words& words : {zeroed_, tables_, counter_}) Free(words.at);
  if (options_.segments) segments_.End();
  if (graph_ != nullptr) MUST(cuGraphExecDestroy, graph_);
  MUST(cuEventDestroy, event_);
  if (side_ != main_) MUST(cuStreamDestroy, side_);
  MUST(cuStreamDestroy, main_);
  MUST(cuModuleUnload, module_);
  MUST(cuDevicePrimaryCtxRelease, 0);
}

[[noreturn]] void Usage(const char* word) {
  fprintf(stderr, "trainer: what is %s?\n", word);
  exit(2);
}

// Until standard input ends.
void WaitForLines() {
  const auto signal =
      reinterpret_cast<decltype(&FakeCudaSignal)>(dlsym(RTLD_DEFAULT, "FakeCudaSignal"));
  puts("waiting");
  fflush(stdout);
  char line[128], call[64];
  int nth = 0, number = 0;
  while (fgets(line, sizeof(line), stdin) != nullptr) {
    if (signal == nullptr || sscanf(line, "%63s %d %d", call, &nth, &number) != 3) Usage(line);
    signal(call, nth, number);
    puts("set");
    fflush(stdout);
  }
}

Options Parse(int argc, char** argv) {
  Options options;
  const std::map<std::string, uint64_t*> numbers{
      {"--layers", &options.layers}, {"--bytes", &options.bytes}, {"--steps", &options.steps},
      {"--seed", &options.seed},     {"--lose", &options.lose},   {"--streams", &options.streams},
      {"--sleep", &options.sleep}};
  const std::map<std::string, bool*> switches{
      {"--graph", &options.graph}, {"--opaque", &options.opaque}, {"--packed", &options.packed},
      {"--table", &options.table}, {"--made", &options.made},     {"--segments", &options.segments},
      {"--wait", &options.wait}};
  for (int i = 1; i < argc; ++i) {
    if (const auto on = switches.find(argv[i]); on != switches.end()) {
      *on->second = true;
      continue;
    }
    const auto number = numbers.find(argv[i]);
    if (number == numbers.end() || i + 1 == argc) Usage(argv[i]);
    char* end = nullptr;
    *number->second = strtoull(argv[++i], &end, 10);
    if (*end != '\0') Usage(argv[i]);
  }
  if (options.segments && options.streams != 1) Usage("--streams with --segments");
  if (options.layers == 0 || options.bytes < 64 || options.streams < 1 || options.streams > 2) {
    Usage("that size");
  }
  return options;
}

}  // namespace

int main(int argc, char** argv) {
  const Options options = Parse(argc, argv);
  Trainer trainer(options);
  std::vector<double> steps;
  try {
    trainer.Begin();
    for (uint64_t i = 0; i < options.steps; ++i) {
      const double begin = Now();
      trainer.Step();
      steps.push_back(Now() - begin);
      if (options.wait && i == 0) WaitForLines();
      if (options.sleep > 0) poll(nullptr, 0, static_cast<int>(options.sleep));
    }
    trainer.End();
  } catch (const Stop&) {
  }
  if (steps.size() > 1) steps.erase(steps.begin());
  double milliseconds = 0;
  for (const double step : steps) milliseconds += step / static_cast<double>(steps.size());
  uint64_t wrong = 0;
  int torn = 0;
  if (!Ask("FakeCudaWrongWords", &wrong)) wrong = trainer.counted();
  Ask("FakeCudaTornKernels", &torn);
  printf(
      "{\"steps\": %llu, \"wrong_words\": %llu, \"counted\": %llu, \"wrong_samples\": %llu, "
      "\"torn\": %d, \"ms_per_step\": %.3f, \"peak_bytes\": %llu, \"call\": \"%s\", "
      "\"code\": %d}\n",
      static_cast<unsigned long long>(trainer.steps()), static_cast<unsigned long long>(wrong),
      static_cast<unsigned long long>(trainer.counted()),
      static_cast<unsigned long long>(trainer.wrong_samples()), torn, milliseconds,
      static_cast<unsigned long long>(trainer.peak_bytes()), failure.call.c_str(), failure.code);
  const bool right = failure.code == 0 && wrong == 0 && trainer.counted() == 0 &&
                     trainer.wrong_samples() == 0 && torn == 0;
  return right ? 0 : 1;
}
