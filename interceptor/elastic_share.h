// What an elastic engine may hold of its device, and what it does hold: its share.
//
// With a budget it is the budget less the driver memory that the job holds. A step frees the driver
// memory that it allocates: what was held lately is left to it, or the next step's allocations
// would wait for the engine each time. Without a budget it is what was free when the engine began,
// less what it gave up since for allocations of the driver's.
//
// Threads: any. Zeros are valid: none is held.
#pragma once

#include <atomic>
#include <cstdint>

namespace ravenstore::interceptor {

class EngineShare {
 public:
  // The driver memory that the job held within two of these is left to it.
  static constexpr uint64_t kWhileNs = 5'000'000'000;
  // Without a budget the engine gives up at least this many bytes of the device at a time.
  static constexpr uint64_t kRoomStep = uint64_t{32} << 20;

  // The engine begins on a device with `free` bytes free, if there is no budget.
  void Begin(uint64_t free) { without_budget_.store(free); }
  // What the engine may hold now. `row`, here and below: the device's, of the page.
  uint64_t Allowed(int row, uint64_t now_ns);

  // The engine takes memory of the device: false, if the budgets have no room. And returns it.
  bool Take(int row, uint64_t bytes);
  void Give(int row, uint64_t bytes);
  // An allocation of the driver's finds no room: the engine may hold less until RoomMade. False: it
  // does not hold as much.
  bool MakeRoom(uint64_t bytes);
  void RoomMade(uint64_t bytes) { wanted_.fetch_sub(bytes); }

  // What the program allocates of the engine, and frees.
  void Allocated(uint64_t bytes) { RaiseTo(&high_, live_.fetch_add(bytes) + bytes); }
  void Freed(uint64_t bytes) { live_.fetch_sub(bytes); }
  // The program's own segments.
  void AddSegment(uint64_t bytes) { segments_.fetch_add(bytes); }
  void RemoveSegment(uint64_t bytes) { segments_.fetch_sub(bytes); }
  uint64_t live() const { return live_.load(); }
  // The most that was allocated since the program last reset the maximum.
  uint64_t high() const { return high_.load(); }
  void ResetHigh() { high_.store(live_.load()); }

  // Corrects what the driver, or a budget, says is free. Memory that the engine holds counts as
  // free. Allocated memory does not, on the device or on the host.
  uint64_t FreeToJob(uint64_t free) const;
  // The most that the job held of the device without the engine's.
  uint64_t MostOthers(int row);

 private:
  static void RaiseTo(std::atomic<uint64_t>* high, uint64_t value);
  uint64_t Others(int row);
  uint64_t RecentOthers(int row, uint64_t now_ns);

  std::atomic<uint64_t> taken_;  // of the device, in the job's sums
  std::atomic<uint64_t> live_;   // allocated and not freed
  std::atomic<uint64_t> high_;
  std::atomic<uint64_t> segments_;
  std::atomic<uint64_t> wanted_;  // by allocations of the driver's that find no room
  std::atomic<uint64_t> without_budget_;
  std::atomic<uint64_t> others_;     // the most that the job held without the engine's
  std::atomic<uint64_t> recent_[2];  // the same, within this while and the one before
  std::atomic<uint64_t> recent_since_;
};

}  // namespace ravenstore::interceptor
