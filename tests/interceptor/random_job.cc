// A job that does random things with device memory and knows of each word what it has to be: it
// allocates and frees in all ways, launches, copies, and makes, launches and changes graphs, far
// ahead of the device on several streams. What other processes do to it meanwhile must not matter.
//
//   --steps N (2000) --seed N (1)
//   --opaque     some kernels have no parameter information
//   --tables     some kernels find the addresses in a table in device memory
//   --segments   some memory is the program's own (cuMemCreate), which it also maps elsewhere
//
// A range's words are mix(seed, i) of its own seed, which each write changes. A use of a range
// comes behind the last use of it, on any stream.
//
// Prints one line of JSON and exits with 0 if every call succeeded and every word was right:
//   steps        that were done
//   wrong_words  that kernels found, and the host in what was copied to it
//   torn         kernels beneath which memory was unmapped
//   call, code   the first CUDA call that failed; "" and 0: none
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

#include <algorithm>
#include <array>
#include <list>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "tests/fake_cuda/fake_cuda.h"
#include "tests/interceptor/cuda_calls.h"

namespace {

constexpr uint64_t kMiB = 1 << 20;
constexpr size_t kRangesMost = 24;
constexpr size_t kGraphsMost = 3;
constexpr uint64_t kSegment = 4 * kMiB;
constexpr size_t kPlaces = 8;  // for segments

struct Options {
  uint64_t steps = 2000, seed = 1;
  bool opaque = false, tables = false, segments = false;
};

enum class Kind { kPlain, kOrdered, kOfPool, kSegment };

struct Range {
  Words words;
  uint64_t seed = 0;
  Kind kind = Kind::kPlain;
  size_t stream = 0;  // of its last use
  CUmemGenericAllocationHandle handle = 0;
  bool in_graph = false;

  uint64_t bytes() const { return words.count * sizeof(uint64_t); }
};

// Fills its ranges with the seeds and checks them.
struct Graph {
  CUgraphExec executable = nullptr;
  std::vector<Range*> ranges;
  std::vector<uint64_t> seeds;
};

class RandomJob {
 public:
  explicit RandomJob(const Options& options) : options_(options), random_(options.seed) {}

  void Begin();
  void Step();
  void End();
  uint64_t wrong_on_host() const { return wrong_on_host_; }

 private:
  uint64_t Draw(uint64_t below) { return random_() % below; }
  Range& Any() { return *std::next(ranges_.begin(), static_cast<ptrdiff_t>(Draw(ranges_.size()))); }
  // REQUIRES: there is one.
  Graph& AnyGraph() {
    return *std::next(graphs_.begin(), static_cast<ptrdiff_t>(Draw(graphs_.size())));
  }
  size_t AnyStream() { return Draw(streams_.size()); }

  void OrderBehind(Range& range, size_t stream);
  void SynchronizeAll();
  template <typename... Arguments>
  void Launch(const char* name, size_t stream, Arguments... arguments);
  void Fill(Range& range, size_t stream);
  void Check(Range& range, size_t stream);

  void Take();
  void Give();
  void MapElsewhere(Range& range);
  void Copy();
  void Upload(Range& range);
  void Download(Range& range);
  void Combine();
  void MakeGraph();
  void LaunchGraph(Graph& graph);
  void ChangeGraph(Graph& graph);
  void DropGraph();
  CUgraph Capture(Graph& graph, size_t stream);
  void RenewStream();

