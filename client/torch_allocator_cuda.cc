// Compiled with RAVENSTORE_TORCH_CUDA, into a library of its own in the Python package.
#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime_api.h>

#include "client/torch_allocator.h"
#include "client/torch_saved.h"
#include "client/torch_version.h"

namespace ravenstore::torch::internal {
namespace {

using c10::DataPtr;
using c10::DeviceIndex;
using c10::MempoolId_t;
using c10::cuda::CUDAStream;
using namespace c10::cuda::CUDACachingAllocator;  // NOLINT: nearly every type below
using c10::CachingAllocator::Stat;

class EventOrder : public StreamOrder {
 public:
  void Order(Stream earlier, Stream later, int device) noexcept override {
    // An event may be destroyed while a stream still waits for it.
    int current = 0;
    cudaGetDevice(&current);
    if (current != device) cudaSetDevice(device);
    cudaEvent_t event = nullptr;
    if (cudaEventCreateWithFlags(&event, cudaEventDisableTiming) == cudaSuccess) {
      cudaEventRecord(event, static_cast<cudaStream_t>(earlier));
      cudaStreamWaitEvent(static_cast<cudaStream_t>(later), event, 0);
      cudaEventDestroy(event);
    }
    if (current != device) cudaSetDevice(current);
  }
};

// Serves what is the store's, and forwards the rest to the allocator that was there.
class CudaAllocator final : public ForwardingCudaAllocator {
 public:
  CudaAllocator(TorchBlocks* blocks, CUDAAllocator* before)
      : ForwardingCudaAllocator(before), blocks_(blocks) {}

