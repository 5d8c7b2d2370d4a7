// Replays traces of elastic jobs in the simulator (sim/paged_replay.h), and their rivals:
//
//     elastic_replay [--json] [--budget BYTES]... [--link UP,DOWN,DUPLEX] [TRACE...]
//     elastic_replay --working-set TRACE
//
// TRACE: a generator's name, with ":resized" what is allocated and computed is 3/4 from half way
// on; or a file that `ravenrun --record` wrote, whose steps are found by the calls that repeat.
//
// The core's scheduler decides, for a client whose tensors keep their addresses and whose kernels
// can use the host's memory, as in the engine (elastic/job_memory.h). elastic_live judges the
// engine.
//
// A table: step time over compute time, from the third step on, for device memory of 100 to 50% of
// what lives at most, or of --budget; and the learned plan's over (compute + lower bound). --link:
// what copies have, in GB/s, DUPLEX both ways together (53 each way, 46 while both are busy).
//
// A trace without steps that count has no row.
//
// --json: an array of {"trace", "percent" of what lives at most, "budget", "steps" that count,
// "of_bound", and the mean seconds of a step: "compute", "bound" (the least stall of any
// policy), "learned", "oracle" (the plan knows all calls), "in_place" (the pages with the most uses
// are on the device, and nothing moves), "demand" (demand paging, least recently used)}. "bound"
// and "demand" are null where a kernel uses more than the budget.
//
// --working-set: of the last whole step a line for each call: its milliseconds from the step's
// begin, what it names, and what is live, in bytes.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "bench/recording.h"
#include "core/check.h"
#include "core/plan/places.h"
#include "core/text_table.h"
#include "sim/demand_paging.h"
#include "sim/generators.h"
#include "sim/hardware.h"
#include "sim/lower_bound.h"
#include "sim/paged_replay.h"
#include "sim/score.h"

namespace ravenstore {
namespace {

using core::Bytes;

constexpr int kIterations = 6;
// Iterations after the set-up that are only for learning.
constexpr size_t kLearning = 2;
// In a recording: the part before the first whole step, and two steps for learning.
constexpr size_t kRecordedLearning = 3;

// As measured on an H100 (docs/decisions/0028-elastic-plan.md), in bytes per second: of copies, of
// each direction while the other is busy, and of kernels that use the host's memory.
constexpr double kOneWay = 53e9;
constexpr double kBothWays = 46e9;
constexpr double kInPlace = 51e9;
constexpr Bytes kPage = core::MiB(32);

std::string Ratio(double ratio) {
  char text[32];
  snprintf(text, sizeof text, "%.2f", ratio);
  return text;
}

struct Options {
  std::vector<Bytes> budgets;
  std::optional<sim::Hardware> link;
};

// Of one trace and budget: mean seconds of a step.
struct Replayed {
  std::string trace;
  double percent;
  Bytes budget;
  size_t steps;
  double compute;
  std::optional<double> bound;
  double learned;
  double oracle;
  double in_place;
  std::optional<double> demand;

  // REQUIRES: there are steps.
  double of_bound() const { return learned / (compute + bound.value_or(0)); }
};

sim::Hardware HardwareOf(const Options& options) {
  if (options.link) return *options.link;
  sim::Hardware hardware = sim::kHardware[0];
  hardware.up = hardware.down = kOneWay;
  hardware.duplex = kBothWays / kOneWay;
  return hardware;
}

std::vector<Bytes> BudgetsOf(const sim::Trace& trace, const Options& options) {
  if (!options.budgets.empty()) return options.budgets;
  std::vector<Bytes> budgets;
  for (const uint64_t percent : {100, 90, 80, 70, 60, 50})
    budgets.emplace_back(trace.Footprint().count() / 100 * percent);
  return budgets;
}

// Mean seconds of the steps from `from` on, with the stall of each.
double MeanStep(const std::vector<sim::StepTimes>& steps, size_t from,
                const std::vector<core::Duration>& stall) {
  core::Duration sum{0};
  for (size_t i = from; i < steps.size(); ++i)
    sum += steps[i].compute + (i < stall.size() ? stall[i] : core::Duration{0});
  return core::Seconds(sum) / static_cast<double>(steps.size() - from);
}

// The bytes of a tensor that a kernel uses. It reads what it gets, and writes it unless it only
// reads it.
struct Used {
  uint64_t read = 0;
  uint64_t written = 0;
};

// Of each kernel: what it uses, by page. Tensors have the places of the order of their creates.
class PagesOfKernels {
 public:
  explicit PagesOfKernels(const sim::Trace& trace) : trace_(trace), place_(trace.tensors.size()) {}

