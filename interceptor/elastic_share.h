// What an elastic engine may hold of its device, and what it does hold: its share.
//
// Of a budget that is what the job does not hold besides, of the driver's. What a step allocates of
// the driver it frees again: what was held lately is left to it, or the next step's allocations
// would wait for the engine each time. Without a budget it is what was free when the engine began,
// less what allocations of the driver's made it give up since.
//
// Threads: any. Zeros are valid: none is held.
#pragma once

#include <atomic>
#include <cstdint>

namespace ravenstore::interceptor {

class EngineShare {
 public:
  // What the job held besides within two of these is left to it.
  static constexpr uint64_t kWhileNs = 5'000'000'000;
  // Of a device without a budget so much at least is given up at once.
  static constexpr uint64_t kRoomStep = uint64_t{32} << 20;

  // The engine begins on a device with so much free, if there is no budget.
  void Begin(uint64_t free) { without_budget_.store(free); }
  // What the engine may hold now. `row`, here and below: the device's, of the page.
  uint64_t Allowed(int row, uint64_t now_ns);

  // The engine takes memory of the device: false, if the budgets have no room. And gives it back.
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
  // The most that was allocated since the program asked last to begin anew.
  uint64_t high() const { return high_.load(); }
  void ResetHigh() { high_.store(live_.load()); }

  // Corrects what the driver, or a budget, says is free: what the engine holds is as free as the
  // rest; what is allocated is not, wherever it lies.
  uint64_t FreeToJob(uint64_t free) const;
  // The most that the job held of the device besides the engine's.
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
  std::atomic<uint64_t> others_;     // the most that the job held besides
  std::atomic<uint64_t> recent_[2];  // the same, within this while and the one before
  std::atomic<uint64_t> recent_since_;
};

}  // namespace ravenstore::interceptor
