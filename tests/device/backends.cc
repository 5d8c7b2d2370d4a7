#include "tests/device/backends.h"

#include <gtest/gtest.h>
#include <stdio.h>
#include <stdlib.h>

#include <atomic>
#include <string>

#include "device/host_stream.h"
#include "device/parts.h"

namespace ravenstore::device {
namespace {

class HostBackend : public TestBackend {
 public:
  explicit HostBackend(bool parts) {
    HostOptions options;
    options.count = 2;
    options.total = core::MiB(parts ? 512 : 256);
    options.fail_copy = [this](uint64_t) { return fail_copy_.exchange(false); };
    options.fail_create = [this](uint64_t) { return fail_create_.exchange(false); };
    devices_ = OpenHostDevices(options);
    if (parts) devices_ = FirstInTwo(devices_);
  }

  const Devices& devices() const override { return devices_; }
  StreamHandle NewStream(size_t) override { return new HostStream; }
  void EndStream(StreamHandle stream) override { delete static_cast<HostStream*>(stream); }
  void BeginCapture(StreamHandle stream) override {
    static_cast<HostStream*>(stream)->set_capturing(true);
  }
  void EndCapture(StreamHandle stream) override {
    static_cast<HostStream*>(stream)->set_capturing(false);
  }
  bool FailNextCopy() override { return fail_copy_ = true; }
  bool FailNextCreate() override { return fail_create_ = true; }

 private:
  std::atomic<bool> fail_copy_{false};
  std::atomic<bool> fail_create_{false};
  Devices devices_;
};

}  // namespace

Devices FirstInTwo(const Devices& devices) {
  return InParts({devices.front()}, 2);
}

std::unique_ptr<TestBackend> OpenBackend(const std::string& name, std::string* why_not) {
  const bool parts = name.ends_with("_parts");
  if (name.starts_with("host")) return std::make_unique<HostBackend>(parts);
  if (name.starts_with("cuda")) return OpenCudaBackend("libcuda.so.1", parts, why_not);
  const char* library = getenv("RAVENSTORE_FAKE_LIBCUDA");
  if (library == nullptr) {
    *why_not = "RAVENSTORE_FAKE_LIBCUDA names no fake driver";
    return nullptr;
  }
  return OpenCudaBackend(library, parts, why_not);
}

void SkipAbsentBackends() {
  std::string filter = testing::GTEST_FLAG(filter);
  for (const std::string backend : {"host", "fake", "cuda"}) {
    std::string why_not;
    if (OpenBackend(backend, &why_not) != nullptr) continue;
    printf("SKIPPED: backend %s: %s\n", backend.c_str(), why_not.c_str());
    filter += (filter.find('-') == std::string::npos ? "-" : ":");
    filter += "*/" + backend + ":*/" + backend + "_*";
  }
  testing::GTEST_FLAG(filter) = filter;
}

}  // namespace ravenstore::device
