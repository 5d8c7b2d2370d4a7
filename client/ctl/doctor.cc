#include "client/ctl/doctor.h"

#include <algorithm>
#include <set>
#include <sstream>
#include <string_view>
#include <utility>

#include "client/ctl/session.h"
#include "core/size_text.h"
#include "proto/version.h"

namespace ravenstore::client::ctl {
namespace {

using core::Bytes;
using core::ParseNumber;
using core::Result;
using Level = Finding::Level;

constexpr uint64_t kUnlimited = ~uint64_t{0};
// Four descriptors a client and its pages under way, for the thousand clients a daemon is built
// for.
constexpr uint64_t kDaemonDescriptors = 16 * 1024;
constexpr uint64_t kShellDescriptors = 1024;
// Containers get less unless configured otherwise; worker processes of trainers soon need more.
constexpr Bytes kSharedMemoryNeeded = core::MiB(256);
// A daemon needs this for its own tables, in addition to the host pool.
constexpr Bytes kDaemonOwnMemory = core::MiB(512);

Finding Ok(std::string check, std::string what) {
  return {Level::kOk, std::move(check), std::move(what), ""};
}
Finding Warn(std::string check, std::string what, std::string advice) {
  return {Level::kWarn, std::move(check), std::move(what), std::move(advice)};
}
Finding Fail(std::string check, std::string what, std::string advice) {
  return {Level::kFail, std::move(check), std::move(what), std::move(advice)};
}

std::vector<std::string> Split(std::string_view text, char separator) {
  std::vector<std::string> parts;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(separator, begin), text.size());
    parts.emplace_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return parts;
}

std::string Trimmed(std::string_view text) {
  const size_t begin = text.find_first_not_of(" \t\n");
  if (begin == std::string_view::npos) return "";
  return std::string(text.substr(begin, text.find_last_not_of(" \t\n") - begin + 1));
}

std::string ProcFile(pid_t pid, const char* name) {
  return "/proc/" + (pid == 0 ? "self" : std::to_string(pid)) + "/" + name;
}

// The soft limit `name` ("Max open files") of a process; nullopt when it cannot be read.
std::optional<uint64_t> SoftLimit(Environment& environment, pid_t pid, std::string_view name) {
  const Result<std::string> text = environment.ReadFile(ProcFile(pid, "limits"));
  if (!text.ok()) return std::nullopt;
  for (const std::string& line : Split(*text, '\n')) {
    if (!line.starts_with(name)) continue;
    std::istringstream rest(line.substr(name.size()));
    std::string soft;
    rest >> soft;
    return soft == "unlimited" ? kUnlimited : ParseNumber(soft);
  }
  return std::nullopt;
}

std::string LimitText(uint64_t limit) {
  return limit == kUnlimited ? "unlimited" : std::to_string(limit);
}

// The least memory limit of the control groups around a process (pid 0: this one); kUnlimited when
// none is set, nullopt when they cannot be seen.
std::optional<uint64_t> CgroupLimit(Environment& environment, pid_t pid) {
  const Result<std::string> groups = environment.ReadFile(ProcFile(pid, "cgroup"));
  if (!groups.ok()) return std::nullopt;
  std::string base;
  std::string file;
  std::string path;
  for (const std::string& line : Split(*groups, '\n')) {
    const std::vector<std::string> parts = Split(line, ':');
    if (parts.size() < 3) continue;
    const std::vector<std::string> controllers = Split(parts[1], ',');
    if (parts[0] == "0" && base.empty()) {
      base = "/sys/fs/cgroup";
      file = "/memory.max";
      path = parts[2];
    } else if (std::find(controllers.begin(), controllers.end(), "memory") != controllers.end()) {
      base = "/sys/fs/cgroup/memory";
      file = "/memory.limit_in_bytes";
      path = parts[2];
    }
  }
  // ".." leads out of what this control group namespace shows.
  if (base.empty() || path.find("/..") != std::string::npos) return std::nullopt;
  if (path == "/") path.clear();
  uint64_t least = kUnlimited;
  for (;;) {
    const Result<std::string> limit = environment.ReadFile(base + path + file);
    const auto number = limit.ok() ? ParseNumber(Trimmed(*limit)) : std::nullopt;
    // Version 1 writes "no limit" as a number just below 2^63.
    if (number && *number < uint64_t{1} << 62) least = std::min(least, *number);
    if (path.empty()) return least;
    path.resize(path.rfind('/'));
  }
}

bool Simulated(const DaemonView& daemon) {
  return daemon.welcome.backend() == "host";
}

Finding NotChecked(std::string check) {
  return Warn(std::move(check), "not checked until the daemon answers", "");
}

std::string Join(const std::vector<std::string>& parts) {
  std::string text;
  for (const std::string& part : parts) text += (text.empty() ? "" : ", ") + part;
  return text;
}

bool IsUuid(std::string_view entry) {
  return entry.starts_with("GPU-") || entry.starts_with("MIG-");
}

}  // namespace

