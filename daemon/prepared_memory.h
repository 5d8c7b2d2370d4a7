// Memory for slots, made and released on a thread of its own, so that lending does not wait for
// pages to be cleared.
//
// While slots are being lent, the next one's memory is made ahead. Once some comes back, what was
// made ahead goes as well: it is wanted elsewhere.
//
// Owns: the thread, and what was made ahead. Threads: one, and its own, on which alone the other
// memory is used.
#pragma once

#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <thread>
#include <vector>

#include "cluster/lent_memory.h"
#include "core/result.h"
#include "core/types.h"

namespace ravenstore::daemon {

class PreparedMemory final : public cluster::LentMemory {
 public:
  explicit PreparedMemory(std::unique_ptr<cluster::LentMemory> memory);
  // Releases all that came back.
  ~PreparedMemory() override;
  PreparedMemory(const PreparedMemory&) = delete;
  PreparedMemory& operator=(const PreparedMemory&) = delete;

  // `ending` is set before the destructor is called.
  void Start(const std::atomic<bool>& ending);

  // REQUIRES: it was started. Waits where it is the first one of its size, or comes sooner than the
  // next one is made.
  core::Result<std::span<std::byte>> Make(core::Bytes bytes) override;
  // Returns immediately; the memory is the system's a moment later.
  void Release(std::span<std::byte> memory) override;

 private:
  using Made = core::Result<std::span<std::byte>>;

  void Run();
  // What was made ahead, if anything was, goes. REQUIRES: mutex_ is held.
  void DropAhead();

  const std::unique_ptr<cluster::LentMemory> memory_;
  std::mutex mutex_;
  std::condition_variable changed_;
  // All guarded by mutex_.
  core::Bytes wanted_;     // to be made, or being made; 0: nothing
  bool unwanted_ = false;  // what is being made: memory came back meanwhile
  std::optional<Made> ahead_;
  std::vector<std::span<std::byte>> returned_;
  bool ending_ = false;

  std::thread thread_;
};

}  // namespace ravenstore::daemon
