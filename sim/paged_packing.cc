#include "sim/paged_packing.h"

#include <algorithm>
#include <limits>
#include <utility>

namespace ravenstore::sim {

namespace {

using core::plan::Place;

struct Life {
  size_t born = 0;
  size_t freed = std::numeric_limits<size_t>::max();
};

std::vector<Life> LivesOf(const Trace& trace) {
  std::vector<Life> lives(trace.tensors.size());
  for (size_t i = 0; i < trace.ops.size(); ++i) {
    const Op& op = trace.ops[i];
    if (op.kind == OpKind::kCreate) lives[op.tensor].born = i;
    if (op.kind == OpKind::kFree) lives[op.tensor].freed = i;
  }
  return lives;
}

// The tensors that are placed, by time: blocks of calls, each with the tensors that live at its
// begin and those that are born in it. One list would be walked whole for each tensor.
class Timeline {
 public:
  explicit Timeline(size_t calls)
      : block_(std::max<size_t>(256, calls / 512)),
        alive_(calls / block_ + 1),
        born_(calls / block_ + 1) {}

  void Add(uint32_t tensor, const Life& life) {
    const size_t first = life.born / block_;
    born_[first].push_back(tensor);
    const size_t last = std::min(life.freed / block_, alive_.size() - 1);
    for (size_t block = first + 1; block <= last; ++block) alive_[block].push_back(tensor);
  }
  // Those that may live while `life` lasts.
  template <typename Visit>
  void ForNeighbours(const Life& life, Visit visit) const {
    const size_t first = life.born / block_;
    const size_t last = std::min(life.freed / block_, alive_.size() - 1);
    for (const uint32_t tensor : alive_[first]) visit(tensor);
    for (size_t block = first; block <= last; ++block) {
      for (const uint32_t tensor : born_[block]) visit(tensor);
    }
  }

 private:
  size_t block_;
  std::vector<std::vector<uint32_t>> alive_;
  std::vector<std::vector<uint32_t>> born_;
};

uint64_t SizeOf(const Trace& trace, uint32_t tensor) {
  return trace.tensors[tensor].bytes.RoundUp(core::kExtentAlignment).count();
}

void PackRange(const Trace& trace, const std::vector<Life>& lives, std::vector<uint32_t> order,
               std::vector<Place>* places) {
  std::stable_sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) {
    return trace.tensors[a].bytes > trace.tensors[b].bytes;
  });
  Timeline placed(trace.ops.size());
  std::vector<std::pair<uint64_t, uint64_t>> taken;
  for (const uint32_t tensor : order) {
    const Life& life = lives[tensor];
    taken.clear();
    placed.ForNeighbours(life, [&](uint32_t other) {
      const bool meet = lives[other].born < life.freed && life.born < lives[other].freed;
      const uint64_t at = (*places)[other].at;
      if (meet) taken.emplace_back(at, at + SizeOf(trace, other));
    });
    std::sort(taken.begin(), taken.end());
    uint64_t at = 0;
    for (const auto& [begin, end] : taken) {
      if (begin >= at + SizeOf(trace, tensor)) break;
      at = std::max(at, end);
    }
    (*places)[tensor] = {at, 0};
    placed.Add(tensor, life);
  }
}

}  // namespace

std::vector<Place> PackPlaces(const Trace& trace, const core::plan::SmallTensorRule& rule) {
  std::vector<Place> places(trace.tensors.size());
  core::plan::Places slots(rule);
  std::vector<uint32_t> in_range;
  for (const Op& op : trace.ops) {
    const core::Bytes size =
        op.tensor < trace.tensors.size() ? trace.tensors[op.tensor].bytes : core::Bytes{};
    const bool has_slot = rule.SlotsPerPage(size) > 0;
    if (op.kind == OpKind::kCreate) {
      if (has_slot) {
        places[op.tensor] = slots.Allocate(size);
      } else {
        in_range.push_back(op.tensor);
      }
    }
    if (op.kind == OpKind::kFree && has_slot) slots.Free(places[op.tensor], size);
  }
  PackRange(trace, LivesOf(trace), std::move(in_range), &places);
  return places;
}

}  // namespace ravenstore::sim
