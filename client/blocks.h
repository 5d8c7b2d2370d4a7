// A stream-ordered allocator over the store: each block is a tensor of the store, so that the
// memory of a program's own allocator can be parked, moved and brought back without a copy on the
// device.
//
//     Block* block = blocks.Allocate(bytes, device, stream);   // in use
//     blocks.Record(block, other);                             // another stream uses it, too
//     blocks.Release(block);                                   // behind its streams' work
//
// Parking. A program that needs the bytes later, but not the memory until then, saves the block.
// When it releases a saved block, the block is put into Ravenspace instead of freed.
//
//     blocks.Save(block, {.order = -1});
//     blocks.Release(block);                                   // parked: the daemon may move it
//     void* address = blocks.Open(block, stream);              // in use again, perhaps elsewhere
//     blocks.Close(block, stream, {.not_modified = true});     // parked again
//     blocks.Unsave(block);                                    // freed
//
// A block that is not needed any more stays with the client as an idle one, in a magazine of its
// device, stream and size (Bonwick and Adams, "Magazines and Vmem", 2001): the next allocation of
// that size on that stream takes it without a call. Once blocks in use and parked were more than
// the budget together, none stays idle: the daemon has the memory for what it brings in, and sees
// all calls, which repeat. Their places are reused in the order of the stream (CreateOptions).
// Before a block is made, idle ones are freed, the largest first, until all blocks together are at
// most a sixteenth more (in a small program 32 MiB) than was ever needed.
//
// Owns: the tensors; a share of the store. A block lives until its release, its last close and its
//   last unsave. At the allocator's destruction only idle ones may be left.
// Threads: every function may be called from any thread.
// Streams: a block belongs to the stream that it was allocated or last closed on. A released block
//   is handed out again immediately to that stream's work, and to other streams' once the work is
//   done. Its stream waits for the recorded ones before it is used again.
// Errors: Allocate and Open throw Error, and Save in a forked child. The rest does not throw: a
//   store that is lost says so at the next Allocate or Open.
// Fork: in a child of fork() no function takes a lock or touches a block: Allocate, Open and Save
//   throw (IS_FORKED), the others do nothing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "client/client.h"

namespace ravenstore {

// How often this process became the child of a fork() since the first call. Takes no lock.
uint64_t CountForks();

// What the allocator needs of the runtime whose streams it serves.
class StreamOrder {
 public:
  virtual ~StreamOrder() = default;
  // Work that is enqueued on `later` from now on runs after all that is on `earlier` now. The two
  // differ. Does not throw: it runs in destructors.
  virtual void Order(Stream earlier, Stream later, int device) noexcept = 0;
};

// Bytes and blocks of one device. Peaks are since the last ResetPeaks.
struct BlocksStats {
  uint64_t used = 0;    // bytes that the program holds, opened ones included
  uint64_t parked = 0;  // saved, and in Ravenspace
  uint64_t idle = 0;    // in magazines
  uint64_t used_peak = 0;
  uint64_t held_peak = 0;  // of used + idle
  // Of used + parked: with a budget of this size everything would have stayed.
  uint64_t needed_peak = 0;
  uint64_t used_blocks = 0;
  uint64_t used_blocks_peak = 0;
  uint64_t allocations = 0;      // ever
  uint64_t allocated_bytes = 0;  // ever
  uint64_t created = 0;          // of the allocations: asked the daemon
  uint64_t parkings = 0;         // ever
  uint64_t failures = 0;         // allocations and openings that threw
};

class BlockAllocator;

// What is expected to stay in use for long, such as parameters and an optimizer's states, gets a
// place apart from what comes and goes: what is in use cannot leave, and parts what could.
enum class Life { kNotKnown, kLong };

// One block. All but its address is guarded by its allocator.
class Block {
 public:
  // Rounded up from what was asked for.
  uint64_t bytes() const { return bytes_; }
  int device() const { return device_; }
  // Of the program that allocated it, until it releases it.
  void* address() const { return address_; }
  Stream stream() const { return stream_; }

 private:
  friend class BlockAllocator;

  Tensor tensor_;
  uint64_t bytes_ = 0;
  int device_ = 0;
  void* address_ = nullptr;
  Stream stream_ = nullptr;
  std::vector<Stream> recorded_;
  uint32_t users_ = 0;  // holders in Userspace: the program, and those who opened it
  uint32_t saves_ = 0;
  PutOptions next_read_;
  std::list<Block*>::iterator by_age_;  // while idle
};

class BlockAllocator {
 public:
  // `order` outlives the allocator. `device_budget` is of the store's tensors on each device, at
  // most what the daemon grants the store; 0: that. Throws what Store::stats does.
  BlockAllocator(std::shared_ptr<Store> store, StreamOrder* order, uint64_t device_budget = 0);
  ~BlockAllocator();
  BlockAllocator(const BlockAllocator&) = delete;
  BlockAllocator& operator=(const BlockAllocator&) = delete;

