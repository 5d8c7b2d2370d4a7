// Where the memory of lent slots comes from.
//
// Memory that a slot had is always given back before it is lent again, so that what one home wrote
// is never seen by another.
#pragma once

#include <cstddef>
#include <map>
#include <span>

#include "core/result.h"
#include "core/types.h"

namespace ravenstore::cluster {

class LentMemory {
 public:
  virtual ~LentMemory() = default;
  // Returns `bytes` bytes, which are zero and populated. Blocks while they are cleared. Errors:
  // kOutOfMemory, kSystem.
  virtual core::Result<std::span<std::byte>> Make(core::Bytes bytes) = 0;
  // REQUIRES: `memory` is what Make returned, and nothing uses it any more.
  virtual void Release(std::span<std::byte> memory) = 0;
};

// Pages of the operating system, which clears them.
// Owns: what it made; gone with it. Threads: one.
class AnonymousMemory final : public LentMemory {
 public:
  AnonymousMemory() = default;
  ~AnonymousMemory() override;
  AnonymousMemory(const AnonymousMemory&) = delete;
  AnonymousMemory& operator=(const AnonymousMemory&) = delete;

  core::Result<std::span<std::byte>> Make(core::Bytes bytes) override;
  void Release(std::span<std::byte> memory) override;

 private:
  std::map<std::byte*, size_t> made_;
};

}  // namespace ravenstore::cluster
