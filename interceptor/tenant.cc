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
struct Seat {
  TenantPage* page;
  uint32_t slot;
  ino_t inode;
  TenantRow* rows[proto::kLedgerDevices];
};
constexpr size_t kSeatBytes = 4096;
static_assert(sizeof(Seat) <= kSeatBytes);

constinit std::atomic<Seat*> current{nullptr};
constinit std::atomic<Seat*> previous{nullptr};
// What is held while there is no seat.
constinit std::atomic<uint64_t> alone[proto::kLedgerDevices]{};

std::atomic<uint64_t>& WordOf(const Seat* seat, int row) {
  const bool seated = seat != nullptr && seat->rows[row] != nullptr;
  return seated ? seat->rows[row]->used[seat->slot] : alone[row];
}

// Maps the page, and behind it room for the seat.
Seat* Map(int descriptor, uint32_t slot) {
  struct stat status {};
  constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW;
  if (slot >= proto::kTenantSlots || fstat(descriptor, &status) != 0 ||
      status.st_size != static_cast<off_t>(proto::kTenantBytes) ||
      (fcntl(descriptor, F_GET_SEALS) & kSeals) != kSeals) {
    return nullptr;
  }
  constexpr int kBoth = PROT_READ | PROT_WRITE;
  constexpr size_t kAll = proto::kTenantBytes + kSeatBytes;
  void* room = mmap(nullptr, kAll, kBoth, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (room == MAP_FAILED) return nullptr;
  void* page = mmap(room, proto::kTenantBytes, kBoth, MAP_SHARED | MAP_FIXED, descriptor, 0);
  if (page == MAP_FAILED || static_cast<TenantPage*>(page)->magic != proto::kTenantMagic) {
    munmap(room, kAll);
    return nullptr;
  }
  madvise(page, proto::kTenantBytes, MADV_DONTFORK);
  auto* seat = reinterpret_cast<Seat*>(static_cast<char*>(room) + proto::kTenantBytes);
  seat->page = static_cast<TenantPage*>(page);
  seat->slot = slot;
  seat->inode = status.st_ino;
  return seat;
}

// Moves what stands at one seat to the other. Whatever is added meanwhile is added once.
void Move(const Seat* from, const Seat* to) {
  for (int row = 0; row < static_cast<int>(proto::kLedgerDevices); ++row) {
    auto& old = WordOf(from, row);
    auto& now = WordOf(to, row);
    if (&old == &now || old.load(std::memory_order_relaxed) == 0) continue;
    now.fetch_add(old.exchange(0));
  }
}

bool IsAt(const Seat* seat, int descriptor, uint32_t slot) {
  struct stat status {};
  return seat != nullptr && seat->slot == slot && fstat(descriptor, &status) == 0 &&
         status.st_ino == seat->inode;
}

}  // namespace

TenantRow* ClaimRow(TenantPage* page, const char* uuid) {
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
  Seat* old = current.load();
  if (descriptor >= 0 && IsAt(old, descriptor, slot)) return;
  Seat* seat = descriptor < 0 ? nullptr : Map(descriptor, slot);
  for (uint32_t i = 0; seat != nullptr && i < ledger.rows; ++i) {
    seat->rows[i] = ClaimRow(seat->page, ledger.row[i].uuid);
  }
  current.store(seat);
  previous.store(old);
  Settle();
}

void Settle() {
  const Seat* seat = current.load();
  const Seat* old = previous.load();
  if (seat == nullptr && old == nullptr) return;
  Move(old, seat);
  // Those who found no seat at all.
  if (old != nullptr && seat != nullptr) Move(nullptr, seat);
}

void Hold(int row, uint64_t bytes) {
  WordOf(current.load(), row).fetch_add(bytes);
}

uint64_t Together(int row) {
  const Seat* seat = current.load();
  if (seat == nullptr || seat->rows[row] == nullptr) return alone[row].load();
  return Sum(*seat->rows[row], seat->page->slots.load());
}

void ForgetInChild() {
  // The mappings are not its own; only addresses are lost.
  current.store(nullptr);
  previous.store(nullptr);
  for (auto& held : alone) held.store(0);
}

}  // namespace ravenstore::interceptor::tenant
