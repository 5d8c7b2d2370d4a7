#include "client/ctl/doctor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "proto/version.h"

namespace ravenstore::client::ctl {
namespace {

using core::Error;
using core::ErrorCode;
using testing::HasSubstr;
using Level = Finding::Level;

constexpr pid_t kDaemonPid = 321;

std::string Limits(const std::string& files, const std::string& locked) {
  return "Limit                     Soft Limit           Hard Limit           Units     \n"
         "Max open files            " +
         files + "                 524288               files     \n" +
         "Max locked memory         " + locked + "            unlimited            bytes     \n";
}

// A machine where all is well until a test plants a fault.
class Machine : public Environment {
 public:
  Machine() {
    daemon.pid = kDaemonPid;
    daemon.welcome.set_daemon_version(proto::kVersion);
    daemon.welcome.set_backend("cuda");
    for (const char* uuid : {"GPU-aaaa", "GPU-bbbb"}) {
      daemon.welcome.add_devices()->set_uuid(uuid);
      gpus.push_back({.uuid = uuid, .name = "H200", .total = core::GiB(139)});
    }
    proto::TierStats* host = daemon.stats.add_tiers();
    host->set_name("host");
    host->set_capacity(core::GiB(64).count());
    files["/proc/driver/nvidia/version"] = "NVRM version: 580";
    files["/proc/self/limits"] = Limits("65536", "unlimited");
    files["/proc/321/limits"] = Limits("65536", "unlimited");
    files["/proc/321/cgroup"] = "0::/system.slice/ravenstored.service\n";
    files["/sys/fs/cgroup/system.slice/ravenstored.service/memory.max"] = "max\n";
    files["/proc/321/status"] = "Name:\travenstored\nNSpid:\t321\nThreads:\t5\n";
  }

  std::optional<std::string> Variable(const std::string& name) override {
    const auto found = variables.find(name);
    return found == variables.end() ? std::nullopt : std::optional(found->second);
  }
  core::Result<std::string> ReadFile(const std::string& path) override {
    const auto found = files.find(path);
    if (found == files.end()) return Error{ErrorCode::kSystem, path + ": no such file"};
    return found->second;
  }
  std::vector<std::string> List(const std::string& directory) override {
    return directories[directory];
  }
  core::Result<core::Bytes> Capacity(const std::string&) override { return shared_memory; }
  core::Result<DaemonView> Daemon() override {
    if (!reachable) return Error{ErrorCode::kUnavailable, "no daemon listens"};
    return daemon;
  }
  core::Result<std::vector<device::DeviceInfo>> Gpus() override {
    if (gpus.empty()) return Error{ErrorCode::kUnavailable, "no driver here"};
    return gpus;
  }
  core::Status TrySealedMemory() override { return sealed_memory; }
  core::Status TryPidfd() override { return pidfd; }
  core::Status TryPeerPidfd() override { return peer_pidfd; }

  // The host backend on a machine without a GPU.
  void Simulate() {
    daemon.welcome.set_backend("host");
    gpus.clear();
    files.erase("/proc/driver/nvidia/version");
  }

