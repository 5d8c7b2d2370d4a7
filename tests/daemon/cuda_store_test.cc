// The store end to end on the CUDA backend: a real daemon and the real client library, on the fake
// driver in CI; on a GPU with RAVENSTORE_TEST_ON_GPU=1. Device memory is reached through the driver
// alone, as a program's kernels would.
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "client/client.h"
#include "client/ctl/session.h"
#include "client/regions.h"
#include "core/check.h"
#include "device/cuda_driver.h"
#include "device/device.h"
#include "ipc/clock.h"
#include "tests/daemon/cluster_fixture.h"
#include "tests/daemon/daemon_process.h"
#include "tests/daemon/stats_of.h"
#include "tests/ipc/child.h"
#include "tests/ipc/short_directory.h"
#include "tests/timing/timing.h"

namespace ravenstore::daemon {
namespace {

using std::chrono::seconds;
using transport::FreeAddress;

constexpr uint64_t kBytes = MiB(3) + 512;

// Chosen before anything opens a driver: the daemon inherits the environment.
class Driver {
 public:
  Driver() {
    if (!real()) {
      const char* fake = std::getenv("RAVENSTORE_FAKE_LIBCUDA");
      RAVEN_CHECK(fake != nullptr);
      setenv("RAVENSTORE_LIBCUDA", fake, 1);
      setenv("RAVENSTORE_FAKE_CUDA_MEMORY", std::to_string(GiB(8)).c_str(), 1);
    }
    table_ = device::CudaDriver::Load(device::CudaDriver::DefaultLibrary()).value();
    Must(table_->cuInit(0));
    Must(table_->cuDeviceGetCount(&devices_));
  }

  static bool real() { return std::getenv("RAVENSTORE_TEST_ON_GPU") != nullptr; }
  int devices() const { return devices_; }
  const device::CudaDriver& operator*() const { return *table_; }
  const device::CudaDriver* operator->() const { return table_.get(); }
  static void Must(CUresult result) { RAVEN_CHECK(result == CUDA_SUCCESS); }

 private:
  std::shared_ptr<const device::CudaDriver> table_;
  int devices_ = 0;
};

// A stream of one device, and copies on it between the program's memory and the device's.
class Gpu {
 public:
  Gpu(const Driver& driver, int ordinal) : driver_(driver), ordinal_(ordinal) {
    CUcontext context = nullptr;
    Driver::Must(driver_->cuDevicePrimaryCtxRetain(&context, ordinal_));
    Use();
    Driver::Must(driver_->cuStreamCreate(&stream_, CU_STREAM_NON_BLOCKING));
  }
  ~Gpu() {
    Use();
    Driver::Must(driver_->cuStreamSynchronize(stream_));
    Driver::Must(driver_->cuStreamDestroy(stream_));
    Driver::Must(driver_->cuDevicePrimaryCtxRelease(ordinal_));
  }
  Gpu(const Gpu&) = delete;
  Gpu& operator=(const Gpu&) = delete;

  Stream stream() const { return stream_; }
  void CopyAsync(void* to, const void* from, uint64_t bytes) {
    Use();
    Driver::Must(driver_->cuMemcpyAsync(reinterpret_cast<CUdeviceptr>(to),
                                        reinterpret_cast<CUdeviceptr>(from), bytes, stream_));
  }
  // Every word depends on the seed and its place.
  void Fill(void* data, uint64_t seed) {
    std::vector<uint64_t> words(kBytes / 8);
    for (uint64_t i = 0; i < words.size(); ++i) words[i] = seed * 0x9e3779b97f4a7c15u + i;
    Copy(data, words.data());
  }
  bool Holds(const void* data, uint64_t seed) {
    std::vector<uint64_t> words(kBytes / 8);
    Copy(words.data(), data);
    for (uint64_t i = 0; i < words.size(); ++i) {
      if (words[i] != seed * 0x9e3779b97f4a7c15u + i) return false;
    }
    return true;
  }

 private:
  void Use() {
    CUcontext context = nullptr;
    Driver::Must(driver_->cuDevicePrimaryCtxRetain(&context, ordinal_));
    Driver::Must(driver_->cuCtxSetCurrent(context));
    Driver::Must(driver_->cuDevicePrimaryCtxRelease(ordinal_));
  }
  void Copy(void* to, const void* from) {
    Use();
    Driver::Must(driver_->cuMemcpyAsync(reinterpret_cast<CUdeviceptr>(to),
                                        reinterpret_cast<CUdeviceptr>(from), kBytes, stream_));
    Driver::Must(driver_->cuStreamSynchronize(stream_));
  }

