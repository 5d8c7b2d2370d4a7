// Blocks of pinned host memory.
//
// The daemon cuts them from slabs that all processes of a user map. A slab's descriptor comes by
// itself and may come before or after the answer that names a block in it; the thread that needs
// the block maps it.
//
// Threads: any.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "client/devices.h"
#include "client/phase.h"
#include "client/wire.h"
#include "core/result.h"
#include "core/types.h"
#include "device/device.h"
#include "ipc/unique_fd.h"

namespace ravenstore::client {

class Session;

// Owns: the addresses of each of the daemon's pools, the slabs that are mapped there, the
// descriptors of those that are not yet, and the list of this process's blocks.
class PinnedMemory {
 public:
  struct Block {
    uint64_t number = 0;
    ClientDevice* device = nullptr;
    // Of one that was freed and could not be ordered behind the streams' work: to be tried again.
    std::vector<device::StreamHandle> streams;
  };

  uint64_t NewNumber();
  // The block's address, once all of it is mapped; waits until `deadline` for slabs under way.
  // Errors: kTimedOut, kLost, kCorrupt (outside the pool), the device's.
  core::Result<std::byte*> Map(const wire::PinnedAllocated& place, uint64_t bytes,
                               ClientDevice& device, core::Tick deadline, const PhaseWord& phase);
  void Keep(std::byte* address, Block block);
  // Takes the block out of the list; nullopt where none begins.
  std::optional<Block> Take(const void* address);
  bool any_blocks();
  void RememberFree(Block block);
  std::vector<Block> TakeUnfreed();

  // The watcher: a slab came. kCorrupt when it was there already.
  core::Status Offer(const wire::PinnedSlab& slab, ipc::UniqueFd descriptor);
  // The watcher: unmaps or forgets it. An error: it is mapped still.
  core::Status Release(const wire::ReleasePinnedSlab& slab);
  void NoteMissedPacket(const core::Error& why);
  void WakeWaiters();
  // The session ended, and no stream uses any of it.
  void Unmap();

  // Around fork, as in ClientDevice.
  void LockForFork() { mutex_.lock(); }
  void UnlockAfterFork() { mutex_.unlock(); }
  void DropDescriptors() { offered_.clear(); }

 private:
  using SlabKey = std::pair<uint32_t, uint64_t>;  // {pool, offset}
  struct Offered {
    uint64_t bytes = 0;
    ipc::UniqueFd descriptor;
  };

  // The next two REQUIRE mutex_.
  core::Result<device::VaRange*> RangeOf(const wire::PinnedAllocated& place, ClientDevice& device);
  // The first byte of the extent that is not mapped; its end when all are.
  core::Result<uint64_t> MapOffered(uint32_t pool, device::VaRange& range, uint64_t offset,
                                    uint64_t bytes);

  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<uint32_t, std::unique_ptr<device::VaRange>> ranges_;  // guarded by mutex_, as all below
  std::map<SlabKey, uint64_t> slabs_;                            // mapped: bytes
  std::map<SlabKey, Offered> offered_;
  std::map<const void*, Block> blocks_;
  std::vector<Block> unfreed_;
  uint64_t last_number_ = 0;
  std::string missed_;  // why a packet was, the last time
};

struct PinnedOptions {
  int device = 0;
  core::Duration timeout{0};  // 0: the session's
};

// Errors: kOutOfMemory ("pinned memory is exhausted", and who holds it), kTimedOut, kLost,
// kNotFound
//   (no such device), kUnsupported, kInvalidArgument, the device's.
core::Result<void*> PinnedAlloc(Session& session, uint64_t bytes, const PinnedOptions& options);
// Ends the block, also when it returns an error. No streams: every stream of the process.
core::Status PinnedFree(Session& session, const void* address,
                        std::span<const device::StreamHandle> streams);
// Before the session ends: orders what is left behind all streams. False: it could not.
bool EndPinned(Session& session);

}  // namespace ravenstore::client