Finding CheckDaemon(Environment& environment) {
  const Result<DaemonView> daemon = environment.Daemon();
  if (!daemon.ok()) {
    return Fail("daemon", core::Describe(daemon.error()),
                std::string(AdviceAbout(daemon.error().code)));
  }
  const std::string version = daemon->welcome.daemon_version();
  const std::string what = "version " + version + ", backend " + daemon->welcome.backend() +
                           (Simulated(*daemon) ? " (simulated device)" : "") +
                           ", devices: " + std::to_string(daemon->welcome.devices_size());
  if (version != proto::kVersion) {
    return Warn("daemon", what + "; ravenctl is version " + proto::kVersion,
                "install the same version of both");
  }
  return Ok("daemon", what);
}

Finding CheckDriver(Environment& environment) {
  const auto gpus = environment.Gpus();
  if (gpus.ok()) return Ok("driver", "libcuda loads; GPUs: " + std::to_string(gpus->size()));
  const std::string what = gpus.error().message;
  // The kernel module distinguishes a machine without a driver from a container without its
  // library.
  if (environment.ReadFile("/proc/driver/nvidia/version").ok()) {
    return Fail("driver", "the kernel module is loaded, but " + what,
                "give this container the driver's libraries and devices (docker run --gpus all), "
                "or make libcuda's version that of the module; see also CUDA_VISIBLE_DEVICES");
  }
  const auto daemon = environment.Daemon();
  if (daemon.ok() && Simulated(*daemon)) {
    return Ok("driver", "none, and none is needed: the daemon simulates its devices");
  }
  return Warn("driver", what, "install the NVIDIA driver; without one only backend host works");
}

Finding CheckDevices(Environment& environment) {
  const auto daemon = environment.Daemon();
  if (!daemon.ok()) return NotChecked("devices");
  if (Simulated(*daemon)) {
    return Ok("devices", std::to_string(daemon->welcome.devices_size()) + " simulated");
  }
  std::set<std::string> seen;
  if (const auto gpus = environment.Gpus(); gpus.ok()) {
    for (const device::DeviceInfo& gpu : *gpus) seen.insert(gpu.uuid);
  }
  std::vector<std::string> hidden;
  for (const proto::Device& device : daemon->welcome.devices()) {
    if (seen.count(device.uuid()) == 0) hidden.push_back(device.uuid());
  }
  const auto all = static_cast<size_t>(daemon->welcome.devices_size());
  const std::string what = std::to_string(all - hidden.size()) + " of the daemon's " +
                           std::to_string(all) + " devices are visible here";
  if (hidden.empty()) return Ok("devices", what);
  const std::string advice =
      "tensors cannot be created on " + Join(hidden) +
      ": look at CUDA_VISIBLE_DEVICES and at the GPUs given to this container";
  return hidden.size() == all ? Fail("devices", what, advice) : Warn("devices", what, advice);
}

