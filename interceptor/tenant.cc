#include "interceptor/tenant.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <atomic>

namespace ravenstore::interceptor::tenant {
namespace {

using proto::TenantPage;
using proto::TenantRow;

// A place on a page. Never changed once others can see it, and never freed.
struct ProcessSlot {
  TenantPage* page;
  uint32_t slot;
  ino_t inode;
  TenantRow* rows[proto::kLedgerDevices];
};
constexpr size_t kProcessSlotBytes = 4096;
static_assert(sizeof(ProcessSlot) <= kProcessSlotBytes);

constinit std::atomic<ProcessSlot*> current{nullptr};
constinit std::atomic<ProcessSlot*> previous{nullptr};
// What is held while there is no process slot.
constinit std::atomic<uint64_t> alone[proto::kLedgerDevices]{};

std::atomic<uint64_t>& WordOf(const ProcessSlot* process_slot, int row) {
  const bool has_row = process_slot != nullptr && process_slot->rows[row] != nullptr;
  return has_row ? process_slot->rows[row]->used[process_slot->slot] : alone[row];
}

// Maps the page, and behind it room for the process slot.
ProcessSlot* Map(int descriptor, uint32_t slot) {
  struct stat status {};
  constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW;
  if (slot >= proto::kTenantSlots || fstat(descriptor, &status) != 0 ||
      status.st_size != static_cast<off_t>(proto::kTenantBytes) ||
      (fcntl(descriptor, F_GET_SEALS) & kSeals) != kSeals) {
    return nullptr;
  }
  constexpr int kBoth = PROT_READ | PROT_WRITE;
  constexpr size_t kAll = proto::kTenantBytes + kProcessSlotBytes;
  void* room = mmap(nullptr, kAll, kBoth, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (room == MAP_FAILED) return nullptr;
  void* page = mmap(room, proto::kTenantBytes, kBoth, MAP_SHARED | MAP_FIXED, descriptor, 0);
  if (page == MAP_FAILED || static_cast<TenantPage*>(page)->magic != proto::kTenantMagic) {
    munmap(room, kAll);
    return nullptr;
  }
  madvise(page, proto::kTenantBytes, MADV_DONTFORK);
  auto* process_slot =
      reinterpret_cast<ProcessSlot*>(static_cast<char*>(room) + proto::kTenantBytes);
  process_slot->page = static_cast<TenantPage*>(page);
  process_slot->slot = slot;
  process_slot->inode = status.st_ino;
  return process_slot;
}

// Moves what stands at one process slot to the other. Whatever is added meanwhile is added once.
void Move(const ProcessSlot* from, const ProcessSlot* to) {
  for (int row = 0; row < static_cast<int>(proto::kLedgerDevices); ++row) {
    auto& old = WordOf(from, row);
    auto& now = WordOf(to, row);
    if (&old == &now || old.load(std::memory_order_relaxed) == 0) continue;
    now.fetch_add(old.exchange(0));
  }
}

bool IsAt(const ProcessSlot* process_slot, int descriptor, uint32_t slot) {
  struct stat status {};
  return process_slot != nullptr && process_slot->slot == slot && fstat(descriptor, &status) == 0 &&
         status.st_ino == process_slot->inode;
}

}  // namespace

TenantRow* ReserveRow(TenantPage* page, const char* uuid) {
  const uint64_t key = proto::DeviceKey(uuid);
  for (TenantRow& row : page->row) {
    uint64_t holder = 0;
    if (row.device.compare_exchange_strong(holder, key) || holder == key) return &row;
  }
  return nullptr;
}

uint64_t Sum(const TenantRow& row, uint64_t slots) {
  uint64_t sum = 0;
  for (uint64_t i = 0; i < slots && i < proto::kTenantSlots; ++i) {
    const uint64_t used = row.used[i].load();
    if (static_cast<int64_t>(used) > 0) sum += used;
  }
  return sum;
}

void Join(int descriptor, uint32_t slot, const proto::LedgerPage& ledger) {
  ProcessSlot* old = current.load();
  if (descriptor >= 0 && IsAt(old, descriptor, slot)) return;
  ProcessSlot* process_slot = descriptor < 0 ? nullptr : Map(descriptor, slot);
  for (uint32_t i = 0; process_slot != nullptr && i < ledger.rows; ++i) {
    process_slot->rows[i] = ReserveRow(process_slot->page, ledger.row[i].uuid);
  }
  current.store(process_slot);
  previous.store(old);
  Commit();
}

void Commit() {
  const ProcessSlot* process_slot = current.load();
  const ProcessSlot* old = previous.load();
  if (process_slot == nullptr && old == nullptr) return;
  Move(old, process_slot);
  // Those who found no process slot at all.
  if (old != nullptr && process_slot != nullptr) Move(nullptr, process_slot);
}

void Hold(int row, uint64_t bytes) {
  WordOf(current.load(), row).fetch_add(bytes);
}

uint64_t TotalOf(int row) {
  const ProcessSlot* process_slot = current.load();
  if (process_slot == nullptr || process_slot->rows[row] == nullptr) return alone[row].load();
  return Sum(*process_slot->rows[row], process_slot->page->slots.load());
}

void PublishDemand(int row, const Demand& demand) {
  const ProcessSlot* process_slot = current.load();
  if (process_slot == nullptr || process_slot->rows[row] == nullptr) return;
  proto::TenantDemand& at = process_slot->rows[row]->demand[process_slot->slot];
  at.in_use.store(demand.in_use, std::memory_order_relaxed);
  at.waits_for.store(demand.waits_for, std::memory_order_relaxed);
  at.expected.store(demand.expected, std::memory_order_relaxed);
  at.alive.store(demand.alive, std::memory_order_relaxed);
  at.held.store(demand.held, std::memory_order_relaxed);
}

Demands DemandsOf(int row, Demand* all, uint32_t most) {
  Demands found;
  const ProcessSlot* process_slot = current.load();
  if (process_slot == nullptr || process_slot->rows[row] == nullptr) return found;
  const TenantRow& of = *process_slot->rows[row];
  const uint64_t slots = process_slot->page->slots.load();
  bool has_own = false;
  for (uint32_t slot = 0; slot < slots && slot < proto::kTenantSlots; ++slot) {
    const proto::TenantDemand& at = of.demand[slot];
    const Demand demand{
        at.in_use.load(std::memory_order_relaxed), at.waits_for.load(std::memory_order_relaxed),
        at.expected.load(std::memory_order_relaxed), at.alive.load(std::memory_order_relaxed),
        at.held.load(std::memory_order_relaxed)};
    const uint64_t used = of.used[slot].load();
    // A slot that is being moved may be below zero for an instant.
    if (static_cast<int64_t>(used) > 0 && used > demand.held) found.others += used - demand.held;
    const bool is_engine = demand.in_use + demand.waits_for + demand.alive + demand.held > 0;
    if (!is_engine || found.count == most) continue;
    if (slot == process_slot->slot) {
      found.own = found.count;
      has_own = true;
    }
    all[found.count++] = demand;
  }
  if (!has_own) found.own = found.count;
  return found;
}

void ForgetInChild() {
  // The mappings are not its own; only addresses are lost.
  current.store(nullptr);
  previous.store(nullptr);
  for (auto& held : alone) held.store(0);
}

}  // namespace ravenstore::interceptor::tenant
