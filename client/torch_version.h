// Every difference between the minor versions of PyTorch that the sources next to this header and
// python/native know. No other file of theirs compares TORCH_VERSION_MINOR.
//
// A new minor version: compile against its headers (deploy/torch_versions --headers), put what
// changed here, and raise RAVENSTORE_TORCH_NEWEST.
#pragma once

#include <memory>
#include <string>

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/function.h>
#include <torch/version.h>

#ifdef RAVENSTORE_TORCH_CUDA
#include <functional>
#include <unordered_set>
#include <utility>
#include <vector>

#include <c10/cuda/CUDACachingAllocator.h>
#endif

// The minor versions that Python's native part may be compiled for. python/setup.py reads both
// lines: it refuses an older PyTorch, and leaves the native part out for a newer one.
#define RAVENSTORE_TORCH_OLDEST 209
#define RAVENSTORE_TORCH_NEWEST 215

// The C++ adapter (client/torch.cc) is compiled against older ones, too: Debian 12 has 1.13.
#define RAVENSTORE_TORCH (TORCH_VERSION_MAJOR * 100 + TORCH_VERSION_MINOR)

// What torch's own error about a changed tensor advises.
#if RAVENSTORE_TORCH >= 211
#define DETECT_ANOMALY_ARGUMENTS "True, check_nan=False"
#else
#define DETECT_ANOMALY_ARGUMENTS "True"
#endif

namespace ravenstore::torch::internal {

#if RAVENSTORE_TORCH >= 213
using NodePointer = c10::intrusive_ptr<::torch::autograd::Node>;
using WeakNode = c10::weak_intrusive_ptr<::torch::autograd::Node>;
#else
using NodePointer = std::shared_ptr<::torch::autograd::Node>;
using WeakNode = std::weak_ptr<::torch::autograd::Node>;
#endif

// The node that this thread runs in a backward pass. Null outside of one, and always before 2.0.
inline NodePointer CurrentNode() {
#if RAVENSTORE_TORCH >= 200
  return ::torch::autograd::get_current_node();
#else
  return nullptr;
#endif
}

// A node as torch's own errors name it.
inline std::string NameInErrors(const ::torch::autograd::Node& node) {
#if RAVENSTORE_TORCH >= 213
  return node.forward_op_name();
#else
  return node.name();
#endif
}

// Whether the tensor's dimensions have names, which 2.13 removed.
inline bool HasNames([[maybe_unused]] const at::Tensor& tensor) {
#if RAVENSTORE_TORCH >= 213
  return false;
#else
  return tensor.has_names();
#endif
}

}  // namespace ravenstore::torch::internal

#if defined(RAVENSTORE_TORCH_CUDA) && RAVENSTORE_TORCH >= RAVENSTORE_TORCH_OLDEST
namespace ravenstore::torch::internal {

// Forwards every virtual function of c10's CUDAAllocator to another allocator. Most of them have a
// default that does nothing, so that a forgotten one compiles: deploy/torch_versions --headers
// compares this class with that one.
//
// Threads: as c10's.
class ForwardingCudaAllocator : public c10::cuda::CUDACachingAllocator::CUDAAllocator {
 protected:
  using AllocatorState = c10::cuda::CUDACachingAllocator::AllocatorState;
  using AllocatorTraceTracker = c10::cuda::CUDACachingAllocator::AllocatorTraceTracker;
  using CheckpointDelta = c10::cuda::CUDACachingAllocator::CheckpointDelta;
  using CreateContextFn = c10::cuda::CUDACachingAllocator::CreateContextFn;
  using CUDAAllocator = c10::cuda::CUDACachingAllocator::CUDAAllocator;
  using CUDAStream = c10::cuda::CUDAStream;
  using DataPtr = c10::DataPtr;
  using DeviceIndex = c10::DeviceIndex;
  using DeviceStats = c10::CachingDeviceAllocator::DeviceStats;
  using MempoolId_t = c10::MempoolId_t;
  using OutOfMemoryObserver = c10::cuda::CUDACachingAllocator::OutOfMemoryObserver;
  using RecordContext = c10::cuda::CUDACachingAllocator::RecordContext;
  using ShareableHandle = c10::cuda::CUDACachingAllocator::ShareableHandle;
  using SnapshotInfo = c10::cuda::CUDACachingAllocator::SnapshotInfo;

