#include "sim/validation_images.h"

#include <gtest/gtest.h>

#include <map>

#include "tests/sim/alive.h"

namespace ravenstore::sim {
namespace {

// 16 bits each, and as much for the momentum; normalisations have 32 and their running sums.
constexpr double kMomentum = 2 + 2;

TEST(ValidationImagesTest, EfficientNetHasItsParameters) {
  const double bytes = AliveAfterSetUp(EfficientNetKernels(kHardware[0], 1, 1));
  EXPECT_NEAR(bytes, 19.34e6 * kMomentum, 19.34e6 * kMomentum * 0.05);
}

TEST(ValidationImagesTest, DenseNetHasItsParameters) {
  const double bytes = AliveAfterSetUp(DenseNetKernels(kHardware[0], 1, 1));
  EXPECT_NEAR(bytes, 20.01e6 * kMomentum, 20.01e6 * kMomentum * 0.05);
}

// What the layers of a stage read grows by 32 channels each: 256 images, 16 bit.
TEST(ValidationImagesTest, JoinsOfDenseNetGrow) {
  const Trace trace = DenseNetKernels(kHardware[0], 1, 1);
  std::map<uint64_t, int> made;
  for (const TraceTensor& tensor : trace.tensors) ++made[tensor.bytes.count()];
  for (int layer = 1; layer < 48; ++layer) {
    const auto channels = static_cast<uint64_t>(256 + 32 * layer);
    EXPECT_GE(made[channels * 14 * 14 * 256 * 2], 3) << layer;
  }
}

TEST(ValidationImagesTest, HalfTheBatchTakesHalfTheActivations) {
  const Trace whole = EfficientNetKernels(kHardware[0], 1, 1);
  const Trace half = EfficientNetKernels(kHardware[0], 1, 1, 48);
  EXPECT_EQ(half.ops.size(), whole.ops.size());
  EXPECT_NEAR(static_cast<double>(half.Footprint().count()) * 2,
              static_cast<double>(whole.Footprint().count()), 0.2e9);
}

}  // namespace
}  // namespace ravenstore::sim
