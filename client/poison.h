// RAVENSTORE_DEBUG=poison: finds uses of a tensor after its put.
//
// A put keeps the bytes in private memory and fills the extent with 0xDB: code that still reads
// there sees garbage, and a late write is found by the next get (or free), which looks for the fill
// before it brings the bytes back. Slow and synchronous, on purpose.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <vector>

#include "client/streams.h"
#include "core/result.h"

namespace ravenstore::client {

inline constexpr uint8_t kPoisonByte = 0xDB;

// Owns: the bytes of the tensors that are in Ravenspace.
// Threads: everything REQUIRES the lock that Lock() gives, so that a get and a put of one tensor
//   cannot find each other half done.
class PoisonKeeper {
 public:
  std::unique_lock<std::mutex> Lock() { return std::unique_lock(mutex_); }

  bool Holds(uint32_t slot) const { return shadows_.contains(slot); }
  // Keeps the bytes and fills their place. Waits for `stream`.
  core::Status Poison(uint32_t slot, ClientStream& stream, void* address, uint64_t bytes);
  // Brings the bytes back, if there are any. Waits for `stream`. When the fill was written over,
  // the place is filled again, the bytes are kept, and the offset of the first such byte is the
  // result.
  core::Result<std::optional<uint64_t>> Restore(uint32_t slot, ClientStream& stream, void* address);
  void Forget(uint32_t slot) { shadows_.erase(slot); }

 private:
  std::mutex mutex_;
  std::map<uint32_t, std::vector<std::byte>> shadows_;
  std::vector<std::byte> scratch_;
};

}  // namespace ravenstore::client
