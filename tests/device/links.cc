#include "tests/device/links.h"

#include <gtest/gtest.h>
#include <string.h>
#include <unistd.h>

#include <atomic>
#include <functional>
#include <utility>

#include "core/check.h"
#include "device/file_medium.h"
#include "device/medium_channel.h"
#include "tests/device/backends.h"
#include "tests/device/fake_medium.h"
#include "tests/device/testing.h"

namespace ravenstore::device {
namespace {

// Small, so that a copy takes many.
constexpr MediumChannelOptions kOptions{.chunk = core::KiB(256), .depth = 3};

// Pinned memory that any device copies from and to.
class HostPlace : public Place {
 public:
  explicit HostPlace(Device& device) : range_(device.ReserveHostVaRange(kBytes, -1).value()) {
    RAVEN_CHECK(range_->Create(Bytes{}, kBytes).ok());
  }
  Target TargetAt(Bytes offset) override { return range_->base() + offset.count(); }
  Source SourceAt(Bytes offset) override { return range_->base() + offset.count(); }
  void Write(Bytes offset, const std::vector<uint8_t>& bytes) override {
    memcpy(range_->base() + offset.count(), bytes.data(), bytes.size());
  }
  std::vector<uint8_t> Read(Bytes offset, Bytes bytes) override {
    std::vector<uint8_t> read(bytes.count());
    memcpy(read.data(), range_->base() + offset.count(), read.size());
    return read;
  }

 private:
  const std::unique_ptr<VaRange> range_;
};

// Memory of a device, which the test reaches by a stream of its own.
class DevicePlace : public Place {
 public:
  explicit DevicePlace(TestBackend& backend, size_t index = 0)
      : backend_(backend),
        index_(index),
        range_(backend.devices()[index]->ReserveVaRange(kBytes).value()) {
    RAVEN_CHECK(range_->Create(Bytes{}, kBytes).ok());
  }
  Target TargetAt(Bytes offset) override { return range_->base() + offset.count(); }
  Source SourceAt(Bytes offset) override { return range_->base() + offset.count(); }
  void Write(Bytes offset, const std::vector<uint8_t>& bytes) override {
    CopyOnStream(range_->base() + offset.count(), bytes.data(), Bytes(bytes.size()));
  }
  std::vector<uint8_t> Read(Bytes offset, Bytes bytes) override {
    std::vector<uint8_t> read(bytes.count());
    CopyOnStream(read.data(), range_->base() + offset.count(), bytes);
    return read;
  }

 private:
  void CopyOnStream(void* to, const void* from, Bytes bytes) {
    const StreamHandle handle = backend_.NewStream(index_);
    {
      const auto stream = backend_.devices()[index_]->WrapStream(handle).value();
      RAVEN_CHECK(stream->Copy(to, from, bytes).ok());
      RAVEN_CHECK(stream->Synchronize().ok());
    }
    backend_.EndStream(handle);
  }

  TestBackend& backend_;
  const size_t index_;
  const std::unique_ptr<VaRange> range_;
};

class MediumPlace : public Place {
 public:
  // Makes transfers fail from now on.
  virtual void Break() = 0;
};

class FakePlace : public MediumPlace {
 public:
  FakePlace() : medium_(kBytes) {}
  Target TargetAt(Bytes offset) override { return {medium_, offset}; }
  Source SourceAt(Bytes offset) override { return {medium_, offset}; }
  void Write(Bytes offset, const std::vector<uint8_t>& bytes) override {
    memcpy(medium_.bytes() + offset.count(), bytes.data(), bytes.size());
  }
  std::vector<uint8_t> Read(Bytes offset, Bytes bytes) override {
    std::vector<uint8_t> read(bytes.count());
    memcpy(read.data(), medium_.bytes() + offset.count(), read.size());
    return read;
  }
  void Break() override {
    medium_.set_fault([](uint64_t) { return FakeMedium::Fault::kFallsShort; });
  }

 private:
  FakeMedium medium_;
};

class FilePlace : public MediumPlace {
 public:
  FilePlace() : file_(FileMedium::Create(testing::TempDir(), kBytes, {}).value()) {}
  Target TargetAt(Bytes offset) override { return {*file_, offset}; }
  Source SourceAt(Bytes offset) override { return {*file_, offset}; }
  void Write(Bytes offset, const std::vector<uint8_t>& bytes) override {
    Await([&](Medium::Completion completion) {
      file_->Write(offset, reinterpret_cast<const std::byte*>(bytes.data()), Bytes(bytes.size()),
                   std::move(completion));
    });
  }
  std::vector<uint8_t> Read(Bytes offset, Bytes bytes) override {
    std::vector<uint8_t> read(bytes.count());
    Await([&](Medium::Completion completion) {
      file_->Read(offset, reinterpret_cast<std::byte*>(read.data()), bytes, std::move(completion));
    });
    return read;
  }
  void Break() override {
    const ipc::UniqueFd file = file_->Duplicate().value();
    RAVEN_CHECK(ftruncate(file.get(), 0) == 0);
  }

