#include "client/examples/trainer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <mutex>

#include "client/examples/report.h"
#include "tests/client/torch/fake_store.h"

namespace ravenstore::examples {
namespace {

constexpr char kText[] =
    "It was the best of times, it was the worst of times, it was the age of wisdom, it was the age "
    "of foolishness, it was the epoch of belief, it was the epoch of incredulity.";

RunConfig Tiny() {
  RunConfig config;
  config.layers = 2;
  config.width = 32;
  config.heads = 2;
  config.steps = 2;
  config.batch = 4;
  config.seq = 64;
  config.learning_rate = 1e-2;
  config.seed = 7;
  return config;
}

RunResult TrainOn(const RunConfig& config, std::shared_ptr<Store> store = nullptr) {
  static std::once_flag once;
  std::call_once(once, [] { PrepareTorch(/*cuda=*/false, /*threads=*/2); });
  return Train(config, kText, std::move(store), [](int, float, double) {});
}

TEST(TrainerTest, TheModelLearns) {
  RunConfig config = Tiny();
  config.steps = 8;
  const RunResult result = TrainOn(config);
  ASSERT_TRUE(result.finished) << result.failure;
  EXPECT_NEAR(result.losses.front(), 5.5, 0.2);  // ln 256: it knows nothing yet
  EXPECT_LT(result.losses.back(), 4.5);
}

TEST(TrainerTest, ASeedGivesTheSameBitsAgainAndAnotherSeedOthers) {
  const RunResult first = TrainOn(Tiny()), second = TrainOn(Tiny());
  RunConfig other = Tiny();
  other.seed = 8;
  EXPECT_TRUE(SameBits(first, second));
  EXPECT_FALSE(SameBits(first, TrainOn(other)));
}

TEST(TrainerTest, WithTheStoreTheBitsAreTheSameAndTorchNeedsLess) {
  RunConfig config = Tiny();
  config.seq = 128;  // so that activations are larger than what stays in torch's memory
  const RunResult plain = TrainOn(config);
  const RunResult stored = TrainOn(config, fake::Connect());
  ASSERT_TRUE(stored.finished) << stored.failure;
  EXPECT_TRUE(SameBits(plain, stored));
  EXPECT_GT(stored.offload.adopted_bytes, 0u);
  EXPECT_LT(stored.torch_peak, plain.torch_peak);
  EXPECT_EQ(fake::counts().tensors, 0u);
}

TEST(TrainerTest, MeasuringSaysWhatAStoreWouldHold) {
  RunConfig config = Tiny();
  config.seq = 128;
  config.steps = 1;
  config.measure = true;
  const RunResult measured = TrainOn(config);
  config.measure = false;
  const RunResult stored = TrainOn(config, fake::Connect());
  EXPECT_EQ(measured.offload.live_bytes_peak, stored.offload.live_bytes_peak);
  EXPECT_EQ(measured.offload.saved_bytes, stored.offload.saved_bytes);
}

TEST(TrainerTest, ALimitIsEnforcedAndLiftedAgain) {
  RunConfig config = Tiny();
  const RunResult plain = TrainOn(config);
  config.torch_limit = plain.first_step_peak * 3 / 4;
  const RunResult limited = TrainOn(config);
  EXPECT_FALSE(limited.finished);
  EXPECT_TRUE(limited.out_of_memory);
  EXPECT_EQ(limited.failed_step, 1);
  EXPECT_LE(limited.torch_peak, config.torch_limit);
  EXPECT_THAT(limited.failure, testing::HasSubstr("simulated device"));
  EXPECT_TRUE(SameBits(plain, TrainOn(Tiny())));
}

TEST(TrainerTest, AFailingStoreEndsTheRunWithItsWords) {
  auto store = fake::Connect();
  fake::FailNextGet(RAVENSTORE_LOST);
  RunConfig config = Tiny();
  config.seq = 128;
  const RunResult result = TrainOn(config, store);
  EXPECT_FALSE(result.finished);
  EXPECT_FALSE(result.out_of_memory);
  EXPECT_THAT(result.failure, testing::HasSubstr("as the test asked"));
  store.reset();
  EXPECT_EQ(fake::counts().tensors, 0u);
}

}  // namespace
}  // namespace ravenstore::examples