  const Driver& driver_;
  const int ordinal_;
  CUstream stream_ = nullptr;
};

Driver& driver() {
  static Driver driver;
  return driver;
}

bool HasGpu() {
  if (Driver::real() && !device::CudaDriver::Load(device::CudaDriver::DefaultLibrary()).ok())
    return false;
  driver();
  return true;
}

class CudaStoreTest : public testing::Test {
 protected:
  void SetUp() override {
    if (!HasGpu()) GTEST_SKIP() << "no GPU here";
  }

  static Store Connect(const DaemonProcess& daemon, uint64_t device_budget) {
    return Store::connect(
        {.socket = daemon.socket(), .name = "cuda_store_test", .device_budget = device_budget});
  }
  static std::vector<std::string> Flags() { return {}; }
};

TEST_F(CudaStoreTest, BytesSurviveEvictionAndReturn) {
  DaemonProcess daemon(Flags(), "cuda");
  Store store = Connect(daemon, MiB(32));
  EXPECT_EQ(store.backend(), "cuda");
  Gpu gpu(driver(), 0);
  std::vector<Tensor> tensors;
  for (uint64_t i = 0; i < 24; ++i) {
    tensors.push_back(store.create(kBytes));
    gpu.Fill(tensors[i].data(), i);
    store.put(tensors[i], gpu.stream(), {.order = -static_cast<int64_t>(i)});
  }
  for (uint64_t i = 24; i-- > 0;) {
    const void* data = store.get(tensors[i], gpu.stream(), {.access = Access::kReadOnly});
    EXPECT_TRUE(gpu.Holds(data, i)) << "tensor " << i;
    store.put(tensors[i], gpu.stream(), {.not_needed = true});
    store.free(std::move(tensors[i]), gpu.stream());
  }
  store.check(gpu.stream());
  EXPECT_GT(store.stats().bytes_out, 0u);
  EXPECT_GT(store.stats().bytes_in, 0u);
}

// Mappings of device memory in this process, by the fake driver.
size_t MappedHere() {
  std::ifstream maps("/proc/self/maps");
  size_t mapped = 0;
  for (std::string line; std::getline(maps, line);)
    mapped += line.find("memfd:fakecuda") != std::string::npos;
  return mapped;
}

TEST_F(CudaStoreTest, ASetThatIsNotUsedIsMappedNowhere) {
  DaemonProcess daemon(Flags(), "cuda");
  Store reader = Connect(daemon, MiB(64));
  Gpu gpu(driver(), 0);
  for (uint64_t seed = 1; seed <= 3; ++seed) {
    Store publisher =
        Store::connect({.socket = daemon.socket(), .name = "publisher", .fixed_addresses = true});
    Tensor tensor = publisher.create(kBytes);
    gpu.Fill(tensor.data(), seed);
    publisher.put(tensor, gpu.stream());
    publisher.seal("weights");
    NamedSet set = NamedSet::open(reader, "weights");
    set.use();
    EXPECT_TRUE(gpu.Holds(set.part(0).address, seed));
    set.end_use();
    if (!Driver::real()) {
      EXPECT_EQ(MappedHere(), 0u);
    }
  }
}

TEST_F(CudaStoreTest, ATensorIsHadOnAnotherDevice) {
  if (driver().devices() < 2) GTEST_SKIP() << "this machine has one GPU";
  DaemonProcess daemon(Flags(), "cuda");
  Store store = Connect(daemon, MiB(32));
  Gpu first(driver(), 0);
  Gpu second(driver(), 1);
  Tensor tensor = store.create(kBytes, {.device = 0});
  first.Fill(tensor.data(), 7);
  store.put(tensor, first.stream());
  void* there = store.get(tensor, second.stream(), {.device = 1});
  EXPECT_EQ(tensor.device(), 1);
  EXPECT_TRUE(second.Holds(there, 7));
  second.Fill(there, 8);
  store.put(tensor, second.stream());
  EXPECT_TRUE(first.Holds(store.get(tensor, first.stream(), {.device = 0}), 8));
}

TEST_F(CudaStoreTest, AdoptAndGetIntoCopy) {
  DaemonProcess daemon(Flags(), "cuda");
  Store store = Connect(daemon, MiB(32));
  Gpu gpu(driver(), 0);
  Tensor mine = store.create(kBytes);
  gpu.Fill(mine.data(), 3);
  Tensor copy = store.adopt(mine.data(), kBytes, gpu.stream());
  gpu.Fill(mine.data(), 4);
  store.put(copy, gpu.stream());
  store.get_into(copy, mine.data(), gpu.stream());
  EXPECT_TRUE(gpu.Holds(mine.data(), 3));
}

TEST_F(CudaStoreTest, ARegionThatSleepsHasNoDeviceMemoryAndWakesInOrderWithItsBytes) {
  DaemonProcess daemon(Flags(), "cuda");
  Gpu gpu(driver(), 0);
  client::Region region(
      {.socket = daemon.socket(), .name = "weights", .device_budget = 16 * kBytes});
  constexpr int kAllocations = 8;
  std::vector<void*> addresses;
  client::Region::Enter(&region);
  for (int i = 0; i < kAllocations; ++i) {
    void* const address = client::Region::AllocateInCurrent(kBytes, 0);
    ASSERT_NE(address, nullptr) << ravenstore_last_error();
    gpu.Fill(address, i);
    addresses.push_back(address);
  }
  client::Region::Enter(nullptr);
  for (int cycle = 0; cycle < 5; ++cycle) {
    EXPECT_GE(region.Sleep({}), kAllocations * kBytes);
    if (!driver().real()) {
      EXPECT_EQ(MappedHere(), 0u);
    }
    region.Wake({.waits = false, .in_order = true});
    for (int i = 0; i < kAllocations; ++i) {
      client::Region::Await(addresses[i], gpu.stream());
      EXPECT_TRUE(gpu.Holds(addresses[i], i)) << "allocation " << i << ", cycle " << cycle;
    }
  }
  for (void* const address : addresses) EXPECT_TRUE(client::Region::Free(address));
}

TEST_F(CudaStoreTest, AKilledClientGivesItsDeviceMemoryBack) {
  if (driver().real()) GTEST_SKIP() << "a real driver does not survive a fork";
#ifdef __SANITIZE_THREAD__
  GTEST_SKIP() << "ThreadSanitizer knows no threads in a child of a process with threads";
#endif
  DaemonProcess daemon(Flags(), "cuda");
  ipc::Child child([&] {
    Store store = Connect(daemon, MiB(32));
    const Tensor tensor = store.create(MiB(16));
    raise(SIGKILL);
    return 0;
  });
  EXPECT_EQ(child.Wait(), -SIGKILL);
  EXPECT_TRUE(Eventually([&] { return StatsOf(daemon).tiers(0).held() == 0; }));
}

// An unmap of this process that the driver holds up.
std::atomic<bool> unmap_is_held{false};
std::atomic<bool> unmap_goes_on{false};
void HoldUnmap() {
  unmap_is_held = true;
  unmap_is_held.notify_all();
  unmap_goes_on.wait(false);
}

TEST_F(CudaStoreTest, TheDaemonsEndIsSeenWhileTheDriverHoldsUpAnUnmap) {
  if (Driver::real()) GTEST_SKIP() << "a GPU's driver cannot be held up";
  DaemonProcess daemon(Flags(), "cuda");
  Store store = Connect(daemon, MiB(32));
  Gpu gpu(driver(), 0);
  Tensor tensor = store.create(kBytes);
  void* const fake = dlopen(std::getenv("RAVENSTORE_LIBCUDA"), RTLD_NOW | RTLD_NOLOAD);
  const auto after_unmap =
      reinterpret_cast<void (*)(void (*)())>(dlsym(fake, "FakeCudaAfterUnmap"));
  ASSERT_NE(after_unmap, nullptr);
  after_unmap(HoldUnmap);
  store.free(std::move(tensor), gpu.stream());
  store.trim();
  unmap_is_held.wait(false);
  daemon.Kill(SIGKILL);
  EXPECT_TRUE(Eventually([&] {
    try {
      store.check(gpu.stream());
      return false;
    } catch (const Lost&) {
      return true;
    }
  }));
  unmap_goes_on = true;
  unmap_goes_on.notify_all();
}

// For as long as this lives, and inherited by daemons that start meanwhile.
class Variable {
 public:
  Variable(const char* name, const char* value) : name_(name) { setenv(name, value, 1); }
  ~Variable() { unsetenv(name_); }
  Variable(const Variable&) = delete;
  Variable& operator=(const Variable&) = delete;

