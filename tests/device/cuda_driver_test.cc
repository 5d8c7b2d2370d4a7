#include "device/cuda_driver.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include "tests/device/fake_driver.h"
#include "tests/device/testing.h"

namespace ravenstore::device {
namespace {

using core::ErrorCode;

TEST(CudaDriverTest, ALibraryThatIsNotThereIsUnavailable) {
  const auto driver = CudaDriver::Load("libno-such-driver.so");
  EXPECT_CODE(driver, ErrorCode::kUnavailable);
  EXPECT_NE(driver.error().message.find("libno-such-driver.so"), std::string::npos);
}

TEST(CudaDriverTest, ALibraryThatIsNoDriverIsUnavailable) {
  const auto driver = CudaDriver::Load("libm.so.6");
  EXPECT_CODE(driver, ErrorCode::kUnavailable);
  EXPECT_NE(driver.error().message.find("has no cu"), std::string::npos);
}

TEST(CudaDriverTest, FindsTheVersionedFunctions) {
  const FakeDriver fake;
  int version = 0;
  EXPECT_EQ(fake.table->cuDriverGetVersion(&version), CUDA_SUCCESS);
  EXPECT_EQ(version, CUDA_VERSION);
  EXPECT_NE(fake.table->cuMemGetInfo, nullptr);
  EXPECT_NE(fake.table->cuDeviceGetUuid, fake.table->device_get_gpu_uuid);
}

TEST(CudaDriverTest, FailuresCarryCallDeviceAndTheDriversWords) {
  const FakeDriver fake;
  const core::Error error = fake.table->Failure(CUDA_ERROR_INVALID_VALUE, "cuMemMap", "device 3");
  EXPECT_EQ(error.code, ErrorCode::kDevice);
  EXPECT_EQ(error.message,
            "device 3: cuMemMap: CUDA_ERROR_INVALID_VALUE (1): said by the fake driver");
}

TEST(CudaDriverTest, FailuresThatACallerCanActOnHaveCodesOfTheirOwn) {
  const FakeDriver fake;
  const auto code = [&](CUresult result) { return fake.table->Failure(result, "c", "d").code; };
  EXPECT_EQ(code(CUDA_ERROR_OUT_OF_MEMORY), ErrorCode::kOutOfMemory);
  EXPECT_EQ(code(CUDA_ERROR_NOT_SUPPORTED), ErrorCode::kUnsupported);
  EXPECT_EQ(code(CUDA_ERROR_NO_DEVICE), ErrorCode::kUnavailable);
  EXPECT_EQ(code(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT), ErrorCode::kCapturing);
  // One that the driver itself does not know.
  EXPECT_EQ(code(static_cast<CUresult>(12345)), ErrorCode::kDevice);
}

TEST(CudaDriverTest, TheEnvironmentNamesTheLibrary) {
  unsetenv("RAVENSTORE_LIBCUDA");
  EXPECT_EQ(CudaDriver::DefaultLibrary(), "libcuda.so.1");
  setenv("RAVENSTORE_LIBCUDA", "libother.so", 1);
  EXPECT_EQ(CudaDriver::DefaultLibrary(), "libother.so");
  setenv("RAVENSTORE_LIBCUDA", "", 1);
  EXPECT_EQ(CudaDriver::DefaultLibrary(), "libcuda.so.1");
}

}  // namespace
}  // namespace ravenstore::device