  const Options options_;
  std::mt19937_64 random_;
  CUcontext context_ = nullptr;
  CUmodule module_ = nullptr;
  CUmemoryPool pool_ = nullptr;
  CUevent event_ = nullptr;
  std::array<CUstream, 3> streams_{};
  std::map<std::string, CUfunction> functions_;
  std::list<Range> ranges_;
  std::list<Graph> graphs_;
  Words table_;
  CUdeviceptr reserved_ = 0;
  std::vector<CUdeviceptr> places_;  // for segments, with nothing mapped
  uint64_t wrong_on_host_ = 0;
};

// --- Order

// What is enqueued on the stream from now on is behind the range's last use.
void RandomJob::OrderBehind(Range& range, size_t stream) {
  if (range.stream == stream) return;
  MUST(cuEventRecord, event_, streams_[range.stream]);
  MUST(cuStreamWaitEvent, streams_[stream], event_, 0);
  range.stream = stream;
}

void RandomJob::SynchronizeAll() {
  for (CUstream stream : streams_) MUST(cuStreamSynchronize, stream);
}

void RandomJob::RenewStream() {
  const size_t stream = AnyStream();
  for (Range& range : ranges_) OrderBehind(range, (stream + 1) % streams_.size());
  MUST(cuStreamDestroy, streams_[stream]);
  MUST(cuStreamCreate, &streams_[stream], CU_STREAM_NON_BLOCKING);
}

// --- Kernels

template <typename... Arguments>
void RandomJob::Launch(const char* name, size_t stream, Arguments... arguments) {
  void* parameters[] = {&arguments...};
  CUfunction function = functions_.at(name);
  CUlaunchConfig config{};
  config.gridDimX = config.gridDimY = config.gridDimZ = 1;
  config.blockDimX = config.blockDimY = config.blockDimZ = 1;
  config.hStream = streams_[stream];
  switch (Draw(4)) {
    case 0: return MUST(cuLaunchKernelEx, &config, function, parameters, nullptr);
    case 1:
      return MUST(cuLaunchCooperativeKernel, function, 1, 1, 1, 1, 1, 1, 0, config.hStream,
                  parameters);
    case 2: {
      uint64_t packed[] = {static_cast<uint64_t>(arguments)...};
      size_t bytes = sizeof(packed);
      void* extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, packed, CU_LAUNCH_PARAM_BUFFER_SIZE, &bytes,
                       CU_LAUNCH_PARAM_END};
      return MUST(cuLaunchKernel, function, 1, 1, 1, 1, 1, 1, 0, config.hStream, nullptr, extra);
    }
    default:
      return MUST(cuLaunchKernel, function, 1, 1, 1, 1, 1, 1, 0, config.hStream, parameters,
                  nullptr);
  }
}

void RandomJob::Fill(Range& range, size_t stream) {
  OrderBehind(range, stream);
  range.seed = random_();
  const bool is_opaque = options_.opaque && Draw(8) == 0;
  Launch(is_opaque ? "opaque" : "fill", stream, range.words.at, range.words.count, range.seed);
}

void RandomJob::Check(Range& range, size_t stream) {
  OrderBehind(range, stream);
  Launch("check", stream, range.words.at, range.words.count, range.seed, CUdeviceptr{0});
}

// One range is made of two others, and afterwards as all are.
void RandomJob::Combine() {
  const size_t stream = AnyStream();
  Range& to = Any();
  Range& a = Any();
  Range& b = Any();
  if (&to == &a || &to == &b) return;
  for (Range* range : {&to, &a, &b}) OrderBehind(*range, stream);
  const uint64_t count = std::min({to.words.count, a.words.count, b.words.count});
  if (options_.tables) {
    const std::array<CUdeviceptr, 3> table{to.words.at, a.words.at, b.words.at};
    // The table of the call before is in use, and the words on the host are this function's.
    SynchronizeAll();
    MUST(cuMemcpyHtoDAsync, table_.at, table.data(), sizeof(table), streams_[stream]);
    Launch("combine_table", stream, table_.at, count);
    MUST(cuStreamSynchronize, streams_[stream]);
  } else {
    Launch("combine", stream, to.words.at, a.words.at, b.words.at, count);
  }
  Launch("check_combined", stream, to.words.at, a.words.at, b.words.at, count, CUdeviceptr{0});
  Fill(to, stream);
}

// --- Memory

void RandomJob::Take() {
  Range range;
  range.stream = AnyStream();
  range.kind = static_cast<Kind>(Draw(options_.segments && !places_.empty() ? 4 : 3));
  // From where the driver serves to several parts.
  const uint64_t bytes = range.kind == Kind::kSegment ? kSegment : kMiB * (1 + Draw(10));
  range.words.count = bytes / sizeof(uint64_t);
  CUdeviceptr* at = &range.words.at;
  switch (range.kind) {
    case Kind::kPlain: MUST(cuMemAlloc, at, bytes); break;
    case Kind::kOrdered: MUST(cuMemAllocAsync, at, bytes, streams_[range.stream]); break;
    case Kind::kOfPool:
      MUST(cuMemAllocFromPoolAsync, at, bytes, pool_, streams_[range.stream]);
      break;
    case Kind::kSegment: {
      CUmemAllocationProp prop{};
      prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
      prop.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
      MUST(cuMemCreate, &range.handle, bytes, &prop, 0);
      MapElsewhere(range);
    }
  }
  Range& taken = ranges_.emplace_back(range);
  Fill(taken, taken.stream);
}

