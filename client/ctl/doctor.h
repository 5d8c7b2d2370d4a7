// `ravenctl doctor`: what of this machine, this shell and the daemon stands in the store's way, and
// what to do about it.
//
// Every check is a function of an Environment, so that tests plant the faults.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/result.h"
#include "core/types.h"
#include "device/device.h"
#include "proto/control.pb.h"

namespace ravenstore::client::ctl {

struct Finding {
  enum class Level { kOk, kWarn, kFail };
  Level level;
  std::string check;   // one or two words
  std::string what;    // what was found
  std::string advice;  // what to do; empty when all is well
};

// What the daemon shows of itself.
struct DaemonView {
  proto::Welcome welcome;
  proto::Stats stats;
  pid_t pid = 0;  // 0: in a PID namespace that is not seen from here
  uid_t uid = 0;
};

// The world as the checks see it.
class Environment {
 public:
  virtual ~Environment() = default;

  virtual std::optional<std::string> Variable(const std::string& name) = 0;
  // Small files of /proc and /sys. Errors: any.
  virtual core::Result<std::string> ReadFile(const std::string& path) = 0;
  // The names in a directory; none when there is no such directory.
  virtual std::vector<std::string> List(const std::string& directory) = 0;
  // Size of the file system at `path`.
  virtual core::Result<core::Bytes> Capacity(const std::string& path) = 0;
  // Errors: those of Session.
  virtual core::Result<DaemonView> Daemon() = 0;
  // The GPUs that the driver shows this process. Errors: those of device::OpenCudaDevices.
  virtual core::Result<std::vector<device::DeviceInfo>> Gpus() = 0;
  // Tries what the store needs of the kernel.
  virtual core::Status TrySealedMemory() = 0;
  virtual core::Status TryPidfd() = 0;
  virtual core::Status TryPeerPidfd() = 0;
};

Finding CheckDaemon(Environment& environment);
Finding CheckDriver(Environment& environment);
// The daemon's devices against the ones this shell sees.
Finding CheckDevices(Environment& environment);
Finding CheckVisibleDevices(Environment& environment);
// How many hardware queues this shell's CUDA programs ask for.
Finding CheckConnections(Environment& environment);
Finding CheckMig(Environment& environment);
Finding CheckMps(Environment& environment);
Finding CheckDescriptors(Environment& environment);
Finding CheckLockedMemory(Environment& environment);
Finding CheckSharedMemory(Environment& environment);
Finding CheckCgroupMemory(Environment& environment);
Finding CheckPidNamespace(Environment& environment);
Finding CheckPidfd(Environment& environment);
Finding CheckSealedMemory(Environment& environment);

// All of them, in the order in which a person should mend them.
std::vector<Finding> Examine(Environment& environment);

// True when no finding is kFail.
bool Healthy(const std::vector<Finding>& findings);

}  // namespace ravenstore::client::ctl
