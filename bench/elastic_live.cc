// Runs a recorded program's calls through the elastic engine itself, in real time, with a GPU that
// is only a clock. Calls run one after the other and take the recorded time, and longer by the
// bytes that they use in place. Copies take their bytes over a link with a lane in each direction.
// This shows the effects of a job that runs ahead of its GPU, which elastic_replay does not model.
//
//     elastic_live RECORDING PERCENT [CALL [MAP [one|apart]]]
//
// PERCENT: the device's memory, of the most bytes that live at the same time. CALL: extra
// microseconds of the job's CPU for each call (8). MAP: microseconds to map a page of the host's
// memory (530; 700 while kernels run). The driver's map and unmap calls run concurrently (apart),
// or wait for each other (one). They take time but no CPU, as if there were enough CPUs. Prints a
// line for each step. Needs two idle CPUs.
#include <sys/prctl.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "bench/recording.h"
#include "core/types.h"
#include "elastic/engine.h"
#include "ipc/clock.h"

namespace ravenstore {
namespace {

using core::Bytes;
using core::Duration;
using core::Tick;
using elastic::Engine;

// As measured on an H100.
constexpr double kLinkRate = 46e9;
constexpr double kInPlaceRate = 51e9;
constexpr Duration kMapDevice = std::chrono::microseconds(47);
constexpr Duration kUnmapDevice = std::chrono::microseconds(35);
constexpr Duration kUnmapHost = std::chrono::microseconds(185);
constexpr Duration kSlice = std::chrono::microseconds(800);
constexpr Duration kPin = std::chrono::microseconds(5700);  // a part of the host
constexpr Bytes kLeastRange = core::MiB(2);
const CUstream kJob = reinterpret_cast<CUstream>(uintptr_t{1});  // others are the engine's two

// The clock. Threads: any.
class Gpu {
 public:
  // What is enqueued on the job's stream now ends then.
  void Launch(Duration taken) {
    const std::lock_guard lock(mutex_);
    job_ = std::max(job_, ipc::Now()) + taken;
  }
  void Copy(CUstream stream, size_t bytes) {
    const std::lock_guard lock(mutex_);
    Tick& lane = lanes_[stream];
    lane = std::max(lane, ipc::Now()) + core::FromSeconds(static_cast<double>(bytes) / kLinkRate);
  }
  Tick End(CUstream stream) {
    const std::lock_guard lock(mutex_);
    return stream == kJob ? job_ : lanes_[stream];
  }
  // Until one direction is done with what was enqueued, if both are at work.
  Duration BothLanes() {
    const std::lock_guard lock(mutex_);
    if (lanes_.size() < 2) return {};
    Tick first = Tick::max();
    for (const auto& [stream, end] : lanes_) first = std::min(first, end);
    return std::max(first - ipc::Now(), Duration{0});
  }
  CUdeviceptr Reserve(size_t bytes, size_t alignment) {
    const std::lock_guard lock(mutex_);
    if (alignment > 0) next_ = (next_ + alignment - 1) / alignment * alignment;
    return std::exchange(next_, next_ + bytes);
  }

 private:
  std::mutex mutex_;
  Tick job_{};
  std::map<CUstream, Tick> lanes_;
  CUdeviceptr next_ = CUdeviceptr{1} << 40;
};

Gpu gpu;

// The driver, where it maps.
struct Mapping {
  Duration host = std::chrono::microseconds(530);
  bool one_at_a_time = true;
  std::mutex mutex;
  std::mutex of_host_mutex;
  std::set<CUdeviceptr> of_host;  // where memory of the host's is mapped

