#include <cuda.h>
#include <dlfcn.h>

#include <utility>

#include "core/check.h"
#include "device/cuda_device.h"
#include "device/cuda_driver.h"
#include "tests/device/backends.h"
#include "tests/fake_cuda/fake_cuda.h"

namespace ravenstore::device {
namespace {

class CudaBackend : public TestBackend {
 public:
  // `parts`: all devices are of the driver's first.
  CudaBackend(void* library, std::shared_ptr<const CudaDriver> driver, Devices devices, bool parts)
      : library_(library), driver_(std::move(driver)), devices_(std::move(devices)), parts_(parts) {
    RAVEN_CHECK(driver_->cuCtxGetCurrent(&before_) == CUDA_SUCCESS);
  }
  ~CudaBackend() override {
    devices_.clear();
    for (size_t i = 0; i < contexts_.size(); ++i) {
      if (contexts_[i] != nullptr) driver_->cuDevicePrimaryCtxRelease(static_cast<CUdevice>(i));
    }
  }

  const Devices& devices() const override { return devices_; }

  StreamHandle NewStream(size_t index) override {
    if (parts_) index = 0;
    contexts_.resize(devices_.size());
    CUcontext& context = contexts_[index];
    if (context == nullptr) {
      RAVEN_CHECK(driver_->cuDevicePrimaryCtxRetain(&context, static_cast<CUdevice>(index)) ==
                  CUDA_SUCCESS);
    }
    CUstream stream = nullptr;
    InContext(context, [&] {
      RAVEN_CHECK(driver_->cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
    });
    return stream;
  }
  void EndStream(StreamHandle stream) override {
    InContextOf(stream, [&] { driver_->cuStreamDestroy(static_cast<CUstream>(stream)); });
  }
  void BeginCapture(StreamHandle stream) override {
    const auto begin = Find<decltype(&cuStreamBeginCapture)>("cuStreamBeginCapture_v2");
    InContextOf(stream, [&] {
      RAVEN_CHECK(begin(static_cast<CUstream>(stream), CU_STREAM_CAPTURE_MODE_GLOBAL) ==
                  CUDA_SUCCESS);
    });
  }
  void EndCapture(StreamHandle stream) override {
    const auto end = Find<decltype(&cuStreamEndCapture)>("cuStreamEndCapture");
    CUgraph graph = nullptr;
    InContextOf(stream,
                [&] { RAVEN_CHECK(end(static_cast<CUstream>(stream), &graph) == CUDA_SUCCESS); });
  }
  bool FailNextCopy() override {
    const auto fail = Find<decltype(&FakeCudaFailCopy)>("FakeCudaFailCopy");
    if (fail == nullptr) return false;
    fail(1);
    return true;
  }
  bool FailNextCreate() override {
    const auto fail = Find<decltype(&FakeCudaFail)>("FakeCudaFail");
    if (fail == nullptr) return false;
    fail("cuMemCreate", 1, CUDA_ERROR_UNKNOWN);
    return true;
  }

 private:
  template <typename Function>
  Function Find(const char* name) const {
    return reinterpret_cast<Function>(dlsym(library_, name));
  }
  // Our library must not depend on what the caller left current, nor change it: tests run with no
  // context current, except here.
  template <typename Act>
  void InContext(CUcontext context, Act act) {
    CUcontext current = nullptr;
    RAVEN_CHECK(driver_->cuCtxGetCurrent(&current) == CUDA_SUCCESS);
    RAVEN_CHECK(current == before_);
    RAVEN_CHECK(driver_->cuCtxSetCurrent(context) == CUDA_SUCCESS);
    act();
    RAVEN_CHECK(driver_->cuCtxSetCurrent(before_) == CUDA_SUCCESS);
  }
  template <typename Act>
  void InContextOf(StreamHandle stream, Act act) {
    CUcontext context = nullptr;
    driver_->cuStreamGetCtx(static_cast<CUstream>(stream), &context);
    InContext(context, act);
  }

  void* const library_;
  const std::shared_ptr<const CudaDriver> driver_;
  CUcontext before_ = nullptr;
  Devices devices_;
  const bool parts_;
  std::vector<CUcontext> contexts_;
};

}  // namespace

std::unique_ptr<TestBackend> OpenCudaBackend(const std::string& library, bool parts,
                                             std::string* why_not) {
  auto driver = CudaDriver::Load(library);
  if (!driver.ok()) {
    *why_not = driver.error().message;
    return nullptr;
  }
  auto devices = OpenCudaDevices(*driver);
  if (!devices.ok()) {
    *why_not = devices.error().message;
    return nullptr;
  }
  return std::make_unique<CudaBackend>(dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL), *driver,
                                       parts ? FirstInTwo(*devices) : *devices, parts);
}

}  // namespace ravenstore::device
