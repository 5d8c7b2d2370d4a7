#include "device/reservation.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <string>
#include <utility>

namespace ravenstore::device {

core::Error NoDescriptors(const char* what) {
  return {
      core::ErrorCode::kLimit,
      std::string(what) +
          ": no file descriptors are left, of which every slab takes some: end some jobs, raise "
          "LimitNOFILE of the daemon's service, or make slabs larger"};
}

core::Error SystemError(const char* what) {
  const int code = errno;
  if (code == EMFILE || code == ENFILE) return NoDescriptors(what);
  return {core::ErrorCode::kSystem,
          std::string(what) + ": " + strerror(code) + " (errno " + std::to_string(code) + ")"};
}

core::Result<Reservation> Reservation::Make(core::Bytes size) {
  if (size == core::Bytes{}) {
    return core::Error{core::ErrorCode::kInvalidArgument, "an arena of 0 bytes"};
  }
  void* base =
      mmap(nullptr, size.count(), PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (base == MAP_FAILED) return SystemError("reserve addresses (mmap)");
  Reservation made;
  made.base_ = static_cast<std::byte*>(base);
  made.size_ = size;
  if (madvise(base, size.count(), MADV_DONTFORK) != 0) return SystemError("madvise DONTFORK");
  return made;
}

Reservation::Reservation(Reservation&& other) noexcept
    : base_(std::exchange(other.base_, nullptr)), size_(std::exchange(other.size_, {})) {}

Reservation& Reservation::operator=(Reservation&& other) noexcept {
  std::swap(base_, other.base_);
  std::swap(size_, other.size_);
  return *this;
}

Reservation::~Reservation() {
  if (base_ != nullptr) munmap(base_, size_.count());
}

core::Status Reservation::Map(core::Bytes offset, core::Bytes bytes, int memory) {
  std::byte* at = base_ + offset.count();
  void* mapped = mmap(at, bytes.count(), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, memory, 0);
  if (mapped == MAP_FAILED) return SystemError("map shared memory (mmap)");
  // The advice of the reservation went with the mapping that this one replaced.
  if (madvise(at, bytes.count(), MADV_DONTFORK) != 0) {
    core::Error error = SystemError("madvise DONTFORK");
    RAVEN_RETURN_IF_ERROR(Unmap(offset, bytes));
    return error;
  }
  return core::Ok();
}

core::Status Reservation::MapWhole(core::Bytes offset, core::Bytes bytes, int memory) {
  RAVEN_ASSIGN_OR_RETURN(const core::Bytes whole, SizeOf(memory));
  if (whole != bytes) {
    return core::Error{core::ErrorCode::kInvalidArgument,
                       "import of " + std::to_string(bytes.count()) + " bytes from memory of " +
                           std::to_string(whole.count())};
  }
  return Map(offset, bytes, memory);
}

core::Status Reservation::Populate(core::Bytes offset, core::Bytes bytes) {
  const int done = madvise(base_ + offset.count(), bytes.count(), MADV_POPULATE_WRITE);
  if (done != 0 && errno != EINVAL) return SystemError("populate shared memory (madvise)");
  return core::Ok();
}

core::Status Reservation::Unmap(core::Bytes offset, core::Bytes bytes) {
  std::byte* at = base_ + offset.count();
  void* mapped = mmap(at, bytes.count(), PROT_NONE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
  if (mapped == MAP_FAILED) return SystemError("unmap shared memory (mmap)");
  if (madvise(at, bytes.count(), MADV_DONTFORK) != 0) return SystemError("madvise DONTFORK");
  return core::Ok();
}

core::Result<ipc::UniqueFd> NewMemory(core::Bytes bytes) {
  ipc::UniqueFd memory(memfd_create("ravenstore", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!memory) return SystemError("memfd_create");
  if (ftruncate(memory.get(), static_cast<off_t>(bytes.count())) != 0) {
    return SystemError("ftruncate of a new memfd");
  }
  if (fcntl(memory.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
    return SystemError("seal a new memfd");
  }
  return memory;
}

core::Result<ipc::UniqueFd> Duplicate(int descriptor) {
  ipc::UniqueFd copy(fcntl(descriptor, F_DUPFD_CLOEXEC, 0));
  if (!copy) return SystemError("duplicate a descriptor");
  return copy;
}

core::Status OfferCopy(const std::function<void(ipc::UniqueFd)>& offer, int descriptor) {
  if (!offer) return core::Ok();
  RAVEN_ASSIGN_OR_RETURN(ipc::UniqueFd copy, Duplicate(descriptor));
  offer(std::move(copy));
  return core::Ok();
}

core::Result<core::Bytes> SizeOf(int descriptor) {
  struct stat status;
  if (fstat(descriptor, &status) != 0) return SystemError("fstat of shared memory");
  return core::Bytes(static_cast<uint64_t>(status.st_size));
}

}  // namespace ravenstore::device
