#include "elastic/pinner.h"

#include <sys/resource.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "ipc/clock.h"
#include "tests/elastic/testing.h"

namespace ravenstore::elastic {
namespace {

using core::Bytes;
using core::MiB;

class PinnerTest : public testing::Test {
 protected:
  void SetUp() override { ASSERT_EQ(driver_.ctx_get_current(&current_), CUDA_SUCCESS); }

  bool BecomesHeld(Bytes bytes) {
    return Eventually([&] { return parts_.free(Place::kHost) == bytes; });
  }

  FakeContext context_;
  Driver driver_ = *LoadDriver(&FakeFunction);
  CUcontext current_ = nullptr;
  Parts parts_{&driver_, 0, 0, {MiB(64), {}, {}}, {MiB(32), {}, {}}};
};

// Of the thread of that name; 100: there is none.
int PriorityOf(const std::string& name) {
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    std::string its;
    std::ifstream(task.path() / "comm") >> its;
    if (its == name)
      return ::getpriority(PRIO_PROCESS, static_cast<id_t>(std::stoi(task.path().filename())));
  }
  return 100;
}

TEST_F(PinnerTest, PinsAsMuchAsIsNeededAndNeverLess) {
  Pinner pinner(&driver_, &parts_, current_, MiB(4));
  EXPECT_EQ(parts_.held(Place::kHost), Bytes{0});
  pinner.Need(MiB(6));
  EXPECT_TRUE(BecomesHeld(MiB(8)));
  pinner.Need(MiB(4));
  pinner.Need(MiB(16));
  EXPECT_TRUE(BecomesHeld(MiB(16)));
}

TEST_F(PinnerTest, WhatIsWantedIsPinnedOnceNothingMoreIsAskedFor) {
  Pinner pinner(&driver_, &parts_, current_, MiB(4));
  const core::Tick began = ipc::Now();
  pinner.Want(MiB(8));
  EXPECT_TRUE(BecomesHeld(MiB(8)));
  EXPECT_GE(ipc::Now() - began, Pinner::kQuiet);
  // A need does not wait for that.
  pinner.Want(MiB(32));
  pinner.Need(MiB(16));
  EXPECT_TRUE(BecomesHeld(MiB(32)));
}

TEST_F(PinnerTest, WhatIsWantedWaitsWhileTheJobWaitsForMappings) {
  Pinner pinner(&driver_, &parts_, current_, MiB(4));
  pinner.Want(MiB(8));
  const core::Tick began = ipc::Now();
  pinner.Delay();
  const bool is_before = parts_.held(Place::kHost) == Bytes{0};
  EXPECT_TRUE(BecomesHeld(MiB(8)));
  if (is_before) EXPECT_GE(ipc::Now() - began, Pinner::kQuiet);
}

TEST_F(PinnerTest, WhatIsTakenCounts) {
  Part* taken = *parts_.Take(Place::kHost, MiB(8));
  Pinner pinner(&driver_, &parts_, current_, MiB(4));
  pinner.Need(MiB(12));
  EXPECT_TRUE(BecomesHeld(MiB(4)));
  parts_.Give(taken);
}

TEST_F(PinnerTest, TheLimitHolds) {
  Pinner pinner(&driver_, &parts_, current_, MiB(4));
  pinner.Need(MiB(100));
  EXPECT_TRUE(BecomesHeld(MiB(32)));
}

TEST_F(PinnerTest, AfterARefusalItTriesAgainWhenMoreIsNeeded) {
  Pinner pinner(&driver_, &parts_, current_, MiB(4));
  Fake<void(const char*, int, CUresult)>("FakeCudaFail")("cuMemCreate", 2,
                                                         CUDA_ERROR_OUT_OF_MEMORY);
  pinner.Need(MiB(12));
  EXPECT_TRUE(BecomesHeld(MiB(4)));
  // Not before: the refusal must have been.
  EXPECT_TRUE(Eventually([&] {
    pinner.Need(MiB(16));
    return parts_.free(Place::kHost) == MiB(16);
  }));
}

TEST_F(PinnerTest, ItsThreadHasTheLowestPriority) {
  const Pinner pinner(&driver_, &parts_, current_, MiB(4));
  EXPECT_TRUE(Eventually([] { return PriorityOf("raven-pin") == 19; }));
}

}  // namespace
}  // namespace ravenstore::elastic
