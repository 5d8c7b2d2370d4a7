#include "device/reservation.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <latch>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "core/size_text.h"

namespace ravenstore::device {
namespace {

using core::Bytes;

// Bytes that are worth a thread: a few huge pages, each cleared in a quarter of a millisecond.
constexpr Bytes kPopulatedByThread = core::MiB(4);

// `size`: what was to be reserved.
core::Error NoAddresses(Bytes size) {
  const int code = errno;
  rlimit limit{};
  const bool is_limited =
      getrlimit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY && code == ENOMEM;
  errno = code;
  core::Error error = SystemError("reserve addresses (mmap)");
  if (is_limited) {
    error.message += "; " + core::SizeText(size) +
                     " of addresses are needed, which take no memory, and this process may have " +
                     core::SizeText(Bytes(limit.rlim_cur)) +
                     " in all: lift that limit (ulimit -v unlimited)";
  }
  return error;
}

}  // namespace

bool HasHugePages() {
  std::string chosen;
  std::getline(std::ifstream("/sys/kernel/mm/transparent_hugepage/enabled"), chosen);
  return chosen.find("[always]") != std::string::npos ||
         chosen.find("[madvise]") != std::string::npos;
}

core::Error NoDescriptors(const char* what) {
  return {
      core::ErrorCode::kLimit,
      std::string(what) +
          ": no file descriptors are left, of which every page takes some: end some jobs, raise "
          "LimitNOFILE of the daemon's service, or make pages larger (devices.page)"};
}

core::Error SystemError(const char* what) {
  const int code = errno;
  if (code == EMFILE || code == ENFILE) return NoDescriptors(what);
  return {core::ErrorCode::kSystem,
          std::string(what) + ": " + strerror(code) + " (errno " + std::to_string(code) + ")"};
}

core::Result<Reservation> Reservation::Make(core::Bytes size, core::Bytes alignment) {
  if (size == core::Bytes{}) {
    return core::Error{core::ErrorCode::kInvalidArgument, "an arena of 0 bytes"};
  }
  const core::Bytes whole = size + alignment;
  void* const found =
      mmap(nullptr, whole.count(), PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (found == MAP_FAILED) return NoAddresses(whole);
  auto* const begin = static_cast<std::byte*>(found);
  const uintptr_t past = reinterpret_cast<uintptr_t>(found) % alignment.count();
  Reservation made;
  made.base_ = begin + (past == 0 ? 0 : alignment.count() - past);
  made.size_ = size;
  if (made.base_ != begin) munmap(begin, made.base_ - begin);
  std::byte* const end = made.base_ + size.RoundUp(core::KiB(4)).count();
  if (end < begin + whole.count()) munmap(end, begin + whole.count() - end);
  if (madvise(made.base_, size.count(), MADV_DONTFORK) != 0) return SystemError("madvise DONTFORK");
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
  return KeepFromChildren(offset, bytes);
}

core::Status Reservation::MapSame(core::Bytes offset, core::Bytes bytes, std::byte* mapped) {
  // An old size of 0 maps the same shared pages again. By the system call: the mremap that UCX puts
  // in place of the library's loses its last argument.
  const auto at = syscall(SYS_mremap, mapped, 0ul, bytes.count(), MREMAP_MAYMOVE | MREMAP_FIXED,
                          base_ + offset.count());
  if (at == -1) return SystemError("map shared memory (mremap)");
  return KeepFromChildren(offset, bytes);
}

core::Status Reservation::MakeReadOnly(core::Bytes offset, core::Bytes bytes) {
  if (mprotect(base_ + offset.count(), bytes.count(), PROT_READ) == 0) return core::Ok();
  return SystemError("mprotect");
}

core::Status Reservation::KeepFromChildren(core::Bytes offset, core::Bytes bytes) {
  // The advice of the reservation went with the mapping that was replaced.
  if (madvise(base_ + offset.count(), bytes.count(), MADV_DONTFORK) == 0) return core::Ok();
  core::Error error = SystemError("madvise DONTFORK");
  RAVEN_RETURN_IF_ERROR(Unmap(offset, bytes));
  return error;
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

core::Status Reservation::MapOwn(core::Bytes offset, core::Bytes bytes) {
  std::byte* const at = base_ + offset.count();
  void* const mapped = mmap(at, bytes.count(), PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
  if (mapped == MAP_FAILED) return SystemError("map memory (mmap)");
  // A kernel without huge pages refuses the first advice, and nothing is lost by it.
  static_cast<void>(madvise(at, bytes.count(), MADV_HUGEPAGE));
  if (madvise(at, bytes.count(), MADV_DONTFORK) != 0 ||
      madvise(at, bytes.count(), MADV_DONTDUMP) != 0) {
    core::Error error = SystemError("madvise DONTFORK, DONTDUMP");
    RAVEN_RETURN_IF_ERROR(Unmap(offset, bytes));
    return error;
  }
  return core::Ok();
}

core::Status Reservation::PopulateInParallel(core::Bytes offset, core::Bytes bytes) {
  const uint64_t cores = std::max(1u, std::thread::hardware_concurrency());
  const uint64_t worth = std::clamp<uint64_t>(bytes.count() / kPopulatedByThread.count(), 1, cores);
  const Bytes share = Bytes(bytes.count() / worth).RoundUp(kPopulatedByThread);
  const size_t parts = (bytes.count() + share.count() - 1) / share.count();
  std::vector<core::Status> outcomes(parts, core::Ok());
  const auto populate = [&](size_t i) {
    const Bytes begin = share * i;
    outcomes[i] = Populate(offset + begin, std::min(share, bytes - begin));
  };
  // A thread's stack is mapped under a lock that populating holds: all are there before any begins.
  std::latch all_there(static_cast<ptrdiff_t>(parts));
  std::vector<std::thread> others;
  others.reserve(parts);
  try {
    while (others.size() + 1 < parts) {
      others.emplace_back([&, i = others.size() + 1] {
        all_there.arrive_and_wait();
        populate(i);
      });
    }
  } catch (const std::system_error&) {  // no more threads to be had
  }
  all_there.count_down(static_cast<ptrdiff_t>(parts - others.size()));
  populate(0);
  for (size_t i = others.size() + 1; i < parts; ++i) populate(i);
  for (std::thread& other : others) other.join();
  const auto failed = std::find_if(outcomes.begin(), outcomes.end(),
                                   [](const core::Status& outcome) { return !outcome.ok(); });
  return failed == outcomes.end() ? core::Ok() : *failed;
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

core::Result<core::Bytes> SizeOf(int descriptor) {
  struct stat status;
  if (fstat(descriptor, &status) != 0) return SystemError("fstat of shared memory");
  return core::Bytes(static_cast<uint64_t>(status.st_size));
}

}  // namespace ravenstore::device