  // Calls `kernel` with the step and the pages of each. An empty one ends the step.
  template <typename Kernel>
  void ForEach(Kernel kernel) {
    for (const sim::Op& op : trace_.ops) {
      const Bytes size = trace_.tensors[op.tensor].bytes;
      switch (op.kind) {
        case sim::OpKind::kCreate: place_[op.tensor] = places_.Allocate(size); [[fallthrough]];
        case sim::OpKind::kGet: in_use_[op.tensor] = op; break;
        case sim::OpKind::kPut: in_use_.erase(op.tensor); break;
        case sim::OpKind::kFree:
          in_use_.erase(op.tensor);
          places_.Free(place_[op.tensor], size);
          break;
        case sim::OpKind::kCompute: kernel(Now(), false); break;
        case sim::OpKind::kStep: kernel({}, true); break;
      }
    }
  }

 private:
  std::map<uint32_t, Used> Now() const {
    std::map<uint32_t, Used> pages;
    for (const auto& [tensor, op] : in_use_) {
      const Bytes size = trace_.tensors[tensor].bytes;
      const core::plan::UnitSpan units = places_.UnitsOf(place_[tensor], size);
      for (uint32_t i = 0; i < units.count; ++i) {
        const uint64_t bytes = places_.BytesIn(place_[tensor], size, i).count();
        if (op.kind == sim::OpKind::kGet) pages[units[i]].read += bytes;
        if (!op.read_only) pages[units[i]].written += bytes;
      }
    }
    return pages;
  }