 private:
  static void Await(const std::function<void(Medium::Completion)>& begin) {
    std::atomic<bool> over{false};
    begin([&](const Result<Bytes>& moved) {
      RAVEN_CHECK(moved.ok());
      over.store(true, std::memory_order_release);
    });
    RAVEN_CHECK(Eventually([&] { return over.load(std::memory_order_acquire); }));
  }

  const std::unique_ptr<FileMedium> file_;
};

class MemoryLink : public TestLink {
 public:
  explicit MemoryLink(std::unique_ptr<TestBackend> backend)
      : backend_(std::move(backend)), near_(*backend_), far_(*backend_->devices()[0]) {}
  Place& near() override { return near_; }
  Place& far() override { return far_; }
  std::unique_ptr<Channel> Open(bool forth) override {
    const Direction direction = forth ? Direction::kDeviceToHost : Direction::kHostToDevice;
    return backend_->devices()[0]->OpenChannel(direction).value();
  }
  bool FailNextCopy() override { return backend_->FailNextCopy(); }

 private:
  const std::unique_ptr<TestBackend> backend_;
  DevicePlace near_;
  HostPlace far_;
};

MediumAccess AccessOf(bool forth) {
  return forth ? MediumAccess::kWrite : MediumAccess::kRead;
}

class StagedLink : public TestLink {
 public:
  StagedLink(std::unique_ptr<TestBackend> backend, std::unique_ptr<MediumPlace> far)
      : backend_(std::move(backend)), near_(*backend_), far_(std::move(far)) {}
  Place& near() override { return near_; }
  Place& far() override { return *far_; }
  std::unique_ptr<Channel> Open(bool forth) override {
    return OpenMediumChannel(*backend_->devices()[0], AccessOf(forth), kOptions).value();
  }
  bool FailNextCopy() override { return backend_->FailNextCopy(); }

 private:
  const std::unique_ptr<TestBackend> backend_;
  DevicePlace near_;
  const std::unique_ptr<MediumPlace> far_;
};

class TwoDevicesLink : public TestLink {
 public:
  enum class By : uint8_t { kHost, kPeerAccess };
  TwoDevicesLink(std::unique_ptr<TestBackend> backend, By by)
      : backend_(std::move(backend)), by_(by), near_(*backend_, 0), far_(*backend_, 1) {}
  Place& near() override { return near_; }
  Place& far() override { return far_; }
  std::unique_ptr<Channel> Open(bool forth) override {
    Device& near = *backend_->devices()[0];
    Device& far = *backend_->devices()[1];
    if (by_ == By::kPeerAccess) {
      RAVEN_CHECK(near.Reaches(far) && far.Reaches(near));
      return (forth ? near : far).OpenPeerChannel().value();
    }
    return OpenStagedChannel(forth ? near : far, forth ? far : near, kOptions).value();
  }
  bool FailNextCopy() override { return backend_->FailNextCopy(); }

 private:
  const std::unique_ptr<TestBackend> backend_;
  const By by_;
  DevicePlace near_;
  DevicePlace far_;
};

class MediumLink : public TestLink {
 public:
  explicit MediumLink(std::unique_ptr<MediumPlace> far)
      : near_(*OpenHostDevices({}).front()), far_(std::move(far)) {}
  Place& near() override { return near_; }
  Place& far() override { return *far_; }
  std::unique_ptr<Channel> Open(bool forth) override {
    return OpenMediumChannel(AccessOf(forth), kOptions);
  }
  bool FailNextCopy() override {
    far_->Break();
    return true;
  }

 private:
  HostPlace near_;
  const std::unique_ptr<MediumPlace> far_;
};

}  // namespace

std::unique_ptr<TestLink> OpenLink(const std::string& name, std::string* why_not) {
  const size_t split = name.rfind('_');
  const std::string from = name.substr(0, split);
  const std::string to = name.substr(split + 1);
  std::unique_ptr<MediumPlace> medium;
  if (to == "file") medium = std::make_unique<FilePlace>();
  if (to == "medium") medium = std::make_unique<FakePlace>();
  if (from == "memory") return std::make_unique<MediumLink>(std::move(medium));
  auto backend = OpenBackend(from, why_not);
  if (backend == nullptr) return nullptr;
  using By = TwoDevicesLink::By;
  if (to == "device") return std::make_unique<TwoDevicesLink>(std::move(backend), By::kHost);
  if (to == "peer") return std::make_unique<TwoDevicesLink>(std::move(backend), By::kPeerAccess);
  if (medium == nullptr) return std::make_unique<MemoryLink>(std::move(backend));
  return std::make_unique<StagedLink>(std::move(backend), std::move(medium));
}

}  // namespace ravenstore::device
