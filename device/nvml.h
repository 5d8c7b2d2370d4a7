// NVIDIA's management library (NVML), found at run time: what of a GPU's memory is free, which
// processes hold some of it, and how busy it is. It makes no context, and sees all processes.
//
// What is used of it is declared in nvml.cc: its header comes with no driver.
//
// Threads: any; nothing changes after Load.
// Errors: kUnsupported for what the library or the GPU does not say, else kDevice, with NVML's
// words.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "core/result.h"
#include "core/types.h"
#include "device/device.h"

namespace ravenstore::device {

class Nvml {
 public:
  // Opens and initialises `library`. It is never closed.
  // Errors: kUnavailable when there is no such library, it lacks a function, or finds no driver.
  static Result<std::shared_ptr<const Nvml>> Load(const std::string& library);

  // $RAVENSTORE_LIBNVML, else libnvidia-ml.so.1.
  static std::string DefaultLibrary();

  // `uuid`, here and below: of a GPU or a MIG instance, as the driver prints it.
  Result<Bytes> FreeBytes(const std::string& uuid) const;
  // In no order.
  Result<std::vector<DeviceProcess>> Processes(const std::string& uuid) const;

  // How busy a GPU is, as Device::ReadUtilization: by its own counters (GPM, from Hopper on), which
  // change every 100 ms only, over that long at least. Without them, and until they were compared
  // once, it is what nvidia-smi shows, which counts copies as well as kernels. Threads: any.
  class Activity {
   public:
    Activity(std::shared_ptr<const Nvml> nvml, std::string uuid);
    Activity(const Activity&) = delete;
    Activity& operator=(const Activity&) = delete;
    ~Activity();
    using Clock = std::chrono::steady_clock;
    static constexpr std::chrono::milliseconds kCountersEvery{100};
    Result<uint32_t> Read(Clock::time_point now);

   private:
    // Not set: they do not say.
    std::optional<uint32_t> ByCounters();

    const std::shared_ptr<const Nvml> nvml_;
    const std::string uuid_;
    std::mutex mutex_;                // of what follows
    std::array<void*, 2> samples_{};  // taken in turn
    bool has_counters_ = false;
    uint64_t taken_ = 0;
    Clock::time_point due_{};
    std::optional<uint32_t> counted_;  // by the last two samples
  };

 private:
  struct Calls;

  explicit Nvml(std::shared_ptr<const Calls> calls) : calls_(std::move(calls)) {}
  Result<void*> Find(const std::string& uuid) const;
  Result<uint32_t> Utilization(const std::string& uuid) const;
  // REQUIRES: `result` is no success.
  core::Error Failure(int result, const char* call, const std::string& uuid) const;

  const std::shared_ptr<const Calls> calls_;
};

}  // namespace ravenstore::device