  // A block of at least `bytes` > 0 for work on `stream`: an idle one, and null where there is
  // none. Never waits.
  Block* TakeIdle(uint64_t bytes, int device, Stream stream);
  // The same, else a new one. May wait, bounded by the store's timeout, until others' bytes have
  // left; for what only the program itself could free it waits where several threads have saved
  // blocks, of which another may free some. Throws OutOfMemory, whose words are DescribeHolders',
  // Lost, or what else the store says.
  Block* Allocate(uint64_t bytes, int device, Stream stream);
  // The same without a look at the idle ones. For callers that have just called TakeIdle without
  // success, and for blocks that are to stay: idle blocks are where short-lived ones were.
  Block* AllocateNew(uint64_t bytes, int device, Stream stream, Life life = Life::kNotKnown);
  // The program's hold ends, once the work that is on the block's streams now is done.
  void Release(Block* block) noexcept;
  // `stream` uses the block as well.
  void Record(Block* block, Stream stream);

  // The bytes are needed after the release. `next_read` says when, as a put does.
  void Save(Block* block, const PutOptions& next_read);
  // Once for each Save.
  void Unsave(Block* block) noexcept;
  // Changes what the last Save said.
  void ReadNext(Block* block, const PutOptions& next_read);
  // A saved block's bytes for work on `stream`, until the Close. Throws as Allocate does.
  void* Open(Block* block, Stream stream);
  void Close(Block* block, Stream stream, const PutOptions& next_read) noexcept;

  // In a child of fork().
  bool IsForked() const;
  // Gives what is idle back to the daemon; false when nothing is.
  bool EmptyMagazines();
  BlocksStats stats(int device) const;
  void ResetPeaks(int device);
  uint64_t device_budget() const { return device_budget_; }
  // What holds the memory in which `bytes` more find no room, and by how much the budget is too
  // small for them, if it is.
  std::string DescribeHolders(uint64_t bytes, int device) const;
  Store& store() { return *store_; }

 private:
  BlockAllocator(std::shared_ptr<Store> store, StreamOrder* order, uint64_t device_budget,
                 const Stats& granted);

  struct MagazineKey {
    int device;
    Stream stream;
    uint64_t bytes;
    bool operator==(const MagazineKey&) const = default;
  };
  struct MagazineHash {
    size_t operator()(const MagazineKey& key) const;
  };
  // Of one device.
  struct Ledger {
    BlocksStats stats;
    std::list<Block*> idle;    // the oldest first
    uint64_t needed_ever = 0;  // the most of used + parked
  };
  enum class Victim { kOldest, kLargest };

  void CheckNotForked() const;
  Block* Take(uint64_t bytes, int device, Stream stream);
  Tensor Create(uint64_t bytes, int device, Stream stream, Life life);
  // Brings a block's bytes to the device, with the room of the idle ones if there is no other.
  void* Get(Block* block, Stream stream);
  void Destroy(const std::vector<Block*>& blocks) noexcept;
  // While `error` is handled: counts it, and throws it with the holders' names if it is for room.
  [[noreturn]] void Fail(const Error& error, uint64_t bytes, int device);

  // REQUIRES: mutex_.
  // A saved block without a user is parked.
  void AddUser(Block* block);
  void RemoveUser(Block* block);
  // Its first user is the program that asked for it.
  void CountAllocation(Block* block);
  void BecomeIdle(Block* block);
  // Bytes that may be idle while `others` bytes are in use or parked.
  uint64_t MostIdle(const Ledger& ledger, uint64_t others) const;
  // Of a block that was parked. False when its bytes are not on the device, or would exceed what
  // may be idle.
  bool BecomeIdleFromParked(Block* block) noexcept;
  // Takes idle blocks until the rest may stay in addition to `more` bytes.
  std::vector<Block*> TakeUntilFits(uint64_t more, int device);
  // At least `bytes` of idle blocks, or all, added to `taken`.
  void TakeIdleFrom(Ledger& ledger, uint64_t bytes, Victim victim, std::vector<Block*>* taken);
  void AddRecorded(Block* block, Stream stream);
  void JoinRecorded(Block* block) noexcept;
  void EndUse(Block* block, Stream stream, const PutOptions& next_read,
              std::unique_lock<std::mutex> lock) noexcept;
  void Put(Block* block, Stream stream, const PutOptions& options) noexcept;

  const std::shared_ptr<Store> store_;
  StreamOrder* const order_;
  const uint64_t device_budget_;
  const uint64_t born_;  // the process's forks

  mutable std::mutex mutex_;   // of all below, and of the blocks
  std::thread::id saver_;      // the last that saved a block
  bool several_save_ = false;  // another one did as well
  std::unordered_map<MagazineKey, std::deque<Block*>, MagazineHash> magazines_;
  std::unordered_map<int, Ledger> ledgers_;  // by device
};

}  // namespace ravenstore
