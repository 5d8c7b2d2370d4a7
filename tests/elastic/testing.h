// The elastic engine over the fake driver: a device, a context, and copies that play the kernels.
#pragma once

#include <cuda.h>
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <thread>
#include <vector>

#include "core/check.h"
#include "core/types.h"
#include "elastic/driver.h"
#include "elastic/engine.h"
#include "tests/timing/timing.h"

namespace ravenstore::elastic {

inline void* FakeFunction(const char* symbol) {
  static void* library = ::dlopen(std::getenv("RAVENSTORE_FAKE_LIBCUDA"), RTLD_NOW | RTLD_LOCAL);
  RAVEN_CHECK(library != nullptr);
  return ::dlsym(library, symbol);
}

template <typename Function>
Function* Fake(const char* symbol) {
  auto* function = reinterpret_cast<Function*>(FakeFunction(symbol));
  RAVEN_CHECK(function != nullptr);
  return function;
}

// The thread has the fake device's primary context current while it lives.
class FakeContext {
 public:
  FakeContext() {
    RAVEN_CHECK(Fake<decltype(cuInit)>("cuInit")(0) == CUDA_SUCCESS);
    RAVEN_CHECK(Fake<decltype(cuDevicePrimaryCtxRetain)>("cuDevicePrimaryCtxRetain")(
                    &context_, 0) == CUDA_SUCCESS);
    MakeCurrent();
  }
  void MakeCurrent() const { Fake<decltype(cuCtxSetCurrent)>("cuCtxSetCurrent")(context_); }

 private:
  CUcontext context_ = nullptr;
};

class EngineTest : public testing::Test {
 protected:
  static constexpr core::Bytes kPart = core::MiB(4);

  void Open(core::Bytes device, core::Bytes host, core::Bytes part = kPart) {
    EngineOptions options;
    options.part = part;
    options.on_device.most = device;
    options.on_host.most = host;
    options.limit = limit_;
    options.maps_away = maps_away_;
    options.patience = patience_;
    options.log = [this](const char* text) { said_ += text, said_is_set_ = true; };
    auto engine = Engine::Create(options, driver_);
    ASSERT_TRUE(engine.ok()) << core::Describe(engine.error());
    engine_ = std::move(*engine);
  }
  CUstream MakeStream() {
    CUstream stream = nullptr;
    RAVEN_CHECK(driver_.stream_create(&stream, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
    return stream;
  }
  CUdeviceptr Allocate(core::Bytes size, CUstream stream = nullptr, bool ordered = true) {
    const auto address = engine_->Allocate(size, stream, ordered);
    EXPECT_TRUE(address.ok()) << core::Describe(address.error());
    return address.ok() ? *address : 0;
  }
  // Copies between the host's memory and the range, as a kernel that names the range.
  void Copy(CUdeviceptr to, CUdeviceptr from, core::Bytes size, CUstream stream,
            uint64_t identity = 1) {
    const CUdeviceptr addresses[] = {to, from};
    Engine::Submission* submission = engine_->Begin({identity, stream, addresses, false});
    const bool done = driver_.copy_async(to, from, size.count(), stream) == CUDA_SUCCESS;
    engine_->End(submission, done);
    EXPECT_TRUE(done);
  }
  // A kernel that has the ranges as arguments and does nothing.
  void RunEmptyKernel(const std::vector<CUdeviceptr>& ranges, CUstream stream, uint64_t identity) {
    static const CUfunction kernel = [] {
      CUmodule module = nullptr;
      CUfunction function = nullptr;
      Fake<decltype(cuModuleLoadData)>("cuModuleLoadData")(&module, "empty");
      Fake<decltype(cuModuleGetFunction)>("cuModuleGetFunction")(&function, module, "empty");
      return function;
    }();
    Engine::Submission* submission = engine_->Begin({identity, stream, ranges, false});
    const bool done = Fake<decltype(cuLaunchKernel)>("cuLaunchKernel")(
                          kernel, 1, 1, 1, 1, 1, 1, 0, stream, nullptr, nullptr) == CUDA_SUCCESS;
    engine_->End(submission, done);
    EXPECT_TRUE(done);
  }
  static std::vector<uint64_t> Pattern(uint64_t seed, core::Bytes size) {
    std::vector<uint64_t> words(size.count() / sizeof(uint64_t));
    for (size_t i = 0; i < words.size(); ++i) words[i] = (seed + i) * 0x9e3779b97f4a7c15;
    return words;
  }
  static CUdeviceptr AddressOf(const std::vector<uint64_t>& words) {
    return reinterpret_cast<CUdeviceptr>(words.data());
  }
  void Write(CUdeviceptr to, uint64_t seed, core::Bytes size, CUstream stream = nullptr) {
    const auto words = Pattern(seed, size);
    Copy(to, AddressOf(words), size, stream);
    Synchronize(stream);  // the copy is asynchronous, and the words go
  }
  // How many words differ from what was written.
  size_t Wrong(CUdeviceptr from, uint64_t seed, core::Bytes size, CUstream stream = nullptr) {
    std::vector<uint64_t> words(size.count() / sizeof(uint64_t));
    Copy(AddressOf(words), from, size, stream, 2);
    Synchronize(stream);
    const auto expected = Pattern(seed, size);
    size_t wrong = 0;
    for (size_t i = 0; i < words.size(); ++i) wrong += words[i] != expected[i] ? 1 : 0;
    return wrong;
  }
  // By a call that is not reported to the engine.
  bool CanReach(CUdeviceptr address) {
    static uint64_t word;
    const auto to = reinterpret_cast<CUdeviceptr>(&word);
    const bool reached = driver_.copy_async(to, address, sizeof(word), nullptr) == CUDA_SUCCESS;
    Synchronize(nullptr);
    return reached;
  }
  static void Synchronize(CUstream stream) {
    Fake<decltype(cuStreamSynchronize)>("cuStreamSynchronize")(stream);
  }
  FakeContext context_;
  Driver driver_ = *LoadDriver(&FakeFunction);
  std::function<core::Bytes()> limit_;
  bool maps_away_ = false;
  core::Duration patience_ = EngineOptions{}.patience;
  std::unique_ptr<Engine> engine_;
  std::string said_;  // by any thread
  std::atomic<bool> said_is_set_{false};
};

}  // namespace ravenstore::elastic
