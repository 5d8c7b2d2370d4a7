#include "interceptor/ledger.h"

#include <string.h>
#include <sys/mman.h>

namespace ravenstore::interceptor {
namespace {

constexpr size_t kFirstCapacity = 4096 / sizeof(Entry) + 1 > 64 ? 128 : 64;

class Locked {
 public:
  explicit Locked(pthread_mutex_t* mutex) : mutex_(mutex) { pthread_mutex_lock(mutex_); }
  ~Locked() { pthread_mutex_unlock(mutex_); }
  Locked(const Locked&) = delete;
  Locked& operator=(const Locked&) = delete;

 private:
  pthread_mutex_t* mutex_;
};

}  // namespace

constinit Ledger ledger{};

uint64_t Ledger::Hash(Space space, uint64_t key) {
  uint64_t hash = key ^ static_cast<uint64_t>(space) << 56;
  hash ^= hash >> 33;
  hash *= 0xff51afd7ed558ccd;
  hash ^= hash >> 33;
  hash *= 0xc4ceb9fe1a85ec53;
  return hash ^ hash >> 33;
}

Ledger::Shard& Ledger::ShardOf(Space space, uint64_t key) {
  return shards_[Hash(space, key) >> 58];
}

Entry* Ledger::Seek(Shard& shard, Space space, uint64_t key) {
  if (shard.capacity == 0) return nullptr;
  for (size_t i = Hash(space, key);; ++i) {
    Entry& entry = shard.entries[i & (shard.capacity - 1)];
    if (entry.key == 0) return nullptr;
    if (entry.key == key && entry.space == space) return &entry;
  }
}

bool Ledger::Insert(Shard& shard, const Entry& entry) {
  for (size_t i = Hash(entry.space, entry.key);; ++i) {
    Entry& place = shard.entries[i & (shard.capacity - 1)];
    if (place.key != 0) continue;
    place = entry;
    ++shard.used;
    return true;
  }
}

void Ledger::Remove(Shard& shard, Entry* entry) {
  // Those behind it move up, so that no search stops short of them.
  const size_t mask = shard.capacity - 1;
  size_t hole = static_cast<size_t>(entry - shard.entries);
  for (size_t i = (hole + 1) & mask; shard.entries[i].key != 0; i = (i + 1) & mask) {
    const size_t home = Hash(shard.entries[i].space, shard.entries[i].key) & mask;
    if (((i - home) & mask) < ((i - hole) & mask)) continue;
    shard.entries[hole] = shard.entries[i];
    hole = i;
  }
  shard.entries[hole].key = 0;
  --shard.used;
}

bool Ledger::Grow(Shard& shard) {
  const size_t capacity = shard.capacity == 0 ? kFirstCapacity : shard.capacity * 2;
  void* pages = mmap(nullptr, capacity * sizeof(Entry), PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (pages == MAP_FAILED) return false;
  Shard old = shard;
  shard.entries = static_cast<Entry*>(pages);
  shard.capacity = capacity;
  shard.used = 0;
  for (size_t i = 0; i < old.capacity; ++i) {
    if (old.entries[i].key != 0) Insert(shard, old.entries[i]);
  }
  if (old.entries != nullptr) munmap(old.entries, old.capacity * sizeof(Entry));
  return true;
}

bool Ledger::Add(const Entry& entry) {
  if (entry.key == 0) return false;
  Shard& shard = ShardOf(entry.space, entry.key);
  const Locked lock(&shard.mutex);
  if (Seek(shard, entry.space, entry.key) != nullptr) return false;
  if ((shard.used + 1) * 4 > shard.capacity * 3 && !Grow(shard)) return false;
  return Insert(shard, entry);
}

bool Ledger::Take(Space space, uint64_t key, Entry* entry) {
  Shard& shard = ShardOf(space, key);
  const Locked lock(&shard.mutex);
  Entry* found = key == 0 ? nullptr : Seek(shard, space, key);
  if (found == nullptr) return false;
  *entry = *found;
  Remove(shard, found);
  return true;
}

bool Ledger::Find(Space space, uint64_t key, Entry* entry) {
  Shard& shard = ShardOf(space, key);
  const Locked lock(&shard.mutex);
  const Entry* found = key == 0 ? nullptr : Seek(shard, space, key);
  if (found == nullptr) return false;
  *entry = *found;
  return true;
}

bool Ledger::Change(Space space, uint64_t key, bool (*change)(Entry* entry, void* argument),
                    void* argument) {
  Shard& shard = ShardOf(space, key);
  const Locked lock(&shard.mutex);
  Entry* found = key == 0 ? nullptr : Seek(shard, space, key);
  if (found == nullptr) return false;
  if (!change(found, argument)) Remove(shard, found);
  return true;
}

void Ledger::TakeContext(uint64_t context, void (*visit)(const Entry& entry, void* argument),
                         void* argument) {
  for (Shard& shard : shards_) {
    for (size_t i = 0;;) {
      Entry taken;
      {
        const Locked lock(&shard.mutex);
        while (i < shard.capacity &&
               (shard.entries[i].key == 0 || shard.entries[i].context != context)) {
          ++i;
        }
        if (i >= shard.capacity) break;
        taken = shard.entries[i];
        // Another moves up to here: `i` is looked at again.
        Remove(shard, &shard.entries[i]);
      }
      visit(taken, argument);
    }
  }
}

size_t Ledger::Count() {
  size_t count = 0;
  for (Shard& shard : shards_) {
    const Locked lock(&shard.mutex);
    count += shard.used;
  }
  return count;
}

void Ledger::Reset() {
  for (Shard& shard : shards_) {
    if (shard.entries != nullptr) munmap(shard.entries, shard.capacity * sizeof(Entry));
    memset(static_cast<void*>(&shard), 0, sizeof(shard));
  }
}

}  // namespace ravenstore::interceptor