  void Map(CUdeviceptr at, bool is_host) {
    // Page tables wait for copies in both directions.
    Take((is_host ? host : kMapDevice) + std::min(gpu.BothLanes(), kSlice));
    if (!is_host) return;
    const std::lock_guard lock(of_host_mutex);
    of_host.insert(at);
  }
  void Unmap(CUdeviceptr at) {
    std::unique_lock lock(of_host_mutex);
    const bool is_host = of_host.erase(at) > 0;
    lock.unlock();
    Take(is_host ? kUnmapHost : kUnmapDevice);
  }
  void Take(Duration time) {
    std::unique_lock lock(mutex, std::defer_lock);
    if (one_at_a_time) lock.lock();
    std::this_thread::sleep_for(time);
  }
};

Mapping mapping;

void Spin(Duration time) {
  for (const Tick end = ipc::Now() + time; ipc::Now() < end;) {
  }
}

struct Event {
  std::atomic<Tick> ready;
};

elastic::Driver MemoryOfTheClock() {
  elastic::Driver driver;
  driver.address_reserve = [](CUdeviceptr* at, size_t bytes, size_t alignment, CUdeviceptr,
                              unsigned long long) {
    *at = gpu.Reserve(bytes, alignment);
    return CUDA_SUCCESS;
  };
  driver.address_free = [](CUdeviceptr, size_t) { return CUDA_SUCCESS; };
  driver.granularity = [](size_t* bytes, const CUmemAllocationProp*,
                          CUmemAllocationGranularity_flags) {
    *bytes = kLeastRange.count();
    return CUDA_SUCCESS;
  };
  driver.mem_create = [](CUmemGenericAllocationHandle* handle, size_t,
                         const CUmemAllocationProp* kind, unsigned long long) {
    *handle = kind->location.type == CU_MEM_LOCATION_TYPE_DEVICE ? 1 : 2;
    if (*handle == 2) std::this_thread::sleep_for(kPin);
    return CUDA_SUCCESS;
  };
  driver.mem_release = [](CUmemGenericAllocationHandle) { return CUDA_SUCCESS; };
  driver.mem_map = [](CUdeviceptr at, size_t, size_t, CUmemGenericAllocationHandle handle,
                      unsigned long long) {
    mapping.Map(at, handle == 2);
    return CUDA_SUCCESS;
  };
  driver.mem_unmap = [](CUdeviceptr at, size_t) { return mapping.Unmap(at), CUDA_SUCCESS; };
  driver.set_access = [](CUdeviceptr, size_t, const CUmemAccessDesc*, size_t) {
    return CUDA_SUCCESS;
  };
  return driver;
}

elastic::Driver DriverOfTheClock() {
  elastic::Driver driver = MemoryOfTheClock();
  driver.ctx_get_current = [](CUcontext* context) {
    *context = reinterpret_cast<CUcontext>(uintptr_t{1});
    return CUDA_SUCCESS;
  };
  driver.ctx_set_current = [](CUcontext) { return CUDA_SUCCESS; };
  driver.exchange_mode = [](CUstreamCaptureMode*) { return CUDA_SUCCESS; };
  driver.is_capturing = [](CUstream, CUstreamCaptureStatus* status) {
    *status = CU_STREAM_CAPTURE_STATUS_NONE;
    return CUDA_SUCCESS;
  };
  driver.stream_create = [](CUstream* stream, unsigned) {
    static uintptr_t streams = 1;
    *stream = reinterpret_cast<CUstream>(++streams);
    return CUDA_SUCCESS;
  };
  driver.copy_async = [](CUdeviceptr, CUdeviceptr, size_t bytes, CUstream stream) {
    return gpu.Copy(stream, bytes), CUDA_SUCCESS;
  };
  driver.event_create = [](CUevent* event, unsigned) {
    *event = reinterpret_cast<CUevent>(new Event{});
    return CUDA_SUCCESS;
  };
  driver.event_destroy = [](CUevent event) {
    delete reinterpret_cast<Event*>(event);
    return CUDA_SUCCESS;
  };
  driver.event_record = [](CUevent event, CUstream stream) {
    reinterpret_cast<Event*>(event)->ready = gpu.End(stream);
    return CUDA_SUCCESS;
  };
  driver.event_query = [](CUevent event) {
    return ipc::Now() >= reinterpret_cast<Event*>(event)->ready.load() ? CUDA_SUCCESS
                                                                       : CUDA_ERROR_NOT_READY;
  };
  driver.elapsed = [](float* milliseconds, CUevent begin, CUevent end) {
    const Duration between =
        reinterpret_cast<Event*>(end)->ready.load() - reinterpret_cast<Event*>(begin)->ready.load();
    *milliseconds = static_cast<float>(core::Seconds(between) * 1e3);
    return CUDA_SUCCESS;
  };
  return driver;
}

class Job {
 public:
  Job(const sim::Trace& trace, Engine* engine, Duration cpu)
      : trace_(trace), engine_(*engine), cpu_(cpu) {}

  void Run() {
    begun_ = ipc::Now();
    for (const sim::Op& op : trace_.ops) {
      const uint32_t tensor = op.tensor;
      switch (op.kind) {
        case sim::OpKind::kCreate: Create(tensor); break;
        case sim::OpKind::kGet: in_use_.insert(tensor); break;
        case sim::OpKind::kPut: in_use_.erase(tensor); break;
        case sim::OpKind::kFree: Free(tensor); break;
        case sim::OpKind::kCompute: Call(op.time); break;
        case sim::OpKind::kStep: Step(); break;
      }
    }
  }

