#include "ipc/ring.h"

#include <algorithm>

#include "ipc/wake.h"

namespace ravenstore::ipc {
namespace {

using proto::kLogLaneEntries;
using proto::kMapRingEntries;
using proto::kRequestRingEntries;

using AliasedWord __attribute__((may_alias)) = uint64_t;

// An entry crosses word by word with atomic accesses: the other side may write it at any time, and
// the compiler must not fetch a field a second time after it was checked.
template <typename Entry>
void StoreEntry(Entry* shared, const Entry& entry) {
  static_assert(sizeof(Entry) % sizeof(uint64_t) == 0);
  auto* to = reinterpret_cast<AliasedWord*>(shared);
  const auto* from = reinterpret_cast<const AliasedWord*>(&entry);
  for (size_t i = 0; i < sizeof(Entry) / sizeof(uint64_t); ++i)
    __atomic_store_n(&to[i], from[i], __ATOMIC_RELAXED);
}
template <typename Entry>
void LoadEntry(const Entry* shared, Entry* entry) {
  const auto* from = reinterpret_cast<const AliasedWord*>(shared);
  auto* to = reinterpret_cast<AliasedWord*>(entry);
  for (size_t i = 0; i < sizeof(Entry) / sizeof(uint64_t); ++i)
    to[i] = __atomic_load_n(&from[i], __ATOMIC_RELAXED);
}

void WakeMapper(proto::MapRing* ring) {
  ring->wake.fetch_add(1, std::memory_order_seq_cst);
  WakeLowHalf(&ring->wake);
}

// Brings `*seen` up to the consumer's published position when that one can be true. An impossible
// one leaves `*seen` alone: the ring then looks full.
void RefreshTail(const std::atomic<uint64_t>& tail, uint64_t head, uint64_t capacity,
                 uint64_t* seen) {
  const uint64_t now = tail.load(std::memory_order_acquire);
  if (head - now <= capacity) *seen = now;
}

// Looks at the producer's position once the entries seen so far are used up.
Take LookForEntry(const std::atomic<uint64_t>& head, uint64_t tail, uint64_t capacity,
                  uint64_t* seen) {
  if (*seen != tail) return Take::kEntry;
  const uint64_t now = head.load(std::memory_order_acquire);
  if (now == tail) return Take::kEmpty;
  // A position behind ours wraps to a huge distance and is refused here as well.
  if (now - tail > capacity) return Take::kCorrupt;
  *seen = now;
  return Take::kEntry;
}

}  // namespace

size_t RequestProducer::PushBatch(std::span<const proto::Request> requests) {
  if (kRequestRingEntries - (head_ - tail_seen_) < requests.size()) Room();
  const size_t fitting =
      std::min<size_t>(requests.size(), kRequestRingEntries - (head_ - tail_seen_));
  if (fitting == 0) return 0;
  for (size_t i = 0; i < fitting; ++i) {
    proto::Request request = requests[i];
    request.sequence = static_cast<uint32_t>(head_ + i);
    StoreEntry(&ring_->entries[(head_ + i) % kRequestRingEntries], request);
  }
  head_ += fitting;
  ring_->head.store(head_, std::memory_order_release);
  return fitting;
}

size_t RequestProducer::Room() {
  RefreshTail(ring_->tail, head_, kRequestRingEntries, &tail_seen_);
  return kRequestRingEntries - (head_ - tail_seen_);
}

Take RequestConsumer::Pop(proto::Request* request) {
  if (corrupt_) return Take::kCorrupt;
  const Take look = LookForEntry(ring_->head, tail_, kRequestRingEntries, &head_seen_);
  if (look == Take::kEmpty) return look;
  if (look == Take::kEntry) {
    LoadEntry(&ring_->entries[tail_ % kRequestRingEntries], request);
    if (request->sequence == static_cast<uint32_t>(tail_) && request->reserved == 0) {
      ring_->tail.store(++tail_, std::memory_order_release);
      return Take::kEntry;
    }
  }
  corrupt_ = true;
  return Take::kCorrupt;
}

bool RequestConsumer::HasWork() const {
  return corrupt_ || head_seen_ != tail_ || ring_->head.load(std::memory_order_acquire) != tail_;
}

bool LogProducer::Refresh() {
  RefreshTail(lane_->tail, head_, kLogLaneEntries, &tail_seen_);
  return head_ - tail_seen_ < kLogLaneEntries;
}

Take LogConsumer::Pop(proto::Access* access) {
  if (corrupt_) return Take::kCorrupt;
  const Take look = LookForEntry(lane_->head, tail_, kLogLaneEntries, &head_seen_);
  if (look == Take::kEmpty) return look;
  if (look == Take::kEntry) {
    const uint64_t packed = lane_->entries[tail_ % kLogLaneEntries].load(std::memory_order_relaxed);
    const proto::Access taken = proto::UnpackAccess(packed);
    // Packing again finds what unpacking would overlook.
    if (proto::Pack(taken) == packed && taken.slot < proto::kSlotCapacity &&
        (taken.op == proto::AccessOp::kGet || taken.op == proto::AccessOp::kPut)) {
      *access = taken;
      lane_->tail.store(++tail_, std::memory_order_release);
      return Take::kEntry;
    }
  }
  corrupt_ = true;
  return Take::kCorrupt;
}

bool LogConsumer::HasWork() const {
  return corrupt_ || head_seen_ != tail_ || lane_->head.load(std::memory_order_acquire) != tail_;
}

void MapProducer::Push(proto::MapInstruction instruction) {
  instruction.sequence = static_cast<uint32_t>(head_);
  StoreEntry(&ring_->entries[head_ % kMapRingEntries], instruction);
  ring_->head.store(++head_, std::memory_order_release);
}

void MapProducer::Wake() {
  WakeMapper(ring_);
}

Take MapProducer::NextResult(uint32_t* result) {
  const uint64_t now = ring_->acknowledged.load(std::memory_order_acquire);
  // More than there is, or less than was seen.
  corrupt_ |= now - acknowledged_ > head_ - acknowledged_;
  if (corrupt_) return Take::kCorrupt;
  if (now == acknowledged_) return Take::kEmpty;
  *result = ring_->results[acknowledged_ % kMapRingEntries].load(std::memory_order_relaxed);
  ++acknowledged_;
  return Take::kEntry;
}

Take MapConsumer::Next(proto::MapInstruction* instruction) {
  const Take look = LookForEntry(ring_->head, next_, kMapRingEntries, &head_seen_);
  if (look != Take::kEntry) return look;
  LoadEntry(&ring_->entries[next_ % kMapRingEntries], instruction);
  return instruction->sequence == static_cast<uint32_t>(next_) ? Take::kEntry : Take::kCorrupt;
}

void MapConsumer::Acknowledge(uint32_t result) {
  ring_->results[next_ % kMapRingEntries].store(result, std::memory_order_relaxed);
  ring_->acknowledged.store(++next_, std::memory_order_release);
}

void MapConsumer::Sleep(uint64_t seen) {
  SleepOnLowHalf(&ring_->wake, seen, core::kNever);
}

void MapConsumer::Wake() {
  WakeMapper(ring_);
}

}  // namespace ravenstore::ipc
