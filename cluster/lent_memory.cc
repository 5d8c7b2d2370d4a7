#include "cluster/lent_memory.h"

#include <sys/mman.h>

#include <cerrno>
#include <cstring>
#include <string>

#include "core/check.h"

namespace ravenstore::cluster {

AnonymousMemory::~AnonymousMemory() {
  for (const auto& [address, size] : made_) munmap(address, size);
}

core::Result<std::span<std::byte>> AnonymousMemory::Make(core::Bytes bytes) {
  void* const mapped =
      mmap(nullptr, bytes.count(), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED) {
    return core::Error{core::ErrorCode::kOutOfMemory,
                       std::string("no memory to lend: ") + std::strerror(errno)};
  }
  madvise(mapped, bytes.count(), MADV_HUGEPAGE);  // only faster
  // Populates all of it now: a machine without memory fails here, and not at a later write.
  if (madvise(mapped, bytes.count(), MADV_POPULATE_WRITE) != 0 && errno != EINVAL) {
    const int error = errno;
    munmap(mapped, bytes.count());
    return core::Error{core::ErrorCode::kOutOfMemory,
                       std::string("no memory to lend: ") + std::strerror(error)};
  }
  auto* const first = static_cast<std::byte*>(mapped);
  made_.emplace(first, bytes.count());
  return std::span(first, bytes.count());
}

void AnonymousMemory::Release(std::span<std::byte> memory) {
  RAVEN_CHECK(made_.erase(memory.data()) == 1);
  RAVEN_CHECK(munmap(memory.data(), memory.size()) == 0);
}

}  // namespace ravenstore::cluster