 private:
  const char* const name_;
};

// One GPU shown as two devices: a user of the first, most of whose tensors lie in idle memory of
// the second, as on a machine with two.
class PartsTest : public CudaStoreTest {
 protected:
  void SetUp() override {
    CudaStoreTest::SetUp();
#ifdef __SANITIZE_THREAD__
    GTEST_SKIP() << "under ThreadSanitizer copies on the device are no faster than the link";
#endif
  }
  static constexpr uint64_t kTensors = 24;
  static constexpr uint64_t kDevice = MiB(128);  // that the store has of each
  // Of the 40 MiB that do not fit the first device. With an owner's 32 tensors it does not fit.
  static constexpr uint64_t kHarvested = MiB(32);

  std::vector<std::string> FlagsWithHarvest() {
    const std::string path = directory_ / "config";
    const uint64_t total = device::OpenCudaDevices().value().front()->info().total.count();
    std::ofstream(path) << "[limits]\ndevice_reserve = " << total - kDevice
                        << "\n[harvest]\nsize = \"96MiB\"\nreserve = \"256MiB\"\nsample_ms = 10\n"
                           "rise_s = 0\nstep = \"8MiB\"\n";
    return {"--pool-size", "128MiB", "--config", path};
  }
  static proto::DeviceUse UseOf(const DaemonProcess& daemon, int device) {
    return StatsOf(daemon).devices(device);
  }
  // Makes tensors, and waits until the second device holds more than kHarvested of them. The daemon
  // takes that memory in steps, each after a look at the device. Until then evicted tensors go to
  // the host.
  void Make(const DaemonProcess& daemon, Store& store, Gpu& gpu) {
    for (uint64_t i = 0; i < kTensors; ++i) {
      tensors_.push_back(store.create(kBytes, {.device = 0}));
      gpu.Fill(tensors_[i].data(), i);
      store.put(tensors_[i], gpu.stream());
    }
    ASSERT_TRUE(EventuallyWith([&] { return UseOf(daemon, 1).harvest().used() > kHarvested; },
                               [&] { ExpectAllHold(store, gpu); }, kTestPatience));
  }
  void ExpectAllHold(Store& store, Gpu& gpu) {
    for (uint64_t i = 0; i < tensors_.size(); ++i) {
      EXPECT_TRUE(gpu.Holds(store.get(tensors_[i], gpu.stream()), i)) << "tensor " << i;
      store.put(tensors_[i], gpu.stream());
    }
  }
  static proto::HarvestReturned ReturnAll(const DaemonProcess& daemon) {
    proto::ReturnHarvest wanted;
    wanted.set_device(1);
    wanted.set_bytes(UseOf(daemon, 1).peer_pool());
    wanted.set_within_ns(static_cast<uint64_t>(core::Duration(seconds(60)).count()));
    auto session = client::ctl::Session::Open(daemon.socket(), seconds(30));
    RAVEN_CHECK(session.ok());
    return session->ReturnHarvest(wanted).value();
  }

