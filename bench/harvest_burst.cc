#include "bench/harvest_burst.h"

#include <algorithm>
#include <cstdio>
#include <string>

#include "core/check.h"
#include "core/size_text.h"
#include "core/types.h"
#include "sim/hardware.h"
#include "sim/score.h"
#include "sim/simulator.h"
#include "sim/trace.h"

namespace ravenstore::bench {

using core::Bytes;
using core::Duration;
using core::GiB;
using core::MiB;

namespace {

constexpr Bytes kBurst = GiB(8);
constexpr double kPeerRate = 100e9;  // as of two A100s that four links of NVLink join

// Tensors of one size leave for tensors of the next.
struct Case {
  Bytes size;
  Bytes next;
};
constexpr Case kCases[] = {{MiB(64), kBurst}, {MiB(16), MiB(16)}, {MiB(256), MiB(256)}};

std::string Words(double one, double two) {
  char text[60];
  std::snprintf(text, sizeof text, "%.1f and %.1f ms", one, two);
  return text;
}

void Make(sim::Trace* trace, Bytes size) {
  const auto tensor = static_cast<uint32_t>(trace->tensors.size());
  trace->tensors.push_back({0, size, ""});
  trace->ops.push_back({.kind = sim::OpKind::kCreate, .tensor = tensor});
  trace->ops.push_back({.kind = sim::OpKind::kPut, .tensor = tensor, .modified = true});
}

// Tensors of `size` fill the device, and leave for as much more in tensors of `next`.
sim::Trace Burst(Bytes size, Bytes next) {
  sim::Trace trace;
  trace.name = "burst";
  for (Bytes left = kBurst; left > Bytes{0}; left -= size) Make(&trace, size);
  for (Bytes left = kBurst; left > Bytes{0}; left -= next) Make(&trace, next);
  return trace;
}

Duration BurstTime(const sim::Trace& trace, size_t peers) {
  sim::Setup setup = *sim::SetupFor("value", *sim::FindHardware("a100-pcie4"), kBurst);
  setup.host = Bytes{0};
  setup.pools.assign(peers, {core::PoolKind::kPeer, kBurst, kPeerRate, kPeerRate});
  const sim::Outcome outcome = sim::Simulate(trace, setup);
  RAVEN_CHECK(outcome.failure.empty());
  return outcome.stall;
}

}  // namespace

void MeasureBurst(const Report& report) {
  Figure figure{.name = "harvest.two_peers_vs_one", .unit = "x", .target = 1.8, .at_least = true};
  for (const auto& [size, next] : kCases) {
    const sim::Trace trace = Burst(size, next);
    const double one = core::Milliseconds(BurstTime(trace, 1));
    const double two = core::Milliseconds(BurstTime(trace, 2));
    figure.value = std::min(figure.value.value_or(one / two), one / two);
    figure.detail += (figure.detail.empty() ? "" : ", ") + core::SizeText(size) + " for " +
                     core::SizeText(next) + ": " + Words(one, two);
  }
  report(figure);
}

}  // namespace ravenstore::bench
