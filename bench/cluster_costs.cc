#include <time.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "bench/cluster_figures.h"
#include "bench/cluster_nodes.h"
#include "client/client.h"
#include "core/check.h"
#include "core/types.h"
#include "ipc/clock.h"
#include "tests/daemon/pattern.h"

namespace ravenstore::bench {
namespace {

using daemon::DaemonProcess;
using std::chrono::seconds;

constexpr const char* kNotReached = "the daemons do not find each other";
constexpr uint64_t kTensor = core::MiB(8).count();

Store Connect(const DaemonProcess& daemon) {
  return Store::connect({.socket = daemon.socket(), .name = "bench", .timeout = seconds(30)});
}

double CpuSeconds(pid_t process) {
  clockid_t clock{};
  timespec used{};
  RAVEN_CHECK(::clock_getcpuclockid(process, &clock) == 0);
  RAVEN_CHECK(::clock_gettime(clock, &used) == 0);
  return static_cast<double>(used.tv_sec) + static_cast<double>(used.tv_nsec) / 1e9;
}

// Per cent of a core that a process takes while it gets no requests: the highest of `processes`.
double IdlePercent(const std::vector<pid_t>& processes, core::Duration span) {
  std::vector<double> before;
  for (const pid_t process : processes) before.push_back(CpuSeconds(process));
  const core::Tick begin = ipc::Now();
  std::this_thread::sleep_for(span);
  const double passed = core::Seconds(ipc::Now() - begin);
  double most = 0;
  for (size_t i = 0; i < processes.size(); ++i)
    most = std::max(most, 100 * (CpuSeconds(processes[i]) - before[i]) / passed);
  return most;
}

void Pairs(Store& store) {
  Tensor tensor = store.create(KiB(4));
  store.put(tensor, nullptr);
  for (int i = 0; i < 20'000; ++i) {
    store.get(tensor, nullptr);
    store.put(tensor, nullptr);
  }
  store.free(std::move(tensor), nullptr);
}

void CreatesAndFrees(Store& store) {
  for (int i = 0; i < 2'000; ++i) store.free(store.create(KiB(4)), nullptr);
}

// What `work` takes of a client of one, of what it takes of a client of the other: the median of
// pairs of runs, in turn first and second.
double CostRatio(Store& with, Store& without, size_t pairs,
                 const std::function<void(Store&)>& work) {
  const auto took = [&work](Store& store) {
    const core::Tick begin = ipc::Now();
    work(store);
    return core::Seconds(ipc::Now() - begin);
  };
  Store* const stores[] = {&with, &without};
  for (Store* store : stores) work(*store);
  std::vector<double> ratios;
  for (size_t pair = 0; pair < pairs; ++pair) {
    double took_s[2];
    for (size_t turn = 0; turn < 2; ++turn) {
      const size_t which = (pair + turn) % 2;
      took_s[which] = took(*stores[which]);
    }
    ratios.push_back(took_s[0] / took_s[1]);
  }
  return Median(ratios);
}

struct Held {
  Tensor tensor;
  uint64_t seed;
};

// Makes twice what the home's device holds, so that half of it is stored on the lenders.
std::vector<Held> MakeRemote(Store& store) {
  std::vector<Held> made;
  for (uint64_t i = 0; i < 2 * ClusterNodes::kDevice.count() / kTensor; ++i) {
    made.push_back({store.create(kTensor), i + 1});
    daemon::FillPattern(made.back().tensor.data(), kTensor, made.back().seed);
    store.put(made.back().tensor, nullptr);
  }
  return made;
}

// Reads all in the order in which they were made, so that those on the lenders come first; each is
// freed then, and the last before, so that there is room on the device though nothing can leave it
// any more. When the first was lost, or where none was, when the last was read. An empty `wrong`:
// all that was read was right.
core::Tick ReadAll(Store& store, std::vector<Held> held, bool may_be_lost, std::string* wrong) {
  store.free(std::move(held.back().tensor), nullptr);
  held.pop_back();
  for (Held& one : held) {
    try {
      const void* data = store.get(one.tensor, nullptr, {.blocking = true});
      if (!daemon::HoldsPattern(data, kTensor, one.seed)) *wrong = "wrong bytes";
      store.put(one.tensor, nullptr);
    } catch (const Lost&) {
      if (may_be_lost) return ipc::Now();
      *wrong = "a tensor of two copies was lost";
    }
    store.free(std::move(one.tensor), nullptr);
  }
  if (may_be_lost) *wrong = "nothing was lost";
  return ipc::Now();
}

void MeasureLoss(int copies, Figure figure, const Report& report) {
  ClusterNodes nodes(copies, copies);
  if (!nodes.Reached()) {
    figure.skipped = kNotReached;
    return report(figure);
  }
  Store store = Connect(nodes.home());
  std::vector<Held> held = MakeRemote(store);
  if (nodes.Moved() < ClusterNodes::kDevice.count() / 2) {
    figure.skipped = "too little of it came to lie on other nodes";
    return report(figure);
  }
  const core::Tick killed = ipc::Now();
  nodes.lender(0).Kill(SIGKILL);
  std::string wrong;
  const core::Tick known = ReadAll(store, std::move(held), copies == 1, &wrong);
  figure.target = core::Milliseconds(ClusterNodes::kLease + seconds(1));
  if (wrong.empty())
    figure.value = core::Milliseconds(known - killed);
  else
    figure.skipped = wrong;
  report(figure);
}

}  // namespace

void MeasureIdle(double scale, const Report& report) {
  Figure cpu{.name = "cluster.idle_cost", .unit = "% of a core", .target = 1};
  Figure pair{.name = "cluster.idle_cost_pair", .unit = "x", .target = 1.03};
  Figure create{.name = "cluster.idle_cost_create_free", .unit = "x", .target = 1.03};
  ClusterNodes nodes;
  if (!nodes.Reached()) {
    for (Figure* figure : {&cpu, &pair, &create}) {
      figure->skipped = kNotReached;
      report(*figure);
    }
    return;
  }
  {
    Store store = Connect(nodes.home());
    const std::vector<Held> held = MakeRemote(store);
    nodes.Moved();  // until they stand still
    cpu.value = IdlePercent({nodes.home().pid(), nodes.lender(0).pid()},
                            std::chrono::milliseconds(static_cast<int64_t>(20'000 * scale)));
    cpu.detail = "of a home with tensors on another node and of that node, the more; no etcd";
  }
  report(cpu);
  const auto alone = nodes.StartAlone();
  Store with = Connect(nodes.home());
  Store without = Connect(*alone);
  const auto pairs = static_cast<size_t>(5 + 100 * scale);
  pair.value = CostRatio(with, without, pairs, Pairs);
  pair.detail = "store.resident_pair_ns with the cluster and without it, in turn";
  report(pair);
  create.value = CostRatio(with, without, pairs, CreatesAndFrees);
  create.detail = "store.create_free_us with the cluster and without it, in turn";
  report(create);
}

void MeasureNodeLoss(const Report& report) {
  MeasureLoss(1,
              {.name = "cluster.node_loss_ms",
               .unit = "ms",
               .detail = "from the kill to the first LOST; leases of 2 s"},
              report);
  MeasureLoss(2,
              {.name = "cluster.node_loss_copies_2_ms",
               .unit = "ms",
               .detail = "from the kill until all was read right; leases of 2 s"},
              report);
}

}  // namespace ravenstore::bench
