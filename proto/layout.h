// The control segment: the fixed shared-memory layout that one client and the daemon agree on.
//
// One segment per client process: a memfd made by the daemon, sealed against shrinking and growing,
// mapped by both. No other client can reach it, and the daemon treats all of it as a stranger's
// memory: it copies a value out once, checks the copy, and never believes it about anything but
// this client's own tensors. The normative description, with every state and who may write what, is
// docs/WIRE.md.
//
// All integers are little-endian and naturally aligned. Changing anything here changes
// kProtocolVersion.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace ravenstore::proto {

inline constexpr uint32_t kProtocolVersion = 4;
inline constexpr uint64_t kSegmentMagic = 0x31544e53564e4152;  // "RANVSNT1"

inline constexpr uint32_t kRequestRingEntries = 1024;
inline constexpr uint32_t kLogLanes = 64;
inline constexpr uint32_t kLogLaneEntries = 1024;
inline constexpr uint32_t kTicketWords = 1024;
inline constexpr uint32_t kArrivalWords = 1024;
inline constexpr uint32_t kMapRingEntries = 1024;
inline constexpr uint32_t kSlotCapacity = 1u << 20;
// Places are given in units of this many bytes.
inline constexpr uint64_t kPlaceUnit = 512;

static_assert(std::atomic<uint64_t>::is_always_lock_free);
static_assert(std::atomic<uint32_t>::is_always_lock_free);

// ---- The lease word
//
// Bits 0-7 state, 8-23 holders, 24-63 generation. Every get, put and move raises the generation.

enum class LeaseState : uint8_t {
  kFree = 0,       // a row without a tensor; daemon -> kFree, client -> kRequested
  kRequested = 1,  // a create is on its way to the daemon
  kInUse = 2,      // Userspace; `holders` gets (or the create) not yet put
  kIdle = 3,       // Ravenspace, on its device; client -> kInUse, daemon -> kAway
  kAway = 5,       // not on its device; client -> kFetching, daemon -> kIdle (prefetched)
  kFetching = 6,   // a get is on its way to the daemon; daemon -> kInUse, or kAway with an error
  kFailed = 7,     // the create failed; `error` says why; client -> kFree
  kFreeing = 8,    // a free is on its way to the daemon; daemon -> kFree
  kLost = 9,       // the bytes are gone, for ever; client -> kFreeing
};

struct LeaseWord {
  LeaseState state = LeaseState::kFree;
  uint16_t holders = 0;
  uint64_t generation = 0;  // 40 bits
};

inline constexpr uint64_t kGenerationMask = (uint64_t{1} << 40) - 1;

constexpr uint64_t Pack(LeaseWord lease) {
  return static_cast<uint64_t>(lease.state) | uint64_t{lease.holders} << 8 |
         (lease.generation & kGenerationMask) << 24;
}
constexpr LeaseWord UnpackLease(uint64_t word) {
  return {static_cast<LeaseState>(word & 0xff), static_cast<uint16_t>(word >> 8 & 0xffff),
          word >> 24};
}
// `lease` moved to `state` with `holders`, one generation on.
constexpr LeaseWord Next(LeaseWord lease, LeaseState state, uint16_t holders) {
  return {state, holders, (lease.generation + 1) & kGenerationMask};
}

// ---- Tickets and arrivals
//
// An index into the words of this segment, and the value to reach: a ticket or arrival is done once
// words[index] >= value. Values only rise, so that a word that is used again for a later transfer
// still satisfies streams that wait for an earlier one.

struct WordValue {
  uint16_t index = 0;
  uint64_t value = 0;  // 48 bits; 0 is "nothing to wait for"
};
inline constexpr uint64_t kWordValueMask = (uint64_t{1} << 48) - 1;
constexpr uint64_t Pack(WordValue wait) {
  return uint64_t{wait.index} << 48 | (wait.value & kWordValueMask);
}
constexpr WordValue UnpackWordValue(uint64_t packed) {
  return {static_cast<uint16_t>(packed >> 48), packed & kWordValueMask};
}

// ---- Hints

