#include "daemon/heap_trim.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <cstdint>
#include <cstdlib>

#include "ipc/clock.h"

namespace ravenstore::daemon {

namespace {

constexpr uintptr_t kPage = 4096;
// Large ones first, so that there are few.
constexpr std::array<size_t, 3> kSizes = {size_t{1} << 20, size_t{128} << 10, size_t{16} << 10};
// The allocator has nothing left of a size once it hands out what has no memory yet; what it handed
// out before that may have been given back earlier.
constexpr size_t kMissesMax = 8;
constexpr size_t kPiecesPerStep = 64;
// Of an entry of /proc/self/pagemap: present, or swapped out.
constexpr uint64_t kBacked = uint64_t{3} << 62;

// The whole pages of a piece.
uintptr_t Begin(const HeapTrim::Piece& piece) {
  return (reinterpret_cast<uintptr_t>(piece.at) + kPage - 1) / kPage * kPage;
}
size_t Bytes(const HeapTrim::Piece& piece) {
  const uintptr_t end = (reinterpret_cast<uintptr_t>(piece.at) + piece.bytes) / kPage * kPage;
  return end - Begin(piece);
}

}  // namespace

HeapTrim::~HeapTrim() {
  for (void* piece : taken_) std::free(piece);
}

// By pagemap: the service's filter of system calls has no mincore.
bool HeapTrim::HasMemory(const Piece& piece) {
  std::array<uint64_t, kSizes[0] / kPage> entries;
  const size_t pages = Bytes(piece) / kPage;
  const auto at = static_cast<off_t>(Begin(piece) / kPage * sizeof(uint64_t));
  const ssize_t got = ::pread(pagemap_.get(), entries.data(), pages * sizeof(uint64_t), at);
  if (got != static_cast<ssize_t>(pages * sizeof(uint64_t))) return false;
  size_t backed = 0;
  for (size_t i = 0; i < pages; ++i) backed += (entries[i] & kBacked) != 0 ? 1 : 0;
  return 2 * backed > pages;
}

std::vector<HeapTrim::Piece> HeapTrim::Take() {
  if (!pagemap_) pagemap_.reset(::open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC));
  std::vector<Piece> pieces;
  pieces.reserve(kPiecesPerStep);
  const core::Tick begun = ipc::Now();
  size_t bytes = 0;
  while (size_ < kSizes.size()) {
    const Piece piece{static_cast<char*>(std::malloc(kSizes[size_])), kSizes[size_]};
    if (piece.at != nullptr) taken_.push_back(piece.at);
    if (piece.at != nullptr && HasMemory(piece)) {
      pieces.push_back(piece);
      bytes += piece.bytes;
    } else if (++misses_ >= kMissesMax) {
      ++size_;
      misses_ = 0;
    }
    const bool enough = pieces.size() >= kPiecesPerStep || bytes >= kStepBytes.count() ||
                        ipc::Now() - begun >= kStep;
    if (enough && !pieces.empty()) break;
  }
  return pieces;
}

void HeapTrim::Release(const std::vector<Piece>& pieces) {
  for (const Piece& piece : pieces) {
    ::madvise(reinterpret_cast<void*>(Begin(piece)), Bytes(piece), MADV_DONTNEED);
  }
}

bool HeapTrim::PutBack() {
  const core::Tick begun = ipc::Now();
  while (!taken_.empty() && ipc::Now() - begun < kStep) {
    std::free(taken_.back());
    taken_.pop_back();
  }
  if (!taken_.empty()) return false;
  std::vector<void*>().swap(taken_);
  size_ = 0;
  return true;
}

}  // namespace ravenstore::daemon
