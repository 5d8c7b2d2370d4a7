// The slots of this node's memory that a lender lends, and which of them are recalled.
//
// A slot is Free, Reserved (lent, and nothing written), Valid, or Leaving: taken, while a transfer
// on it has not ended. Its memory is returned when the last one ends.
//
// Owns: the slots' memory. Threads: one, the transport's. Units: slots; times are of the
// transport's clock. Errors: of Lend, LentMemory's. Cost: O(slots), but for Find and held().
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "cluster/ids.h"
#include "cluster/lent_memory.h"
#include "cluster/protocol.h"
#include "core/result.h"
#include "core/types.h"
#include "transport/transport.h"

namespace ravenstore::cluster {

struct LoanKey {
  std::string home;
  Incarnation incarnation;
  auto operator<=>(const LoanKey&) const = default;
};

class SlotTable {
 public:
  enum class State : uint8_t { kFree, kReserved, kValid, kLeaving };
  struct Slot {
    State state = State::kFree;
    uint64_t generation = 0;
    std::span<std::byte> memory = {};
    LoanKey loan = {};
    uint64_t borrow = 0;                       // the number of the call that reserved it
    core::Tick recalled_until = core::kNever;  // kNever: not recalled
    std::set<transport::CallId> transfers = {};

    bool IsLent() const { return state == State::kReserved || state == State::kValid; }
    bool IsRecalled() const { return recalled_until != core::kNever; }
  };
  using ByLoan = std::map<LoanKey, std::vector<HeldSlot>>;

  // `generation`: none of this table's is lower, or the same. `memory` outlives this.
  SlotTable(core::Bytes piece, uint64_t generation, LentMemory* memory)
      : piece_(piece), memory_(*memory), generation_(generation) {}
  ~SlotTable();
  SlotTable(const SlotTable&) = delete;
  SlotTable& operator=(const SlotTable&) = delete;

  Slot& operator[](uint32_t index) { return slots_[index]; }
  const Slot& operator[](uint32_t index) const { return slots_[index]; }
  // Null: the slot was never lent under that generation.
  Slot* Find(SlotRef ref);
  // Lent, or leaving.
  uint32_t held() const { return static_cast<uint32_t>(slots_.size()) - free_; }
  // Lent, and not recalled.
  uint32_t Staying() const;
  bool AnyRecalled() const;

  // A free slot is reserved for the loan.
  core::Result<SlotRef> Lend(const LoanKey& loan, uint64_t borrow);
  // The slot leaves its loan. Returns the transfers that are to be ended.
  std::set<transport::CallId> Take(uint32_t index);
  // The transfer on the slot has ended.
  void EndTransfer(uint32_t index, transport::CallId call);

  // Recalls `count` of those that stay, by `now` + `within`. Returns them.
  ByLoan Recall(uint32_t count, core::Tick now, core::Duration within);
  // Recalls all that are lent, by `until` at the latest. Returns them.
  ByLoan RecallAll(core::Tick until, core::Tick now);
  // Those recalled until `now` or before.
  ByLoan Overdue(core::Tick now) const;
  core::Tick NextOverdue() const;
  // Memory for the slots' records.
  core::Bytes footprint() const;

 private:
  void Reclaim(Slot* slot);

  const core::Bytes piece_;
  LentMemory& memory_;
  uint64_t generation_;
  uint32_t free_ = 0;  // of slots_
  std::vector<Slot> slots_;
};

}  // namespace ravenstore::cluster
