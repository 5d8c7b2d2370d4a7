#include "sim/validation_serving.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <vector>

namespace ravenstore::sim {
namespace {

struct Kernel {
  std::vector<uint32_t> reads;
  size_t made = 0;
};

std::vector<Kernel> KernelsOf(const Trace& trace) {
  std::vector<Kernel> kernels(1);
  for (const Op& op : trace.ops) {
    if (op.kind == OpKind::kGet) kernels.back().reads.push_back(op.tensor);
    if (op.kind == OpKind::kCreate) ++kernels.back().made;
    if (op.kind == OpKind::kCompute) kernels.emplace_back();
  }
  return kernels;
}

TEST(ValidationServingTest, BlocksAreSixteenTokens) {
  for (const TraceTensor& tensor : PrefixCache(kHardware[0], 1, 1).tensors)
    EXPECT_EQ(tensor.bytes, core::MiB(2));
}

// A prompt's blocks are read by many requests; the last of a conversation by one.
TEST(ValidationServingTest, RequestsShareWhatTheyBeginWith) {
  const Trace trace = PrefixCache(kHardware[0], 2, 1);
  // By the first block that a kernel reads: which further ones follow it.
  std::map<uint32_t, std::set<std::vector<uint32_t>>> beginnings;
  for (const Kernel& kernel : KernelsOf(trace)) {
    if (kernel.made != 1 || kernel.reads.size() < 200) continue;
    const auto from = kernel.reads.begin();
    beginnings[*from].insert({from, from + 200});
  }
  // There are few system prompts, and several documents behind each.
  EXPECT_LE(beginnings.size(), 6u);
  size_t documents = 0;
  for (const auto& [first, all] : beginnings) documents += all.size();
  EXPECT_GT(documents, 2 * beginnings.size());
}

// A decoding step reads everything before its block, which the next one of that request reads too.
TEST(ValidationServingTest, SequencesGrowByABlockATurn) {
  const Trace trace = PrefixCache(kHardware[0], 1, 1);
  std::set<std::vector<uint32_t>> seen;
  size_t continued = 0;
  size_t decoded = 0;
  for (const Kernel& kernel : KernelsOf(trace)) {
    if (kernel.made != 1 || kernel.reads.empty()) continue;
    ++decoded;
    continued += seen.contains({kernel.reads.begin(), kernel.reads.end() - 1}) ? 1 : 0;
    seen.insert(kernel.reads);
  }
  EXPECT_GE(decoded, 24u * 8);
  EXPECT_GT(continued, decoded / 2);
  EXPECT_LT(continued, decoded);
}

TEST(ValidationServingTest, UnsharedPrefixesAreFreedAlongTheWay) {
  const Trace trace = PrefixCache(kHardware[0], 8, 1);
  size_t steps = 0;
  size_t freed = 0;
  for (const Op& op : trace.ops) {
    steps += op.kind == OpKind::kStep ? 1 : 0;
    if (op.kind == OpKind::kFree && steps < 8 * 8) ++freed;
  }
  EXPECT_GT(freed, 100u);
}

}  // namespace
}  // namespace ravenstore::sim
