#include "device/nvml.h"

#include <gtest/gtest.h>

#include "tests/device/fake_nvml_library.h"
#include "tests/device/testing.h"

namespace ravenstore::device {
namespace {

using core::ErrorCode;
using core::GiB;

class NvmlTest : public testing::Test {
 protected:
  FakeNvmlControls& fake_ = FakeNvml();
  const std::shared_ptr<const Nvml> nvml_ = Nvml::Load(FakeNvmlLibrary()).value();
};

TEST_F(NvmlTest, SaysWhatIsFreeAndWhoHoldsTheRest) {
  fake_.free = {GiB(30).count()};
  fake_.processes = {{7, GiB(20).count()}, {9, ~0ull}};
  EXPECT_EQ(*nvml_->FreeBytes("GPU-0"), GiB(30));
  const auto processes = nvml_->Processes("GPU-0");
  ASSERT_OK(processes);
  ASSERT_EQ(processes->size(), 2u);
  EXPECT_EQ((*processes)[0].pid, 7u);
  EXPECT_EQ((*processes)[0].bytes, GiB(20));
  EXPECT_EQ((*processes)[1].bytes, Bytes{0}) << "not known";
}

TEST_F(NvmlTest, NoProcessIsNoError) {
  const auto processes = nvml_->Processes("GPU-0");
  ASSERT_OK(processes);
  EXPECT_TRUE(processes->empty());
}

TEST_F(NvmlTest, ManyProcessesFindRoom) {
  for (unsigned int pid = 1; pid <= 500; ++pid) fake_.processes.emplace_back(pid, pid);
  const auto processes = nvml_->Processes("GPU-0");
  ASSERT_OK(processes);
  ASSERT_EQ(processes->size(), 500u);
  EXPECT_EQ(processes->back().bytes, Bytes{500});
}

TEST_F(NvmlTest, SaysHowBusyItIs) {
  Nvml::Activity activity(nvml_, "GPU-0");
  fake_.utilization = 87;
  EXPECT_EQ(*activity.Read({}), 87u);
  fake_.utilization_result = 3;
  EXPECT_CODE(activity.Read({}), ErrorCode::kUnsupported);
}

TEST_F(NvmlTest, TheGpusOwnCountersGoBeforeWhatCountsCopiesToo) {
  fake_.utilization = 88;
  fake_.counted = 0;
  {
    Nvml::Activity activity(nvml_, "GPU-0");
    Nvml::Activity::Clock::time_point now{};
    const auto later = [&] { return *activity.Read(now += Nvml::Activity::kCountersEvery); };
    EXPECT_EQ(later(), 88u) << "one sample says nothing";
    EXPECT_EQ(later(), 0u);
    fake_.counted = 99;
    EXPECT_EQ(later(), 99u);
    fake_.counted = 0;
    now += Nvml::Activity::kCountersEvery / 5;
    EXPECT_EQ(*activity.Read(now), 99u) << "they did not change yet";
    fake_.counted = -1;
    EXPECT_EQ(later(), 88u) << "they do not answer";
    fake_.counted = 7;
    EXPECT_EQ(later(), 88u);
    EXPECT_EQ(later(), 7u);
  }
  EXPECT_EQ(fake_.samples, 0);
}

TEST_F(NvmlTest, FailuresHaveItsWords) {
  const auto unknown = nvml_->FreeBytes("HOST-0");
  EXPECT_CODE(unknown, ErrorCode::kDevice);
  EXPECT_EQ(unknown.error().message, "HOST-0: nvmlDeviceGetHandleByUUID: Not Found (6)");
  fake_.result = 3;
  EXPECT_CODE(nvml_->FreeBytes("GPU-0"), ErrorCode::kUnsupported);
  EXPECT_CODE(nvml_->Processes("GPU-0"), ErrorCode::kUnsupported);
}

TEST_F(NvmlTest, WithoutADriverItIsUnavailable) {
  fake_.init_result = 9;
  const auto nvml = Nvml::Load(FakeNvmlLibrary());
  EXPECT_CODE(nvml, ErrorCode::kUnavailable);
  EXPECT_NE(nvml.error().message.find("nvmlInit_v2: Fake Error"), std::string::npos);
}

TEST(NvmlLibraryTest, ALibraryThatIsNotThereIsUnavailable) {
  const auto nvml = Nvml::Load("libno-such-nvml.so");
  EXPECT_CODE(nvml, ErrorCode::kUnavailable);
  EXPECT_EQ(nvml.error().message.find("NVML libno-such-nvml.so: "), 0u) << nvml.error().message;
}

TEST(NvmlLibraryTest, ALibraryThatIsAnotherIsUnavailable) {
  const auto nvml = Nvml::Load("libc.so.6");
  EXPECT_CODE(nvml, ErrorCode::kUnavailable);
  EXPECT_NE(nvml.error().message.find("has no nvml"), std::string::npos) << nvml.error().message;
}

TEST(NvmlLibraryTest, TheEnvironmentNamesTheLibrary) {
  unsetenv("RAVENSTORE_LIBNVML");
  EXPECT_EQ(Nvml::DefaultLibrary(), "libnvidia-ml.so.1");
  setenv("RAVENSTORE_LIBNVML", "libother.so", 1);
  EXPECT_EQ(Nvml::DefaultLibrary(), "libother.so");
  setenv("RAVENSTORE_LIBNVML", "", 1);
  EXPECT_EQ(Nvml::DefaultLibrary(), "libnvidia-ml.so.1");
}

}  // namespace
}  // namespace ravenstore::device
