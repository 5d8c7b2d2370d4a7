// The client's record of a tensor, in addition to its row in the segment, and the handles to it.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

#include "device/device.h"
#include "proto/layout.h"

namespace ravenstore::client {

class Session;

enum class FetchTurn : uint8_t {
  kFree = 0,
  kTaken = 1,  // a thread of this process waits for the daemon's answer
  kAbandoned =
      2,  // one timed out; the answer may still come, and belongs to the next that takes the turn
};

// One row's record. It exists until its session ends, so that a freed handle can still be
// distinguished from a live one.
struct alignas(64) TensorRecord {
  Session* session = nullptr;
  uint32_t slot = 0;
  // Raised by every free; a handle is good while it carries the same.
  std::atomic<uint16_t> serial{0};
  // A use since the last time it went to Ravenspace was allowed to write.
  std::atomic<bool> writable_use{false};
  std::atomic<FetchTurn> turn{FetchTurn::kFree};
  // Its physical memory stays (KeepInPlace).
  std::atomic<bool> is_kept{false};
  // A get found the bytes discarded, and they were not recomputed since.
  std::atomic<bool> must_recompute{false};
  // The ticket of puts in this use, while others still hold the tensor.
  std::atomic<uint64_t> early_ticket{0};
  // Constant from the create to the next create in this row.
  uint64_t bytes = 0;
  uint64_t id = 0;
  const std::string* name = nullptr;  // null: none; lives as long as the session
};
static_assert(sizeof(TensorRecord) == 64);

// A handle is a TensorRecord's address with its serial in the upper 16 bits, which user addresses
// leave empty.
uint64_t MakeHandle(const TensorRecord& tensor);

// The record behind `handle`, live or freed. REQUIRES: made by MakeHandle, its session exists.
inline TensorRecord* RecordOf(uint64_t handle) {
  return reinterpret_cast<TensorRecord*>(handle & ((uint64_t{1} << 48) - 1));
}
inline uint16_t SerialOf(uint64_t handle) {
  return static_cast<uint16_t>(handle >> 48);
}

// The record behind `handle` while the handle is live, else null.
inline TensorRecord* LiveRecordOf(uint64_t handle) {
  TensorRecord* tensor = RecordOf(handle);
  return tensor->serial.load(std::memory_order_acquire) == SerialOf(handle) ? tensor : nullptr;
}

// `tensor 17 "layer3.mlp" (4096 bytes)` for messages.
std::string Describe(const TensorRecord& tensor);

// The records of one session, by row. Grown as rows come into use; never shrinks.
// Threads: any.
class TensorTable {
 public:
  // A tensor whose handle is ended and whose free could not be ordered behind its stream's work: to
  // be tried again.
  struct Unfreed {
    TensorRecord* tensor = nullptr;
    device::StreamHandle stream = nullptr;
  };

  explicit TensorTable(Session* session) : session_(session) {}
  ~TensorTable();

  TensorRecord& At(uint32_t slot);

  void RememberFree(Unfreed unfreed);
  bool AnyUnfreed() const { return any_unfreed_.load(std::memory_order_relaxed); }
  std::vector<Unfreed> TakeUnfreed();

 private:
  static constexpr uint32_t kPerChunk = 1024;
  static constexpr uint32_t kChunks = proto::kSlotCapacity / kPerChunk;

  TensorRecord* Grow(uint32_t chunk);

  Session* const session_;
  std::array<std::atomic<TensorRecord*>, kChunks> chunks_{};
  std::mutex mutex_;  // held while a chunk is made
  std::mutex unfreed_mutex_;
  std::vector<Unfreed> unfreed_;  // guarded by unfreed_mutex_
  std::atomic<bool> any_unfreed_{false};
};

}  // namespace ravenstore::client