// A segment that is mapped nowhere, or where the device is through with it.
void RandomJob::MapElsewhere(Range& range) {
  if (places_.empty()) return;
  const CUdeviceptr before = range.words.at;
  if (before != 0) {
    SynchronizeAll();
    MUST(cuMemUnmap, before, kSegment);
  }
  range.words.at = places_.back();
  places_.pop_back();
  if (before != 0) places_.insert(places_.begin(), before);
  MUST(cuMemMap, range.words.at, kSegment, 0, range.handle, 0);
  CUmemAccessDesc access{{CU_MEM_LOCATION_TYPE_DEVICE, {0}}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  MUST(cuMemSetAccess, range.words.at, kSegment, &access, 1);
}

void RandomJob::Give() {
  Range& range = Any();
  if (range.in_graph) return;
  const size_t stream = AnyStream();
  const CUdeviceptr at = range.words.at;
  switch (range.kind) {
    case Kind::kPlain: MUST(cuMemFree, at); break;
    case Kind::kOrdered:
    case Kind::kOfPool:
      OrderBehind(range, stream);
      MUST(cuMemFreeAsync, at, streams_[stream]);
      break;
    case Kind::kSegment:
      SynchronizeAll();
      MUST(cuMemUnmap, at, kSegment);
      MUST(cuMemRelease, range.handle);
      places_.push_back(at);
  }
  ranges_.remove_if([&](const Range& other) { return &other == &range; });
}

// --- Copies

void RandomJob::Copy() {
  Range& to = Any();
  Range& from = Any();
  const size_t stream = AnyStream();
  if (&to == &from || to.words.count > from.words.count) return;
  OrderBehind(to, stream);
  OrderBehind(from, stream);
  MUST(cuMemcpyDtoDAsync, to.words.at, from.words.at, to.bytes(), streams_[stream]);
  to.seed = from.seed;
}

void RandomJob::Upload(Range& range) {
  if (range.bytes() > 2 * kMiB) return;
  const size_t stream = AnyStream();
  OrderBehind(range, stream);
  range.seed = random_();
  std::vector<uint64_t> words(range.words.count);
  for (size_t i = 0; i < words.size(); ++i) words[i] = FakeCudaMix(range.seed, i);
  MUST(cuMemcpyHtoDAsync, range.words.at, words.data(), range.bytes(), streams_[stream]);
  MUST(cuStreamSynchronize, streams_[stream]);
}

void RandomJob::Download(Range& range) {
  const size_t stream = AnyStream();
  OrderBehind(range, stream);
  const uint64_t first = Draw(range.words.count - 15);
  std::array<uint64_t, 16> words{};
  MUST(cuMemcpyDtoHAsync, words.data(), range.words.From(first), sizeof(words), streams_[stream]);
  MUST(cuStreamSynchronize, streams_[stream]);
  for (size_t i = 0; i < words.size(); ++i)
    wrong_on_host_ += words[i] != FakeCudaMix(range.seed, first + i) ? 1 : 0;
}

// --- Graphs

// The graph's kernels, with new seeds.
CUgraph RandomJob::Capture(Graph& graph, size_t stream) {
  CUgraph captured = nullptr;
  MUST(cuStreamBeginCapture, streams_[stream], CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
  for (size_t i = 0; i < graph.ranges.size(); ++i) {
    const Words& words = graph.ranges[i]->words;
    graph.seeds[i] = random_();
    Launch("fill", stream, words.at, words.count, graph.seeds[i]);
    Launch("check", stream, words.at, words.count, graph.seeds[i], CUdeviceptr{0});
  }
  MUST(cuStreamEndCapture, streams_[stream], &captured);
  return captured;
}

void RandomJob::MakeGraph() {
  Graph graph;
  for (Range& range : ranges_) {
    // A segment may be mapped elsewhere.
    if (range.in_graph || range.kind == Kind::kSegment || Draw(4) > 0) continue;
    range.in_graph = true;
    graph.ranges.push_back(&range);
  }
  if (graph.ranges.empty()) return;
  graph.seeds.resize(graph.ranges.size());
  const CUgraph captured = Capture(graph, AnyStream());
  MUST(cuGraphInstantiateWithFlags, &graph.executable, captured, 0);
  MUST(cuGraphDestroy, captured);
  graphs_.push_back(std::move(graph));
}

// Its ranges change for others of the same number where there are enough.
void RandomJob::ChangeGraph(Graph& graph) {
  std::vector<Range*> others;
  for (Range& range : ranges_) {
    if (!range.in_graph && range.kind != Kind::kSegment && others.size() < graph.ranges.size())
      others.push_back(&range);
  }
  for (size_t i = 0; i < others.size(); ++i) {
    graph.ranges[i]->in_graph = false;
    graph.ranges[i] = others[i];
    others[i]->in_graph = true;
  }
  const CUgraph captured = Capture(graph, AnyStream());
  CUgraphExecUpdateResultInfo how{};
  MUST(cuGraphExecUpdate, graph.executable, captured, &how);
  MUST(cuGraphDestroy, captured);
}

void RandomJob::LaunchGraph(Graph& graph) {
  const size_t stream = AnyStream();
  for (size_t i = 0; i < graph.ranges.size(); ++i) {
    OrderBehind(*graph.ranges[i], stream);
    graph.ranges[i]->seed = graph.seeds[i];
  }
  MUST(cuGraphLaunch, graph.executable, streams_[stream]);
}

void RandomJob::DropGraph() {
  Graph& graph = graphs_.front();
  for (Range* range : graph.ranges) range->in_graph = false;
  MUST(cuGraphExecDestroy, graph.executable);
  graphs_.pop_front();
}

// --- The whole

void RandomJob::Begin() {
  constexpr const char* kKernels[] = {"fill",    "opaque",        "check",
                                      "combine", "combine_table", "check_combined"};
  MUST(cuInit, 0);
  MUST(cuDevicePrimaryCtxRetain, &context_, 0);
  MUST(cuCtxSetCurrent, context_);
  MUST(cuDeviceGetDefaultMemPool, &pool_, 0);
  std::string image;
  for (const char* name : kKernels) image += std::string(name) + " ";
  MUST(cuModuleLoadData, &module_, image.c_str());
  for (const char* name : kKernels) MUST(cuModuleGetFunction, &functions_[name], module_, name);
  for (CUstream& stream : streams_) MUST(cuStreamCreate, &stream, CU_STREAM_NON_BLOCKING);
  MUST(cuEventCreate, &event_, CU_EVENT_DISABLE_TIMING);
  table_.count = 2 * kMiB / sizeof(uint64_t);
  MUST(cuMemAlloc, &table_.at, 2 * kMiB);
  if (!options_.segments) return;
  MUST(cuMemAddressReserve, &reserved_, kPlaces * kSegment, 0, 0, 0);
  for (size_t i = 0; i < kPlaces; ++i) places_.push_back(reserved_ + i * kSegment);
}

void RandomJob::Step() {
  const uint64_t what = Draw(100);
  if (ranges_.size() < 3 || (what < 20 && ranges_.size() < kRangesMost)) return Take();
  if (what < 36) return Give();
  if (what < 48) return Fill(Any(), AnyStream());
  if (what < 54) return Copy();
  if (what < 56) return Upload(Any());
  if (what < 58) return Download(Any());
  if (what < 62) return Combine();
  if (what == 62) return RenewStream();
  if (what < 66 && graphs_.size() < kGraphsMost) return MakeGraph();
  if (what < 72 && !graphs_.empty()) return LaunchGraph(AnyGraph());
  if (what < 74 && !graphs_.empty()) return ChangeGraph(AnyGraph());
  if (what == 74 && !graphs_.empty()) return DropGraph();
  if (what < 78) {
    Range& range = Any();
    if (range.kind == Kind::kSegment) MapElsewhere(range);
    return;
  }
  Check(Any(), AnyStream());
}

void RandomJob::End() {
  for (Range& range : ranges_) Check(range, AnyStream());
  SynchronizeAll();
}

Options Parse(int argc, char** argv) {
  Options options;
  const std::map<std::string, uint64_t*> numbers{{"--steps", &options.steps},
                                                 {"--seed", &options.seed}};
  const std::map<std::string, bool*> switches{{"--opaque", &options.opaque},
                                              {"--tables", &options.tables},
                                              {"--segments", &options.segments}};
  for (int i = 1; i < argc; ++i) {
    const auto on = switches.find(argv[i]);
    const auto number = numbers.find(argv[i]);
    if (on != switches.end()) {
      *on->second = true;
    } else if (number != numbers.end() && i + 1 < argc) {
      *number->second = strtoull(argv[++i], nullptr, 10);
    } else {
      fprintf(stderr, "random_job: what is %s?\n", argv[i]);
      exit(2);
    }
  }
  return options;
}

}  // namespace

int main(int argc, char** argv) {
  const Options options = Parse(argc, argv);
  RandomJob job(options);
  uint64_t steps = 0;
  try {
    job.Begin();
    for (; steps < options.steps; ++steps) job.Step();
    job.End();
  } catch (const Stop&) {
  }
  uint64_t wrong = 0;
  int torn = 0;
  Ask("FakeCudaWrongWords", &wrong);
  Ask("FakeCudaTornKernels", &torn);
  wrong += job.wrong_on_host();
  printf("{\"steps\": %llu, \"wrong_words\": %llu, \"torn\": %d, \"call\": \"%s\", \"code\": %d}\n",
         static_cast<unsigned long long>(steps), static_cast<unsigned long long>(wrong), torn,
         failure.call.c_str(), failure.code);
  return failure.code == 0 && wrong == 0 && torn == 0 ? 0 : 1;
}
