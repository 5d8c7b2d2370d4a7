// For tests of the CUDA files: the fake driver and its controls, or a real driver.
#pragma once

#include <dlfcn.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/check.h"
#include "device/cuda_device.h"
#include "device/cuda_driver.h"
#include "device/cuda_gpu.h"
#include "tests/fake_cuda/fake_cuda.h"

namespace ravenstore::device {

// libfakecuda.so; the tests that use it cannot run on a GPU.
class FakeDriver {
 public:
  FakeDriver() {
    const char* library = getenv("RAVENSTORE_FAKE_LIBCUDA");
    RAVEN_CHECK(library != nullptr);
    table = CudaDriver::Load(library).value();
    RAVEN_CHECK(table->cuInit(0) == CUDA_SUCCESS);
    void* handle = dlopen(library, RTLD_NOW | RTLD_LOCAL);
    Find(handle, "FakeCudaFail", &fail);
    Find(handle, "FakeCudaFailCopy", &fail_copy);
    Find(handle, "FakeCudaHoldCopies", &hold_copies);
    Find(handle, "FakeCudaContexts", &contexts);
    Find(handle, "FakeCudaContextErrors", &context_errors);
  }

  std::shared_ptr<CudaGpu> Gpu(int ordinal = 0) const {
    return std::make_shared<CudaGpu>(table, ordinal, ordinal, std::make_shared<CudaWords>());
  }
  // What is free of the GPU's memory.
  core::Bytes FreeOf(CudaGpu& gpu) const {
    const CudaScope scope(*table, *gpu.Primary());
    size_t free = 0;
    size_t total = 0;
    RAVEN_CHECK(table->cuMemGetInfo(&free, &total) == CUDA_SUCCESS);
    return core::Bytes(free);
  }

  std::shared_ptr<const CudaDriver> table;
  decltype(&FakeCudaFail) fail;
  decltype(&FakeCudaFailCopy) fail_copy;
  decltype(&FakeCudaHoldCopies) hold_copies;
  decltype(&FakeCudaContexts) contexts;
  decltype(&FakeCudaContextErrors) context_errors;

 private:
  template <typename Function>
  static void Find(void* library, const char* name, Function* function) {
    *function = reinterpret_cast<Function>(dlsym(library, name));
    RAVEN_CHECK(*function != nullptr);
  }
};

}  // namespace ravenstore::device
