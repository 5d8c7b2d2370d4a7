// The page on which the engine of an elastic job shows where its memory is, for `ravenctl explain`.
//
// One page per process: a memfd that the interceptor makes, seals against shrinking and growing,
// and sends with LegacyElastic. An engine writes its device's row about once a second; the daemon
// reads a row with pread when it is asked, and maps nothing. Row i is of the device of row i of the
// ledger page. Aligned words, little-endian; memory only where there is a device.
//
// A row is whole when its sequence is even, above zero, and the same before and after it was read.
// Ages are nanoseconds before the row was written.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "proto/ledger_page.h"

namespace ravenstore::proto {

inline constexpr uint32_t kElasticRanges = 128;
inline constexpr uint32_t kElasticCalls = 16;
// Live bytes by how long ago they were used last: a second, ten, longer.
inline constexpr uint32_t kElasticAges = 3;

struct ElasticPageRange {
  uint64_t address;
  uint64_t bytes;
  uint64_t away;       // of them, on the host
  uint64_t calls;      // that named it
  uint64_t age_ns;     // since it was allocated
  uint64_t unused_ns;  // since a call named it, or since it was allocated
  uint64_t pinned;     // 1: it stays where it is for good
};

// What had to wait, lay on the host, or may have touched anything.
struct ElasticPageCall {
  char name[96];
  uint64_t waits;  // for a move, or for room
  uint64_t waited_ns;
  uint64_t in_place;  // uses of what lay on the host
  uint64_t in_place_bytes;
  uint64_t unknown;  // uses that may have touched anything
  uint64_t ago_ns;   // the last of these
};

struct ElasticPageRow {
  std::atomic<uint64_t> sequence;
  uint64_t written_ns;  // CLOCK_MONOTONIC
  uint64_t limit;       // what the engine may hold of the device
  uint64_t device;      // what it holds there, and of the host
  uint64_t host;
  uint64_t host_limit;
  uint64_t live;  // allocated and not freed
  uint64_t away;  // of it, on the host
  uint64_t pinned;
  uint64_t peak;
  uint64_t enough;  // as raven_elastic_stats_t::enough_bytes
  uint64_t moved_in;
  uint64_t moved_out;
  uint64_t dropped;
  uint64_t uses;
  uint64_t in_place;
  uint64_t in_place_bytes;
  uint64_t waits;
  uint64_t waited_ns;
  uint64_t room_waits;
  uint64_t room_waited_ns;
  uint64_t learned;                  // 1: what comes next is known
  uint64_t broken;                   // 1: a move failed, and nothing moves any more
  uint64_t on_device[kElasticAges];  // live bytes
  uint64_t on_host[kElasticAges];
  uint64_t ranges_live;  // how many there are
  uint64_t ranges;       // of them, the largest, in `range`
  uint64_t calls;        // in `call`
  ElasticPageRange range[kElasticRanges];
  ElasticPageCall call[kElasticCalls];  // the last ones
};
inline constexpr size_t kElasticRowBytes = 12288;
static_assert(sizeof(ElasticPageRow) <= kElasticRowBytes);
inline constexpr size_t kElasticPageBytes = kElasticRowBytes * kLedgerDevices;

}  // namespace ravenstore::proto
