#include "sim/paged_packing.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "sim/generators.h"

namespace ravenstore::sim {
namespace {

using core::MiB;

TEST(PackPlacesTest, TensorsThatLiveTogetherLieApart) {
  for (const char* name : {"resnet50", "gpt2-small"}) {
    const Trace trace = Generate(name, kHardware[0], 2);
    const std::vector<core::plan::Place> places = PackPlaces(trace, {.page = MiB(16)});
    std::vector<uint32_t> live;
    uint64_t end = 0;
    for (const Op& op : trace.ops) {
      if (op.kind == OpKind::kFree) live.erase(std::find(live.begin(), live.end(), op.tensor));
      if (op.kind != OpKind::kCreate) continue;
      const uint64_t begin = places[op.tensor].at;
      const uint64_t size = trace.tensors[op.tensor].bytes.count();
      for (const uint32_t other : live) {
        const uint64_t other_begin = places[other].at;
        const uint64_t other_end = other_begin + trace.tensors[other].bytes.count();
        ASSERT_TRUE(begin + size <= other_begin || other_end <= begin);
      }
      live.push_back(op.tensor);
      end = std::max(end, begin + size);
    }
    EXPECT_LE(end, trace.Footprint().count() / 100 * 102);
  }
}

TEST(PackPlacesTest, SmallTensorsHaveSlots) {
  Trace trace;
  trace.tensors = {{0, MiB(1), ""}, {0, MiB(1), ""}};
  for (uint32_t tensor : {0u, 1u}) {
    trace.ops.push_back({.kind = OpKind::kCreate, .tensor = tensor});
    trace.ops.push_back({.kind = OpKind::kFree, .tensor = tensor});
  }
  const auto places = PackPlaces(trace, {.page = MiB(16), .largest_slot = MiB(16)});
  EXPECT_EQ(places[0].slots_per_page, 16u);
  EXPECT_EQ(places[0], places[1]);
}

}  // namespace
}  // namespace ravenstore::sim