  const Variable parts_{"RAVENSTORE_TEST_GPU_PARTS", "2"};
  // Of the fake driver: its GPUs, and links to the host that are slower than copies on the device.
  const Variable devices_{"RAVENSTORE_FAKE_CUDA_DEVICES", "1"};
  const Variable link_{"RAVENSTORE_FAKE_CUDA_LINK", "1e9"};
  ipc::ShortDirectory directory_;
  std::vector<Tensor> tensors_;
};

TEST_F(PartsTest, WhatLeavesOnePartLiesInTheOthersIdleMemoryUntilThatIsReturned) {
  DaemonProcess daemon(FlagsWithHarvest(), "cuda");
  ASSERT_GE(StatsOf(daemon).devices_size(), 2);
  Store store = Connect(daemon, MiB(32));
  Gpu gpu(driver(), 0);
  Make(daemon, store, gpu);
  ExpectAllHold(store, gpu);
  const proto::HarvestReturned returned = ReturnAll(daemon);
  EXPECT_GT(returned.bytes(), kHarvested);
  EXPECT_EQ(returned.late(), "");
  ExpectAllHold(store, gpu);
}

TEST_F(PartsTest, AnOwnerOfTheOtherPartHasItsMemory) {
  DaemonProcess daemon(FlagsWithHarvest(), "cuda");
  Store store = Connect(daemon, MiB(32));
  Gpu gpu(driver(), 0);
  Make(daemon, store, gpu);
  const uint64_t before = UseOf(daemon, 1).peer_pool();
  Store owner = Connect(daemon, MiB(128));
  std::vector<Tensor> own;
  for (uint64_t i = 0; i < 32; ++i) {
    own.push_back(owner.create(kBytes, {.device = 1}));
    gpu.Fill(own[i].data(), 100 + i);
  }
  EXPECT_GE(UseOf(daemon, 1).store(), 32 * kBytes);
  EXPECT_LE(UseOf(daemon, 1).store() + UseOf(daemon, 1).peer_pool(), kDevice);
  EXPECT_LT(UseOf(daemon, 1).peer_pool(), before);
  ExpectAllHold(store, gpu);
  for (uint64_t i = 0; i < own.size(); ++i) EXPECT_TRUE(gpu.Holds(own[i].data(), 100 + i)) << i;
}

// Two nodes, of which one lends its main memory and needs no GPU.
class NodesTest : public ClusterFixture {
 protected:
  void SetUp() override {
    if (!HasGpu()) GTEST_SKIP() << "no GPU here";
  }
};

TEST_F(NodesTest, WhatFindsNoRoomHereLiesOnAnotherNodeAndComesBackToTheGpu) {
  constexpr uint64_t kTensors = 64;  // 192 MiB, of which 96 fit here
  const std::string there = FreeAddress();
  const auto lender = Lender("b", there);
  const DaemonProcess home(
      {"--config", Configure("a", FreeAddress(),
                             {{"size", Quoted("256MiB")}, {"peers", List({"b=" + there})}})},
      "cuda");
  ASSERT_TRUE(Eventually([&] { return Reachable(home) >= core::MiB(128); }));
  Store store = Store::connect({.socket = home.socket(), .device_budget = MiB(32)});
  Gpu gpu(driver(), 0);
  std::vector<Tensor> tensors;
  for (uint64_t i = 0; i < kTensors; ++i) {
    tensors.push_back(store.create(kBytes));
    gpu.Fill(tensors[i].data(), i);
    store.put(tensors[i], gpu.stream());
  }
  for (int round = 0; round < 2; ++round) {
    for (uint64_t i = 0; i < kTensors; ++i) {
      EXPECT_TRUE(gpu.Holds(store.get(tensors[i], gpu.stream()), i)) << "tensor " << i;
      store.put(tensors[i], gpu.stream());
    }
  }
  // What is shown is as old as a second.
  EXPECT_TRUE(Eventually([&] { return StatsOf(home).cluster().held() >= MiB(64); }));
}

// The copies run on a stream that no call names, as PyTorch's non_blocking copies do.
TEST_F(CudaStoreTest, APinnedBlockIsUsedAgainOnlyOnceTheCopiesFromItAreDone) {
  constexpr uint64_t kBlock = MiB(64);
  constexpr int kCopies = 16;
  DaemonProcess daemon({"--pool-size", "128MiB"}, "cuda");
  Store store = Connect(daemon, MiB(256));
  Store second = Connect(daemon, MiB(256));
  Gpu gpu(driver(), 0);
  const Tensor tensor = store.create(kBlock);
  PinnedBlock block = store.pinned(kBlock);
  std::memset(block.data(), 1, kBlock);
  for (int i = 0; i < kCopies; ++i) gpu.CopyAsync(tensor.data(), block.data(), kBlock);
  store.free(std::move(block));
  // There is room for one: it is the same memory.
  const PinnedBlock again = second.pinned(kBlock);
  std::memset(again.data(), 2, kBlock);
  std::vector<char> bytes(kBlock);
  gpu.CopyAsync(bytes.data(), tensor.data(), kBlock);
  Driver::Must(driver()->cuStreamSynchronize(static_cast<CUstream>(gpu.stream())));
  EXPECT_EQ(bytes, std::vector<char>(kBlock, 1));
}

}  // namespace
}  // namespace ravenstore::daemon
