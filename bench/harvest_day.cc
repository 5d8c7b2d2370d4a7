#include "bench/harvest_day.h"

#include <algorithm>
#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include "bench/unaware_owner.h"
#include "core/check.h"
#include "core/types.h"
#include "sim/generators.h"
#include "sim/hardware.h"
#include "sim/harvest.h"
#include "sim/score.h"
#include "sim/simulator.h"
#include "sim/trace.h"
#include "sim/utilisation.h"

namespace ravenstore::bench {

using core::Bytes;
using core::Duration;
using core::GiB;

namespace {

// A node of 8 A100 of 80 GB: a link to the host each, and a port to all peers.
constexpr const char* kHost = "a100-pcie4";
constexpr const char* kPeers = "a100-nvlink";
constexpr size_t kGpus = 8;
constexpr Bytes kReserve = GiB(2);

// Of each hour so many minutes that follow each other, each as long as this, its change at its
// beginning: so changes come three times as often as in the day. From one hour to the next the
// change is an hour's.
constexpr size_t kHours = 24;
constexpr size_t kMinutesPlayed = 15;
constexpr Duration kMinutePlayed = std::chrono::seconds(20);

constexpr const char* kJob = "gpt2-xl";
// A give-back is late when it takes so many times what its copies and its chunks take.
constexpr double kDeadline = 1.5;

// Growth of owners who know nothing of the store, in bytes per second: assumed for a first step,
// while kernels are loaded and the driver makes the memory; and faster, up to steps that ran
// before, of which the recorded ones grow by at most 23 GiB in 100 ms.
constexpr double kGrowth = 16 * 0x1p30;
constexpr double kFasterGrowths[] = {32 * 0x1p30, 64 * 0x1p30, 256 * 0x1p30};
// The reserve unless one is configured, as a part of the GPU's memory.
constexpr uint64_t kDefaultReservePart = 8;
constexpr const char* kErrorsADay = "errors a day";

constexpr Bytes kGivenBack = GiB(8);
constexpr Duration kFilled = std::chrono::seconds(5);

const sim::Hardware& Node() {
  return *sim::FindHardware(kHost);
}

sim::ExtraPool Peer(std::vector<sim::HarvestLimit> limits) {
  const double rate = sim::FindHardware(kPeers)->up;
  return {core::PoolKind::kPeer, Node().memory, rate, rate, std::move(limits)};
}

Duration CopyTime(Bytes bytes) {
  return core::FromSeconds(static_cast<double>(bytes.count()) / Node().down);
}

// What is left of each of the other GPUs' memory, by time.
std::vector<sim::ExtraPool> DayOf(size_t hours) {
  std::vector<sim::ExtraPool> peers;
  for (const std::vector<Bytes>& used :
       sim::GenerateUtilisation({.gpus = kGpus - 1, .memory = Node().memory})) {
    std::vector<sim::HarvestLimit> limits;
    for (size_t i = 0; i < hours * kMinutesPlayed; ++i) {
      const size_t minute = i / kMinutesPlayed * (used.size() / hours) + i % kMinutesPlayed;
      limits.push_back({kMinutePlayed * static_cast<int64_t>(i),
                        core::Minus(Node().memory, used[minute] + kReserve)});
    }
    peers.push_back(Peer(std::move(limits)));
  }
  return peers;
}

Bytes MeanIdle(const std::vector<sim::ExtraPool>& peers) {
  Bytes sum;
  for (const sim::ExtraPool& peer : peers) {
    for (const sim::HarvestLimit& limit : peer.limits) sum += limit.most;
  }
  return Bytes(sum.count() / peers.front().limits.size());
}

// The job with so large a batch that it has `footprint` bytes, and for so long.
sim::Trace JobOf(Bytes footprint, Duration lasts) {
  const sim::Trace one = sim::Generate(kJob, Node(), 1);
  const double factor =
      static_cast<double>(footprint.count()) / static_cast<double>(one.Footprint().count());
  const Duration iteration = sim::ComputeFrom(one, 0);
  const int iterations =
      static_cast<int>(core::Seconds(lasts) / (core::Seconds(iteration) * factor)) + 1;
  return sim::WithPeriodChanged(sim::Generate(kJob, Node(), iterations), 0, factor);
}

std::string Words(const char* format, double a, double b) {
  char text[160];
  std::snprintf(text, sizeof text, format, a, b);
  return text;
}

double Gib(Bytes bytes) {
  return static_cast<double>(bytes.count()) * 0x1p-30;
}

struct Punctuality {
  size_t give_backs = 0;  // that ended, or are late
  size_t late = 0;
  size_t behind_copies = 0;  // of the late: with copies to or from the device in flight
  std::string worst;
};

Punctuality Judge(const std::vector<sim::HarvestUse>& uses) {
  Punctuality result;
  double worst = 0;
  for (const sim::HarvestUse& use : uses) {
    for (const sim::GiveBack& one : use.give_backs) {
      const double times =
          core::Seconds(one.took) / core::Seconds(CopyTime(one.copied) + one.chunks);
      const bool late = times > kDeadline;
      result.late += late;
      result.behind_copies += late && one.in_flight > Bytes{0};
      result.give_backs += one.done || late;
      if (times <= worst) continue;
      worst = times;
      result.worst =
          Words("the worst took %.1f ms, %.2f x its bound", core::Milliseconds(one.took), times);
    }
  }
  return result;
}

// Of all GPUs, with what is harvested summed.
UnawareOutcome PlayUnawareOwners(const std::vector<std::vector<Bytes>>& used,
                                 const UnawareOptions& options) {
  UnawareOutcome sum;
  for (const std::vector<Bytes>& gpu : used) {
    UnawareOptions of_gpu = options;
    of_gpu.seed += static_cast<uint64_t>(&gpu - used.data());
    const UnawareOutcome one = PlayUnawareOwner(gpu, of_gpu);
    sum.pieces += one.pieces;
    sum.errors += one.errors;
    sum.harvested += one.harvested;
  }
  return sum;
}

void TellUnawareOwners(const std::vector<std::vector<Bytes>>& used, Bytes reserve, Figure figure,
                       const Report& report) {
  UnawareOptions options{.memory = Node().memory, .reserve = reserve, .rate = kGrowth};
  const UnawareOutcome outcome = PlayUnawareOwners(used, options);
  const auto gpus = static_cast<double>(used.size());
  figure.value =
      static_cast<double>(outcome.errors) * kHours * 60 / static_cast<double>(used.front().size());
  figure.detail = std::to_string(outcome.errors) + " of " + std::to_string(outcome.pieces) +
                  Words(" allocations at %.0f GiB/s, %.1f GiB a GPU harvested in the mean;",
                        kGrowth * 0x1p-30, outcome.harvested * 0x1p-30 / gpus);
  for (const double rate : kFasterGrowths) {
    options.rate = rate;
    figure.detail +=
        Words("; %.0f at %.0f GiB/s", static_cast<double>(PlayUnawareOwners(used, options).errors),
              rate * 0x1p-30);
  }
  report(figure);
}

void TellDay(const sim::Outcome& harvest, const sim::Outcome& host, const std::string& what,
             const Report& report) {
  double idle = 0;
  double held = 0;
  double useful = 0;
  for (const sim::HarvestUse& use : harvest.harvests) {
    idle += use.idle;
    held += use.held;
    useful += use.useful;
  }
  const Punctuality punctuality = Judge(harvest.harvests);
  report({.name = "harvest.useful_occupancy",
          .unit = "of idle byte-time",
          .value = useful / idle,
          .target = 0.5,
          .at_least = true,
          .detail = what + Words("; %.2f is held", held / idle, 0)});
  report({.name = "harvest.stall_vs_host",
          .unit = "x",
          .value = core::Seconds(harvest.stall) / core::Seconds(host.stall),
          .target = 0.7,
          .detail = Words("%.0f s; %.0f s are computed", core::Seconds(harvest.stall),
                          core::Seconds(harvest.compute))});
  report(
      {.name = "harvest.missed_deadlines",
       .unit = "of give-backs",
       .value = static_cast<double>(punctuality.late) / static_cast<double>(punctuality.give_backs),
       .target = 0.001,
       .detail = std::to_string(punctuality.late) + " of " +
                 std::to_string(punctuality.give_backs) + ", " +
                 std::to_string(punctuality.behind_copies) + " of them behind copies in flight; " +
                 punctuality.worst});
}

// A device that takes kGivenBack has that much in a peer's memory. `clean`: it reads it again, so
// that what lies there is a second copy.
sim::Trace Fill(bool clean) {
  constexpr uint32_t kTensors = 128;
  const Bytes size(kGivenBack.count() / kTensors);
  const Duration pause = std::chrono::milliseconds(5);  // a chunk comes meanwhile
  sim::Trace trace;
  trace.name = "fill";
  for (uint32_t i = 0; i < 2 * kTensors; ++i) {
    trace.tensors.push_back({0, size, ""});
    trace.ops.push_back({.kind = sim::OpKind::kCreate, .tensor = i});
    trace.ops.push_back({.kind = sim::OpKind::kCompute, .time = pause});
    trace.ops.push_back({.kind = sim::OpKind::kPut, .tensor = i, .modified = true});
  }
  for (uint32_t i = 0; clean && i < kTensors; ++i) {
    trace.ops.push_back({.kind = sim::OpKind::kFree, .tensor = kTensors + i});
    trace.ops.push_back({.kind = sim::OpKind::kGet, .tensor = i});
    trace.ops.push_back({.kind = sim::OpKind::kPut, .tensor = i});
  }
  trace.ops.push_back({.kind = sim::OpKind::kCompute, .time = 2 * kFilled});
  return trace;
}

// The device's peer gives back all that it holds.
sim::GiveBack GivenBack(bool clean) {
  sim::Setup setup = *sim::SetupFor("demand-lru", Node(), kGivenBack);
  setup.pools = {Peer({{Duration{0}, kGivenBack}, {kFilled, Bytes{0}}})};
  const sim::Outcome outcome = sim::Simulate(Fill(clean), setup);
  RAVEN_CHECK(outcome.failure.empty());
  RAVEN_CHECK(outcome.harvests.at(0).give_backs.size() == 1);
  return outcome.harvests[0].give_backs[0];
}

}  // namespace

void MeasureHarvestDay(double scale, const Report& report) {
  const auto hours = std::max<size_t>(1, static_cast<size_t>(kHours * scale));
  std::vector<sim::ExtraPool> peers = DayOf(hours);
  const Bytes budget = Node().memory - kReserve;
  // As much as all have: less would leave memory idle that nobody asks for.
  const Bytes idle = MeanIdle(peers);
  const sim::Trace job =
      JobOf(budget + idle, kMinutePlayed * static_cast<int64_t>(hours * kMinutesPlayed));
  sim::Setup setup = *sim::SetupFor("value", Node(), budget);
  const sim::Outcome host = sim::Simulate(job, setup);
  setup.pools = std::move(peers);
  const sim::Outcome harvest = sim::Simulate(job, setup);
  for (const sim::Outcome* one : {&host, &harvest}) {
    if (one->failure.empty()) continue;
    report({.name = "harvest.day", .unit = "", .skipped = one->failure});
    return;
  }
  TellDay(harvest, host,
          std::string(kJob) + Words(" of %.0f GiB beside %.0f GiB idle in the mean",
                                    Gib(job.Footprint()), Gib(idle)),
          report);
}

void MeasureUnawareOwners(double scale, const Report& report) {
  const auto minutes = std::max<size_t>(60, static_cast<size_t>(kHours * 60 * scale));
  const auto used =
      sim::GenerateUtilisation({.gpus = kGpus, .minutes = minutes, .memory = Node().memory});
  for (const uint64_t gibs : {1, 2, 4, 8, 12, 16}) {
    TellUnawareOwners(
        used, GiB(gibs),
        {.name = "harvest.unaware_oom." + std::to_string(gibs) + "gib", .unit = kErrorsADay},
        report);
  }
  TellUnawareOwners(used, Bytes(Node().memory.count() / kDefaultReservePart),
                    {.name = "harvest.unaware_oom.default", .unit = kErrorsADay, .target = 0},
                    report);
}

void MeasureGiveBack(const Report& report) {
  const sim::GiveBack clean = GivenBack(/*clean=*/true);
  report({.name = "harvest.simulated_giveback_clean_ms",
          .unit = "ms",
          .value = core::Milliseconds(clean.took),
          .target = 100,
          .detail = Words("%.1f GiB, %.1f of them copied", Gib(clean.bytes), Gib(clean.copied))});
  const sim::GiveBack dirty = GivenBack(/*clean=*/false);
  const Duration over_link = CopyTime(dirty.copied);
  report({.name = "harvest.simulated_giveback_dirty_vs_bound",
          .unit = "x",
          .value = core::Seconds(dirty.took) / core::Seconds(over_link),
          .bound = core::Milliseconds(over_link),
          .target = 1.5,
          .detail = Words("%.1f GiB, %.1f of them copied", Gib(dirty.bytes), Gib(dirty.copied))});
}

}  // namespace ravenstore::bench