  const sim::Trace& trace_;
  core::plan::Places places_{{.page = kPage}};
  std::vector<core::plan::Place> place_;  // by tensor
  std::map<uint32_t, sim::Op> in_use_;    // by tensor: its create or get
};

// The pages, those with the most bytes used first.
std::vector<uint32_t> PagesByUse(const sim::Trace& trace) {
  std::map<uint32_t, uint64_t> uses;  // by page
  PagesOfKernels(trace).ForEach([&](const std::map<uint32_t, Used>& kernel, bool /*ends*/) {
    for (const auto& [page, used] : kernel) uses[page] += std::max(used.read, used.written);
  });
  std::vector<std::pair<uint64_t, uint32_t>> order;
  for (const auto& [page, bytes] : uses) order.emplace_back(bytes, page);
  std::stable_sort(order.begin(), order.end(),
                   [](const auto& a, const auto& b) { return a.first > b.first; });
  std::vector<uint32_t> pages;
  for (const auto& [bytes, page] : order) pages.push_back(page);
  return pages;
}

// The stall of each step if the first of these pages are on the device, and nothing moves.
std::vector<core::Duration> StallInPlace(const sim::Trace& trace,
                                         const std::vector<uint32_t>& pages, Bytes budget,
                                         double rate) {
  const size_t fit = std::min<size_t>(budget.count() / kPage.count(), pages.size());
  const std::set<uint32_t> away(pages.begin() + static_cast<ptrdiff_t>(fit), pages.end());
  std::vector<core::Duration> stall(1);
  PagesOfKernels(trace).ForEach([&](const std::map<uint32_t, Used>& kernel, bool ends) {
    Used sum;
    for (const auto& [page, used] : kernel) {
      if (away.count(page) == 0) continue;
      sum.read += used.read;
      sum.written += used.written;
    }
    stall.back() += core::FromSeconds(static_cast<double>(std::max(sum.read, sum.written)) / rate);
    if (ends) stall.emplace_back();
  });
  return stall;
}

std::vector<Replayed> Judge(const std::string& name, const sim::Trace& trace, size_t from,
                            const Options& options) {
  std::vector<sim::StepTimes> times = trace.TimesByStep(0);
  times.pop_back();  // after the last step
  std::vector<Replayed> judged;
  if (times.size() <= from) return judged;
  const sim::Hardware hardware = HardwareOf(options);
  sim::Hardware of_bound = hardware;
  if (!options.link) of_bound.duplex = 1;
  const double in_place = std::min(hardware.up, hardware.down) * kInPlace / kOneWay;
  const std::vector<uint32_t> pages = PagesByUse(trace);
  for (const Bytes budget : BudgetsOf(trace, options)) {
    // nullopt: more is in use than the budget.
    const auto mean = [&](const sim::Outcome& outcome) {
      return outcome.failure.empty() ? std::optional(MeanStep(times, from, outcome.iteration_stall))
                                     : std::nullopt;
    };
    const auto plan = [&](sim::Foresight foresight) {
      const auto step = mean(sim::ReplayPaged(trace, {.hardware = hardware,
                                                      .budget = std::max(budget, kPage),
                                                      .page = kPage,
                                                      .foresight = foresight,
                                                      .in_place = in_place,
                                                      .addresses_stay = true}));
      RAVEN_CHECK(step.has_value());
      return *step;
    };
    std::optional<double> bound;
    if (trace.LargestStep() <= budget)
      bound = core::Seconds(sim::LeastStall(trace, of_bound, budget, from).stall) /
              static_cast<double>(times.size() - from);
    judged.push_back(
        {.trace = name,
         .percent = 100.0 * static_cast<double>(budget.count()) /
                    static_cast<double>(trace.Footprint().count()),
         .budget = budget,
         .steps = times.size() - from,
         .compute = MeanStep(times, from, {}),
         .bound = bound,
         .learned = plan(sim::Foresight::kLearned),
         .oracle = plan(sim::Foresight::kCalls),
         .in_place = MeanStep(times, from, StallInPlace(trace, pages, budget, in_place)),
         .demand = mean(sim::ReplayDemandPaging(trace, hardware, budget, {}))});
  }
  return judged;
}

void PrintTable(const std::vector<Replayed>& all) {
  core::TextTable table("<>>>>>>>");
  table.Row({"trace", "device", "bound", "learned", "oracle", "in place", "LRU", "of bound"});
  for (const Replayed& one : all) {
    const double compute = one.compute;
    char percent[16];
    snprintf(percent, sizeof percent, "%.0f%%", one.percent);
    table.Row({one.trace, percent, one.bound ? Ratio((compute + *one.bound) / compute) : "-",
               Ratio(one.learned / compute), Ratio(one.oracle / compute),
               Ratio(one.in_place / compute), one.demand ? Ratio(*one.demand / compute) : "-",
               Ratio(one.of_bound())});
  }
  fputs(table.Text(table.Width()).c_str(), stdout);
}

void PrintJson(const std::vector<Replayed>& all) {
  const char* before = "";
  printf("[");
  for (const Replayed& one : all) {
    const auto number = [](std::optional<double> seconds) {
      char text[32] = "null";
      if (seconds) snprintf(text, sizeof text, "%.6f", *seconds);
      return std::string(text);
    };
    printf(
        "%s{\"trace\": \"%s\", \"percent\": %.0f, \"budget\": %llu, \"steps\": %zu, "
        "\"of_bound\": %.4f, \"compute\": %.6f, \"bound\": %s, \"learned\": %.6f, "
        "\"oracle\": %.6f, \"in_place\": %.6f, \"demand\": %s}",
        before, one.trace.c_str(), one.percent, static_cast<unsigned long long>(one.budget.count()),
        one.steps, one.of_bound(), one.compute, number(one.bound).c_str(), one.learned, one.oracle,
        one.in_place, number(one.demand).c_str());
    before = ",\n";
  }
  puts("]");
}

// Of the last whole step.
void PrintWorkingSet(const sim::Trace& trace) {
  std::vector<size_t> ends;
  for (size_t i = 0; i < trace.ops.size(); ++i) {
    if (trace.ops[i].kind == sim::OpKind::kStep) ends.push_back(i);
  }
  const size_t begin = ends.size() > 1 ? ends[ends.size() - 2] : 0;
  const size_t end = ends.empty() ? trace.ops.size() : ends.back();
  std::set<uint32_t> in_use;
  Bytes named;
  Bytes live;
  double ms = 0;
  for (size_t i = 0; i < end; ++i) {
    const sim::Op& op = trace.ops[i];
    if (op.kind == sim::OpKind::kStep) continue;
    if (op.kind == sim::OpKind::kCompute) {
      if (i < begin) continue;
      printf("%.3f %llu %llu\n", ms, static_cast<unsigned long long>(named.count()),
             static_cast<unsigned long long>(live.count()));
      ms += core::Seconds(op.time) * 1e3;
      continue;
    }
    const Bytes bytes = trace.tensors[op.tensor].bytes;
    if (op.kind == sim::OpKind::kCreate) live += bytes;
    if (op.kind == sim::OpKind::kFree) live -= bytes;
    const bool uses = op.kind == sim::OpKind::kCreate || op.kind == sim::OpKind::kGet;
    if (uses && in_use.insert(op.tensor).second) named += bytes;
    if (!uses && in_use.erase(op.tensor) > 0) named -= bytes;
  }
}

// The trace, and the step from which on it counts.
std::optional<std::pair<sim::Trace, size_t>> TraceOf(const std::string& asked) {
  const std::string name = asked.substr(0, asked.find(':'));
  const auto& known = sim::GeneratorNames();
  if (std::find(known.begin(), known.end(), name) != known.end()) {
    sim::Trace trace = sim::Generate(name, sim::kHardware[0], kIterations);
    if (asked.ends_with(":resized"))
      trace = sim::WithPeriodChanged(std::move(trace), kIterations / 2 + 1, 0.75);
    const size_t from = sim::SetUpIterations(trace) + kLearning;
    return std::pair(std::move(trace), from);
  }
  auto trace = bench::ReadRecording(asked);
  if (!trace.ok()) {
    fprintf(stderr, "elastic_replay: neither a trace's name nor a recording: %s\n",
            core::Describe(trace.error()).c_str());
    return std::nullopt;
  }
  return std::pair(std::move(*trace), kRecordedLearning);
}

// The word behind `option`, taken out of `words`; none: it is not there.
std::optional<std::string> Take(std::vector<std::string>* words, const std::string& option) {
  const auto at = std::find(words->begin(), words->end(), option);
  if (at == words->end() || at + 1 == words->end()) return std::nullopt;
  std::string value = *(at + 1);
  words->erase(at, at + 2);
  return value;
}

int Main(std::vector<std::string> names) {
  const bool json = std::erase(names, "--json") > 0;
  const bool working_set = std::erase(names, "--working-set") > 0;
  Options options;
  while (const auto budget = Take(&names, "--budget"))
    options.budgets.emplace_back(strtoull(budget->c_str(), nullptr, 10));
  if (const auto link = Take(&names, "--link")) {
    double up = 0;
    double down = 0;
    double duplex = 0;
    if (sscanf(link->c_str(), "%lf,%lf,%lf", &up, &down, &duplex) != 3 || up <= 0 || down <= 0) {
      fprintf(stderr, "elastic_replay: --link UP,DOWN,DUPLEX in GB/s, not %s\n", link->c_str());
      return 2;
    }
    options.link = sim::kHardware[0];
    options.link->up = up * 1e9;
    options.link->down = down * 1e9;
    options.link->duplex = std::min(duplex / (up + down), 1.0);
  }
  if (names.empty()) names = {"unet", "lstm", "mobilenet"};
  std::vector<Replayed> all;
  for (const std::string& name : names) {
    const auto trace = TraceOf(name);
    if (!trace) return 2;
    if (working_set) {
      PrintWorkingSet(trace->first);
      continue;
    }
    const std::string last = name.substr(name.rfind('/') + 1);
    for (Replayed& one : Judge(last, trace->first, trace->second, options))
      all.push_back(std::move(one));
  }
  if (working_set) return 0;
  json ? PrintJson(all) : PrintTable(all);
  return 0;
}

}  // namespace
}  // namespace ravenstore

int main(int argc, char** argv) {
  return ravenstore::Main({argv + 1, argv + argc});
}
