#include "device/cuda_gpu.h"

#include <errno.h>
#include <fcntl.h>

#include <algorithm>
#include <utility>

#include "device/reservation.h"

namespace ravenstore::device {

namespace {

// A context takes no more of a GPU than this.
constexpr core::Bytes kContextMost = core::GiB(2);

}  // namespace

CUmemAllocationProp MemoryAt(CUmemLocationType type, int id) {
  CUmemAllocationProp memory{};
  memory.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  memory.requestedHandleTypes = kHandleType;
  memory.location = {type, id};
  return memory;
}

core::Result<ipc::UniqueFd> ExportMemory(CudaGpu& gpu, CUmemGenericAllocationHandle memory) {
  const CudaCaptureExempt exempt(gpu.driver());
  int descriptor = -1;
  const CUresult result =
      gpu.driver().cuMemExportToShareableHandle(&descriptor, memory, kHandleType, 0);
  if (result != CUDA_SUCCESS) {
    // The driver has no word of its own for it.
    const ipc::UniqueFd one_more(open("/dev/null", O_RDONLY | O_CLOEXEC));
    if (!one_more && (errno == EMFILE || errno == ENFILE))
      return NoDescriptors("cuMemExportToShareableHandle");
    return gpu.Failure(result, "cuMemExportToShareableHandle");
  }
  ipc::UniqueFd exported(descriptor);
  if (fcntl(descriptor, F_SETFD, FD_CLOEXEC) != 0) return SystemError("close on exec");
  return exported;
}

bool CudaWords::Share(uintptr_t begin, core::Bytes bytes) {
  std::lock_guard lock(mutex_);
  const auto known = ranges_.find(begin);
  if (known == ranges_.end() || known->second.bytes < bytes.count()) return false;
  ++known->second.users;
  return true;
}

core::Status CudaWords::Add(CudaGpu& gpu, void* begin, core::Bytes bytes) {
  const auto at = reinterpret_cast<uintptr_t>(begin);
  if (Share(at, bytes)) return core::Ok();
  // Before the lock: making a context takes long.
  RAVEN_ASSIGN_OR_RETURN(const CUcontext context, gpu.Primary());
  std::lock_guard registering(registering_);
  if (Share(at, bytes)) return core::Ok();  // somebody was faster
  const CudaScope scope(gpu.driver(), context);
  const CudaCaptureExempt exempt(gpu.driver());
  RAVEN_CUDA_CALL(gpu, cuMemHostRegister, begin, bytes.count(),
                  CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP);
  CUdeviceptr on_device = 0;
  const core::Status mapped = gpu.Check(
      gpu.driver().cuMemHostGetDevicePointer(&on_device, begin, 0), "cuMemHostGetDevicePointer");
  if (!mapped.ok()) {
    gpu.driver().cuMemHostUnregister(begin);
    return mapped;
  }
  std::lock_guard lock(mutex_);
  ranges_[at] = {bytes.count(), on_device, 1};
  return core::Ok();
}

void CudaWords::Remove(CudaGpu& gpu, void* begin) {
  std::lock_guard registering(registering_);
  {
    std::lock_guard lock(mutex_);
    const auto known = ranges_.find(reinterpret_cast<uintptr_t>(begin));
    RAVEN_CHECK(known != ranges_.end());
    if (--known->second.users > 0) return;
    ranges_.erase(known);
  }
  const auto context = gpu.Primary();
  if (!context.ok()) return;
  const CudaScope scope(gpu.driver(), *context);
  const CudaCaptureExempt exempt(gpu.driver());
  // If this fails, the page stays pinned until the process ends. No caller could do better.
  gpu.driver().cuMemHostUnregister(begin);
}

core::Result<CUdeviceptr> CudaWords::Find(const Word* word) const {
  const auto at = reinterpret_cast<uintptr_t>(word);
  std::shared_lock lock(mutex_);
  auto range = ranges_.upper_bound(at);
  if (range != ranges_.begin()) {
    --range;
    if (at - range->first + sizeof(Word) <= range->second.bytes) {
      return range->second.on_device + (at - range->first);
    }
  }
  return core::Error{core::ErrorCode::kInvalidArgument,
                     "the word is in no memory given to RegisterWords"};
}

CudaGpu::CudaGpu(std::shared_ptr<const CudaDriver> driver, CUdevice device, int ordinal,
                 std::shared_ptr<CudaWords> words)
    : driver_(std::move(driver)),
      device_(device),
      name_("device " + std::to_string(ordinal)),
      words_(std::move(words)) {}

CudaGpu::~CudaGpu() {
  if (primary_.load() != nullptr) driver_->cuDevicePrimaryCtxRelease(device_);
}

core::Result<CUcontext> CudaGpu::Primary() {
  CUcontext context = primary_.load(std::memory_order_acquire);
  if (context != nullptr) [[likely]]
    return context;
  std::lock_guard lock(mutex_);
  context = primary_.load(std::memory_order_relaxed);
  if (context != nullptr) return context;
  const CudaCaptureExempt exempt(*driver_);
  const auto before = free_bytes_ ? free_bytes_() : core::Result<core::Bytes>(core::Bytes{0});
  RAVEN_CUDA_CALL(*this, cuDevicePrimaryCtxRetain, &context, device_);
  if (const auto after = free_bytes_ ? free_bytes_() : before; before.ok() && after.ok()) {
    // Another process may have allocated or freed meanwhile.
    context_bytes_.store(std::min(core::Minus(*before, *after), kContextMost));
  }
  primary_.store(context, std::memory_order_release);
  return context;
}

void CudaGpu::MeasureContext(std::function<core::Result<core::Bytes>()> free_bytes) {
  std::lock_guard lock(mutex_);
  free_bytes_ = std::move(free_bytes);
}

void CudaGpu::KeepExporting(core::Bytes unit) {
  const auto context = Primary();
  if (!context.ok()) return;
  std::lock_guard lock(mutex_);
  if (exported_) return;
  const CudaScope scope(*driver_, *context);
  const CUmemAllocationProp memory = MemoryAt(CU_MEM_LOCATION_TYPE_DEVICE, device_);
  CUmemGenericAllocationHandle handle = 0;
  const CudaCaptureExempt exempt(*driver_);
  if (driver_->cuMemCreate(&handle, unit.count(), &memory, 0) != CUDA_SUCCESS) return;
  if (auto exported = ExportMemory(*this, handle); exported.ok())
    exported_ = std::move(exported).value();
  driver_->cuMemRelease(handle);  // the descriptor keeps the memory
}

int CudaGpu::Attribute(CUdevice_attribute attribute) const {
  int value = 0;
  return driver_->cuDeviceGetAttribute(&value, attribute, device_) == CUDA_SUCCESS ? value : 0;
}

}  // namespace ravenstore::device
