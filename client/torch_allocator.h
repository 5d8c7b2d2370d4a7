// Torch's allocator over the store: large blocks of torch's memory are blocks of client/blocks.h,
// so that what autograd saved can be parked when torch frees it.
//
// Of the store's kind of device (CUDA, or the CPU for the "host" backend) blocks of at least
// `min_bytes` come from the store, everything else from the allocator that was there: smaller ones,
// what is asked for while a memory pool is filled or a stream captures, and all of it once the
// store is lost. Blocks carry their own deleter, so it can be put in place at any time, also when
// CUDA is long in use. It stays for the life of the process.
//
// What knows CUDA is torch_allocator_cuda.cc, which the Python package has in a library of its own:
// the rest serves a torch without CUDA as well.
//
// Must be compiled against the headers of the torch that runs, of a minor version that
// client/torch_version.h knows: the virtual functions of c10's allocators change with each.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <unordered_map>

#include <c10/core/Allocator.h>

#include "client/blocks.h"
#include "client/torch_version.h"

static_assert(RAVENSTORE_TORCH >= RAVENSTORE_TORCH_OLDEST &&
                  RAVENSTORE_TORCH <= RAVENSTORE_TORCH_NEWEST,
              "client/torch_version.h does not know the allocators of this torch");

namespace ravenstore::torch {

struct TorchAllocatorOptions {
  uint64_t min_bytes = MiB(1);
  uint64_t device_budget = 0;  // at most what the daemon grants; 0: that
  int host_device = 0;         // the store's device that CPU tensors belong to
  // Runs a call that may wait: the place to release a lock that others need meanwhile. Must call
  // its argument once, and let what it throws through.
  std::function<void(const std::function<void()>&)> may_wait;
};

// Puts the allocator in place and returns the blocks behind it, which live until the process ends.
// A second call returns the first one's. Throws Error: UNSUPPORTED where the store's backend is
// "cuda" and no CudaPart was set, or where torch runs another allocator than its own
// caching one.
BlockAllocator& InstallTorchAllocator(std::shared_ptr<Store> store,
                                      const TorchAllocatorOptions& options);

// Of what this thread allocates from now on, such as an optimizer's states.
void Expect(Life life) noexcept;

// The block that a storage's memory is; null where it is not the store's.
Block* BlockOf(const c10::DataPtr& data);

namespace internal {

// What the allocators of both kinds of device share.
class TorchBlocks {
 public:
  TorchBlocks(std::shared_ptr<Store> store, StreamOrder* order,
              const TorchAllocatorOptions& options);

  // Whether a request of `bytes` is for the store.
  bool Serves(size_t bytes) const {
    return bytes >= options_.min_bytes && !lost_.load(std::memory_order_relaxed);
  }
  // Memory of the store, or nullptr when the store is lost: then the caller's own allocator serves.
  // Throws OutOfMemory.
  void* Allocate(size_t bytes, int device, Stream stream);
  // False when the address is not the store's.
  bool Free(void* address) noexcept;
  // Null where the address is not the beginning of a block.
  Block* Find(const void* address) const;
  template <typename Function>
  void ForEach(Function function) const {
    std::lock_guard lock(mutex_);
    for (const auto& [address, block] : in_use_) function(*block);
  }
  BlockAllocator& blocks() { return blocks_; }
  int host_device() const { return options_.host_device; }

 private:
  const TorchAllocatorOptions options_;
  BlockAllocator blocks_;
  std::atomic<bool> lost_{false};
  mutable std::mutex mutex_;
  std::unordered_map<const void*, Block*> in_use_;  // guarded by mutex_
};

// The process's; null before InstallTorchAllocator.
TorchBlocks* InstalledBlocks();
// The deleter of every block of the store, given its address.
void FreeBlock(void* address);

// What InstallTorchAllocator needs of CUDA. Lives until the process ends.
struct CudaPart {
  StreamOrder* order;
  // `free_other` becomes what frees the blocks of the allocator that was there. Throws as
  // InstallTorchAllocator does.
  void (*install)(TorchBlocks* blocks, std::atomic<c10::DeleterFnPtr>* free_other);
};
// Sets it, once.
void SetCudaPart(const CudaPart* part);

}  // namespace internal
}  // namespace ravenstore::torch
