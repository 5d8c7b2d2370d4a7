#include "cluster/slot_table.h"

#include <algorithm>
#include <utility>

#include "cluster/footprint.h"
#include "cluster/planted.h"

namespace ravenstore::cluster {

using core::Tick;

SlotTable::~SlotTable() {
  for (const Slot& slot : slots_) {
    if (!slot.memory.empty()) memory_.Release(slot.memory);
  }
}

SlotTable::Slot* SlotTable::Find(SlotRef ref) {
  if (ref.slot >= slots_.size()) return nullptr;
  Slot& slot = slots_[ref.slot];
  return slot.generation == ref.generation || Has(Planted::kNoGenerationCheck) ? &slot : nullptr;
}

uint32_t SlotTable::Staying() const {
  return static_cast<uint32_t>(std::ranges::count_if(
      slots_, [](const Slot& slot) { return slot.IsLent() && !slot.IsRecalled(); }));
}

bool SlotTable::AnyRecalled() const {
  return std::ranges::any_of(slots_, &Slot::IsRecalled);
}

core::Result<SlotRef> SlotTable::Lend(const LoanKey& loan, uint64_t borrow) {
  auto found = std::ranges::find(slots_, State::kFree, &Slot::state);
  if (found == slots_.end()) {
    slots_.emplace_back();
    ++free_;
    found = slots_.end() - 1;
  }
  if (found->memory.empty()) {
    RAVEN_ASSIGN_OR_RETURN(found->memory, memory_.Make(piece_));
  }
  --free_;
  found->state = State::kReserved;
  found->generation = ++generation_;
  found->loan = loan;
  found->borrow = borrow;
  return SlotRef{.slot = static_cast<uint32_t>(found - slots_.begin()),
                 .generation = found->generation};
}

std::set<transport::CallId> SlotTable::Take(uint32_t index) {
  Slot& slot = slots_[index];
  slot.state = State::kLeaving;
  slot.recalled_until = core::kNever;
  if (!slot.transfers.empty() && !Has(Planted::kReusedUnderTransfer)) return slot.transfers;
  Reclaim(&slot);
  return {};
}

void SlotTable::EndTransfer(uint32_t index, transport::CallId call) {
  Slot& slot = slots_[index];
  slot.transfers.erase(call);
  if (slot.state == State::kLeaving && slot.transfers.empty()) Reclaim(&slot);
}

void SlotTable::Reclaim(Slot* slot) {
  if (!Has(Planted::kNotCleared)) memory_.Release(std::exchange(slot->memory, {}));
  slot->state = State::kFree;
  slot->loan = {};
  ++free_;
}

// Homes with the fewest recalled slots first, for each home empties slots only as fast as its link
// carries them. Of those homes, the one with the most slots, and of it the slot that was lent last,
// preferably one without bytes.
SlotTable::ByLoan SlotTable::Recall(uint32_t count, Tick now, core::Duration within) {
  struct Lent {
    std::vector<uint32_t> stays;
    uint32_t goes = 0;
  };
  std::map<LoanKey, Lent> lent;
  for (uint32_t i = 0; i < slots_.size(); ++i) {
    const Slot& slot = slots_[i];
    if (slot.IsRecalled()) ++lent[slot.loan].goes;
    if (slot.IsLent() && !slot.IsRecalled()) lent[slot.loan].stays.push_back(i);
  }
  ByLoan recalled;
  for (uint32_t i = 0; i < count; ++i) {
    std::erase_if(lent, [](const auto& home) { return home.second.stays.empty(); });
    auto& [key, home] = *std::ranges::min_element(lent, {}, [](const auto& one) {
      return std::pair(one.second.goes, -static_cast<int64_t>(one.second.stays.size()));
    });
    const auto slot = std::ranges::max_element(home.stays, {}, [this](uint32_t index) {
      return std::pair(slots_[index].state == State::kReserved, slots_[index].generation);
    });
    slots_[*slot].recalled_until = now + within;
    recalled[key].push_back(
        {.slot = {.slot = *slot, .generation = slots_[*slot].generation}, .left = within});
    home.stays.erase(slot);
    ++home.goes;
  }
  return recalled;
}

SlotTable::ByLoan SlotTable::RecallAll(Tick until, Tick now) {
  ByLoan recalled;
  for (uint32_t i = 0; i < slots_.size(); ++i) {
    Slot& slot = slots_[i];
    if (!slot.IsLent()) continue;
    // Also those that were recalled before: there may be less time now.
    slot.recalled_until = std::min(slot.recalled_until, until);
    recalled[slot.loan].push_back(
        {.slot = {.slot = i, .generation = slot.generation}, .left = slot.recalled_until - now});
  }
  return recalled;
}

SlotTable::ByLoan SlotTable::Overdue(Tick now) const {
  ByLoan overdue;
  for (uint32_t i = 0; i < slots_.size(); ++i) {
    const Slot& slot = slots_[i];
    if (slot.recalled_until > now) continue;
    overdue[slot.loan].push_back({.slot = {.slot = i, .generation = slot.generation}, .left = {}});
  }
  return overdue;
}

Tick SlotTable::NextOverdue() const {
  Tick next = core::kNever;
  for (const Slot& slot : slots_) next = std::min(next, slot.recalled_until);
  return next;
}

core::Bytes SlotTable::footprint() const {
  return Array(slots_);
}

}  // namespace ravenstore::cluster
