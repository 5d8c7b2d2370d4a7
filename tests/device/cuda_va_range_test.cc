// What is the CUDA arenas' own; conformance_test.cc has the rest.
#include "device/cuda_va_range.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <string.h>

#include <filesystem>
#include <string>
#include <system_error>

#include "tests/device/fake_driver.h"
#include "tests/device/testing.h"

namespace ravenstore::device {
namespace {

using core::ErrorCode;
using core::MiB;

class CudaVaRangeTest : public testing::Test {
 protected:
  void TearDown() override { EXPECT_EQ(fake_.context_errors(), 0); }

  std::unique_ptr<VaRange> NewVaRange() {
    return ReserveCudaVaRange(gpu_, {0, 1}, MiB(64), MiB(2)).value();
  }
  Bytes Free() { return fake_.FreeOf(*gpu_); }

  const FakeDriver fake_;
  const std::shared_ptr<CudaGpu> gpu_ = fake_.Gpu();
};

TEST_F(CudaVaRangeTest, TheUnitIsTheDrivers) {
  EXPECT_EQ(CudaGranularity(*gpu_).value(), MiB(2));
}

TEST_F(CudaVaRangeTest, EveryStepThatFailsIsUndone) {
  const auto arena = NewVaRange();
  const Bytes before = Free();
  for (const char* call : {"cuMemCreate", "cuMemMap", "cuMemSetAccess"}) {
    fake_.fail(call, 1, CUDA_ERROR_UNKNOWN);
    const Status failed = arena->Create(MiB(4), MiB(2));
    EXPECT_CODE(failed, ErrorCode::kDevice);
    EXPECT_NE(failed.error().message.find(std::string("device 0: ") + call), std::string::npos);
    EXPECT_EQ(Free(), before) << call;
  }
  ASSERT_OK(arena->Create(MiB(4), MiB(2)));
  for (const char* call : {"cuMemImportFromShareableHandle", "cuMemMap", "cuMemSetAccess"}) {
    fake_.fail(call, 1, CUDA_ERROR_UNKNOWN);
    EXPECT_CODE(arena->Import(*arena->Export(MiB(4)), MiB(8), MiB(2)), ErrorCode::kDevice);
  }
  ASSERT_OK(arena->Import(*arena->Export(MiB(4)), MiB(8), MiB(2)));
}

TEST_F(CudaVaRangeTest, OutOfMemorySaysWhatWasAskedAndWhatIsFree) {
  const auto arena = NewVaRange();
  fake_.fail("cuMemCreate", 1, CUDA_ERROR_OUT_OF_MEMORY);
  const Status failed = arena->Create(MiB(0), MiB(2));
  EXPECT_CODE(failed, ErrorCode::kOutOfMemory);
  EXPECT_NE(failed.error().message.find("2097152 bytes asked"), std::string::npos);
  EXPECT_NE(failed.error().message.find(std::to_string(Free().count()) + " free"),
            std::string::npos);
}

TEST_F(CudaVaRangeTest, DescriptorsCloseOnExec) {
  const auto arena = NewVaRange();
  ASSERT_OK(arena->Create(MiB(0), MiB(2)));
  const auto chunk = arena->Export(MiB(0));
  ASSERT_OK(chunk);
  EXPECT_EQ(fcntl(chunk->get(), F_GETFD), FD_CLOEXEC);
}

// Of how much device memory this process holds a descriptor.
size_t DescriptorsOpen() {
  size_t open = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code error;  // the one that lists them
    const auto file = std::filesystem::read_symlink(entry.path(), error);
    if (!error && file.string().find("fakecuda.device") != std::string::npos) ++open;
  }
  return open;
}

TEST_F(CudaVaRangeTest, OneDescriptorStaysOpenSinceTheFirstAndTheLastAreSlow) {
  const auto arena = NewVaRange();
  ASSERT_OK(arena->Create(MiB(0), MiB(2)));
  const size_t held = DescriptorsOpen();  // the fake keeps memory by one, too
  fake_.fail("cuMemCreate", 1, CUDA_ERROR_OUT_OF_MEMORY);
  ASSERT_OK(arena->Export(MiB(0)));
  EXPECT_EQ(DescriptorsOpen(), held) << "there was no room for it";
  for (int i = 0; i < 3; ++i) {
    ASSERT_OK(arena->Export(MiB(0)));
    EXPECT_EQ(DescriptorsOpen(), held + 1);
  }
}

TEST_F(CudaVaRangeTest, AnImportKeepsTheMemoryOfAnEndedArena) {
  const Bytes before = Free();
  auto creator = NewVaRange();
  const auto importer = NewVaRange();
  ASSERT_OK(creator->Create(MiB(0), MiB(8)));
  ASSERT_OK(importer->Import(*creator->Export(MiB(0)), MiB(0), MiB(8)));
  creator.reset();
  EXPECT_EQ(Free(), before) << "the fake charges the creator";
  ASSERT_OK(importer->Unmap(MiB(0)));
}

TEST_F(CudaVaRangeTest, APoolsMemoryIsNotShared) {
  const auto pool = ReserveRegisteredVaRange(gpu_, MiB(64), MiB(2), 0, RegisteredMemory::kOwn);
  ASSERT_OK(pool);
  EXPECT_EQ(reinterpret_cast<uintptr_t>((*pool)->base()) % MiB(2).count(), 0u);
  ASSERT_OK((*pool)->Create(MiB(2), MiB(8)));
  EXPECT_CODE((*pool)->Export(MiB(2)), ErrorCode::kUnsupported);
  EXPECT_CODE((*pool)->Import(NewMemory(MiB(2)).value(), MiB(16), MiB(2)), ErrorCode::kUnsupported);
  fake_.fail("cuMemHostRegister", 1, CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_CODE((*pool)->Create(MiB(16), MiB(2)), ErrorCode::kOutOfMemory);
  ASSERT_OK((*pool)->Create(MiB(16), MiB(2)));
  ASSERT_OK((*pool)->Unmap(MiB(2)));
}

TEST_F(CudaVaRangeTest, ADriverWithoutHostMemoryGetsRegisteredMemory) {
  fake_.fail("cuMemCreate", 1, CUDA_ERROR_NOT_SUPPORTED);  // the trial
  const auto arena = ReserveCudaHostVaRange(gpu_, {0, 1}, MiB(64), MiB(2), -1);
  ASSERT_OK(arena);
  fake_.fail("cuMemCreate", 1, CUDA_ERROR_UNKNOWN);  // not called again
  ASSERT_OK((*arena)->Create(MiB(0), MiB(4)));
  EXPECT_EQ(ResidentPages((*arena)->base(), MiB(4)), 1024) << "before the driver pins them";
  memset((*arena)->base(), 1, MiB(4).count());
  fake_.fail("cuMemHostRegister", 1, CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_CODE((*arena)->Create(MiB(8), MiB(4)), ErrorCode::kOutOfMemory);
  ASSERT_OK((*arena)->Create(MiB(8), MiB(4)));
  EXPECT_CODE(NewVaRange()->Create(MiB(0), MiB(2)), ErrorCode::kDevice);
}

}  // namespace
}  // namespace ravenstore::device