  bool reachable = true;
  DaemonView daemon;
  std::vector<device::DeviceInfo> gpus;
  std::map<std::string, std::string> variables;
  std::map<std::string, std::string> files;
  std::map<std::string, std::vector<std::string>> directories;
  core::Bytes shared_memory = core::GiB(8);
  core::Status sealed_memory = core::Ok();
  core::Status pidfd = core::Ok();
  core::Status peer_pidfd = core::Ok();
};

void Expect(const Finding& finding, Level level, const std::string& what) {
  EXPECT_EQ(finding.level, level) << finding.check << ": " << finding.what;
  EXPECT_THAT(finding.what, HasSubstr(what));
  if (finding.level == Level::kOk) {
    EXPECT_EQ(finding.advice, "");
  }
  if (finding.level == Level::kFail) {
    EXPECT_NE(finding.advice, "") << finding.check;
  }
}

TEST(DoctorTest, FindsNothingOnASoundMachine) {
  Machine machine;
  for (const Finding& finding : Examine(machine)) {
    EXPECT_EQ(finding.level, Level::kOk) << finding.check << ": " << finding.what;
  }
  EXPECT_TRUE(Healthy(Examine(machine)));
}

TEST(DoctorTest, FindsNothingOnASoundMachineWithoutAGpu) {
  Machine machine;
  machine.Simulate();
  for (const Finding& finding : Examine(machine)) {
    EXPECT_EQ(finding.level, Level::kOk) << finding.check << ": " << finding.what;
  }
}

TEST(DoctorTest, ADaemonThatDoesNotAnswerIsOneFailure) {
  Machine machine;
  machine.reachable = false;
  const auto findings = Examine(machine);
  Expect(findings.front(), Level::kFail, "no daemon listens");
  EXPECT_FALSE(Healthy(findings));
  for (size_t i = 1; i < findings.size(); ++i) {
    EXPECT_NE(findings[i].level, Level::kFail) << findings[i].check;
  }
}

TEST(DoctorTest, NamesADaemonOfAnotherVersion) {
  Machine machine;
  machine.daemon.welcome.set_daemon_version("0.0.1");
  Expect(CheckDaemon(machine), Level::kWarn, "0.0.1");
}

TEST(DoctorTest, DistinguishesAMissingDriverFromAMissingLibrary) {
  Machine machine;
  machine.gpus.clear();
  Expect(CheckDriver(machine), Level::kFail, "the kernel module is loaded, but");
  machine.files.erase("/proc/driver/nvidia/version");
  Expect(CheckDriver(machine), Level::kWarn, "no driver here");
}

TEST(DoctorTest, NamesDevicesThatAreHiddenHere) {
  Machine machine;
  machine.gpus.pop_back();
  Expect(CheckDevices(machine), Level::kWarn, "1 of the daemon's 2");
  EXPECT_THAT(CheckDevices(machine).advice, HasSubstr("GPU-bbbb"));
  machine.gpus.clear();
  Expect(CheckDevices(machine), Level::kFail, "0 of the daemon's 2");
}

TEST(DoctorTest, ReadsCudaVisibleDevicesAsTheDriverDoes) {
  const std::pair<const char*, Level> cases[] = {
      {"0", Level::kOk},      {"1, 0", Level::kOk},       {"GPU-aaaa", Level::kOk},
      {"GPU-aa", Level::kOk}, {"", Level::kWarn},         {"-1", Level::kWarn},
      {"0,0", Level::kWarn},  {"0,,1", Level::kWarn},     {"NoDevFiles", Level::kWarn},
      {"0,-1", Level::kWarn}, {"GPU-cccc", Level::kWarn}, {"0,GPU-cccc", Level::kWarn},
  };
  for (const auto& [value, level] : cases) {
    Machine machine;
    machine.variables["CUDA_VISIBLE_DEVICES"] = value;
    EXPECT_EQ(CheckVisibleDevices(machine).level, level) << value;
  }
}

TEST(DoctorTest, WarnsOfTooFewHardwareQueues) {
  Machine machine;
  EXPECT_EQ(CheckConnections(machine).level, Level::kOk);
  machine.variables["CUDA_DEVICE_MAX_CONNECTIONS"] = "32";
  EXPECT_EQ(CheckConnections(machine).level, Level::kOk);
  for (const char* few : {"1", "2", "many"}) {
    machine.variables["CUDA_DEVICE_MAX_CONNECTIONS"] = few;
    Expect(CheckConnections(machine), Level::kWarn, "CUDA_DEVICE_MAX_CONNECTIONS");
  }
}

TEST(DoctorTest, NamesMigInstancesThatAreNotVisible) {
  Machine machine;
  machine.directories["/proc/driver/nvidia/capabilities"] = {"gpu0", "gpu1", "mig"};
  machine.directories["/proc/driver/nvidia/capabilities/gpu1/mig"] = {"gi1", "gi2", "monitor"};
  Expect(CheckMig(machine), Level::kWarn, "2 instances");
}

TEST(DoctorTest, TheDaemonMustServeThisShellsMigInstance) {
  Machine machine;
  machine.gpus = {{.uuid = "MIG-1111", .name = "H200 MIG", .total = core::GiB(16)}};
  Expect(CheckMig(machine), Level::kFail, "MIG-1111");
  machine.daemon.welcome.add_devices()->set_uuid("MIG-1111");
  Expect(CheckMig(machine), Level::kOk, "instance");
}

TEST(DoctorTest, DistinguishesARunningMpsFromALeftOver) {
  Machine machine;
  machine.directories["/tmp/nvidia-mps"] = {"control", "nvidia-cuda-mps-control.pid"};
  machine.files["/tmp/nvidia-mps/nvidia-cuda-mps-control.pid"] = "77\n";
  Expect(CheckMps(machine), Level::kWarn, "dead");
  machine.files["/proc/77/comm"] = "bash\n";
  Expect(CheckMps(machine), Level::kWarn, "dead");
  machine.files["/proc/77/comm"] = "nvidia-cuda-mps\n";
  Expect(CheckMps(machine), Level::kWarn, "serves");
}

TEST(DoctorTest, LooksForMpsWhereItsVariablePoints) {
  Machine machine;
  machine.variables["CUDA_MPS_PIPE_DIRECTORY"] = "/run/mps";
  machine.directories["/run/mps"] = {"control"};
  Expect(CheckMps(machine), Level::kWarn, "/run/mps");
}

TEST(DoctorTest, ComparesDescriptorLimitsWithTheNeed) {
  Machine machine;
  machine.files["/proc/321/limits"] = Limits("4096", "unlimited");
  Expect(CheckDescriptors(machine), Level::kWarn, "4096");
  machine.files["/proc/321/limits"] = Limits("256", "unlimited");
  Expect(CheckDescriptors(machine), Level::kFail, "256");
  machine.files["/proc/self/limits"] = Limits("256", "unlimited");
  Expect(CheckDescriptors(machine), Level::kWarn, "this shell may open 256");
  machine.files["/proc/self/limits"] = "nonsense";
  machine.files.erase("/proc/321/limits");
  Expect(CheckDescriptors(machine), Level::kWarn, "cannot be read");
}

TEST(DoctorTest, WarnsOfALockedMemoryLimitOnAGpuOnly) {
  Machine machine;
  machine.files["/proc/321/limits"] = Limits("65536", "8388608");
  Expect(CheckLockedMemory(machine), Level::kWarn, "8.0 MiB");
  machine.Simulate();
  Expect(CheckLockedMemory(machine), Level::kOk, "not needed");
}

TEST(DoctorTest, WarnsOfASmallSharedMemory) {
  Machine machine;
  machine.shared_memory = core::MiB(64);
  Expect(CheckSharedMemory(machine), Level::kWarn, "64.0 MiB");
}

TEST(DoctorTest, FindsTheLeastMemoryLimitAroundTheDaemon) {
  Machine machine;
  machine.files["/sys/fs/cgroup/system.slice/memory.max"] = std::to_string(core::GiB(32).count());
  Expect(CheckCgroupMemory(machine), Level::kFail, "32.0 GiB");
  machine.files["/sys/fs/cgroup/system.slice/memory.max"] = std::to_string(core::GiB(64).count());
  Expect(CheckCgroupMemory(machine), Level::kWarn, "tight");
  machine.files["/sys/fs/cgroup/system.slice/memory.max"] = std::to_string(core::GiB(128).count());
  Expect(CheckCgroupMemory(machine), Level::kOk, "128.0 GiB");
}

TEST(DoctorTest, ReadsTheLimitOfAContainersOwnRootGroup) {
  Machine machine;
  machine.files["/proc/321/cgroup"] = "0::/\n";
  machine.files["/sys/fs/cgroup/memory.max"] = std::to_string(core::GiB(8).count()) + "\n";
  Expect(CheckCgroupMemory(machine), Level::kFail, "8.0 GiB");
}

TEST(DoctorTest, ReadsTheFirstVersionOfControlGroupsToo) {
  Machine machine;
  machine.files["/proc/321/cgroup"] = "4:cpu,memory:/docker/x\n0::/\n";
  machine.files["/sys/fs/cgroup/memory/docker/x/memory.limit_in_bytes"] = "9223372036854771712\n";
  Expect(CheckCgroupMemory(machine), Level::kOk, "unlimited");
  machine.files["/sys/fs/cgroup/memory/docker/memory.limit_in_bytes"] = "1073741824\n";
  Expect(CheckCgroupMemory(machine), Level::kFail, "1.0 GiB");
}

TEST(DoctorTest, SaysWhenTheControlGroupIsOutOfSight) {
  Machine machine;
  machine.files["/proc/321/cgroup"] = "0::/../../system.slice\n";
  Expect(CheckCgroupMemory(machine), Level::kWarn, "cannot be seen");
  machine.files.erase("/proc/321/cgroup");
  Expect(CheckCgroupMemory(machine), Level::kWarn, "cannot be seen");
}

TEST(DoctorTest, NeedsAPidNamespaceTheDaemonCanFollow) {
  Machine machine;
  machine.files["/proc/321/status"] = "Name:\travenstored\nNSpid:\t321\t1\n";
  Expect(CheckPidNamespace(machine), Level::kWarn, "within this one");
  machine.peer_pidfd = Error{ErrorCode::kSystem, "no SO_PEERPIDFD"};
  Expect(CheckPidNamespace(machine), Level::kFail, "within this one");
  machine.daemon.pid = 0;
  Expect(CheckPidNamespace(machine), Level::kFail, "not seen from here");
  machine.peer_pidfd = core::Ok();
  Expect(CheckPidNamespace(machine), Level::kWarn, "not seen from here");
  machine.daemon.pid = kDaemonPid;
  machine.files.erase("/proc/321/status");
  Expect(CheckPidNamespace(machine), Level::kWarn, "cannot be read");
}

TEST(DoctorTest, NeedsPidfdsAndSealedMemory) {
  Machine machine;
  machine.peer_pidfd = Error{ErrorCode::kSystem, "no SO_PEERPIDFD"};
  Expect(CheckPidfd(machine), Level::kOk, "SO_PEERPIDFD");
  machine.pidfd = Error{ErrorCode::kSystem, "no pidfd_open"};
  Expect(CheckPidfd(machine), Level::kFail, "no pidfd_open");
  machine.sealed_memory = Error{ErrorCode::kSystem, "memfd_create: denied"};
  Expect(CheckSealedMemory(machine), Level::kFail, "denied");
}

}  // namespace
}  // namespace ravenstore::client::ctl
