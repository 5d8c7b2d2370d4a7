// Host memory, pinned before it is needed: 32 MiB take 6 to 20 ms, in which the caller would wait.
// A thread makes parts (parts.h) until it holds the requested bytes. A caller that finds no free
// part makes one itself. More threads pin no faster: the driver pins for one caller at a time, and
// other mapping calls wait for it. So memory that is only wanted ahead is pinned once no request
// came within kQuiet.
//
// Pinned memory stays pinned: a job that exceeded the device once will exceed it again.
//
// Threads: any. Nothing but the destructor waits, for the part that is being made.
#pragma once

#include <cuda.h>

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>

#include "core/types.h"
#include "elastic/driver.h"
#include "elastic/parts.h"

namespace ravenstore::elastic {

class Pinner {
 public:
  // `size`: of the parts. All that is pointed to outlives the pinner.
  Pinner(const Driver* driver, Parts* parts, CUcontext context, core::Bytes size);
  ~Pinner();
  Pinner(const Pinner&) = delete;
  Pinner& operator=(const Pinner&) = delete;

  // Pins until `held` bytes of the host are held, taken ones included, or the limit is reached.
  // After a refusal it tries again when a call needs more than all calls before.
  void Need(core::Bytes held);
  // The same, once the job rests from allocating.
  void Want(core::Bytes held);
  // The job waits for mappings: it does not rest for kQuiet more.
  void Delay();

  // Shorter, and pinning slows a job down that allocates; longer, and a job that is about to exceed
  // the device finds less pinned.
  static constexpr std::chrono::milliseconds kQuiet{20};

 private:
  void Run();
  void Raise(core::Bytes* to, core::Bytes held);

  Parts* const parts_;
  const core::Bytes size_;
  std::mutex mutex_;
  std::condition_variable wake_;
  // All below: guarded by mutex_.
  core::Bytes needed_;
  core::Bytes wanted_;
  core::Tick raised_{};  // either of them, at last, or delayed
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace ravenstore::elastic