Finding CheckVisibleDevices(Environment& environment) {
  const std::string check = "CUDA_VISIBLE_DEVICES";
  const auto value = environment.Variable(check);
  if (!value) return Ok(check, "not set: every GPU is visible");
  const std::string quoted = "is '" + *value + "'";
  std::vector<std::string> entries;
  for (const std::string& entry : Split(*value, ',')) entries.push_back(Trimmed(entry));
  const auto valid = [](const std::string& entry) { return IsUuid(entry) || ParseNumber(entry); };
  if (!valid(entries.front())) {
    return Warn(check, quoted + ": it hides every GPU", "unset it, or name GPUs by UUID");
  }
  if (std::set<std::string>(entries.begin(), entries.end()).size() != entries.size()) {
    return Warn(check, quoted + ": with a GPU named twice the driver shows none",
                "name each GPU once");
  }
  const auto wrong = std::find_if_not(entries.begin(), entries.end(), valid);
  if (wrong != entries.end()) {
    return Warn(check, quoted + ": the driver ignores '" + *wrong + "' and all after it",
                "name GPUs by number or UUID");
  }
  const auto daemon = environment.Daemon();
  if (!daemon.ok() || Simulated(*daemon)) return Ok(check, quoted);
  for (const std::string& entry : entries) {
    const auto& devices = daemon->welcome.devices();
    const bool served = std::any_of(devices.begin(), devices.end(), [&entry](const auto& device) {
      return device.uuid().starts_with(entry);
    });
    if (IsUuid(entry) && !served) {
      return Warn(check, quoted + ": the daemon does not serve " + entry,
                  "add it to the daemon's devices, or use one that `ravenctl status` lists");
    }
  }
  return Ok(check, quoted);
}

Finding CheckConnections(Environment& environment) {
  const std::string variable = "CUDA_DEVICE_MAX_CONNECTIONS";
  const auto value = environment.Variable(variable);
  if (!value) return Ok("connections", variable + " is not set: the driver's default");
  const std::string quoted = variable + "=" + *value;
  // The store adds a stream of its own to each that a job uses it on.
  constexpr uint64_t kEnough = 4;
  const auto connections = ParseNumber(*value);
  if (connections && *connections >= kEnough) return Ok("connections", quoted);
  return Warn("connections",
              quoted +
                  ": streams share so few hardware queues that a wait on one of them holds "
                  "work of the others back, the store's as well",
              "leave it unset, or set it to 8 or more");
}

Finding CheckMig(Environment& environment) {
  size_t instances = 0;
  const std::string root = "/proc/driver/nvidia/capabilities";
  for (const std::string& gpu : environment.List(root)) {
    if (!gpu.starts_with("gpu")) continue;
    for (const std::string& entry : environment.List(root + "/" + gpu + "/mig")) {
      instances += entry.starts_with("gi");
    }
  }
  const auto gpus = environment.Gpus();
  const bool inside = gpus.ok() && std::any_of(gpus->begin(), gpus->end(), [](const auto& gpu) {
                        return gpu.uuid.starts_with("MIG-");
                      });
  if (instances == 0 && !inside) return Ok("MIG", "no instances");
  if (!inside) {
    return Warn("MIG", std::to_string(instances) + " instances exist, and none is visible here",
                "name one in CUDA_VISIBLE_DEVICES (nvidia-smi -L lists their UUIDs)");
  }
  const auto daemon = environment.Daemon();
  const auto serves = [&](const std::string& uuid) {
    const auto& devices = daemon->welcome.devices();
    return std::any_of(devices.begin(), devices.end(),
                       [&uuid](const auto& device) { return device.uuid() == uuid; });
  };
  for (const device::DeviceInfo& gpu : *gpus) {
    if (!gpu.uuid.starts_with("MIG-") || !daemon.ok() || Simulated(*daemon)) continue;
    if (!serves(gpu.uuid)) {
      return Fail("MIG", "this shell's instance " + gpu.uuid + " is not the daemon's",
                  "give the daemon the same instance: memory is not shared between instances");
    }
  }
  return Ok("MIG", "this shell uses an instance; a process sees one, so there is no peer tier");
}

