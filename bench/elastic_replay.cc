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
#include <map>
#include <numeric>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "bench/recording.h"
#include "core/text_table.h"
#include "elastic/arena.h"
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
// Of the steps of a recording: what stood before the first whole one, and two to learn.
constexpr size_t kRecordedLearning = 3;
// What is smaller is the driver's.
constexpr Bytes kLeastRange = core::MiB(2);
constexpr Bytes kGranule = core::MiB(2);
constexpr Bytes kPage = core::MiB(32);

// A trace's tensors on pages.
class Layout {
 public:
  explicit Layout(const sim::Trace& trace)
      : trace_(trace), arena_(kBegin, kReach, [](const elastic::Point&) { return true; }) {}

  std::vector<ProgramEvent> Program() {
    for (const sim::Op& op : trace_.ops) {
      if (op.kind == sim::OpKind::kCompute) {
        Call(op);
      } else if (op.kind == sim::OpKind::kStep) {
        program_.push_back({.kind = Kind::kStep});
      } else if (trace_.tensors[op.tensor].bytes >= kLeastRange) {
        Touch(op);
      }
    }
    return std::move(program_);
  }

 private:
  using Kind = ProgramEvent::Kind;
  struct Piece {
    CUdeviceptr begin;
    Bytes size;
  };
  static constexpr CUdeviceptr kBegin = CUdeviceptr{1} << 40;
  static constexpr Bytes kReach{uint64_t{1} << 44};

  void Touch(const sim::Op& op) {
    const uint32_t tensor = op.tensor;
    switch (op.kind) {
      case sim::OpKind::kCreate: Create(tensor); break;
      case sim::OpKind::kGet: in_use_[tensor] = {tensor, true, !op.read_only}; break;
      case sim::OpKind::kPut: in_use_.erase(tensor); break;
      case sim::OpKind::kFree: Free(tensor); break;
      case sim::OpKind::kCompute:
      case sim::OpKind::kStep: break;
    }
  }
  void Create(uint32_t tensor) {
    const Bytes size = trace_.tensors[tensor].bytes.RoundUp(kGranule);
    const Piece piece{*arena_.Take(size, 1), size};
    pieces_[tensor] = piece;
    in_use_[tensor] = {tensor, false, true};
    for (uint32_t page = First(piece); page <= Last(piece); ++page) {
      if (lives_[page]++ == 0)
        program_.push_back({.kind = Kind::kAllocate, .object = page, .bytes = kPage});
    }
  }
  void Free(uint32_t tensor) {
    in_use_.erase(tensor);
    const Piece piece = pieces_.extract(tensor).mapped();
    for (uint32_t page = First(piece); page <= Last(piece); ++page) {
      if (--lives_[page] == 0) program_.push_back({.kind = Kind::kFree, .object = page});
    }
    arena_.Give(piece.begin, piece.size, {});
  }
  void Call(const sim::Op& op) {
    ProgramEvent call{.kind = Kind::kCall, .seconds = core::Seconds(op.time)};
    std::map<uint32_t, ProgramEvent::Touch> pages;
    for (const auto& [tensor, touch] : in_use_) {
      const Piece& piece = pieces_.at(tensor);
      for (uint32_t page = First(piece); page <= Last(piece); ++page) {
        ProgramEvent::Touch& of_page = pages[page];
        of_page.object = page;
        of_page.reads |= touch.reads;
        of_page.writes |= touch.writes;
      }
      call.identity = call.identity * 31 + trace_.tensors[tensor].bytes.count() +
                      (touch.reads ? 1 : 0) + (touch.writes ? 2 : 0);
    }
    for (const auto& [page, touch] : pages) call.touches.push_back(touch);
    program_.push_back(std::move(call));
  }
  static uint32_t First(const Piece& piece) {
    return static_cast<uint32_t>((piece.begin - kBegin) / kPage.count());
  }
  static uint32_t Last(const Piece& piece) {
    return static_cast<uint32_t>((piece.begin + piece.size.count() - 1 - kBegin) / kPage.count());
  }

  const sim::Trace& trace_;
  elastic::Arena arena_;
  std::map<uint32_t, Piece> pieces_;
  std::map<uint32_t, uint32_t> lives_;  // by page
  std::map<uint32_t, ProgramEvent::Touch> in_use_;
  std::vector<ProgramEvent> program_;
};

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
  const std::vector<ProgramEvent> program = Layout(trace).Program();
  const double compute = Sum(elastic::ComputeOf(program), from);
  const Bytes peak = trace.Footprint();
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
