// Replays traces through the elastic plan and its rivals:
//
//     elastic_replay [--json] [TRACE...]
//
// TRACE: a generator's name, with ":resized" what is allocated and computed is 3/4 from half way
// on; or a file that `ravenrun --record` wrote, whose steps are found by the calls that repeat.
// What a trace allocates lies where the engine would lay it, on pages that several may share.
//
// A table: step time over compute time, from the third step on, for device memory of 90 to 50% of
// what lives at most; and the learned plan's over (compute + lower bound). --json: only the last,
// an array of {"trace", "percent", "of_bound"}.
#include <algorithm>
#include <cstdio>
#include <numeric>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "bench/page_program.h"
#include "bench/recording.h"
#include "core/text_table.h"
#include "elastic/replay.h"
#include "sim/generators.h"
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

struct OfBound {
  std::string trace;
  uint64_t percent;
  double ratio;
};

void Judge(const std::string& name, const sim::Trace& trace, size_t from, core::TextTable* table,
           std::vector<OfBound>* of_bound) {
  const auto program = bench::PagesOf(trace, elastic::Machine{}.page);
  const double compute = Sum(elastic::ComputeOf(program), from);
  const Bytes peak = trace.Footprint();
  for (const uint64_t percent : {100, 90, 80, 70, 60, 50}) {
    const Bytes budget(peak.count() / 100 * percent);
    sim::Hardware hardware = sim::kHardware[0];
    const elastic::Machine machine{.device = budget};
    hardware.up = hardware.down = machine.one_way;
    hardware.duplex = 1;
    const double bound = core::Seconds(sim::LeastStall(trace, hardware, budget, from).stall);
    std::vector<std::string> row = {name, std::to_string(percent) + "%",
                                    Ratio((compute + bound) / compute)};
    using elastic::Rival;
    double learned = 0;
    for (const Rival rival :
         {Rival::kLearned, Rival::kOracle, Rival::kInPlace, Rival::kDemandLru}) {
      const double seconds = Sum(elastic::Replay(program, machine, rival).steps, from);
      if (rival == Rival::kLearned) learned = seconds;
      row.push_back(Ratio(seconds / compute));
    }
    of_bound->push_back({name, percent, learned / (compute + bound)});
    row.push_back(Ratio(of_bound->back().ratio));
    table->Row(std::move(row));
  }
}

void PrintJson(const std::vector<OfBound>& all) {
  const char* before = "[";
  for (const OfBound& one : all) {
    printf("%s{\"trace\": \"%s\", \"percent\": %u, \"of_bound\": %.4f}", before, one.trace.c_str(),
           static_cast<unsigned>(one.percent), one.ratio);
    before = ",\n";
  }
  puts("]");
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

int Main(std::vector<std::string> names) {
  const bool json = std::erase(names, "--json") > 0;
  std::vector<OfBound> of_bound;
  if (names.empty()) names = {"unet", "lstm", "mobilenet"};
  core::TextTable table("<>>>>>>>");
  table.Row({"trace", "device", "bound", "learned", "oracle", "in place", "LRU", "of bound"});
  for (const std::string& name : names) {
    const auto trace = TraceOf(name);
    if (!trace) return 2;
    const std::string last = name.substr(name.rfind('/') + 1);
    Judge(last, trace->first, trace->second, &table, &of_bound);
  }
  if (json) return PrintJson(of_bound), 0;
  fputs(table.Text(table.Width()).c_str(), stdout);
  return 0;
}

}  // namespace
}  // namespace ravenstore

int main(int argc, char** argv) {
  return ravenstore::Main({argv + 1, argv + argc});
}