Finding CheckMps(Environment& environment) {
  const std::string directory =
      environment.Variable("CUDA_MPS_PIPE_DIRECTORY").value_or("/tmp/nvidia-mps");
  const std::vector<std::string> names = environment.List(directory);
  if (std::find(names.begin(), names.end(), "control") == names.end()) {
    return Ok("MPS", "not in use");
  }
  const auto file = environment.ReadFile(directory + "/nvidia-cuda-mps-control.pid");
  const std::string pid = file.ok() ? Trimmed(*file) : "";
  const auto name = environment.ReadFile("/proc/" + pid + "/comm");
  const bool known = ParseNumber(pid).has_value();
  if (known && !(name.ok() && name->starts_with("nvidia-cuda-mps"))) {
    return Warn("MPS", "'" + directory + "' was left by a control daemon that is dead",
                "remove that directory, else CUDA programs may fail to start");
  }
  return Warn("MPS", "a control daemon serves '" + directory + "'",
              "keep ravenstored out of MPS (CUDA_MPS_PIPE_DIRECTORY=/nonexistent for its service): "
              "under MPS one client's fatal fault ends every client of the server");
}

Finding CheckDescriptors(Environment& environment) {
  const std::string check = "descriptors";
  const auto own = SoftLimit(environment, 0, "Max open files");
  if (own && *own < kShellDescriptors) {
    return Warn(check, "this shell may open " + LimitText(*own), "ulimit -n 65536");
  }
  const auto daemon = environment.Daemon();
  if (!daemon.ok()) return NotChecked(check);
  const auto theirs =
      daemon->pid == 0 ? std::nullopt : SoftLimit(environment, daemon->pid, "Max open files");
  if (!theirs) {
    return Warn(check, "the daemon's limit cannot be read from here", "run ravenctl beside it");
  }
  const std::string what = "the daemon may open " + LimitText(*theirs);
  if (*theirs >= kDaemonDescriptors) return Ok(check, what);
  const std::string advice =
      "set LimitNOFILE=65536 in its service: each client takes four and each page under way one";
  return *theirs < kShellDescriptors ? Fail(check, what, advice) : Warn(check, what, advice);
}

Finding CheckLockedMemory(Environment& environment) {
  const std::string check = "memlock";
  const auto daemon = environment.Daemon();
  if (!daemon.ok()) return NotChecked(check);
  if (Simulated(*daemon)) return Ok(check, "not needed: a simulated device pins nothing");
  const auto limit =
      daemon->pid == 0 ? std::nullopt : SoftLimit(environment, daemon->pid, "Max locked memory");
  if (!limit) {
    return Warn(check, "the daemon's limit cannot be read from here", "run ravenctl beside it");
  }
  if (*limit == kUnlimited) return Ok(check, "the daemon's is unlimited");
  return Warn(check, "the daemon may lock " + core::SizeText(Bytes(*limit)),
              "set LimitMEMLOCK=infinity in its service: drivers and RDMA may count the pinned "
              "host pool");
}

Finding CheckSharedMemory(Environment& environment) {
  const auto size = environment.Capacity("/dev/shm");
  if (!size.ok()) {
    return Warn("/dev/shm", core::Describe(size.error()), "mount a tmpfs at /dev/shm");
  }
  const std::string what = core::SizeText(*size);
  if (*size >= kSharedMemoryNeeded) return Ok("/dev/shm", what);
  return Warn("/dev/shm", what + ": the store does not use it, but NCCL and data loaders do",
              "docker run --shm-size=8g, or --ipc=host");
}