 public:
  explicit ForwardingCudaAllocator(CUDAAllocator* before) : before_(before) {}

  DataPtr allocate(size_t bytes) override { return before_->allocate(bytes); }
  c10::DeleterFnPtr raw_deleter() const override { return before_->raw_deleter(); }
  bool is_simple_data_ptr(const DataPtr& data) const override {
    return before_->is_simple_data_ptr(data);
  }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    before_->copy_data(to, from, bytes);
  }
  bool initialized() override { return before_->initialized(); }
  void emptyCache(MempoolId_t pool = {0, 0}) override { before_->emptyCache(pool); }
  void recordStream(const DataPtr& data, CUDAStream stream) override {
    before_->recordStream(data, stream);
  }
  DeviceStats getDeviceStats(DeviceIndex device) override {
    return before_->getDeviceStats(device);
  }
  void resetAccumulatedStats(DeviceIndex device) override {
    before_->resetAccumulatedStats(device);
  }
  void resetPeakStats(DeviceIndex device) override { before_->resetPeakStats(device); }

  void* raw_alloc(size_t bytes) override { return before_->raw_alloc(bytes); }
  void* raw_alloc_with_stream(size_t bytes, cudaStream_t stream) override {
    return before_->raw_alloc_with_stream(bytes, stream);
  }
  void raw_delete(void* address) override { before_->raw_delete(address); }
  void init(int devices) override { before_->init(devices); }
  double getMemoryFraction(DeviceIndex device) override {
    return before_->getMemoryFraction(device);
  }
  void setMemoryFraction(double fraction, DeviceIndex device) override {
    before_->setMemoryFraction(fraction, device);
  }
  void enable(bool value) override { before_->enable(value); }
  bool isEnabled() const override { return before_->isEnabled(); }
  void cacheInfo(DeviceIndex device, size_t* largest) override {
    before_->cacheInfo(device, largest);
  }
  void* getBaseAllocation(void* address, size_t* size) override {
    return before_->getBaseAllocation(address, size);
  }

  void beginAllocateToPool(DeviceIndex device, MempoolId_t pool,
                           std::function<bool(cudaStream_t)> filter) override {
    before_->beginAllocateToPool(device, pool, std::move(filter));
  }
  void endAllocateToPool(DeviceIndex device, MempoolId_t pool) override {
    before_->endAllocateToPool(device, pool);
  }
  void releasePool(DeviceIndex device, MempoolId_t pool) override {
    before_->releasePool(device, pool);
  }
  int getPoolUseCount(DeviceIndex device, MempoolId_t pool) override {
    return before_->getPoolUseCount(device, pool);
  }
  bool checkPoolLiveAllocations(DeviceIndex device, MempoolId_t pool,
                                const std::unordered_set<void*>& expected) override {
    return before_->checkPoolLiveAllocations(device, pool, expected);
  }
  std::shared_ptr<AllocatorState> getCheckpointState(DeviceIndex device,
                                                     MempoolId_t pool) override {
    return before_->getCheckpointState(device, pool);
  }
  CheckpointDelta setCheckpointPoolState(DeviceIndex device,
                                         std::shared_ptr<AllocatorState> state) override {
    return before_->setCheckpointPoolState(device, std::move(state));
  }

