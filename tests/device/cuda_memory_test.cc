// What is the CUDA backend's own of physical memory; conformance_test.cc has the rest.
#include "device/cuda_memory.h"

#include <fcntl.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "tests/device/fake_driver.h"
#include "tests/device/testing.h"

namespace ravenstore::device {
namespace {

using core::ErrorCode;
using core::MiB;

class CudaMemoryTest : public testing::Test {
 protected:
  void TearDown() override { EXPECT_EQ(fake_.context_errors(), 0); }

  Result<std::shared_ptr<const CudaMemory>> Create(Bytes bytes) {
    return CudaMemory::Create(gpu_, MemoryAt(CU_MEM_LOCATION_TYPE_DEVICE, gpu_->device()), bytes,
                              MiB(2));
  }
  Bytes Free() { return fake_.FreeOf(*gpu_); }

  const FakeDriver fake_;
  const std::shared_ptr<CudaGpu> gpu_ = fake_.Gpu();
};

TEST_F(CudaMemoryTest, ALastReferenceReleasesTheMemory) {
  const Bytes before = Free();
  auto memory = Create(MiB(4));
  ASSERT_OK(memory);
  EXPECT_EQ((*memory)->gpu(), gpu_.get());
  EXPECT_EQ(Free(), before - MiB(4));
  memory->reset();
  EXPECT_EQ(Free(), before);
}

TEST_F(CudaMemoryTest, FailuresCarryTheDriversWords) {
  fake_.fail("cuMemCreate", 1, CUDA_ERROR_OUT_OF_MEMORY);
  const auto failed = Create(MiB(2));
  EXPECT_CODE(failed, ErrorCode::kOutOfMemory);
  EXPECT_NE(failed.error().message.find("2097152 bytes asked, "), std::string::npos);
  const auto memory = Create(MiB(2));
  ASSERT_OK(memory);
  fake_.fail("cuMemExportToShareableHandle", 2, CUDA_ERROR_UNKNOWN);
  EXPECT_CODE((*memory)->Export(), ErrorCode::kDevice);
  fake_.fail("cuMemImportFromShareableHandle", 1, CUDA_ERROR_UNKNOWN);
  EXPECT_CODE(CudaMemory::Import(gpu_, (*memory)->Export().value(), MiB(2)), ErrorCode::kDevice);
}

TEST_F(CudaMemoryTest, ADescriptorClosesOnExecAndWhenItIsImported) {
  const auto memory = Create(MiB(2));
  ASSERT_OK(memory);
  auto descriptor = (*memory)->Export();
  ASSERT_OK(descriptor);
  EXPECT_EQ(fcntl(descriptor->get(), F_GETFD), FD_CLOEXEC);
  const int number = descriptor->get();
  const auto imported = CudaMemory::Import(gpu_, *std::move(descriptor), MiB(2));
  ASSERT_OK(imported);
  EXPECT_EQ(fcntl(number, F_GETFD), -1);
  EXPECT_CODE((*imported)->Export(), ErrorCode::kInvalidArgument);
}

}  // namespace
}  // namespace ravenstore::device
