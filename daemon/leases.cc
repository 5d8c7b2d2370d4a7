#include "daemon/leases.h"

#include <algorithm>

#include "ipc/wake.h"

namespace ravenstore::daemon {

using core::ErrorCode;
using proto::LeaseState;

namespace {

constexpr uint64_t kFarthest = uint64_t{1} << 51;  // of a time hint: 2^61 ns

// Of a put that is read at `now`. A client says times of the clock.
core::NextUse NextUseOf(uint64_t packed, core::Tick now) {
  const proto::Hint hint = proto::UnpackHint(packed);
  switch (hint.kind) {
    case proto::HintKind::kNeededAt: {
      // The number may be wrong or hostile: it is bounded.
      const core::Tick at(
          core::Duration(static_cast<int64_t>(std::min(hint.value, kFarthest)) << 10));
      return {core::NextUse::Kind::kIn, std::max(at - now, core::Duration{0}), 0};
    }
    case proto::HintKind::kOrder:
      return {
          core::NextUse::Kind::kOrder, {}, static_cast<int64_t>(hint.value) - proto::kOrderBias};
    case proto::HintKind::kNotNeeded: return {core::NextUse::Kind::kNever, {}, 0};
    case proto::HintKind::kNone: break;
  }
  return {};
}

core::Priority PriorityOf(uint64_t packed) {
  switch (proto::UnpackHint(packed).priority) {
    case proto::HintPriority::kLow: return core::Priority::kLow;
    case proto::HintPriority::kHigh: return core::Priority::kHigh;
    case proto::HintPriority::kNormal: break;
  }
  return core::Priority::kNormal;
}

}  // namespace

core::PutSeen PutSeenOf(core::TensorId tensor, const PutRecord& put, core::Tick now) {
  const auto cost = static_cast<int64_t>(proto::UnpackRecompute(put.recompute));
  return {tensor, put.writes, NextUseOf(put.hint, now), core::Duration(cost), PriorityOf(put.hint)};
}

PutRecord LeaseRow::ReadFields() const {
  PutRecord record;
  record.word = word();
  record.ticket = slot_->ticket.load(std::memory_order_acquire);
  record.hint = slot_->hint.load(std::memory_order_acquire);
  record.writes = slot_->writes.load(std::memory_order_acquire);
  record.recompute = slot_->recompute.load(std::memory_order_acquire);
  return record;
}

bool LeaseRow::ReadPut(PutRecord* record) const {
  if (state() != LeaseState::kIdle) return false;
  *record = ReadFields();
  return proto::UnpackLease(record->word).state == LeaseState::kIdle && word() == record->word;
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

void LeaseRow::Fetch() {
  slot_->error.store(0, std::memory_order_relaxed);
  Answer(LeaseState::kFetching, 0);
}

void LeaseRow::Put() {
  slot_->ticket.store(0, std::memory_order_relaxed);
  slot_->hint.store(0, std::memory_order_relaxed);
  Answer(LeaseState::kIdle, 0);
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