enum class HintKind : uint8_t {
  kNone = 0,
  kNeededAt = 1,   // value: CLOCK_MONOTONIC nanoseconds / 1024
  kOrder = 2,      // value: biased by 2^55; the smaller is needed sooner
  kNotNeeded = 3,  // will not be read again: may be dropped without a copy
};
enum class HintPriority : uint8_t {
  kNormal = 0,
  kLow = 1,   // its place is worth less than that of the client's other tensors,
  kHigh = 2,  // or more
};
struct Hint {
  HintKind kind = HintKind::kNone;                // 4 bits
  uint64_t value = 0;                             // 56 bits
  HintPriority priority = HintPriority::kNormal;  // 4 bits; any kind has one
};
inline constexpr uint64_t kHintValueMask = (uint64_t{1} << 56) - 1;
inline constexpr int64_t kOrderBias = int64_t{1} << 55;
constexpr uint64_t Pack(Hint hint) {
  return static_cast<uint64_t>(hint.kind) | static_cast<uint64_t>(hint.priority) << 4 |
         (hint.value & kHintValueMask) << 8;
}
constexpr Hint UnpackHint(uint64_t packed) {
  return {static_cast<HintKind>(packed & 0xf), packed >> 8,
          static_cast<HintPriority>(packed >> 4 & 0xf)};
}

// ---- Recompute cost
//
// How long recomputing a tensor takes: 5 bits of exponent, 11 of mantissa, in units of 1,024 ns.

constexpr uint16_t PackRecompute(uint64_t nanoseconds) {
  if (nanoseconds == 0) return 0;
  uint64_t units = nanoseconds >> 10;
  if (units == 0) units = 1;  // 0 would say that it cannot be recomputed
  uint32_t exponent = 0;
  for (; units >= 1u << 11 && exponent < 31; units >>= 1) ++exponent;
  if (units >= 1u << 11) units = (1u << 11) - 1;
  return static_cast<uint16_t>(exponent << 11 | units);
}
constexpr uint64_t UnpackRecompute(uint16_t packed) {
  return uint64_t{packed & 0x7ffu} << (packed >> 11) << 10;
}
// A row's `error` while `word` is InUse: the bytes were discarded, the client recomputes them.
inline constexpr uint32_t kMustRecompute = 1u << 16;

// ---- The lease table
//
// Row i is the client's tensor with slot i. The client picks free rows. A request's answer is
// written into its row and published by the store to `word`.

struct alignas(64) LeaseSlot {
  std::atomic<uint64_t> word;     // LeaseWord
  std::atomic<uint64_t> place;    // daemon: extent's offset in the client's arena, in kPlaceUnit
  std::atomic<uint64_t> arrival;  // daemon: WordValue the tensor's stream must wait for
  std::atomic<uint64_t> ticket;   // client, before the put: WordValue
  std::atomic<uint64_t> hint;     // client, before the put: Hint
  std::atomic<uint64_t> id;       // daemon: the tensor's id
  std::atomic<uint32_t> writes;   // client, before the put: raised once per modifying use
  std::atomic<uint32_t> error;    // daemon: ErrorCode of the last request that failed, else 0;
                                  // kMustRecompute in a reply for bytes that were discarded
  // Client: 1 before it sleeps on `word`'s low half. Daemon: 0 as it wakes it.
  std::atomic<uint32_t> waiters;
  // Daemon: ordinal (in Welcome's list) of the device whose arena `place` is in.
  std::atomic<uint16_t> device;
  std::atomic<uint16_t> recompute;  // client, before the put: what recomputing it costs; 0: cannot
};
static_assert(sizeof(LeaseSlot) == 64);

// ---- Requests: a single-producer, single-consumer ring

enum class RequestOp : uint32_t {
  kCreate = 1,  // slot (kRequested), bytes, device, flags, name, deadline
  kFetch = 2,   // slot (kFetching), id, device, flags, deadline
  kFree = 3,    // slot (kFreeing), id, ticket
  kStep = 4,    // the client begins its next iteration; slot 0
};
enum RequestFlags : uint16_t {
  kFailFast = 1,   // answer kOutOfMemory immediately, do not wait for room
  kFailStuck = 2,  // answer kOutOfMemory once only the client's own puts and frees could make room
  kLongLived = 4,  // it will stay in use for long
  kAwaits = 8,     // a fetch: its client waits for the bytes, so a copy that fails may fail the get
};

// A cache line, aligned by its ring: copies on the stack need no such alignment (which GCC's
// address sanitizer would not give them).
struct Request {
  uint32_t op;        // RequestOp
  uint32_t sequence;  // low half of the entry's position in the ring; anything else is a replay
  uint32_t slot;
  uint32_t name;  // interned over the socket; 0 is none
  uint64_t id;
  uint64_t bytes;
  int64_t deadline_ns;  // CLOCK_MONOTONIC; the daemon answers by then
  uint64_t ticket;      // WordValue
  uint16_t device;
  uint16_t flags;
  // A create: one more than the ticket word of the one stream whose later work will use the tensor,
  // which may have memory that this stream is still to leave; 0: none is named.
  uint32_t stream;
  uint64_t reserved;  // zero
};
static_assert(sizeof(Request) == 64);