 private:
  void Create(uint32_t tensor) {
    const Bytes bytes = trace_.tensors[tensor].bytes;
    if (bytes < kLeastRange) return;
    const auto at = engine_.Allocate(bytes, kJob, true);
    if (!at.ok()) {
      fprintf(stderr, "elastic_live: %s\n", core::Describe(at.error()).c_str());
      exit(1);
    }
    at_[tensor] = *at;
    in_use_.insert(tensor);
  }
  void Free(uint32_t tensor) {
    in_use_.erase(tensor);
    if (const auto range = at_.extract(tensor)) engine_.Free(range.mapped(), kJob, true);
  }
  void Call(Duration time) {
    std::vector<CUdeviceptr> named;
    uint64_t identity = 0;
    for (const uint32_t tensor : in_use_) {
      identity = identity * 31 + trace_.tensors[tensor].bytes.count();
      if (const auto range = at_.find(tensor); range != at_.end()) named.push_back(range->second);
    }
    const Bytes before = engine_.stats().bytes_in_place;
    Engine::Submission* submission = engine_.Begin({identity, kJob, named, false});
    const Bytes in_place = engine_.stats().bytes_in_place - before;
    gpu.Launch(time + core::FromSeconds(static_cast<double>(in_place.count()) / kInPlaceRate));
    engine_.End(submission, true);
    Spin(cpu_);
  }
  void Step() {
    while (ipc::Now() < gpu.End(kJob)) {
    }
    const elastic::EngineStats now = engine_.stats();
    const auto gib = [](Bytes later, Bytes earlier) {
      return static_cast<double>((later - earlier).count()) / double{1 << 30};
    };
    const auto ms = [](Duration time) { return core::Seconds(time) * 1e3; };
    printf(
        "%7.1f ms; %5.2f GiB in, %5.2f out, %5.2f dropped, %5.2f in place; waited %6.1f ms in "
        "calls, %6.1f in allocations\n",
        ms(ipc::Now() - begun_), gib(now.moved_in, last_.moved_in),
        gib(now.moved_out, last_.moved_out), gib(now.dropped, last_.dropped),
        gib(now.bytes_in_place, last_.bytes_in_place), ms(now.waited - last_.waited),
        ms(now.room_waited - last_.room_waited));
    last_ = now;
    begun_ = ipc::Now();
  }

  const sim::Trace& trace_;
  Engine& engine_;
  const Duration cpu_;
  std::map<uint32_t, CUdeviceptr> at_;
  std::set<uint32_t> in_use_;
  Tick begun_{};
  elastic::EngineStats last_;
};

int Main(const char* path, uint64_t percent, int microseconds) {
  const auto trace = bench::ReadRecording(path);
  if (!trace.ok()) {
    fprintf(stderr, "elastic_live: %s\n", core::Describe(trace.error()).c_str());
    return 2;
  }
  elastic::EngineOptions options;
  options.on_device.most = Bytes(trace->Footprint().count() / 100 * percent);
  options.on_host.most = trace->Footprint() * 2;
  const auto engine = Engine::Create(options, DriverOfTheClock());
  if (!engine.ok()) {
    fprintf(stderr, "elastic_live: %s\n", core::Describe(engine.error()).c_str());
    return 1;
  }
  Job(*trace, engine->get(), std::chrono::microseconds(microseconds)).Run();
  return 0;
}

}  // namespace
}  // namespace ravenstore

int main(int argc, char** argv) {
  const int percent = argc > 2 ? atoi(argv[2]) : 0;
  if (argc < 3 || argc > 6 || percent < 1) {
    fprintf(stderr, "usage: elastic_live RECORDING PERCENT [CALL [MAP [one|apart]]]\n");
    return 2;
  }
  if (argc > 4) ravenstore::mapping.host = std::chrono::microseconds(atoi(argv[4]));
  ravenstore::mapping.one_at_a_time = argc <= 5 || strcmp(argv[5], "apart") != 0;
  // Sleeps as short as they are asked for, in all threads.
  prctl(PR_SET_TIMERSLACK, 1);
  return ravenstore::Main(argv[1], static_cast<uint64_t>(percent), argc > 3 ? atoi(argv[3]) : 8);
}
