// The daemon's half of the lease protocol (docs/WIRE.md): every compare-and-swap it ever makes on a
// row of a client's lease table.
//
// A row is a stranger's memory. What is read here is believed about this client's own tensor only,
// and a transition that the client's word does not allow is simply not taken.
//
// Threads: the planner loop. The client changes the same words at any time.
#pragma once

#include <cstdint>

#include "core/events.h"
#include "core/result.h"
#include "core/types.h"
#include "proto/layout.h"

namespace ravenstore::daemon {

// The fields of a put in its row.
struct PutRecord {
  uint64_t word = 0;
  uint64_t ticket = 0;
  uint64_t hint = 0;
  uint32_t writes = 0;
  uint16_t recompute = 0;
};

// The put as an event of the planner. `now`: when the row was read; a client's hints are times.
core::PutSeen PutSeenOf(core::TensorId tensor, const PutRecord& put, core::Tick now);

class LeaseRow {
 public:
  explicit LeaseRow(proto::LeaseSlot* slot) : slot_(slot) {}

  proto::LeaseState state() const { return proto::UnpackLease(word()).state; }
  uint64_t word() const { return slot_->word.load(std::memory_order_acquire); }

  // True, with the record, when the row is Idle; false when a get was faster. The word was the same
  // before and after the other fields were read.
  bool ReadPut(PutRecord* record) const;
  // What the row says now, in any state. Another thread may change it between two fields.
  PutRecord ReadFields() const;

  // Idle -> Away, if the word still is `idle_word`.
  bool Drop(uint64_t idle_word);
  // Away -> Idle at the new place, unless a fetch is on its way. *idle_word is the new word.
  bool Publish(uint32_t device, core::Bytes offset, uint64_t* idle_word);

  // Requested -> InUse with one holder.
  void CompleteAlloc(core::TensorId id, uint32_t device, core::Bytes offset);
  // Requested -> Failed.
  void FailAlloc(core::ErrorCode code);
  // Fetching -> InUse with one holder; the stream waits for `arrival` (value 0: already there).
  // With `recompute` there are no bytes: the client recomputes them.
  void CompleteFetch(uint32_t device, core::Bytes offset, proto::WordValue arrival,
                     bool recompute = false);
  // Fetching -> Away with an error, or -> Lost.
  void FailFetch(core::ErrorCode code);
  // Fetching -> Idle with an error: it stays where it is, which the row need not know yet (what is
  // brought unasked while its client begins to fetch it is not published). Returns the new word.
  uint64_t FailFetchInPlace(core::ErrorCode code, uint32_t device, core::Bytes offset);
  // -> Lost, unless it is being freed: the bytes are gone although a client may be using them.
  void MarkLost();
  // What a client does, for one that has handed its tensors over (daemon/sealed_clients.h):
  // Idle -> InUse; Away -> Fetching; InUse -> Idle, behind no stream's work.
  void Get() { Answer(proto::LeaseState::kInUse, 1); }
  void Fetch();
  void Put();
  // -> Free: the row may be used again.
  void Release();

 private:
  bool CasLease(uint64_t expected, proto::LeaseState state, uint64_t* desired);
  // Stores the next word whatever the client wrote meanwhile: it owes us this row.
  uint64_t Answer(proto::LeaseState state, uint16_t holders);
  void WakeWaiters();

  proto::LeaseSlot* slot_;
};

}  // namespace ravenstore::daemon