  ShareableHandle shareIpcHandle(void* address) override {
    return before_->shareIpcHandle(address);
  }
  std::shared_ptr<void> getIpcDevPtr(std::string handle) override {
    return before_->getIpcDevPtr(std::move(handle));
  }
  bool isHistoryEnabled() override { return before_->isHistoryEnabled(); }
  void recordAnnotation(
      const std::vector<std::pair<std::string, std::string>>& annotation) override {
    before_->recordAnnotation(annotation);
  }
  void pushCompileContext(std::string& context) override { before_->pushCompileContext(context); }
  void popCompileContext() override { before_->popCompileContext(); }
  void attachOutOfMemoryObserver(OutOfMemoryObserver observer) override {
    before_->attachOutOfMemoryObserver(std::move(observer));
  }
  void attachAllocatorTraceTracker(AllocatorTraceTracker tracker) override {
    before_->attachAllocatorTraceTracker(std::move(tracker));
  }
  void enablePeerAccess(DeviceIndex device, DeviceIndex peer) override {
    before_->enablePeerAccess(device, peer);
  }
  cudaError_t memcpyAsync(void* to, int to_device, const void* from, int from_device, size_t bytes,
                          cudaStream_t stream, bool peer_access) override {
    return before_->memcpyAsync(to, to_device, from, from_device, bytes, stream, peer_access);
  }
  std::string name() override { return before_->name(); }

#if RAVENSTORE_TORCH >= 210
  std::pair<size_t, size_t> getMemoryInfo(DeviceIndex device) override {
    return before_->getMemoryInfo(device);
  }
  std::vector<c10::cuda::CUDACachingAllocator::StreamSegmentSize> getExpandableSegmentSizes(
      DeviceIndex device) override {
    return before_->getExpandableSegmentSizes(device);
  }
  void setNoSplit(DeviceIndex device, MempoolId_t pool) override {
    before_->setNoSplit(device, pool);
  }
  void setUserMetadata(const std::string& metadata) override {
    before_->setUserMetadata(metadata);
  }
  std::string getUserMetadata() override {
    return before_->getUserMetadata();
  }
#endif

#if RAVENSTORE_TORCH >= 211
  SnapshotInfo snapshot(MempoolId_t pool, bool include_traces) override {
    SnapshotInfo info = before_->snapshot(pool, include_traces);
    AddToSnapshot(info, pool);
    return info;
  }
  void createOrIncrefPool(DeviceIndex device, MempoolId_t pool,
                          std::shared_ptr<CUDAAllocator> allocator) override {
    before_->createOrIncrefPool(device, pool, std::move(allocator));
  }
  void setUseOnOOM(DeviceIndex device, MempoolId_t pool, bool use) override {
    before_->setUseOnOOM(device, pool, use);
  }
  void recordHistory(bool enabled, CreateContextFn recorder, size_t entries, RecordContext when,
                     bool clear, const std::vector<std::string>& skip) override {
    before_->recordHistory(enabled, recorder, entries, when, clear, skip);
  }
#else
  SnapshotInfo snapshot(MempoolId_t pool) override {
    SnapshotInfo info = before_->snapshot(pool);
    AddToSnapshot(info, pool);
    return info;
  }
  void createOrIncrefPool(DeviceIndex device, MempoolId_t pool, CUDAAllocator* allocator) override {
    before_->createOrIncrefPool(device, pool, allocator);
  }
  void setUseOnOOM(DeviceIndex device, MempoolId_t pool) override {
    before_->setUseOnOOM(device, pool);
  }
  void recordHistory(bool enabled, CreateContextFn recorder, size_t entries, RecordContext when,
                     bool clear) override {
    before_->recordHistory(enabled, recorder, entries, when, clear);
  }
#endif

#if RAVENSTORE_TORCH >= 212
  std::shared_ptr<c10::GatheredContext> getContextForPointer(const void* address) override {
    return IsOwn(address) ? nullptr : before_->getContextForPointer(address);
  }
  void attachOomRejectionObserver(
      c10::cuda::CUDACachingAllocator::OomRejectionObserver observer) override {
    before_->attachOomRejectionObserver(std::move(observer));
  }
#endif

#if RAVENSTORE_TORCH >= 213
  DataPtr allocateWithAddress(size_t bytes, void* address) override {
    return before_->allocateWithAddress(bytes, address);
  }
  void markCaptureBegin(DeviceIndex device) override {
    before_->markCaptureBegin(device);
  }
  void markCaptureEnd(DeviceIndex device) override {
    before_->markCaptureEnd(device);
  }
#endif

#if RAVENSTORE_TORCH >= 214
  bool supportsUserMetadata() override {
    return before_->supportsUserMetadata();
  }
  void annotateMemory(const void* address, const std::string& metadata) override {
    if (!IsOwn(address)) before_->annotateMemory(address, metadata);
  }
#endif

 protected:
  // Adds the derived class's own memory to what `before_` has in a pool.
  virtual void AddToSnapshot(SnapshotInfo& info, MempoolId_t pool) = 0;
  // Whether the memory is the derived class's, which `before_` does not know.
  virtual bool IsOwn(const void* address) const = 0;

  CUDAAllocator* const before_;
};

}  // namespace ravenstore::torch::internal
#endif
