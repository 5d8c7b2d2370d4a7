#include "daemon/leases.h"

#include "ipc/wake.h"

namespace ravenstore::daemon {

using core::ErrorCode;
using proto::LeaseState;

bool LeaseRow::ReadPut(PutRecord* record) const {
  record->word = word();
  if (proto::UnpackLease(record->word).state != LeaseState::kIdle) return false;
  record->ticket = slot_->ticket.load(std::memory_order_acquire);
  record->hint = slot_->hint.load(std::memory_order_acquire);
  record->writes = slot_->writes.load(std::memory_order_acquire);
  record->recompute = slot_->recompute.load(std::memory_order_acquire);
  return word() == record->word;
}

bool LeaseRow::CasLease(uint64_t expected, LeaseState state, uint64_t* desired) {
  *desired = proto::Pack(proto::Next(proto::UnpackLease(expected), state, 0));
  return slot_->word.compare_exchange_strong(expected, *desired, std::memory_order_acq_rel);
}

bool LeaseRow::Drop(uint64_t idle_word) {
  uint64_t away = 0;
  return CasLease(idle_word, LeaseState::kAway, &away);
}

bool LeaseRow::Publish(uint32_t device, core::Bytes offset, uint64_t* idle_word) {
  const uint64_t away = word();
  if (proto::UnpackLease(away).state != LeaseState::kAway) return false;
  // A client reads the place only after it saw the word Idle or its fetch answered, so it may be
  // written before the swing; if a fetch is faster, its answer writes the same place again.
  slot_->device.store(static_cast<uint16_t>(device), std::memory_order_relaxed);
  slot_->place.store(offset.count() / proto::kPlaceUnit, std::memory_order_relaxed);
  slot_->arrival.store(0, std::memory_order_relaxed);
  return CasLease(away, LeaseState::kIdle, idle_word);
}

void LeaseRow::CompleteAlloc(core::TensorId id, uint32_t device, core::Bytes offset) {
  slot_->id.store(core::ToInt(id), std::memory_order_relaxed);
  slot_->device.store(static_cast<uint16_t>(device), std::memory_order_relaxed);
  slot_->place.store(offset.count() / proto::kPlaceUnit, std::memory_order_relaxed);
  slot_->arrival.store(0, std::memory_order_relaxed);
  slot_->error.store(0, std::memory_order_relaxed);
  Answer(LeaseState::kInUse, 1);
}

void LeaseRow::FailAlloc(ErrorCode code) {
  slot_->error.store(static_cast<uint32_t>(code), std::memory_order_relaxed);
  Answer(LeaseState::kFailed, 0);
}

void LeaseRow::CompleteFetch(uint32_t device, core::Bytes offset, proto::WordValue arrival,
                             bool recompute) {
  slot_->device.store(static_cast<uint16_t>(device), std::memory_order_relaxed);
  slot_->place.store(offset.count() / proto::kPlaceUnit, std::memory_order_relaxed);
  slot_->arrival.store(proto::Pack(arrival), std::memory_order_relaxed);
  slot_->error.store(recompute ? proto::kMustRecompute : 0, std::memory_order_relaxed);
  Answer(LeaseState::kInUse, 1);
}

void LeaseRow::FailFetch(ErrorCode code) {
  slot_->error.store(static_cast<uint32_t>(code), std::memory_order_relaxed);
  Answer(code == ErrorCode::kLost ? LeaseState::kLost : LeaseState::kAway, 0);
}

uint64_t LeaseRow::FailFetchInPlace(ErrorCode code, uint32_t device, core::Bytes offset) {
  slot_->device.store(static_cast<uint16_t>(device), std::memory_order_relaxed);
  slot_->place.store(offset.count() / proto::kPlaceUnit, std::memory_order_relaxed);
  slot_->arrival.store(0, std::memory_order_relaxed);
  slot_->error.store(static_cast<uint32_t>(code), std::memory_order_relaxed);
  return Answer(LeaseState::kIdle, 0);
}

void LeaseRow::MarkLost() {
  uint64_t now = word();
  uint64_t lost = 0;
  do {
    const proto::LeaseWord lease = proto::UnpackLease(now);
    if (lease.state == LeaseState::kFreeing || lease.state == LeaseState::kFree) return;
    lost = proto::Pack(proto::Next(lease, LeaseState::kLost, 0));
  } while (!slot_->word.compare_exchange_weak(now, lost, std::memory_order_seq_cst));
  WakeWaiters();
}

void LeaseRow::Release() {
  Answer(LeaseState::kFree, 0);
}

uint64_t LeaseRow::Answer(LeaseState state, uint16_t holders) {
  const uint64_t answer = proto::Pack(proto::Next(proto::UnpackLease(word()), state, holders));
  slot_->word.store(answer, std::memory_order_seq_cst);
  WakeWaiters();
  return answer;
}

void LeaseRow::WakeWaiters() {
  if (slot_->waiters.load(std::memory_order_seq_cst) == 0) return;
  slot_->waiters.store(0, std::memory_order_relaxed);
  ipc::WakeLowHalf(&slot_->word);
}

}  // namespace ravenstore::daemon
