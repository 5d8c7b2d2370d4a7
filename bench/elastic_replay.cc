// Replays the simulator's traces through the elastic plan and its rivals:
//
//     elastic_replay [--json] [TRACE...]
//
// TRACE: a generator's name; with ":resized" what is allocated and computed is 3/4 from half way
// on.
//
// A table: step time over compute time, from the third step on, for device memory of 90 to 50% of
// what lives at most; and the learned plan's over (compute + lower bound). --json: only the last,
// an array of {"trace", "percent", "of_bound"}.
#include <algorithm>
#include <cstdio>
#include <map>
#include <numeric>
#include <set>
#include <string>
#include <vector>

#include "core/text_table.h"
#include "elastic/replay.h"
#include "sim/generators.h"
#include "sim/lower_bound.h"
#include "sim/score.h"

namespace ravenstore {
namespace {

using core::Bytes;
using elastic::ProgramEvent;

constexpr int kIterations = 6;
// Of the iterations that are no set-up, so many are there to learn.
constexpr size_t kLearning = 2;
// What is smaller lies beside others and is never moved.
constexpr Bytes kLeastRange = core::MiB(2);

std::vector<ProgramEvent> ProgramOf(const sim::Trace& trace) {
  using Kind = ProgramEvent::Kind;
  std::vector<ProgramEvent> program;
  std::map<uint32_t, ProgramEvent::Touch> in_use;
  for (const sim::Op& op : trace.ops) {
    const uint32_t object = op.tensor;
    const Bytes bytes = trace.tensors[object].bytes;
    const bool is_range = bytes >= kLeastRange;
    switch (op.kind) {
      case sim::OpKind::kCreate:
        if (!is_range) break;
        program.push_back({.kind = Kind::kAllocate, .object = object, .bytes = bytes});
        in_use[object] = {object, false, true};
        break;
      case sim::OpKind::kGet:
        if (is_range) in_use[object] = {object, true, !op.read_only};
        break;
      case sim::OpKind::kPut: in_use.erase(object); break;
      case sim::OpKind::kFree:
        if (!is_range) break;
        in_use.erase(object);
        program.push_back({.kind = Kind::kFree, .object = object});
        break;
      case sim::OpKind::kCompute: {
        ProgramEvent call{.kind = Kind::kCall, .seconds = core::Seconds(op.time)};
        for (const auto& [tensor, touch] : in_use) {
          call.touches.push_back(touch);
          call.identity = call.identity * 31 + trace.tensors[tensor].bytes.count() +
                          (touch.reads ? 1 : 0) + (touch.writes ? 2 : 0);
        }
        program.push_back(std::move(call));
        break;
      }
      case sim::OpKind::kStep: program.push_back({.kind = Kind::kStep}); break;
    }
  }
  return program;
}

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

void Judge(const std::string& name, const sim::Trace& trace, core::TextTable* table,
           std::vector<OfBound>* of_bound) {
  const size_t from = sim::SetUpIterations(trace) + kLearning;
  const std::vector<ProgramEvent> program = ProgramOf(trace);
  const double compute = Sum(elastic::ComputeOf(program), from);
  const Bytes peak = elastic::PeakOf(program);
  for (const uint64_t percent : {100, 90, 80, 70, 60, 50}) {
    const Bytes budget(peak.count() / 100 * percent);
    sim::Hardware hardware = sim::kHardware[0];
    const elastic::Machine machine{.device = budget};
    hardware.up = hardware.down = machine.bytes_per_second;
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

int Main(std::vector<std::string> names) {
  const bool json = std::erase(names, "--json") > 0;
  std::vector<OfBound> of_bound;
  if (names.empty()) names = {"unet", "lstm", "mobilenet"};
  core::TextTable table("<>>>>>>>");
  table.Row({"trace", "device", "bound", "learned", "oracle", "in place", "LRU", "of bound"});
  for (const std::string& name_and : names) {
    const std::string name = name_and.substr(0, name_and.find(':'));
    const auto& known = sim::GeneratorNames();
    if (std::find(known.begin(), known.end(), name) == known.end()) {
      fprintf(stderr, "elastic_replay: no trace is called \"%s\"\n", name.c_str());
      return 2;
    }
    sim::Trace trace = sim::Generate(name, sim::kHardware[0], kIterations);
    if (name_and.ends_with(":resized"))
      trace = sim::WithPeriodChanged(std::move(trace), kIterations / 2 + 1, 0.75);
    Judge(name_and, trace, &table, &of_bound);
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
