// Replays traces through the elastic plan and its rivals:
//
//     elastic_replay [--json] [--budget BYTES]... [--link UP,DOWN,DUPLEX] [TRACE...]
//     elastic_replay --working-set TRACE
//
// TRACE: a generator's name, with ":resized" what is allocated and computed is 3/4 from half way
// on; or a file that `ravenrun --record` wrote, whose steps are found by the calls that repeat.
// What a trace allocates lies where the engine would lay it, on pages that several may share.
//
// A table: step time over compute time, from the third step on, for device memory of 100 to 50% of
// what lives at most, or of --budget; and the learned plan's over (compute + lower bound). --link:
// what copies have, in GB/s, DUPLEX both ways together (53 each way, 46 while both are busy).
//
// A trace without steps that count has no row.
//
// --json: an array of {"trace", "percent" of what lives at most, "budget", "steps" that count,
// "of_bound", and the mean seconds of a step: "compute", "bound" (what no policy can avoid besides,
// null where more is in use at once), "learned", "oracle", "in_place", "demand"}.
//
// --working-set: of the last whole step a line for each call: its milliseconds from the step's
// begin, what it names, and what is live, in bytes.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "bench/page_program.h"
#include "bench/recording.h"
#include "core/text_table.h"
#include "elastic/replay.h"
#include "sim/generators.h"
#include "sim/hardware.h"
#include "sim/lower_bound.h"
#include "sim/score.h"

namespace ravenstore {
namespace {

using core::Bytes;

constexpr int kIterations = 6;
// Of the iterations that are no set-up, so many are there to learn.
constexpr size_t kLearning = 2;
// Of the steps of a recording: what stood before the first whole one, and two to learn.
constexpr size_t kRecordedLearning = 3;

double Sum(const std::vector<double>& steps, size_t from) {
  const size_t begin = std::min(from, steps.size());
  return std::accumulate(steps.begin() + static_cast<ptrdiff_t>(begin), steps.end(), 0.0);
}

std::string Ratio(double ratio) {
  char text[32];
  snprintf(text, sizeof text, "%.2f", ratio);
  return text;
}

struct Asked {
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
  double demand;

  // REQUIRES: there are steps.
  double of_bound() const { return learned / (compute + bound.value_or(0)); }
};

std::vector<Bytes> BudgetsOf(const sim::Trace& trace, const Asked& asked) {
  if (!asked.budgets.empty()) return asked.budgets;
  std::vector<Bytes> budgets;
  for (const uint64_t percent : {100, 90, 80, 70, 60, 50})
    budgets.emplace_back(trace.Footprint().count() / 100 * percent);
  return budgets;
}

elastic::Machine MachineOf(const Asked& asked, Bytes budget) {
  elastic::Machine machine{.device = budget};
  if (!asked.link) return machine;
  const double in_place = machine.in_place / machine.one_way;
  machine.one_way = std::min(asked.link->up, asked.link->down);
  machine.both_ways = machine.one_way * asked.link->duplex;
  machine.in_place = machine.one_way * in_place;
  return machine;
}

std::vector<Replayed> Judge(const std::string& name, const sim::Trace& trace, size_t from,
                            const Asked& asked) {
  const auto program = bench::PagesOf(trace, elastic::Machine{}.page);
  const std::vector<double> compute = elastic::ComputeOf(program);
  const size_t steps = compute.size() - std::min(from, compute.size());
  std::vector<Replayed> judged;
  if (steps == 0) return judged;
  for (const Bytes budget : BudgetsOf(trace, asked)) {
    const elastic::Machine machine = MachineOf(asked, budget);
    sim::Hardware hardware = asked.link.value_or(sim::kHardware[0]);
    if (!asked.link) {
      hardware.up = hardware.down = machine.one_way;
      hardware.duplex = 1;
    }
    const auto mean = [&](double sum) { return sum / static_cast<double>(steps); };
    const auto replay = [&](elastic::Rival rival) {
      return mean(Sum(elastic::Replay(program, machine, rival).steps, from));
    };
    std::optional<double> bound;
    if (trace.LargestStep() <= budget)
      bound = mean(core::Seconds(sim::LeastStall(trace, hardware, budget, from).stall));
    using elastic::Rival;
    judged.push_back({.trace = name,
                      .percent = 100.0 * static_cast<double>(budget.count()) /
                                 static_cast<double>(trace.Footprint().count()),
                      .budget = budget,
                      .steps = steps,
                      .compute = mean(Sum(compute, from)),
                      .bound = bound,
                      .learned = replay(Rival::kLearned),
                      .oracle = replay(Rival::kOracle),
                      .in_place = replay(Rival::kInPlace),
                      .demand = replay(Rival::kDemandLru)});
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
               Ratio(one.in_place / compute), Ratio(one.demand / compute), Ratio(one.of_bound())});
  }
  fputs(table.Text(table.Width()).c_str(), stdout);
}

void PrintJson(const std::vector<Replayed>& all) {
  const char* before = "";
  printf("[");
  for (const Replayed& one : all) {
    char bound[32] = "null";
    if (one.bound) snprintf(bound, sizeof bound, "%.6f", *one.bound);
    printf(
        "%s{\"trace\": \"%s\", \"percent\": %.0f, \"budget\": %llu, \"steps\": %zu, "
        "\"of_bound\": %.4f, \"compute\": %.6f, \"bound\": %s, \"learned\": %.6f, "
        "\"oracle\": %.6f, \"in_place\": %.6f, \"demand\": %.6f}",
        before, one.trace.c_str(), one.percent, static_cast<unsigned long long>(one.budget.count()),
        one.steps, one.of_bound(), one.compute, bound, one.learned, one.oracle, one.in_place,
        one.demand);
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
  Asked asked;
  while (const auto budget = Take(&names, "--budget"))
    asked.budgets.emplace_back(strtoull(budget->c_str(), nullptr, 10));
  if (const auto link = Take(&names, "--link")) {
    double up = 0;
    double down = 0;
    double duplex = 0;
    if (sscanf(link->c_str(), "%lf,%lf,%lf", &up, &down, &duplex) != 3 || up <= 0 || down <= 0) {
      fprintf(stderr, "elastic_replay: --link UP,DOWN,DUPLEX in GB/s, not %s\n", link->c_str());
      return 2;
    }
    asked.link = sim::kHardware[0];
    asked.link->up = up * 1e9;
    asked.link->down = down * 1e9;
    asked.link->duplex = std::min(duplex / (up + down), 1.0);
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
    for (Replayed& one : Judge(last, trace->first, trace->second, asked))
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
