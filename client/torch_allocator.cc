#include "client/torch_allocator.h"

#include <atomic>
#include <string>
#include <utility>

#include <c10/core/CPUAllocator.h>
#include <c10/util/Exception.h>

namespace ravenstore::torch {
namespace internal {
namespace {

std::atomic<TorchBlocks*> installed{nullptr};
std::atomic<const CudaPart*> cuda_part{nullptr};
// Frees what is not the store's.
std::atomic<c10::DeleterFnPtr> free_other{nullptr};

// The host backend's streams are the calling thread: what ran is done.
class NoOrder : public StreamOrder {
 public:
  void Order(Stream, Stream, int) noexcept override {}
};

// CPU memory of the host backend's "device", for programs and tests without a GPU.
class CpuAllocator final : public c10::Allocator {
 public:
  CpuAllocator(TorchBlocks* blocks, c10::Allocator* before) : blocks_(blocks), before_(before) {}

  c10::DataPtr allocate(size_t bytes) override {
    if (!blocks_->Serves(bytes)) return before_->allocate(bytes);
    void* address = nullptr;
    try {
      address = blocks_->Allocate(bytes, blocks_->host_device(), nullptr);
    } catch (const OutOfMemory& error) {
      TORCH_CHECK_WITH(OutOfMemoryError, false, "CPU out of memory. ", error.what());
    }
    if (address == nullptr) return before_->allocate(bytes);
    return {address, address, &FreeBlock, c10::Device(c10::kCPU)};
  }
  // For small ones as well: FreeBlock distinguishes them by their address.
  c10::DeleterFnPtr raw_deleter() const override { return &FreeBlock; }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }

 private:
  TorchBlocks* const blocks_;
  c10::Allocator* const before_;
};

thread_local Life expected = Life::kNotKnown;

}  // namespace

TorchBlocks::TorchBlocks(std::shared_ptr<Store> store, StreamOrder* order,
                         const TorchAllocatorOptions& options)
    : options_(options), blocks_(std::move(store), order, options.device_budget) {}

void* TorchBlocks::Allocate(size_t bytes, int device, Stream stream) {
  const Life life = expected;
  Block* block = life == Life::kLong ? nullptr : blocks_.TakeIdle(bytes, device, stream);
  if (block == nullptr) {
    const auto allocate = [&] { block = blocks_.AllocateNew(bytes, device, stream, life); };
    try {
      options_.may_wait ? options_.may_wait(allocate) : allocate();
    } catch (const OutOfMemory&) {
      throw;
    } catch (const Error&) {
      // The next save or read of a parked tensor says what became of the store.
      lost_ = true;
      return nullptr;
    }
  }
  std::lock_guard lock(mutex_);
  in_use_[block->address()] = block;
  return block->address();
}

bool TorchBlocks::Free(void* address) noexcept {
  // No lock of the parent's may be taken: another of its threads may have held it.
  if (blocks_.IsForked()) return true;
  Block* block = nullptr;
  {
    std::lock_guard lock(mutex_);
    const auto found = in_use_.find(address);
    if (found == in_use_.end()) return false;
    block = found->second;
    in_use_.erase(found);
  }
  blocks_.Release(block);
  return true;
}

Block* TorchBlocks::Find(const void* address) const {
  if (blocks_.IsForked()) return nullptr;
  std::lock_guard lock(mutex_);
  const auto found = in_use_.find(address);
  return found == in_use_.end() ? nullptr : found->second;
}

void SetCudaPart(const CudaPart* part) {
  cuda_part = part;
}

TorchBlocks* InstalledBlocks() {
  return installed.load(std::memory_order_acquire);
}

void FreeBlock(void* address) {
  if (!InstalledBlocks()->Free(address)) free_other.load()(address);
}

}  // namespace internal

void Expect(Life life) noexcept {
  internal::expected = life;
}

BlockAllocator& InstallTorchAllocator(std::shared_ptr<Store> store,
                                      const TorchAllocatorOptions& options) {
  static std::mutex mutex;
  std::lock_guard lock(mutex);
  if (auto* blocks = internal::InstalledBlocks()) return blocks->blocks();
  // None of these is ever destroyed: torch frees its last blocks when the process ends.
  if (store->backend() == "cuda") {
    const internal::CudaPart* cuda = internal::cuda_part;
    if (cuda == nullptr)
      throw Error(RAVENSTORE_UNSUPPORTED,
                  "the store's backend is \"cuda\", and this torch is without it");
    auto* blocks = new internal::TorchBlocks(std::move(store), cuda->order, options);
    // Before it is in place: another thread may immediately free what it was given.
    internal::installed.store(blocks, std::memory_order_release);
    try {
      cuda->install(blocks, &internal::free_other);
    } catch (const Error&) {
      internal::installed.store(nullptr, std::memory_order_release);
      delete blocks;
      throw;
    }
    return blocks->blocks();
  }
  auto* blocks = new internal::TorchBlocks(std::move(store), new internal::NoOrder, options);
  internal::installed.store(blocks, std::memory_order_release);
  c10::Allocator* before = c10::GetAllocator(c10::kCPU);
  internal::free_other = before->raw_deleter();
  auto* allocator = new internal::CpuAllocator(blocks, before);
  c10::SetAllocator(c10::kCPU, allocator, /*priority=*/255);
  return blocks->blocks();
}

Block* BlockOf(const c10::DataPtr& data) {
  if (data.get_deleter() != &internal::FreeBlock) return nullptr;
  return internal::InstalledBlocks()->Find(data.get());
}

}  // namespace ravenstore::torch
