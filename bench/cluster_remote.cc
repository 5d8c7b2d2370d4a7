#include <algorithm>
#include <chrono>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "bench/cluster_figures.h"
#include "bench/cluster_nodes.h"
#include "bench/redis.h"
#include "bench/tcp_pump.h"
#include "client/client.h"
#include "core/types.h"
#include "ipc/clock.h"

namespace ravenstore::bench {
namespace {

constexpr int kRounds = 5;
constexpr core::Bytes kTensors = core::MiB(256);  // four times the home's device
constexpr core::Bytes kPumped = core::MiB(16);    // a buffer of the plain stream, a value

// Tensors that do not fit on the device, and are all written in turn: each of them comes in and
// another goes out.
class Sweep {
 public:
  Sweep(const daemon::DaemonProcess& home, core::Bytes size)
      : store_(Store::connect(
            {.socket = home.socket(), .name = "bench", .timeout = std::chrono::seconds(60)})) {
    for (core::Bytes made; made < kTensors; made += size) {
      tensors_.push_back(store_.create(size.count()));
      store_.put(tensors_.back(), nullptr);
    }
  }

  // How long it took, in seconds.
  double Run(size_t sweeps) {
    const core::Tick begin = ipc::Now();
    for (size_t i = 0; i < sweeps * tensors_.size(); ++i) {
      Tensor& tensor = tensors_[i % tensors_.size()];
      store_.get(tensor, nullptr, {.access = Access::kReadWrite, .blocking = true});
      store_.put(tensor, nullptr);
    }
    return core::Seconds(ipc::Now() - begin);
  }

 private:
  Store store_;
  std::vector<Tensor> tensors_;
};

// In GB/s, out and in together, a round each. `redis`: empty where there is none.
struct Rates {
  std::vector<double> remote;
  std::vector<double> stream;
  std::vector<double> redis;
};

Rates InTurn(ClusterNodes& nodes, core::Bytes size, double scale, Redis* redis) {
  const auto sweeps = static_cast<size_t>(1 + 2 * scale);
  const size_t pumped = sweeps * kTensors.count() / kPumped.count();
  const auto asked = static_cast<double>(2 * sweeps * kTensors.count());
  Sweep sweep(nodes.home(), size);
  TcpPump pump(kPumped.count());
  // The lender's memory comes, and the planner learns how fast that is.
  sweep.Run(2);
  pump.OutAndIn(1);
  if (redis != nullptr) redis->SetAndGet(1);
  Rates rates;
  uint64_t before = nodes.Moved();
  for (int round = 0; round < kRounds; ++round) {
    const double took = sweep.Run(sweeps);
    // What was on the device still did not move.
    const uint64_t after = nodes.Moved();
    const double moved = std::min(static_cast<double>(after - before), asked);
    before = after;
    rates.remote.push_back(moved / 1e9 / took);
    rates.stream.push_back(asked / 1e9 / pump.OutAndIn(pumped));
    if (redis != nullptr) rates.redis.push_back(asked / 1e9 / redis->SetAndGet(pumped));
  }
  return rates;
}

// The median of what one is of the other, round by round.
Figure Compared(Figure figure, const std::vector<double>& ours, std::vector<double> theirs) {
  std::vector<double> ratios;
  for (size_t i = 0; i < ours.size(); ++i) ratios.push_back(ours[i] / theirs[i]);
  std::vector<double> sorted = ours;
  char text[80];
  std::snprintf(text, sizeof(text), "%.2f GB/s out and in, TLS 1.3, median of five",
                Median(sorted));
  figure.value = Median(ratios);
  figure.bound = Median(theirs);
  figure.at_least = true;
  figure.detail = text;
  return figure;
}

}  // namespace

void MeasureRemote(double scale, const Report& report) {
  Figure large{.name = "cluster.remote_vs_stream", .unit = "x", .target = 0.7};
  Figure vs_redis{.name = "cluster.vs_redis", .unit = "x", .target = 1.8};
  Figure small{.name = "cluster.remote_vs_stream_1mib", .unit = "x", .target = 0.5};
  const auto redis = Redis::Start(kPumped.count());
  ClusterNodes nodes;
  if (!nodes.Reached()) {
    for (Figure* figure : {&large, &vs_redis, &small}) {
      figure->skipped = "the daemons do not find each other";
      report(*figure);
    }
    return;
  }
  const Rates rates = InTurn(nodes, kPumped, scale, redis.ok() ? redis->get() : nullptr);
  report(Compared(large, rates.remote, rates.stream));
  if (redis.ok()) {
    report(Compared(vs_redis, rates.remote, rates.redis));
  } else {
    vs_redis.skipped = redis.error().message;
    report(vs_redis);
  }
  const Rates of_small = InTurn(nodes, core::MiB(1), scale, nullptr);
  report(Compared(small, of_small.remote, of_small.stream));
}

}  // namespace ravenstore::bench
