#include "device/cuda_device.h"

#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "device/cuda_gpu.h"
#include "device/cuda_memory.h"
#include "device/cuda_stream.h"
#include "device/cuda_va_range.h"
#include "device/nvml.h"
#include "device/parts.h"

namespace ravenstore::device {
namespace {

// "GPU-01234567-89ab-...", as nvidia-smi prints it.
std::string Print(const CUuuid& uuid, const char* prefix) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string text = prefix;
  for (int i = 0; i < 16; ++i) {
    if (i == 4 || i == 6 || i == 8 || i == 10) text += '-';
    const auto byte = static_cast<unsigned char>(uuid.bytes[i]);
    text += kDigits[byte >> 4];
    text += kDigits[byte & 15];
  }
  return text;
}

Result<std::string> UuidOf(CudaGpu& gpu) {
  CUuuid uuid{};
  RAVEN_CUDA_CALL(gpu, cuDeviceGetUuid, &uuid, gpu.device());
  CUuuid whole = uuid;
  const auto get_whole = gpu.driver().device_get_gpu_uuid;
  const bool is_instance = get_whole != nullptr &&
                           get_whole(&whole, gpu.device()) == CUDA_SUCCESS &&
                           std::string(whole.bytes, 16) != std::string(uuid.bytes, 16);
  return Print(uuid, is_instance ? "MIG-" : "GPU-");
}

Result<DeviceInfo> Describe(CudaGpu& gpu) {
  DeviceInfo info;
  RAVEN_ASSIGN_OR_RETURN(info.uuid, UuidOf(gpu));
  char name[256] = "";
  RAVEN_CUDA_CALL(gpu, cuDeviceGetName, name, sizeof(name), gpu.device());
  info.name = name;
  size_t total = 0;
  RAVEN_CUDA_CALL(gpu, cuDeviceTotalMem, &total, gpu.device());
  info.total = Bytes(total);
  int node = -1;
  if (gpu.driver().cuDeviceGetAttribute(&node, CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID, gpu.device()) ==
      CUDA_SUCCESS) {
    info.numa_node = node;
  }
  return info;
}

class CudaRegistration : public Registration {
 public:
  CudaRegistration(std::shared_ptr<CudaGpu> gpu, void* begin)
      : gpu_(std::move(gpu)), begin_(begin) {}
  ~CudaRegistration() override { gpu_->words().Remove(*gpu_, begin_); }

 private:
  const std::shared_ptr<CudaGpu> gpu_;
  void* const begin_;
};

// Loaded when it is first asked for: a client never asks.
class LazyNvml {
 public:
  const Result<std::shared_ptr<const Nvml>>& Get() {
    std::lock_guard lock(mutex_);
    if (!nvml_) nvml_ = Nvml::Load(Nvml::DefaultLibrary());
    return *nvml_;
  }

 private:
  std::mutex mutex_;
  std::optional<Result<std::shared_ptr<const Nvml>>> nvml_;  // set once; guarded by mutex_
};

class CudaDevice : public Device {
 public:
  CudaDevice(std::shared_ptr<CudaGpu> gpu, std::shared_ptr<LazyNvml> nvml,
             std::vector<CUdevice> all, DeviceInfo info, Bytes granularity)
      : gpu_(std::move(gpu)),
        nvml_(std::move(nvml)),
        all_(std::move(all)),
        info_(std::move(info)),
        granularity_(granularity) {}

  const DeviceInfo& info() const override { return info_; }
  Bytes granularity() const override { return granularity_; }

  Result<Bytes> FreeBytes() override {
    RAVEN_ASSIGN_OR_RETURN(const CUcontext context, gpu_->Primary());
    const CudaScope scope(gpu_->driver(), context);
    size_t free = 0;
    size_t total = 0;
    RAVEN_CUDA_CALL(*gpu_, cuMemGetInfo, &free, &total);
    return Bytes(free);
  }

  Result<MemoryUse> ReadMemoryUse() override {
    Result<Bytes> free = FreeByNvml();
    if (!free.ok() && InUse()) free = FreeBytes();
    if (!free.ok()) return std::move(free).error();
    return MemoryUse{*free, gpu_->context_bytes()};
  }
  Result<std::vector<DeviceProcess>> ReadProcesses() override {
    RAVEN_ASSIGN_OR_RETURN(const auto nvml, nvml_->Get());
    return nvml->Processes(info_.uuid);
  }
  Result<uint32_t> ReadUtilization() override {
    RAVEN_ASSIGN_OR_RETURN(const auto nvml, nvml_->Get());
    std::lock_guard lock(activity_mutex_);
    if (!activity_) activity_ = std::make_unique<Nvml::Activity>(nvml, info_.uuid);
    return activity_->Read(Nvml::Activity::Clock::now());
  }

  bool InUse() override {
    unsigned int flags = 0;
    int active = 0;
    const CUresult asked =
        gpu_->driver().cuDevicePrimaryCtxGetState(gpu_->device(), &flags, &active);
    return asked != CUDA_SUCCESS || active != 0;
  }

