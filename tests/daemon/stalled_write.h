// A write to a file that does not end, because the page that it copies from never arrives. The
// write holds the file's lock, so that other writers of the file wait as long.
#pragma once

#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdint>
#include <thread>

#include "ipc/unique_fd.h"

namespace ravenstore::daemon {

class StalledWrite {
 public:
  // Under way when this returns, if it stands(). Writes 8 bytes at `offset`, in the end.
  StalledWrite(int file, off_t offset)
      : faults_(static_cast<int>(::syscall(SYS_userfaultfd, O_CLOEXEC))),
        bytes_(::mmap(nullptr, kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)) {
    uffdio_api api{.api = UFFD_API, .features = 0, .ioctls = 0};
    uffdio_register range{.range = {reinterpret_cast<uintptr_t>(bytes_), kPage},
                          .mode = UFFDIO_REGISTER_MODE_MISSING,
                          .ioctls = 0};
    if (!faults_ || ::ioctl(faults_.get(), UFFDIO_API, &api) != 0 ||
        ::ioctl(faults_.get(), UFFDIO_REGISTER, &range) != 0) {
      return;
    }
    writer_ = std::thread(
        [this, file, offset] { static_cast<void>(!::pwrite(file, bytes_, 8, offset)); });
    uffd_msg fault{};
    stands_ = ::read(faults_.get(), &fault, sizeof(fault)) == ssize_t{sizeof(fault)};
  }
  ~StalledWrite() {
    faults_.reset();
    if (writer_.joinable()) writer_.join();
    ::munmap(bytes_, kPage);
  }
  StalledWrite(const StalledWrite&) = delete;
  StalledWrite& operator=(const StalledWrite&) = delete;

  // False if this machine does not let the process serve page faults.
  bool stands() const { return stands_; }

 private:
  static constexpr size_t kPage = 4096;
  ipc::UniqueFd faults_;
  void* bytes_;
  std::thread writer_;
  bool stands_ = false;
};

}  // namespace ravenstore::daemon
