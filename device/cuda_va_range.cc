#include "device/cuda_va_range.h"

#include <errno.h>
#include <linux/mempolicy.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <string>
#include <utility>

#include "device/chunks.h"
#include "device/cuda_memory.h"
#include "device/reservation.h"
#include "ipc/unique_fd.h"

namespace ravenstore::device {
namespace {

// No known driver does it for host memory yet (tests/device/pinned_probe.py checks).
constexpr bool kMappedCopiesStraddle = false;

CUmemAccessDesc AccessBy(CUmemLocationType type, int id) {
  return {{type, id}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
}

// The node that `gpu` is nearest to; 0 where the machine has none.
int NearestNode(const CudaGpu& gpu) {
  return std::max(gpu.Attribute(CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID), 0);
}

// Device or host memory that the driver's virtual memory management makes and maps.
class CudaVaRange : public VaRange {
 public:
  CudaVaRange(std::shared_ptr<CudaGpu> gpu, CUdeviceptr base, Bytes size, Bytes granularity,
              CUmemAllocationProp memory, std::vector<CUmemAccessDesc> access)
      : gpu_(std::move(gpu)),
        base_(base),
        size_(size),
        granularity_(granularity),
        memory_(memory),
        access_(std::move(access)),
        chunks_(size, granularity) {}

  ~CudaVaRange() override {
    // Nothing can be done about a failure: what the driver keeps, it keeps until the process ends.
    chunks_.Drain([this](Bytes offset, const CudaMemory& chunk) {
      gpu_->driver().cuMemUnmap(base_ + offset.count(), chunk.size().count());
    });
    gpu_->driver().cuMemAddressFree(base_, size_.count());
  }

  std::byte* base() const override { return reinterpret_cast<std::byte*>(base_); }
  Bytes size() const override { return size_; }
  bool CopiesStraddle() const override { return kMappedCopiesStraddle; }

  Status Create(Bytes offset, Bytes bytes) override {
    return chunks_.Place(offset, bytes, [&]() -> Result<std::shared_ptr<const CudaMemory>> {
      RAVEN_ASSIGN_OR_RETURN(auto memory, CudaMemory::Create(gpu_, memory_, bytes, granularity_));
      return MapAt(offset, std::move(memory), access_);
    });
  }

  Status Map(Bytes offset, std::shared_ptr<const PhysicalMemory> memory) override {
    return MapWith(offset, std::move(memory), access_);
  }

  Status MapReadOnly(Bytes offset, std::shared_ptr<const PhysicalMemory> memory) override {
    std::vector<CUmemAccessDesc> read = access_;
    for (CUmemAccessDesc& each : read) each.flags = CU_MEM_ACCESS_FLAGS_PROT_READ;
    return MapWith(offset, std::move(memory), read);
  }

  Result<ipc::UniqueFd> Export(Bytes offset) override {
    RAVEN_ASSIGN_OR_RETURN(auto chunk, chunks_.Find(offset));
    return chunk->Export();
  }

  Status Import(ipc::UniqueFd descriptor, Bytes offset, Bytes bytes) override {
    return chunks_.Place(offset, bytes, [&]() -> Result<std::shared_ptr<const CudaMemory>> {
      RAVEN_ASSIGN_OR_RETURN(auto memory, CudaMemory::Import(gpu_, std::move(descriptor), bytes));
      return MapAt(offset, std::move(memory), access_);
    });
  }

  Status Unmap(Bytes offset) override {
    return chunks_.Remove(offset, [&](const CudaMemory& chunk) -> Status {
      const CudaCaptureExempt exempt(gpu_->driver());
      RAVEN_CUDA_CALL(*gpu_, cuMemUnmap, base_ + offset.count(), chunk.size().count());
      return core::Ok();
    });
  }

 private:
  Status MapWith(Bytes offset, std::shared_ptr<const PhysicalMemory> memory,
                 const std::vector<CUmemAccessDesc>& access) {
    auto of_gpu = std::dynamic_pointer_cast<const CudaMemory>(std::move(memory));
    if (memory_.location.type != CU_MEM_LOCATION_TYPE_DEVICE) return RangeOfHostMemory();
    if (of_gpu == nullptr || of_gpu->gpu() != gpu_.get()) return MemoryOfAnother();
    return chunks_.Place(offset, of_gpu->size(), [&] { return MapAt(offset, of_gpu, access); });
  }

  Result<std::shared_ptr<const CudaMemory>> MapAt(Bytes offset,
                                                  std::shared_ptr<const CudaMemory> memory,
                                                  const std::vector<CUmemAccessDesc>& access) {
    RAVEN_ASSIGN_OR_RETURN(const CUcontext context, gpu_->Primary());
    const CudaScope scope(gpu_->driver(), context);
    const CudaCaptureExempt exempt(gpu_->driver());
    const CUdeviceptr at = base_ + offset.count();
    const size_t bytes = memory->size().count();
    RAVEN_CUDA_CALL(*gpu_, cuMemMap, at, bytes, 0, memory->handle(), 0);
    const Status allowed = gpu_->Check(
        gpu_->driver().cuMemSetAccess(at, bytes, access.data(), access.size()), "cuMemSetAccess");
    if (!allowed.ok()) {
      gpu_->driver().cuMemUnmap(at, bytes);
      return allowed.error();
    }
    return memory;
  }

  const std::shared_ptr<CudaGpu> gpu_;
  const CUdeviceptr base_;
  const Bytes size_;
  const Bytes granularity_;
  const CUmemAllocationProp memory_;
  const std::vector<CUmemAccessDesc> access_;
  ChunkTable<const CudaMemory> chunks_;
};

struct RegisteredChunk {
  ipc::UniqueFd memory;  // none when it was imported, or is the process's own
  Bytes bytes;
};

// Host memory that is registered with the driver.
class RegisteredVaRange : public VaRange {
 public:
  RegisteredVaRange(std::shared_ptr<CudaGpu> gpu, CUcontext context, Reservation range,
                    Bytes granularity, int numa_node, RegisteredMemory memory)
      : gpu_(std::move(gpu)),
        context_(context),
        numa_node_(numa_node),
        is_own_(memory == RegisteredMemory::kOwn),
        range_(std::move(range)),
        chunks_(range_.size(), granularity) {}

  ~RegisteredVaRange() override {
    const CudaScope scope(gpu_->driver(), context_);
    chunks_.Drain([this](Bytes offset, const RegisteredChunk&) {
      gpu_->driver().cuMemHostUnregister(range_.base() + offset.count());
    });
  }

  std::byte* base() const override { return range_.base(); }
  Bytes size() const override { return range_.size(); }
  bool CopiesStraddle() const override { return false; }  // the driver refuses it

  Status Create(Bytes offset, Bytes bytes) override {
    return chunks_.Place(offset, bytes, [&]() -> Result<std::shared_ptr<RegisteredChunk>> {
      RAVEN_ASSIGN_OR_RETURN(ipc::UniqueFd memory, MapNew(offset, bytes));
      // Populating touches every page, and so puts it where the policy says. A kernel without NUMA
      // has one place only.
      const unsigned long nodes = 1ul << numa_node_;
      if (syscall(SYS_mbind, range_.base() + offset.count(), bytes.count(), MPOL_PREFERRED, &nodes,
                  sizeof(nodes) * 8, 0) != 0 &&
          errno != ENOSYS) {
        return Undo(SystemError("mbind"), offset, bytes);
      }
      // Else the driver would do it under a lock that every copy waits for.
      auto populated =
          is_own_ ? range_.PopulateInParallel(offset, bytes) : range_.Populate(offset, bytes);
      if (!populated.ok()) return Undo(std::move(populated).error(), offset, bytes);
      return Register(std::move(memory), offset, bytes);
    });
  }

  Status Map(Bytes, std::shared_ptr<const PhysicalMemory>) override { return RangeOfHostMemory(); }

  Result<ipc::UniqueFd> Export(Bytes offset) override {
    RAVEN_ASSIGN_OR_RETURN(auto chunk, chunks_.Find(offset));
    if (is_own_) return NotShared();
    if (!chunk->memory) return ImportedMemory();
    return Duplicate(chunk->memory.get());
  }

  Status Import(ipc::UniqueFd descriptor, Bytes offset, Bytes bytes) override {
    if (is_own_) return NotShared();
    return chunks_.Place(offset, bytes, [&]() -> Result<std::shared_ptr<RegisteredChunk>> {
      RAVEN_RETURN_IF_ERROR(range_.MapWhole(offset, bytes, descriptor.get()));
      return Register(ipc::UniqueFd(), offset, bytes);
    });
  }

  Status Unmap(Bytes offset) override {
    return chunks_.Remove(offset, [&](const RegisteredChunk& chunk) -> Status {
      const CudaScope scope(gpu_->driver(), context_);
      const CudaCaptureExempt exempt(gpu_->driver());
      RAVEN_CUDA_CALL(*gpu_, cuMemHostUnregister, range_.base() + offset.count());
      return range_.Unmap(offset, chunk.bytes);
    });
  }

 private:
  static core::Error NotShared() {
    return {core::ErrorCode::kUnsupported, "this range's memory is not shared with processes"};
  }

  // New memory is there; its descriptor, none if it is this process's own.
  Result<ipc::UniqueFd> MapNew(Bytes offset, Bytes bytes) {
    if (is_own_) {
      RAVEN_RETURN_IF_ERROR(range_.MapOwn(offset, bytes));
      return ipc::UniqueFd();
    }
    RAVEN_ASSIGN_OR_RETURN(ipc::UniqueFd memory, NewMemory(bytes));
    RAVEN_RETURN_IF_ERROR(range_.Map(offset, bytes, memory.get()));
    return memory;
  }

  Result<std::shared_ptr<RegisteredChunk>> Register(ipc::UniqueFd memory, Bytes offset,
                                                    Bytes bytes) {
    const CudaScope scope(gpu_->driver(), context_);
    const CudaCaptureExempt exempt(gpu_->driver());
    const CUresult registered = gpu_->driver().cuMemHostRegister(
        range_.base() + offset.count(), bytes.count(), CU_MEMHOSTREGISTER_PORTABLE);
    if (registered != CUDA_SUCCESS) {
      return Undo(gpu_->Failure(registered, "cuMemHostRegister"), offset, bytes);
    }
    return std::make_shared<RegisteredChunk>(RegisteredChunk{std::move(memory), bytes});
  }

  core::Error Undo(core::Error error, Bytes offset, Bytes bytes) {
    const Status unmapped = range_.Unmap(offset, bytes);
    return unmapped.ok() ? std::move(error) : unmapped.error();
  }

  const std::shared_ptr<CudaGpu> gpu_;
  const CUcontext context_;
  const int numa_node_;
  const bool is_own_;
  Reservation range_;
  ChunkTable<RegisteredChunk> chunks_;
};

Result<std::unique_ptr<VaRange>> Reserve(std::shared_ptr<CudaGpu> gpu, Bytes size,
                                         Bytes granularity, CUmemAllocationProp memory,
                                         std::vector<CUmemAccessDesc> access) {
  if (size == Bytes{}) {
    return core::Error{core::ErrorCode::kInvalidArgument, "an arena of 0 bytes"};
  }
  size = size.RoundUp(granularity);
  const CudaCaptureExempt exempt(gpu->driver());
  CUdeviceptr base = 0;
  RAVEN_CUDA_CALL(*gpu, cuMemAddressReserve, &base, size.count(), granularity.count(), 0, 0);
  return std::unique_ptr<VaRange>(std::make_unique<CudaVaRange>(
      std::move(gpu), base, size, granularity, memory, std::move(access)));
}

// Whether the driver pins host memory on `node` in a way that another process can import. Tried
// rather than asked: containers and kernels without NUMA refuse what the attribute promises.
bool PinsHostMemory(const CudaGpu& gpu, int node, Bytes granularity) {
  if (gpu.Attribute(CU_DEVICE_ATTRIBUTE_HOST_NUMA_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED) == 0) {
    return false;
  }
  const CUmemAllocationProp memory = MemoryAt(CU_MEM_LOCATION_TYPE_HOST_NUMA, node);
  CUmemGenericAllocationHandle handle = 0;
  if (gpu.driver().cuMemCreate(&handle, granularity.count(), &memory, 0) != CUDA_SUCCESS) {
    return false;
  }
  gpu.driver().cuMemRelease(handle);
  return true;
}

}  // namespace

Result<Bytes> CudaGranularity(CudaGpu& gpu) {
  const CUmemAllocationProp on_device = MemoryAt(CU_MEM_LOCATION_TYPE_DEVICE, gpu.device());
  size_t unit = 0;
  RAVEN_CUDA_CALL(gpu, cuMemGetAllocationGranularity, &unit, &on_device,
                  CU_MEM_ALLOC_GRANULARITY_MINIMUM);
  const CUmemAllocationProp on_host = MemoryAt(CU_MEM_LOCATION_TYPE_HOST_NUMA, NearestNode(gpu));
  size_t host_unit = 0;
  // A driver that cannot pin host memory this way has no unit for it.
  if (gpu.driver().cuMemGetAllocationGranularity(
          &host_unit, &on_host, CU_MEM_ALLOC_GRANULARITY_MINIMUM) == CUDA_SUCCESS) {
    unit = std::max(unit, host_unit);
  }
  return std::max(Bytes(unit), core::MiB(2));
}

Result<std::unique_ptr<VaRange>> ReserveCudaVaRange(std::shared_ptr<CudaGpu> gpu,
                                                    const std::vector<CUdevice>& all, Bytes size,
                                                    Bytes granularity) {
  if (gpu->Attribute(CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED) == 0 ||
      gpu->Attribute(CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED) == 0) {
    return core::Error{core::ErrorCode::kUnsupported,
                       "this GPU or driver has no virtual memory management with descriptors"};
  }
  std::vector<CUmemAccessDesc> access{AccessBy(CU_MEM_LOCATION_TYPE_DEVICE, gpu->device())};
  for (const CUdevice peer : all) {
    int reaches = 0;
    if (peer == gpu->device()) continue;
    RAVEN_CUDA_CALL(*gpu, cuDeviceCanAccessPeer, &reaches, peer, gpu->device());
    if (reaches != 0) access.push_back(AccessBy(CU_MEM_LOCATION_TYPE_DEVICE, peer));
  }
  const CUmemAllocationProp memory = MemoryAt(CU_MEM_LOCATION_TYPE_DEVICE, gpu->device());
  return Reserve(std::move(gpu), size, granularity, memory, std::move(access));
}

Result<std::unique_ptr<VaRange>> ReserveCudaHostVaRange(std::shared_ptr<CudaGpu> gpu,
                                                        const std::vector<CUdevice>& all,
                                                        Bytes size, Bytes granularity,
                                                        int numa_node) {
  const int node = numa_node >= 0 ? numa_node : NearestNode(*gpu);
  if (!PinsHostMemory(*gpu, node, granularity)) {
    return ReserveRegisteredVaRange(std::move(gpu), size, granularity, node);
  }
  std::vector<CUmemAccessDesc> access{AccessBy(CU_MEM_LOCATION_TYPE_HOST_NUMA, node)};
  for (const CUdevice device : all) {
    access.push_back(AccessBy(CU_MEM_LOCATION_TYPE_DEVICE, device));
  }
  return Reserve(std::move(gpu), size, granularity, MemoryAt(CU_MEM_LOCATION_TYPE_HOST_NUMA, node),
                 std::move(access));
}

Result<std::unique_ptr<VaRange>> ReserveRegisteredVaRange(std::shared_ptr<CudaGpu> gpu, Bytes size,
                                                          Bytes granularity, int numa_node,
                                                          RegisteredMemory memory) {
  RAVEN_ASSIGN_OR_RETURN(const CUcontext context, gpu->Primary());
  RAVEN_ASSIGN_OR_RETURN(Reservation range,
                         Reservation::Make(size.RoundUp(granularity), granularity));
  const int node = numa_node >= 0 ? numa_node : NearestNode(*gpu);
  return std::unique_ptr<VaRange>(std::make_unique<RegisteredVaRange>(
      std::move(gpu), context, std::move(range), granularity, node, memory));
}

Result<std::unique_ptr<VaRange>> ReserveCudaPoolVaRange(std::shared_ptr<CudaGpu> gpu,
                                                        const std::vector<CUdevice>& all,
                                                        Bytes size, Bytes granularity,
                                                        int numa_node) {
  if (!HasHugePages())
    return ReserveCudaHostVaRange(std::move(gpu), all, size, granularity, numa_node);
  return ReserveRegisteredVaRange(std::move(gpu), size, granularity, numa_node,
                                  RegisteredMemory::kOwn);
}

}  // namespace ravenstore::device
