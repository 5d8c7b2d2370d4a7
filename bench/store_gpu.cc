#include <algorithm>
#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "bench/cuda_runtime.h"
#include "bench/store_figures.h"
#include "client/client.h"
#include "client/ctl/session.h"
#include "device/link_bounds.h"
#include "device/open.h"
#include "ipc/clock.h"
#include "tests/daemon/daemon_process.h"

namespace ravenstore::bench {

namespace {

using daemon::DaemonProcess;
using std::chrono::seconds;

const char* const kGpuFigures[][2] = {
    {"store.get_16mib_vs_link", "of link"},     {"store.get_1mib_vs_queue", "of queue"},
    {"store.both_ways_vs_duplex", "of duplex"}, {"store.gemm_slowdown", "x"},
    {"store.loop_pause_gpu_ms", "ms"},          {"store.stream_pair_us", "us"},
    {"store.stream_pair_gpu_us", "us"},         {"store.slab_us", "us"},
    {"store.slab_handed_over_us", "us"},
};

double SecondsSince(core::Tick begin) {
  return static_cast<double>((ipc::Now() - begin).count()) * 1e-9;
}

// `count` tensors of `bytes`, twice what the budget takes, all put.
std::vector<Tensor> Overfill(Store& store, Stream stream, uint64_t bytes, size_t count) {
  std::vector<Tensor> tensors;
  for (size_t i = 0; i < count; ++i) {
    tensors.push_back(store.create(bytes));
    store.put(tensors.back(), stream);
  }
  return tensors;
}

// Gets every tensor in turn, in batches, for `rounds` rounds: each comes from the host. Bytes per
// second.
double Sweep(Store& store, std::vector<Tensor>& tensors, GpuWork& work, bool modify, int rounds,
             size_t batch) {
  std::vector<ravenstore_tensor_t*> handles;
  for (Tensor& tensor : tensors) handles.push_back(tensor.handle());
  std::vector<void*> addresses(batch);
  ravenstore_get_options_t get{};
  get.struct_size = sizeof(get);
  get.flags = modify ? RAVENSTORE_READ_WRITE : RAVENSTORE_READ_ONLY;
  const core::Tick begin = ipc::Now();
  auto moved = [&] {
    const Stats stats = store.stats();
    return static_cast<double>(stats.bytes_in + (modify ? stats.bytes_out : 0));
  };
  const double before = moved();
  for (int round = 0; round < rounds; ++round) {
    for (size_t i = 0; i + batch <= handles.size(); i += batch) {
      internal::ThrowIf(ravenstore_get_batch(store.handle(), handles.data() + i, batch,
                                             work.stream(), &get, addresses.data()));
      internal::ThrowIf(
          ravenstore_put_batch(store.handle(), handles.data() + i, batch, work.stream(), nullptr));
    }
  }
  work.Synchronize();
  const double seconds = SecondsSince(begin);
  // What was found on the device moved nothing.
  return (moved() - before) / seconds;
}

// The rate of gets whose victims are clean: the first sweeps make every tensor clean.
double CleanRate(GpuWork& work, uint64_t bytes, size_t count, size_t batch, double scale) {
  DaemonProcess daemon({"--pool-size", "12GiB"}, "cuda");
  Store store = Store::connect({.socket = daemon.socket(), .device_budget = bytes * count / 2});
  auto tensors = Overfill(store, work.stream(), bytes, count);
  Sweep(store, tensors, work, false, 2, batch);
  std::vector<double> rates;
  for (int i = 0; i < std::max(3, static_cast<int>(5 * scale)); ++i) {
    rates.push_back(Sweep(store, tensors, work, false, 1, batch));
  }
  return Median(rates);
}

void MeasureBothWays(GpuWork& work, const device::LinkBounds& bounds, double scale,
                     const Report& report) {
  DaemonProcess daemon({"--pool-size", "12GiB"}, "cuda");
  constexpr uint64_t kBytes = MiB(16);
  Store store = Store::connect({.socket = daemon.socket(), .device_budget = GiB(4)});
  auto tensors = Overfill(store, work.stream(), kBytes, 512);
  Sweep(store, tensors, work, true, 1, 8);
  std::vector<double> rates;
  for (int i = 0; i < std::max(3, static_cast<int>(5 * scale)); ++i) {
    rates.push_back(Sweep(store, tensors, work, true, 1, 8));
  }
  report({.name = "store.both_ways_vs_duplex",
          .unit = "of duplex",
          .value = Median(rates) / bounds.duplex,
          .bound = bounds.duplex,
          .target = 0.90,
          .at_least = true});

  // A GEMM loop of this client during its own transfers on another thread and stream.
  auto transfers = GpuWork::Create();
  RAVEN_CHECK(transfers.ok());
  constexpr int kSize = 8192;
  const int products = std::max(50, static_cast<int>(400 * scale));
  work.ProductMilliseconds(kSize, 20);
  const double quiet_before = work.ProductMilliseconds(kSize, products);
  std::atomic<bool> stop{false};
  std::thread mover([&] {
    while (!stop) Sweep(store, tensors, **transfers, true, 1, 8);
  });
  const double busy = work.ProductMilliseconds(kSize, products);
  stop = true;
  mover.join();
  const double quiet_after = work.ProductMilliseconds(kSize, products);
  report({.name = "store.gemm_slowdown",
          .unit = "x",
          .value = busy / ((quiet_before + quiet_after) / 2),
          .bound = (quiet_before + quiet_after) / 2,
          .target = 1.01});

  auto session = client::ctl::Session::Open(daemon.socket(), seconds(30));
  RAVEN_CHECK(session.ok());
  auto stats = session->Stats();
  RAVEN_CHECK(stats.ok());
  report({.name = "store.loop_pause_gpu_ms",
          .unit = "ms",
          .value = static_cast<double>(stats->loop_pause_max_ns()) / 1e6,
          .bound = static_cast<double>(stats->loop_pause_p999_ns()) / 1e6,
          .target = 2});
}

void MeasureStreamPair(GpuWork& work, double scale, const Report& report) {
  DaemonProcess daemon({"--pool-size", "1GiB"}, "cuda");
  Store store = Store::connect({.socket = daemon.socket(), .device_budget = GiB(1)});
  Tensor tensor = store.create(MiB(1));
  store.put(tensor, work.stream());
  std::vector<double> each;
  for (int i = 0; i < static_cast<int>(100000 * scale) + 1000; ++i) {
    const core::Tick begin = ipc::Now();
    store.get(tensor, work.stream());
    store.put(tensor, work.stream());
    each.push_back(static_cast<double>((ipc::Now() - begin).count()) / 1000);
    if (i % 64 == 63) work.Synchronize();  // a full queue would be timed, not the call
  }
  report({.name = "store.stream_pair_us", .unit = "us", .value = Median(each), .target = 2.5});

  // GPU time of the compute stream: short products with and without a pair between them, behind a
  // long one, so that the queue never runs dry.
  constexpr int kShort = 1024;
  constexpr int kCount = 400;
  auto run = [&](bool pairs) {
    for (int i = 0; i < 6; ++i) work.Multiply(8192);
    work.MarkBegin();
    for (int i = 0; i < kCount; ++i) {
      work.Multiply(kShort);
      if (!pairs) continue;
      store.get(tensor, work.stream());
      store.put(tensor, work.stream());
    }
    work.MarkEnd();
    return work.Elapsed();
  };
  std::vector<double> differences;
  for (int i = 0; i < 9; ++i) {
    const double without = run(false);
    differences.push_back((run(true) - without) * 1000 / kCount);
  }
  report({.name = "store.stream_pair_gpu_us",
          .unit = "us",
          .value = Median(differences),
          .target = 0.3});
}

double CreateMicroseconds(Store& store, uint64_t bytes, Tensor* tensor) {
  const core::Tick begin = ipc::Now();
  *tensor = store.create(bytes);
  return SecondsSince(begin) * 1e6;
}

// A create that waits for a slab: of memory that no client has, and of memory that another client
// of the tenant has just freed.
void MeasureSlabs(double scale, const Report& report) {
  constexpr uint64_t kSlab = MiB(64);
  constexpr int kSlabs = 8;  // from this many on, a client gets its next ahead of need
  // Of a budget of which much is in use.
  DaemonProcess daemon({"--device-budget", std::to_string(kSlab * 64)}, "cuda");
  const auto connect = [&] { return Store::connect({.socket = daemon.socket()}); };
  std::vector<double> made;
  for (int i = 0; i < std::max(3, static_cast<int>(10 * scale)); ++i) {
    Store store = connect();
    std::vector<Tensor> tensors(kSlabs);
    for (Tensor& tensor : tensors) made.push_back(CreateMicroseconds(store, kSlab, &tensor));
  }
  report({.name = "store.slab_us", .unit = "us", .value = Median(made)});

  Store stores[2] = {connect(), connect()};
  std::vector<Tensor> tensors[2];
  tensors[0].resize(kSlabs);
  for (Tensor& tensor : tensors[0]) CreateMicroseconds(stores[0], kSlab, &tensor);
  std::vector<double> handed_over;
  for (int i = 0; i < std::max(10, static_cast<int>(100 * scale)); ++i) {
    const int from = i / kSlabs % 2;
    stores[from].free(std::move(tensors[from].back()), nullptr);
    tensors[from].pop_back();
    Tensor& tensor = tensors[1 - from].emplace_back();
    handed_over.push_back(CreateMicroseconds(stores[1 - from], kSlab, &tensor));
  }
  report({.name = "store.slab_handed_over_us", .unit = "us", .value = Median(handed_over)});
}

}  // namespace

void MeasureStoreOnGpu(double scale, const Report& report) {
  auto skip = [&](const std::string& why) {
    for (const auto& [name, unit] : kGpuFigures) {
      report({.name = name, .unit = unit, .skipped = "needs a GPU: " + why});
    }
  };
  auto work = GpuWork::Create();
  if (!work.ok()) return skip(work.error().message);
  auto devices = device::OpenDevices("cuda", {});
  if (!devices.ok()) return skip(devices.error().message);
  auto bounds = device::MeasureLink(*devices->front(), {});
  if (!bounds.ok()) return skip(bounds.error().message);

  report({.name = "store.get_16mib_vs_link",
          .unit = "of link",
          .value = CleanRate(**work, MiB(16), 512, 8, scale) / bounds->up,
          .bound = bounds->up,
          .target = 0.95,
          .at_least = true});
  report({.name = "store.get_1mib_vs_queue",
          .unit = "of queue",
          .value = CleanRate(**work, MiB(1), 4096, 32, scale) / bounds->up_queue,
          .bound = bounds->up_queue,
          .target = 0.90,
          .at_least = true});
  MeasureBothWays(**work, *bounds, scale, report);
  MeasureStreamPair(**work, scale, report);
  MeasureSlabs(scale, report);
}

}  // namespace ravenstore::bench
