// Which pointer or handle of this process holds how many bytes, and where.
//
// A sharded hash table on pages of its own: it is used inside other people's allocators, so it
// never calls one. What it cannot note for want of memory it does not know, and then the real
// driver alone does.
//
// Threads: any. A shard's lock is never held over a call that may block.
#pragma once

#include <pthread.h>

#include <cstddef>
#include <cstdint>

#include "proto/ledger_page.h"

namespace ravenstore::interceptor {

using proto::LegacyKind;
struct Backing;

// Names of different sorts may have equal values.
enum class Space : uint8_t {
  kMemory = 1,
  kHandle,
  kMapping,
  kOrphan,
  kArray,
  kMipmap,
  kContext,
  kPool,
  kGraphExec
};

struct Entry {
  uint64_t key = 0;
  Space space = Space::kMemory;
  LegacyKind kind = LegacyKind::kDevice;
  int16_t row = -1;         // of the page
  uint32_t refs = 0;        // of a VMM handle
  uint32_t maps = 0;        // of a VMM handle
  bool by_runtime = false;  // noted by a hook of the runtime: none of the driver's saw it
  bool pooled = false;      // of the device's default pool
  bool shared = false;      // a pool whose memory other processes may have
  uint64_t bytes = 0;
  uint64_t context = 0;              // that its memory ends with; 0: none
  uint64_t serial = 0;               // of the VMM handle; handles' values come again
  const Backing* backing = nullptr;  // who serves it in the driver's place; null: the driver
  void* object = nullptr;            // what that knows it by
};

class Ledger {
 public:
  // False when the key is there already, or there is no memory for it.
  bool Add(const Entry& entry);
  // Takes the entry out; false when it is not there.
  bool Take(Space space, uint64_t key, Entry* entry);
  bool Find(Space space, uint64_t key, Entry* entry);
  // Changes the entry under its shard's lock; false when it is not there. `change` returning false
  // takes it out.
  bool Change(Space space, uint64_t key, bool (*change)(Entry* entry, void* argument),
              void* argument);
  // Takes out all entries of the context and calls `visit` for each, with no lock held.
  void TakeContext(uint64_t context, void (*visit)(const Entry& entry, void* argument),
                   void* argument);
  size_t Count();
  // For the child of a fork: forgets everything, whatever state the locks are in.
  void Reset();

 private:
  static constexpr size_t kShards = 64;
  struct alignas(64) Shard {
    pthread_mutex_t mutex;
    Entry* entries;
    size_t capacity;  // a power of two, or 0
    size_t used;
  };

  static uint64_t Hash(Space space, uint64_t key);
  Shard& ShardOf(Space space, uint64_t key);
  static Entry* Seek(Shard& shard, Space space, uint64_t key);
  static bool Insert(Shard& shard, const Entry& entry);
  static void Remove(Shard& shard, Entry* entry);
  static bool Grow(Shard& shard);

  // Zeros are valid: it is used before any constructor ran.
  Shard shards_[kShards];
};

extern Ledger ledger;

}  // namespace ravenstore::interceptor
