#include "sim/validation_transformers.h"

#include <gtest/gtest.h>

#include "tests/sim/alive.h"

namespace ravenstore::sim {
namespace {

// A 16-bit weight, its copy in 32 bit and two moments.
constexpr double kAdam = 2 + 3 * 4;

TEST(ValidationTransformersTest, T5LargeHasItsParameters) {
  const double bytes = AliveAfterSetUp(T5Kernels(kHardware[0], 1, 1));
  EXPECT_NEAR(bytes, 737.7e6 * kAdam, 737.7e6 * kAdam * 0.01);
}

TEST(ValidationTransformersTest, HalfTheBatchTakesLessThanTheWhole) {
  const Trace whole = T5Kernels(kHardware[0], 1, 1);
  const Trace half = T5Kernels(kHardware[0], 1, 1, 12);
  EXPECT_EQ(AliveAfterSetUp(half), AliveAfterSetUp(whole));
  EXPECT_EQ(half.ops.size(), whole.ops.size());
  EXPECT_LT(half.Footprint(), whole.Footprint());
}

// Frozen weights are read, and nothing but the adapters is written.
TEST(ValidationTransformersTest, LlamaHasItsParametersAndLearnsItsAdapters) {
  const Trace trace = LlamaLoraKernels(kHardware[0], 1, 1);
  const double adapters = 2 * 32 * 2 * 4096 * 16;
  const double expected = 6.738e9 * 2 + adapters * kAdam;
  EXPECT_NEAR(AliveAfterSetUp(trace), expected, expected * 0.01);
  double learned = 0;
  const std::set<uint32_t> kept = TensorsAfterSetUp(trace);
  std::set<uint32_t> written;
  for (const Op& op : trace.ops) {
    if (op.kind != OpKind::kGet || op.read_only || !kept.contains(op.tensor)) continue;
    if (written.insert(op.tensor).second)
      learned += static_cast<double>(trace.tensors[op.tensor].bytes.count());
  }
  EXPECT_NEAR(learned, adapters * kAdam, adapters * kAdam * 0.01);
}

TEST(ValidationTransformersTest, Wav2VecHasItsParameters) {
  const double bytes = AliveAfterSetUp(Wav2VecKernels(kHardware[0], 1, 1));
  EXPECT_NEAR(bytes, 95.0e6 * kAdam, 95.0e6 * kAdam * 0.05);
}

TEST(ValidationTransformersTest, DitHasItsParametersAndTheirAverage) {
  const double bytes = AliveAfterSetUp(DitKernels(kHardware[0], 1, 1));
  EXPECT_NEAR(bytes, 675e6 * (kAdam + 4), 675e6 * (kAdam + 4) * 0.01);
}

}  // namespace
}  // namespace ravenstore::sim