  DataPtr allocate(size_t bytes) override {
    if (!blocks_->Serves(bytes)) return before_->allocate(bytes);
    const DeviceIndex device = c10::cuda::current_device();
    cudaStream_t stream = c10::cuda::getCurrentCUDAStream(device).stream();
    if (pools_.load(std::memory_order_relaxed) > 0 || IsCapturing(stream))
      return before_->allocate(bytes);
    void* address = nullptr;
    try {
      address = blocks_->Allocate(bytes, device, stream);
    } catch (const OutOfMemory& error) {
      TORCH_CHECK_WITH(OutOfMemoryError, false, "CUDA out of memory. ", error.what());
    }
    if (address == nullptr) return before_->allocate(bytes);
    return {address, address, &FreeBlock, c10::Device(c10::kCUDA, device)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &FreeBlock; }
  void raw_delete(void* address) override {
    if (!blocks_->Free(address)) before_->raw_delete(address);
  }

  void emptyCache(MempoolId_t pool = {0, 0}) override {
    if (pool == MempoolId_t{0, 0}) blocks_->blocks().EmptyMagazines();
    before_->emptyCache(pool);
  }
  void recordStream(const DataPtr& data, CUDAStream stream) override {
    if (Block* block = BlockOf(data)) return blocks_->blocks().Record(block, stream.stream());
    if (!SavedBytes::Record(data, {stream.stream(), stream.unwrap()}))
      before_->recordStream(data, stream);
  }

  DeviceStats getDeviceStats(DeviceIndex device) override;
  void resetPeakStats(DeviceIndex device) override {
    before_->resetPeakStats(device);
    blocks_->blocks().ResetPeaks(device);
  }
  void* getBaseAllocation(void* address, size_t* size) override {
    if (Block* block = blocks_->Find(address)) {
      if (size != nullptr) *size = block->bytes();
      return address;
    }
    return before_->getBaseAllocation(address, size);
  }

  void beginAllocateToPool(DeviceIndex device, MempoolId_t pool,
                           std::function<bool(cudaStream_t)> filter) override {
    ++pools_;
    before_->beginAllocateToPool(device, pool, std::move(filter));
  }
  void endAllocateToPool(DeviceIndex device, MempoolId_t pool) override {
    before_->endAllocateToPool(device, pool);
    --pools_;
  }

  ShareableHandle shareIpcHandle(void* address) override {
    TORCH_CHECK(blocks_->Find(address) == nullptr,
                "this tensor's memory is Ravenstore's, and cannot be given to another process "
                "through CUDA IPC: send a copy that was made before ravenstore.offload(), or one "
                "of less than ravenstore's min_bytes, or send it through the CPU");
    return before_->shareIpcHandle(address);
  }
  cudaError_t memcpyAsync(void* to, int to_device, const void* from, int from_device, size_t bytes,
                          cudaStream_t stream, bool peer_access) override {
    // A peer has no access to the store's memory, which is mapped and not cudaMalloc's: the driver
    // has to copy it.
    if (to_device != from_device)
      return cudaMemcpyPeerAsync(to, to_device, from, from_device, bytes, stream);
    return before_->memcpyAsync(to, to_device, from, from_device, bytes, stream, peer_access);
  }

 private:
  static bool IsCapturing(cudaStream_t stream) {
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    return cudaStreamIsCapturing(stream, &status) != cudaSuccess ||
           status != cudaStreamCaptureStatusNone;
  }

  void AddToSnapshot(SnapshotInfo& info, MempoolId_t pool) override;
  bool IsOwn(const void* address) const override { return blocks_->Find(address) != nullptr; }

  TorchBlocks* const blocks_;
  std::atomic<int> pools_{0};  // that are being filled
};

// Adds to the figure of all blocks and to that of large ones.
void Add(c10::CachingAllocator::StatArray& figure, uint64_t current, uint64_t peak, uint64_t ever) {
  using c10::CachingAllocator::StatType;
  for (const StatType type : {StatType::AGGREGATE, StatType::LARGE_POOL}) {
    Stat& stat = figure[static_cast<size_t>(type)];
    stat.peak += static_cast<int64_t>(peak);
    stat.current += static_cast<int64_t>(current);
    stat.allocated += static_cast<int64_t>(ever);
    stat.freed += static_cast<int64_t>(ever - current);
  }
}

DeviceStats CudaAllocator::getDeviceStats(DeviceIndex device) {
  DeviceStats stats = before_->getDeviceStats(device);
  const BlocksStats ours = blocks_->blocks().stats(device);
  Add(stats.allocation, ours.used_blocks, ours.used_blocks_peak, ours.allocations);
  Add(stats.active, ours.used_blocks, ours.used_blocks_peak, ours.allocations);
  Add(stats.allocated_bytes, ours.used, ours.used_peak, ours.allocated_bytes);
  Add(stats.active_bytes, ours.used, ours.used_peak, ours.allocated_bytes);
  Add(stats.requested_bytes, ours.used, ours.used_peak, ours.allocated_bytes);
  const uint64_t held = ours.used + ours.idle;
  Add(stats.reserved_bytes, held, ours.held_peak, held);
  stats.num_ooms += static_cast<int64_t>(ours.failures);
  return stats;
}

void CudaAllocator::AddToSnapshot(SnapshotInfo& info, MempoolId_t pool) {
  if (pool != MempoolId_t{0, 0}) return;
  blocks_->ForEach([&](const Block& block) {
    SegmentInfo segment;
    segment.device = static_cast<DeviceIndex>(block.device());
    segment.address = reinterpret_cast<size_t>(block.address());
    segment.total_size = segment.requested_size = block.bytes();
    segment.allocated_size = segment.active_size = block.bytes();
    segment.stream = static_cast<cudaStream_t>(block.stream());
    segment.is_large = true;
    BlockInfo part;
    part.size = part.requested_size = block.bytes();
    part.allocated = part.active = true;
    segment.blocks.push_back(part);
    info.segments.push_back(std::move(segment));
  });
}

void InstallCudaAllocator(TorchBlocks* blocks, std::atomic<c10::DeleterFnPtr>* free_other) {
  namespace caching = c10::cuda::CUDACachingAllocator;
  CUDAAllocator* before = caching::get();
  // Another one (CUDAPluggableAllocator) may hand out memory that only it can tell.
  if (before->name() != "native" && before->name() != "cudaMallocAsync")
    throw Error(RAVENSTORE_UNSUPPORTED, "torch's CUDA allocator is \"" + before->name() +
                                            "\" and not its own: ravenstore cannot take its place");
  *free_other = before->raw_deleter();
  auto* ours = new CudaAllocator(blocks, before);
  caching::allocator.store(ours);
  c10::SetAllocator(c10::kCUDA, ours, /*priority=*/255);
}

}  // namespace
}  // namespace ravenstore::torch::internal

// Called once this library is loaded, before the store is.
extern "C" __attribute__((visibility("default"))) void ravenstore_torch_use_cuda() {
  using namespace ravenstore::torch::internal;  // NOLINT
  static const CudaPart part{new EventOrder, &InstallCudaAllocator};
  UseCudaStreams();
  SetCudaPart(&part);
}
