#include <sched.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <fstream>
#include <memory>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "bench/store_figures.h"
#include "client/client.h"
#include "client/ctl/session.h"
#include "ipc/clock.h"
#include "ipc/socket.h"
#include "proto/control.pb.h"
#include "tests/daemon/daemon_process.h"

namespace ravenstore::bench {

namespace {

using daemon::DaemonProcess;
using std::chrono::milliseconds;
using std::chrono::seconds;

double NanosecondsSince(core::Tick begin) {
  return static_cast<double>((ipc::Now() - begin).count());
}

Store Connect(const DaemonProcess& daemon, uint64_t budget = 0) {
  return Store::connect({.socket = daemon.socket(), .name = "bench", .device_budget = budget});
}

proto::Stats StatsOf(const DaemonProcess& daemon) {
  auto session = client::ctl::Session::Open(daemon.socket(), seconds(30));
  RAVEN_CHECK(session.ok());
  auto stats = session->Stats();
  RAVEN_CHECK(stats.ok());
  return *stats;
}

// Gets and puts a resident tensor `pairs` times.
void Pairs(Store& store, Tensor& tensor, int pairs) {
  for (int i = 0; i < pairs; ++i) {
    store.get(tensor, nullptr);
    store.put(tensor, nullptr);
  }
}

double PairNanoseconds(Store& store, Tensor& tensor, double scale) {
  constexpr int kPairs = 1000;
  std::vector<double> each;
  for (int round = 0; round < static_cast<int>(1000 * scale); ++round) {
    const core::Tick begin = ipc::Now();
    Pairs(store, tensor, kPairs);
    each.push_back(NanosecondsSince(begin) / kPairs);
  }
  return Median(each);
}

double PairTail(Store& store, Tensor& tensor, double scale) {
  std::vector<double> each;
  for (int i = 0; i < static_cast<int>(2e6 * scale); ++i) {
    const core::Tick begin = ipc::Now();
    Pairs(store, tensor, 1);
    each.push_back(NanosecondsSince(begin));
  }
  return Quantile(each, 0.999);
}

// A round trip of a control message through a Unix socket, packed and parsed at both ends: what a
// store without shared memory would pay for each get or put.
double SocketEcho(double scale) {
  int ends[2];
  RAVEN_CHECK(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) == 0);
  std::thread echo([fd = ends[1]] {
    for (;;) {
      auto packet = ipc::Receive(fd, true);
      if (!packet.ok() || !packet->has_value()) return;
      proto::ClientPacket message;
      RAVEN_CHECK(message.ParseFromString((*packet)->bytes));
      RAVEN_CHECK(ipc::Send(fd, message.SerializeAsString()).ok());
    }
  });
  std::vector<double> each;
  proto::ClientPacket message;
  for (int i = 0; i < static_cast<int>(20000 * scale) + 100; ++i) {
    const core::Tick begin = ipc::Now();
    message.set_request(static_cast<uint64_t>(i) + 1);
    message.mutable_explain_failure()->set_slot(static_cast<uint32_t>(i));
    RAVEN_CHECK(ipc::Send(ends[0], message.SerializeAsString()).ok());
    auto answer = ipc::Receive(ends[0], true);
    RAVEN_CHECK(answer.ok() && message.ParseFromString((*answer)->bytes));
    each.push_back(NanosecondsSince(begin));
  }
  ::close(ends[0]);
  echo.join();
  ::close(ends[1]);
  return Median(each);
}

// Pairs per second of one thread and of one per core, each with a tensor of its own.
double PairScaling(Store& store, double scale) {
  auto rate = [&](unsigned threads) {
    std::atomic<unsigned> ready{0};
    std::atomic<bool> stop{false};
    std::atomic<uint64_t> pairs{0};
    std::vector<std::thread> workers;
    for (unsigned i = 0; i < threads; ++i) {
      workers.emplace_back([&] {
        Tensor tensor = store.create(KiB(4));
        store.put(tensor, nullptr);
        uint64_t mine = 0;
        ++ready;
        while (!stop.load(std::memory_order_relaxed)) {
          Pairs(store, tensor, 100);
          mine += 100;
        }
        pairs += mine;
        store.free(std::move(tensor), nullptr);
      });
    }
    while (ready < threads) sched_yield();
    const core::Tick begin = ipc::Now();
    while (NanosecondsSince(begin) < 3e8 * scale) std::this_thread::sleep_for(milliseconds(5));
    stop = true;
    for (auto& worker : workers) worker.join();
    return static_cast<double>(pairs) / NanosecondsSince(begin);
  };
  const unsigned cores = std::thread::hardware_concurrency();
  std::vector<double> ratios;
  for (int round = 0; round < 5; ++round) ratios.push_back(rate(cores) / rate(1) / cores);
  return Median(ratios);
}

void MeasurePairs(double scale, const Report& report) {
  DaemonProcess daemon;
  Store store = Connect(daemon);
  Tensor tensor = store.create(KiB(4));
  store.put(tensor, nullptr);
  const double pair = PairNanoseconds(store, tensor, scale);
  report({.name = "store.resident_pair_ns", .unit = "ns", .value = pair, .target = 200});
  report({.name = "store.resident_pair_p999_ns",
          .unit = "ns",
          .value = PairTail(store, tensor, scale),
          .target = 2000});
  const double echo = SocketEcho(scale);
  report({.name = "store.resident_pair_vs_socket",
          .unit = "x",
          .value = echo / pair,
          .bound = echo,
          .target = 60,
          .at_least = true});
  report({.name = "store.resident_pair_scaling",
          .unit = "of cores",
          .value = PairScaling(store, scale),
          .bound = std::thread::hardware_concurrency(),
          .target = 0.75,
          .at_least = true});
}

double CreateFreeMicroseconds(Store& store, int count) {
  std::vector<double> each;
  for (int i = 0; i < count; ++i) {
    const core::Tick begin = ipc::Now();
    store.free(store.create(KiB(4)), nullptr);
    each.push_back(NanosecondsSince(begin) / 1000);
  }
  return Median(each);
}

double CpuSeconds(pid_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  std::string text;
  std::getline(file, text);
  std::istringstream fields(text.substr(text.rfind(')') + 2));
  std::string skip;
  for (int i = 0; i < 11; ++i) fields >> skip;
  double user = 0;
  double system = 0;
  fields >> user >> system;
  return (user + system) / static_cast<double>(::sysconf(_SC_CLK_TCK));
}

void MeasureCreateFree(double scale, const Report& report) {
  DaemonProcess daemon;
  Store store = Connect(daemon);
  CreateFreeMicroseconds(store, 1000);  // pages, rows
  report({.name = "store.create_free_us",
          .unit = "us",
          .value = CreateFreeMicroseconds(store, static_cast<int>(50000 * scale)),
          .target = 6});

  constexpr size_t kBatch = 1000;
  const std::vector<uint64_t> sizes(kBatch, KiB(4));
  std::vector<double> batched;
  for (int i = 0; i < static_cast<int>(200 * scale) + 3; ++i) {
    const core::Tick begin = ipc::Now();
    store.free(store.create(sizes), nullptr);
    batched.push_back(NanosecondsSince(begin) / 1000 / kBatch);
  }
  report({.name = "store.create_free_batched_us",
          .unit = "us",
          .value = Median(batched),
          .target = 0.5});

  std::vector<double> asleep;
  for (int i = 0; i < static_cast<int>(200 * scale) + 3; ++i) {
    std::this_thread::sleep_for(milliseconds(5));  // the daemon sleeps after 200 us
    const core::Tick begin = ipc::Now();
    store.free(store.create(KiB(4)), nullptr);
    asleep.push_back(NanosecondsSince(begin) / 1000);
  }
  report(
      {.name = "store.create_free_asleep_us", .unit = "us", .value = Median(asleep), .target = 40});

  std::this_thread::sleep_for(milliseconds(100));
  const core::Tick begin = ipc::Now();
  const double used = CpuSeconds(daemon.pid());
  std::this_thread::sleep_for(seconds(5));
  report({.name = "store.idle_cpu_percent",
          .unit = "% of a core",
          .value = 100e9 * (CpuSeconds(daemon.pid()) - used) / NanosecondsSince(begin),
          .target = 1});
}

// What one operation costs among `clients` with `per_client` tensors each: the medians of a create
// and free, and of a resident pair.
struct Cost {
  double create_free_us;
  double pair_ns;
};
Cost CostAmong(const DaemonProcess& daemon, size_t clients, size_t per_client,
               std::vector<Store>* stores, std::vector<Tensor>* tensors) {
  const std::vector<uint64_t> sizes(per_client, 512);
  for (size_t i = 0; i < clients; ++i) {
    stores->push_back(Connect(daemon, MiB(16)));  // one page at least
    for (Tensor& tensor : stores->back().create(sizes)) {
      stores->back().put(tensor, nullptr);
      tensors->push_back(std::move(tensor));
    }
  }
  // Spread over all clients, so that the caches or hot spell of a single client do not help.
  std::vector<double> create_free;
  std::vector<double> pairs;
  for (size_t i = 0; i < 20 * std::max<size_t>(clients, 100); ++i) {
    Store& store = (*stores)[i % clients];
    core::Tick begin = ipc::Now();
    for (int j = 0; j < 5; ++j) store.free(store.create(512), nullptr);
    create_free.push_back(NanosecondsSince(begin) / 5000);
    Tensor& tensor = (*tensors)[(i * 7919) % tensors->size()];
    Store& owner = (*stores)[((i * 7919) % tensors->size()) / per_client];
    begin = ipc::Now();
    Pairs(owner, tensor, 10);
    pairs.push_back(NanosecondsSince(begin) / 10);
  }
  return {Median(create_free), Median(pairs)};
}

void MeasureScale(double scale, const Report& report) {
  const size_t clients = scale < 1 ? 100 : 1000;
  const std::vector<std::string> flags = {"--page", "2MiB",          "--device-total",
                                          "8GiB",   "--clients-max", "1100"};
  Cost few{};
  {
    DaemonProcess daemon(flags);
    std::vector<Store> stores;
    std::vector<Tensor> tensors;
    few = CostAmong(daemon, 10, 100, &stores, &tensors);
    for (Tensor& tensor : tensors) tensor = Tensor();
  }
  DaemonProcess daemon(flags);
  const uint64_t empty = StatsOf(daemon).daemon_rss_bytes();
  std::vector<Store> stores;
  std::vector<Tensor> tensors;
  const Cost many = CostAmong(daemon, clients, 1000, &stores, &tensors);
  const uint64_t full = StatsOf(daemon).daemon_rss_bytes();
  report({.name = "store.bytes_per_tensor",
          .unit = "bytes",
          .value = static_cast<double>(full - empty) / static_cast<double>(clients * 1000),
          .target = 320});
  report({.name = "store.scale_cost_ratio",
          .unit = "x",
          .value = std::max(many.create_free_us / few.create_free_us, many.pair_ns / few.pair_ns),
          .target = 2});
  for (Tensor& tensor : tensors) tensor = Tensor();
}

// Two clients that each use twice their budget, both ways at the same time.
void MeasurePause(double scale, const Report& report) {
  DaemonProcess daemon({"--page", "16MiB"});
  std::vector<std::thread> clients;
  for (int c = 0; c < 2; ++c) {
    clients.emplace_back([&] {
      Store store = Connect(daemon, MiB(64));
      std::vector<Tensor> tensors;
      for (int i = 0; i < 256; ++i) {
        tensors.push_back(store.create(KiB(512)));
        store.put(tensors.back(), nullptr);
      }
      const core::Tick begin = ipc::Now();
      for (size_t i = 0; NanosecondsSince(begin) < 5e9 * scale; ++i) {
        Tensor& tensor = tensors[i % tensors.size()];
        store.get(tensor, nullptr);
        store.put(tensor, nullptr);
      }
    });
  }
  for (auto& client : clients) client.join();
  const proto::Stats stats = StatsOf(daemon);
  report({.name = "store.loop_pause_ms",
          .unit = "ms",
          .value = static_cast<double>(stats.loop_pause_max_ns()) / 1e6,
          .bound = static_cast<double>(stats.loop_pause_p999_ns()) / 1e6,
          .target = 2});
}

// From the moment a killed client's pidfd is readable to the moment all its memory is given back.
void MeasureReclaim(double scale, const Report& report) {
  DaemonProcess daemon({"--device-total", "1GiB"});
  std::vector<double> each;
  for (int round = 0; round < static_cast<int>(10 * scale) + 1; ++round) {
    int ready[2];
    RAVEN_CHECK(::pipe(ready) == 0);
    const pid_t child = ::fork();
    if (child == 0) {
      Store store = Connect(daemon);
      std::vector<Tensor> tensors;
      for (int i = 0; i < 64; ++i) {
        tensors.push_back(store.create(MiB(8)));
        std::fill_n(static_cast<char*>(tensors.back().data()), MiB(8), 'x');
      }
      RAVEN_CHECK(::write(ready[1], "x", 1) == 1);
      for (;;) ::pause();
    }
    char byte = 0;
    RAVEN_CHECK(::read(ready[0], &byte, 1) == 1);
    const int pidfd = static_cast<int>(::syscall(SYS_pidfd_open, child, 0));
    auto session = client::ctl::Session::Open(daemon.socket(), seconds(30));
    RAVEN_CHECK(session.ok());
    ::kill(child, SIGKILL);
    pollfd death{pidfd, POLLIN, 0};
    RAVEN_CHECK(::poll(&death, 1, 30000) == 1);
    const core::Tick begin = ipc::Now();
    for (;;) {
      auto stats = session->Stats();
      RAVEN_CHECK(stats.ok());
      if (stats->clients() == 0 && stats->tiers(0).held() == 0) break;
    }
    each.push_back(NanosecondsSince(begin) / 1e6);
    ::waitpid(child, nullptr, 0);
    for (const int fd : {ready[0], ready[1], pidfd}) ::close(fd);
  }
  report({.name = "store.reclaim_ms", .unit = "ms", .value = Median(each), .target = 100});
}

// A client makes very many tensors, uses each, and ends with them: how long is everybody else
// kept?
void MeasurePauseOfMany(double scale, const Report& report) {
  const auto count = static_cast<size_t>(1e6 * std::min(1.0, scale));
  DaemonProcess daemon({"--device-total", "2GiB"});
  const pid_t child = ::fork();
  if (child == 0) {
    Store store = Connect(daemon);
    const std::vector<uint64_t> sizes(1000, 512);
    std::vector<Tensor> tensors;
    while (tensors.size() < count) {
      for (Tensor& tensor : store.create(sizes)) tensors.push_back(std::move(tensor));
    }
    for (Tensor& tensor : tensors) store.put(tensor, nullptr);
    for (Tensor& tensor : tensors) Pairs(store, tensor, 1);
    ::_exit(0);
  }
  int status = -1;
  RAVEN_CHECK(::waitpid(child, &status, 0) == child);
  RAVEN_CHECK(status == 0);
  proto::Stats stats;
  do stats = StatsOf(daemon);
  while (stats.clients() > 0 || stats.tiers(0).held() > 0);
  // Its tensors are forgotten after that, some in each pass.
  for (int i = 0; i < 100; ++i) stats = StatsOf(daemon);
  report({.name = "store.loop_pause_many_ms",
          .unit = "ms",
          .value = static_cast<double>(stats.loop_pause_max_ns()) / 1e6,
          .bound = static_cast<double>(stats.loop_pause_p999_ns()) / 1e6,
          .target = 2,
          .detail = std::to_string(count) + " tensors of one client, which ends"});
}

}  // namespace

void MeasureStoreOnHost(double scale, const Report& report) {
  MeasureReclaim(scale, report);  // first: these fork
  MeasurePauseOfMany(scale, report);
  MeasurePairs(scale, report);
  MeasureCreateFree(scale, report);
  MeasurePause(scale, report);
  MeasureScale(scale, report);
}

}  // namespace ravenstore::bench
