// Memory that the daemon may read: a memfd that no process can make smaller or larger.
//
// Owns: the descriptor, and the mapping for good. A child of fork has neither. Threads: Make once.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstddef>

namespace ravenstore::interceptor {

class SealedPage {
 public:
  // Zeroed; null: not possible here.
  void* Make(const char* name, size_t bytes);
  // -1: there is none, or the job closed it.
  int Descriptor() const;
  void ForgetInChild();

 private:
  std::atomic<int> descriptor_{-1};
  // A job that closes every descriptor may have another file under its number.
  ino_t inode_ = 0;
};

}  // namespace ravenstore::interceptor
