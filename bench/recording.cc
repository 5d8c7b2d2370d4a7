#include "bench/recording.h"

#include <algorithm>
#include <fstream>
#include <set>
#include <utility>
#include <vector>

namespace ravenstore::bench {
namespace {

// A step has at least this many calls.
constexpr size_t kFewestCalls = 32;
// Of a recording whose calls do not repeat.
constexpr size_t kParts = 10;

// What a call computes and uses, without who it is.
uint64_t ShapeOf(const sim::Trace& trace, const std::set<uint32_t>& in_use) {
  uint64_t shape = 0;
  for (const uint32_t tensor : in_use) shape = shape * 31 + trace.tensors[tensor].bytes.count();
  return shape;
}

// Where a recording has no steps they end where the last calls end, and a period before, and so on.
// Where calls do not repeat it has some of as many calls.
void MarkSteps(sim::Trace* trace) {
  const auto is_step = [](const sim::Op& op) { return op.kind == sim::OpKind::kStep; };
  if (std::any_of(trace->ops.begin(), trace->ops.end(), is_step)) return;
  std::vector<std::pair<uint64_t, size_t>> calls;  // shape, place
  std::set<uint32_t> in_use;
  for (size_t i = 0; i < trace->ops.size(); ++i) {
    const sim::Op& op = trace->ops[i];
    if (op.kind == sim::OpKind::kCompute) calls.emplace_back(ShapeOf(*trace, in_use), i);
    if (op.kind == sim::OpKind::kCreate || op.kind == sim::OpKind::kGet) in_use.insert(op.tensor);
    if (op.kind == sim::OpKind::kPut || op.kind == sim::OpKind::kFree) in_use.erase(op.tensor);
  }
  size_t period = 0;
  for (size_t tried = kFewestCalls; period == 0 && tried <= calls.size() / 2; ++tried) {
    size_t same = 0;
    for (size_t i = calls.size() - tried; i < calls.size(); ++i)
      same += calls[i].first == calls[i - tried].first ? 1 : 0;
    if (same * 100 >= tried * 99) period = tried;
  }
  if (period == 0) period = calls.size() / kParts;
  if (period == 0) return;
  std::vector<size_t> ends;
  for (size_t call = calls.size(); call > 0; call = call > period ? call - period : 0)
    ends.push_back(calls[call - 1].second);
  for (const size_t end : ends) {
    trace->ops.insert(trace->ops.begin() + static_cast<ptrdiff_t>(end) + 1,
                      sim::Op{.kind = sim::OpKind::kStep});
  }
}

}  // namespace

core::Result<sim::Trace> ReadRecording(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return core::Error{core::ErrorCode::kNotFound, path + " cannot be opened"};
  auto trace = sim::Read(file);
  if (trace.ok()) MarkSteps(&*trace);
  return trace;
}

}  // namespace ravenstore::bench
