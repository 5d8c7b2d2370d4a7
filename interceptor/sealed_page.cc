#include "interceptor/sealed_page.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

namespace ravenstore::interceptor {

void* SealedPage::Make(const char* name, size_t bytes) {
  const int file = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (file < 0) return nullptr;
  void* mapped = MAP_FAILED;
  if (ftruncate(file, static_cast<off_t>(bytes)) == 0 &&
      fcntl(file, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) == 0) {
    mapped = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  }
  if (mapped == MAP_FAILED) {
    close(file);
    return nullptr;
  }
  madvise(mapped, bytes, MADV_DONTFORK);
  struct stat status {};
  inode_ = fstat(file, &status) == 0 ? status.st_ino : 0;
  descriptor_.store(file);
  return mapped;
}

int SealedPage::Descriptor() const {
  const int file = descriptor_.load();
  struct stat status {};
  const bool still_ours = file >= 0 && fstat(file, &status) == 0 && status.st_ino == inode_;
  return still_ours ? file : -1;
}

void SealedPage::ForgetInChild() {
  if (const int file = Descriptor(); file >= 0) close(file);
  descriptor_.store(-1);
}

}  // namespace ravenstore::interceptor