  Result<std::shared_ptr<const PhysicalMemory>> CreateMemory(Bytes bytes) override {
    const CUmemAllocationProp here = MemoryAt(CU_MEM_LOCATION_TYPE_DEVICE, gpu_->device());
    RAVEN_ASSIGN_OR_RETURN(auto memory, CudaMemory::Create(gpu_, here, bytes, granularity_));
    return std::shared_ptr<const PhysicalMemory>(std::move(memory));
  }
  Result<std::shared_ptr<const PhysicalMemory>> ImportMemory(ipc::UniqueFd descriptor,
                                                             Bytes bytes) override {
    RAVEN_ASSIGN_OR_RETURN(auto memory, CudaMemory::Import(gpu_, std::move(descriptor), bytes));
    return std::shared_ptr<const PhysicalMemory>(std::move(memory));
  }
  Result<std::unique_ptr<VaRange>> ReserveVaRange(Bytes size) override {
    return ReserveCudaVaRange(gpu_, all_, size, granularity_);
  }
  Result<std::unique_ptr<VaRange>> ReserveHostVaRange(Bytes size, int numa_node) override {
    return ReserveCudaHostVaRange(gpu_, all_, size, granularity_, numa_node);
  }
  Result<std::unique_ptr<VaRange>> ReservePoolVaRange(Bytes size, int numa_node) override {
    return ReserveCudaPoolVaRange(gpu_, all_, size, granularity_, numa_node);
  }
  Result<std::unique_ptr<Registration>> RegisterWords(void* begin, Bytes bytes) override {
    RAVEN_RETURN_IF_ERROR(gpu_->words().Add(*gpu_, begin, bytes));
    return std::unique_ptr<Registration>(std::make_unique<CudaRegistration>(gpu_, begin));
  }
  Result<std::unique_ptr<Channel>> OpenChannel(Direction) override { return OpenCudaChannel(gpu_); }
  bool Reaches(const Device& peer) override {
    const auto* other = dynamic_cast<const CudaDevice*>(&peer);
    if (other == nullptr || other == this) return false;
    int reaches = 0;
    return gpu_->driver().cuDeviceCanAccessPeer(&reaches, gpu_->device(), other->gpu_->device()) ==
               CUDA_SUCCESS &&
           reaches != 0;
  }
  // The ranges of a device are mapped for all that reach it.
  Result<std::unique_ptr<Channel>> OpenPeerChannel() override { return OpenCudaChannel(gpu_); }
  Result<std::unique_ptr<Stream>> WrapStream(StreamHandle stream) override {
    return WrapCudaStream(gpu_, stream);
  }

 private:
  Result<Bytes> FreeByNvml() {
    RAVEN_ASSIGN_OR_RETURN(const auto nvml, nvml_->Get());
    gpu_->MeasureContext([nvml, uuid = info_.uuid] { return nvml->FreeBytes(uuid); });
    return nvml->FreeBytes(info_.uuid);
  }

  const std::shared_ptr<CudaGpu> gpu_;
  const std::shared_ptr<LazyNvml> nvml_;
  std::mutex activity_mutex_;
  std::unique_ptr<Nvml::Activity> activity_;  // guarded by activity_mutex_
  const std::vector<CUdevice> all_;
  const DeviceInfo info_;
  const Bytes granularity_;
};

}  // namespace

Result<Devices> OpenCudaDevices(std::shared_ptr<const CudaDriver> driver) {
  const CUresult started = driver->cuInit(0);
  if (started != CUDA_SUCCESS) return driver->Failure(started, "cuInit", "CUDA driver");
  int count = 0;
  const CUresult counted = driver->cuDeviceGetCount(&count);
  if (counted != CUDA_SUCCESS) return driver->Failure(counted, "cuDeviceGetCount", "CUDA driver");
  if (count == 0) {
    return core::Error{core::ErrorCode::kUnavailable, "CUDA driver: it shows no GPU"};
  }
  std::vector<CUdevice> all(static_cast<size_t>(count));
  for (int ordinal = 0; ordinal < count; ++ordinal) {
    const CUresult got = driver->cuDeviceGet(&all[static_cast<size_t>(ordinal)], ordinal);
    if (got != CUDA_SUCCESS) return driver->Failure(got, "cuDeviceGet", "CUDA driver");
  }
  const auto words = std::make_shared<CudaWords>();
  const auto nvml = std::make_shared<LazyNvml>();
  Devices devices;
  for (int ordinal = 0; ordinal < count; ++ordinal) {
    auto gpu = std::make_shared<CudaGpu>(driver, all[static_cast<size_t>(ordinal)], ordinal, words);
    RAVEN_ASSIGN_OR_RETURN(DeviceInfo info, Describe(*gpu));
    RAVEN_ASSIGN_OR_RETURN(const Bytes granularity, CudaGranularity(*gpu));
    devices.push_back(
        std::make_shared<CudaDevice>(std::move(gpu), nvml, all, std::move(info), granularity));
  }
  return devices;
}

Result<Devices> OpenCudaDevices() {
  RAVEN_ASSIGN_OR_RETURN(const int parts, PartsForTests());
  RAVEN_ASSIGN_OR_RETURN(auto driver, CudaDriver::Load(CudaDriver::DefaultLibrary()));
  RAVEN_ASSIGN_OR_RETURN(Devices devices, OpenCudaDevices(std::move(driver)));
  return InParts(std::move(devices), parts);
}

}  // namespace ravenstore::device
