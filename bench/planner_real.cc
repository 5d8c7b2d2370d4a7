#include <sys/prctl.h>
#include <unistd.h>

#include <chrono>
#include <cmath>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "bench/planner_figures.h"
#include "client/client.h"
#include "core/check.h"
#include "ipc/clock.h"
#include "sim/generators.h"
#include "sim/paged_replay.h"
#include "sim/score.h"
#include "tests/daemon/daemon_process.h"

namespace ravenstore::bench {

namespace {

using core::Bytes;
using core::Duration;
using sim::Op;
using sim::OpKind;
using sim::Trace;

constexpr double kBytesPerSecond = 5e8;
constexpr Bytes kPage = core::MiB(2);  // that of a device of 2 GiB
constexpr int kRuns = 5;

struct Scaled {
  const char* name;
  int iterations;
  double bytes;  // of what the generator says
  double time;
  sim::Hints hints = sim::Hints::kTime;
  uint64_t percent = 60;  // of the footprint
};
// So small that memory has room, so slow that sleeping is exact enough.
constexpr Scaled kTraces[] = {
    {"gpt2-small", 4, 1.0 / 16, 10},
    {"cyclic-weights", 3, 1.0 / 64, 1},
    {"moe", 2, 1.0 / 64, 1},
};
// Others, in which more stalls: tight budgets, other hints or none.
constexpr Scaled kMoreTraces[] = {
    {"gpt2-small", 4, 1.0 / 16, 10, sim::Hints::kNone},
    {"cyclic-weights", 3, 1.0 / 64, 1, sim::Hints::kNone},
    {"resnet50", 4, 1.0 / 32, 3},
    {"bert-large", 3, 1.0 / 64, 4, sim::Hints::kOrder, 50},
    {"recsys", 2, 1.0 / 8, 2, sim::Hints::kNone, 40},
    {"kv-cache", 2, 1.0 / 32, 0.5, sim::Hints::kNone, 40},
};

Trace Shrink(const Scaled& scaled, const sim::Hardware& hardware) {
  Trace trace = sim::Generate(scaled.name, hardware, scaled.iterations);
  for (sim::TraceTensor& tensor : trace.tensors) {
    const double bytes = static_cast<double>(tensor.bytes.count()) * scaled.bytes;
    tensor.bytes = Bytes(static_cast<uint64_t>(bytes)).RoundUp(core::kExtentAlignment);
  }
  for (Op& op : trace.ops)
    op.time = Duration(std::llround(static_cast<double>(op.time.count()) * scaled.time));
  return trace;
}

PutOptions OptionsOf(const Op& op) {
  PutOptions options;
  options.not_modified = !op.modified;
  if (op.next_use.kind == core::NextUse::Kind::kIn) options.needed_in = op.next_use.in;
  if (op.next_use.kind == core::NextUse::Kind::kOrder) options.order = op.next_use.order;
  options.not_needed = op.next_use.kind == core::NextUse::Kind::kNever;
  return options;
}

// Replays the trace as a client that sleeps where it would compute: the seconds that it took from
// the second iteration on. The first one touches memory for the first time, which the host backend
// pays for page by page and a device does not.
double Replay(const Trace& trace, Bytes budget) {
  const daemon::DaemonProcess daemon(
      {"--link-bytes-per-second", std::to_string(static_cast<uint64_t>(kBytesPerSecond))});
  Store store = Store::connect(
      {.socket = daemon.socket(), .name = "replay", .device_budget = budget.count()});
  std::vector<Tensor> tensors(trace.tensors.size());
  std::optional<core::Tick> begin;
  for (const Op& op : trace.ops) {
    switch (op.kind) {
      case OpKind::kCreate:
        tensors[op.tensor] = store.create(trace.tensors[op.tensor].bytes.count());
        break;
      case OpKind::kGet:
        store.get(
            tensors[op.tensor], nullptr,
            {.access = op.read_only ? Access::kReadOnly : Access::kReadWrite, .blocking = true});
        break;
      case OpKind::kPut: store.put(tensors[op.tensor], nullptr, OptionsOf(op)); break;
      case OpKind::kFree: store.free(std::move(tensors[op.tensor]), nullptr); break;
      case OpKind::kCompute: std::this_thread::sleep_for(op.time); break;
      case OpKind::kStep:
        store.step();
        if (!begin) begin = ipc::Now();
        break;
    }
  }
  const double seconds = core::Seconds(ipc::Now() - *begin);
  tensors.clear();
  return seconds;
}

double SimulatedSeconds(const Trace& trace, const sim::Outcome& outcome) {
  Duration time = sim::StallFrom(outcome, 1);
  bool begun = false;
  for (const Op& op : trace.ops) {
    begun = begun || op.kind == OpKind::kStep;
    if (begun) time += op.time;
  }
  return core::Seconds(time);
}

// The host backend's link: a rate, and what a sleep and a look at the log take.
sim::Hardware HostBackend() {
  sim::Hardware hardware = sim::kHardware[0];
  hardware.name = "host backend";
  hardware.up = hardware.down = kBytesPerSecond;
  hardware.duplex = 1;
  hardware.latency = std::chrono::microseconds(50);
  hardware.per_copy = Duration{0};
  return hardware;
}

// How far the simulated time is from the median of `runs` real ones, as a share of it; appends both
// to `detail`.
double HowFar(const Scaled& scaled, int runs, std::string* detail) {
  const Trace trace = sim::WithHints(Shrink(scaled, sim::kHardware[0]), scaled.hints);
  const Bytes budget =
      Bytes(trace.Footprint().count() / 100 * scaled.percent).RoundUp(core::MiB(2));
  const sim::Outcome outcome = sim::ReplayPaged(trace, {.hardware = HostBackend(),
                                                        .budget = budget,
                                                        .page = kPage,
                                                        .foresight = sim::Foresight::kHints});
  RAVEN_CHECK(outcome.failure.empty());
  const double simulated = SimulatedSeconds(trace, outcome);
  std::vector<double> times;
  for (int run = 0; run < runs; ++run) times.push_back(Replay(trace, budget));
  const double real = Median(times);
  char words[128];
  std::snprintf(words, sizeof(words), "%s%s: %.3f s simulated, %.3f s real",
                detail->empty() ? "" : "; ", scaled.name, simulated, real);
  *detail += words;
  return std::abs(simulated - real) / real;
}

void MeasureTraces(std::span<const Scaled> traces, int runs, Figure figure, const Report& report) {
  double worst = 0;
  for (const Scaled& scaled : traces) worst = std::max(worst, HowFar(scaled, runs, &figure.detail));
  figure.value = worst;
  report(figure);
}

}  // namespace

void MeasureSimulatorTruth(double scale, const Report& report) {
  // Sleeps are to take what they say, not 50 us more.
  ::prctl(PR_SET_TIMERSLACK, 1000);
  const int runs = std::max(1, static_cast<int>(kRuns * scale));
  MeasureTraces(kTraces, runs,
                {.name = "planner.sim_vs_real_worst", .unit = "share", .target = 0.10}, report);
  MeasureTraces(kMoreTraces, std::max(1, runs / 2),
                {.name = "planner.sim_vs_real_more", .unit = "share"}, report);
}

}  // namespace ravenstore::bench