Finding CheckCgroupMemory(Environment& environment) {
  const std::string check = "cgroup memory";
  const auto daemon = environment.Daemon();
  if (!daemon.ok()) return NotChecked(check);
  Bytes pool;
  for (const proto::TierStats& tier : daemon->stats.tiers()) {
    if (tier.name() == "host") pool = Bytes(tier.capacity());
  }
  const auto limit = daemon->pid == 0 ? std::nullopt : CgroupLimit(environment, daemon->pid);
  if (!limit) {
    return Warn(check, "the daemon's control group cannot be seen from here",
                "run ravenctl beside it");
  }
  if (*limit == kUnlimited) return Ok(check, "the daemon's is unlimited");
  const std::string what = "the daemon is limited to " + core::SizeText(Bytes(*limit)) +
                           " with a host pool of up to " + core::SizeText(pool);
  const std::string advice =
      "raise its memory limit (MemoryMax=, docker run --memory) or lower its host pool";
  if (Bytes(*limit) < pool)
    return Fail(check, what + ": it will be killed as the pool fills", advice);
  if (Bytes(*limit) < pool + kDaemonOwnMemory) return Warn(check, what + ": that is tight", advice);
  return Ok(check, what);
}

Finding CheckPidNamespace(Environment& environment) {
  const std::string check = "PID namespace";
  const auto daemon = environment.Daemon();
  if (!daemon.ok()) return NotChecked(check);
  std::string what;
  if (daemon->pid == 0) {
    what = "the daemon is in a namespace that is not seen from here";
  } else {
    const auto status = environment.ReadFile(ProcFile(daemon->pid, "status"));
    size_t namespaces = 0;
    for (const std::string& line : Split(status.ok() ? *status : "", '\n')) {
      if (!line.starts_with("NSpid:")) continue;
      std::istringstream numbers(line.substr(6));
      for (std::string number; numbers >> number;) ++namespaces;
    }
    if (namespaces == 1) return Ok(check, "shared with the daemon");
    if (namespaces == 0) {
      return Warn(check, "the daemon's cannot be read from here", "run ravenctl beside it");
    }
    what = "the daemon is in a namespace within this one, and does not see processes here";
  }
  const std::string advice = "share it (docker run --pid=host, or hostPID in Kubernetes)";
  if (environment.TryPeerPidfd().ok()) {
    return Warn(check, what + "; this kernel lets it follow its clients all the same",
                advice + " to see process numbers in `ravenctl clients`");
  }
  return Fail(check, what + ", so it cannot follow its clients' lives",
              advice + ", or use Linux 6.5 or newer");
}

Finding CheckPidfd(Environment& environment) {
  if (const auto status = environment.TryPidfd(); !status.ok()) {
    return Fail("pidfd", core::Describe(status.error()),
                "the daemon learns of a client's death by it: use Linux 5.3 or newer, and a "
                "seccomp profile that allows pidfd_open");
  }
  if (!environment.TryPeerPidfd().ok()) {
    return Ok("pidfd",
              "pidfd_open works; SO_PEERPIDFD (Linux 6.5) is not there and is not needed "
              "within one PID namespace");
  }
  return Ok("pidfd", "works, for the peer of a socket too");
}

Finding CheckSealedMemory(Environment& environment) {
  if (const auto status = environment.TrySealedMemory(); !status.ok()) {
    return Fail("sealed memory", core::Describe(status.error()),
                "clients and daemon share memory by it: allow memfd_create (vm.memfd_noexec, "
                "seccomp) and check the memory limit");
  }
  return Ok("sealed memory", "works");
}

std::vector<Finding> Examine(Environment& environment) {
  static constexpr Finding (*kChecks[])(Environment&) = {
      CheckDaemon,       CheckDriver,       CheckDevices,      CheckVisibleDevices,
      CheckConnections,  CheckMig,          CheckMps,          CheckDescriptors,
      CheckLockedMemory, CheckSharedMemory, CheckCgroupMemory, CheckPidNamespace,
      CheckPidfd,        CheckSealedMemory,
  };
  std::vector<Finding> findings;
  for (const auto check : kChecks) findings.push_back(check(environment));
  return findings;
}

bool Healthy(const std::vector<Finding>& findings) {
  return std::none_of(findings.begin(), findings.end(),
                      [](const Finding& finding) { return finding.level == Level::kFail; });
}

}  // namespace ravenstore::client::ctl
