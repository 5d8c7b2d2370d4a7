#include "sim/validation_sparse.h"

#include <gtest/gtest.h>

#include <set>
#include <vector>

#include "tests/sim/alive.h"

namespace ravenstore::sim {
namespace {

// Where iterations begin; the set-up is the first.
std::vector<std::set<uint32_t>> GotByIteration(const Trace& trace) {
  std::vector<std::set<uint32_t>> got(1);
  for (const Op& op : trace.ops) {
    if (op.kind == OpKind::kGet) got.back().insert(op.tensor);
    if (op.kind == OpKind::kStep) got.emplace_back();
  }
  got.pop_back();
  return got;
}

TEST(ValidationSparseTest, GraphSageHasItsGraphAndItsParameters) {
  const double bytes = AliveAfterSetUp(GraphSageKernels(kHardware[0], 1, 1));
  const double nodes = 2449029;
  const double graph = nodes * 100 * 4 + nodes * 8 + nodes * 8 + 2 * 61859140.0 * 8;
  EXPECT_NEAR(bytes - graph, 206895 * 12, 206895 * 12 * 0.01);
}

TEST(ValidationSparseTest, NeighbourhoodsDifferFromIterationToIteration) {
  const Trace trace = GraphSageKernels(kHardware[0], 3, 1);
  std::vector<std::vector<uint64_t>> made(1);
  for (const Op& op : trace.ops) {
    if (op.kind == OpKind::kCreate) made.back().push_back(trace.tensors[op.tensor].bytes.count());
    if (op.kind == OpKind::kStep) made.emplace_back();
  }
  ASSERT_EQ(made[1].size(), made[2].size());
  size_t same = 0;
  for (size_t i = 0; i < made[1].size(); ++i) same += made[1][i] == made[2][i] ? 1 : 0;
  // Parameters' gradients, and what a whole batch has.
  EXPECT_LT(same, made[1].size() / 2);
}

TEST(ValidationSparseTest, TablesOfDlrmHaveTheirRows) {
  const Trace trace = DlrmKernels(kHardware[0], 1, 1);
  const double rows = 49.4e6;
  const double layers = 13 * 512 + 512 * 256 + 256 * 64 + 415 * 512 + 512 * 512 + 512 * 256 + 256;
  const double expected = rows * 64 * 4 + layers * 12;
  EXPECT_NEAR(AliveAfterSetUp(trace), expected, expected * 0.01);
}

// Most batches touch the frequent rows, and all together more than any one of them.
TEST(ValidationSparseTest, BatchesOfDlrmTouchPartsOfTheTables) {
  const Trace trace = DlrmKernels(kHardware[0], 2, 1);
  const std::set<uint32_t> blocks = TensorsAfterSetUp(trace);
  const auto got = GotByIteration(trace);
  ASSERT_EQ(got.size(), 17u);
  std::set<uint32_t> by_any;
  std::set<uint32_t> by_all = blocks;
  size_t most = 0;
  for (size_t i = 1; i < got.size(); ++i) {
    size_t touched = 0;
    for (const uint32_t tensor : blocks) {
      if (!got[i].contains(tensor)) {
        by_all.erase(tensor);
        continue;
      }
      ++touched;
      by_any.insert(tensor);
    }
    most = std::max(most, touched);
  }
  EXPECT_GT(by_all.size(), 30u);
  EXPECT_LT(most, blocks.size() / 3);
  EXPECT_GT(by_any.size(), 2 * most);
}

}  // namespace
}  // namespace ravenstore::sim