struct RequestRing {
  alignas(64) std::atomic<uint64_t> head;  // client: entries written
  alignas(64) std::atomic<uint64_t> tail;  // daemon: entries consumed
  alignas(64) Request entries[kRequestRingEntries];
};

// ---- The access log
//
// One lane for each client thread that takes one. A full lane drops entries and counts them.

enum class AccessOp : uint8_t { kGet = 1, kPut = 2 };

struct Access {
  uint32_t slot;
  AccessOp op;
};
constexpr uint64_t Pack(Access access) {
  return uint64_t{access.slot} << 32 | static_cast<uint64_t>(access.op);
}
constexpr Access UnpackAccess(uint64_t packed) {
  return {static_cast<uint32_t>(packed >> 32), static_cast<AccessOp>(packed & 0xff)};
}

struct LogLane {
  alignas(64) std::atomic<uint64_t> head;  // client: entries written
  std::atomic<uint64_t> dropped;           // client: entries that found the lane full
  alignas(64) std::atomic<uint64_t> tail;  // daemon: entries consumed
  alignas(64) std::atomic<uint64_t> entries[kLogLaneEntries];  // Access
};

// ---- Instructions for the client's mapper: a single-producer, single-consumer ring
//
// Memory is one allocation of the daemon's on a device. Its number is not used again while the
// client is attached. Its descriptor comes over the socket, before or after its kImport. The
// client executes the instructions in their order, one after the other.

enum class MapOp : uint16_t {
  kImport = 1,   // memory, bytes: take it, and close its descriptor
  kMap = 2,      // memory, bytes, offset: all of it is at this offset of the arena from now on
  kUnmap = 3,    // offset: what was mapped there
  kRelease = 4,  // memory: it is not the client's any more
};

struct MapInstruction {
  uint16_t op;        // MapOp
  uint16_t device;    // ordinal in Welcome's list
  uint32_t sequence;  // low half of the entry's position in the ring
  uint32_t memory;
  uint32_t reserved;  // zero
  uint64_t offset;
  uint64_t bytes;
};
static_assert(sizeof(MapInstruction) == 32);

struct MapRing {
  alignas(64) std::atomic<uint64_t> head;          // daemon: entries written
  alignas(64) std::atomic<uint64_t> acknowledged;  // client: entries executed
  // Raised by the daemon after each rise of `head`, and by the client. The mapper sleeps on its low
  // half.
  std::atomic<uint64_t> wake;
  alignas(64) MapInstruction entries[kMapRingEntries];
  // Client, before `acknowledged`: 0, or the ErrorCode of an entry that could not be executed.
  alignas(64) std::atomic<uint32_t> results[kMapRingEntries];
};

// ---- The segment

struct SegmentHeader {
  uint64_t magic;
  uint32_t version;
  uint32_t client;
  uint64_t segment_bytes;
  // 1: the daemon takes no request until the client writes its eventfd. Both sides put a full
  // fence between their own store and their read of the other's word, before they sleep or wake.
  alignas(64) std::atomic<uint32_t> daemon_asleep;
  // Client: lanes 0 .. log_lanes-1 of the log have been used; raised before a lane's first entry,
  // so that the daemon touches no page of an unused lane.
  alignas(64) std::atomic<uint32_t> log_lanes;
  // Daemon: copies to the device that brought no bytes although a stream may wait for them; raised
  // between the row's move to Lost and the arrival, so that it
  // covers tensors whose row belongs to another one by now.
  alignas(64) std::atomic<uint64_t> losses;
};

struct Segment {
  alignas(4096) SegmentHeader header;
  // These two arrays are registered with the driver, so that streams can write and await them.
  alignas(4096) std::atomic<uint64_t> tickets[kTicketWords];    // written by the client's streams
  alignas(4096) std::atomic<uint64_t> arrivals[kArrivalWords];  // written by the daemon's loop
  alignas(4096) RequestRing requests;
  alignas(4096) LogLane log[kLogLanes];
  alignas(4096) MapRing maps;
  alignas(4096) LeaseSlot slots[kSlotCapacity];
};
inline constexpr size_t kWordsOffset = offsetof(Segment, tickets);
inline constexpr size_t kWordsBytes = (kTicketWords + kArrivalWords) * sizeof(uint64_t);
static_assert(offsetof(Segment, arrivals) == kWordsOffset + kTicketWords * sizeof(uint64_t));
static_assert(offsetof(Segment, tickets) % 4096 == 0);
static_assert(kWordsBytes % 4096 == 0);
static_assert(sizeof(Segment) % 4096 == 0);

}  // namespace ravenstore::proto
