#include "daemon/seats.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <utility>

#include "proto/ledger_page.h"

namespace ravenstore::daemon {

using core::Error;
using core::ErrorCode;
using core::Result;

namespace {

bool Write(int file, uint64_t word, size_t offset) {
  return ::pwrite(file, &word, sizeof(word), static_cast<off_t>(offset)) == sizeof(word);
}

constexpr size_t RowOffset(size_t row) {
  return offsetof(proto::TenantPage, row) + row * sizeof(proto::TenantRow);
}

}  // namespace

Result<Seats::Seat> Seats::Take(uint64_t key, uid_t uid, ProcessName process, ino_t program) {
  RAVEN_ASSIGN_OR_RETURN(Page* const page, PageOf(uid));
  const auto own = std::find_if(seats_.begin(), seats_.end(), [&](const auto& entry) {
    const Taken& taken = entry.second;
    return process.pid != 0 && taken.uid == uid && taken.process.pid == process.pid &&
           taken.process.start_time == process.start_time;
  });
  Taken taken{uid, 0, process, program};
  if (own != seats_.end()) {
    taken.slot = own->second.slot;
    if (own->second.program != program) Clear(*page, taken.slot);
    seats_.erase(own);
  } else {
    RAVEN_ASSIGN_OR_RETURN(taken.slot, FreeSlot(*page));
  }
  seats_[key] = taken;
  return Seat{page->file.get(), taken.slot};
}

void Seats::Release(uint64_t key) {
  const auto found = seats_.find(key);
  if (found == seats_.end()) return;
  Page& page = pages_.at(found->second.uid);
  Clear(page, found->second.slot);
  page.taken[found->second.slot] = false;
  seats_.erase(found);
}

Result<Seats::Page*> Seats::PageOf(uid_t uid) {
  const auto known = pages_.find(uid);
  if (known != pages_.end()) return &known->second;
  Page page;
  page.file.reset(::memfd_create("ravenstore-tenant", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  const int file = page.file.get();
  if (!page.file || ::ftruncate(file, static_cast<off_t>(proto::kTenantBytes)) != 0 ||
      !Write(file, proto::kTenantMagic, offsetof(proto::TenantPage, magic)) ||
      ::fcntl(file, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
    return Error{ErrorCode::kSystem, "a tenant's page could not be made"};
  }
  return &pages_.emplace(uid, std::move(page)).first->second;
}

Result<uint32_t> Seats::FreeSlot(Page& page) {
  const auto free = std::find(page.taken.begin(), page.taken.end(), false);
  if (free != page.taken.end()) {
    *free = true;
    return static_cast<uint32_t>(free - page.taken.begin());
  }
  if (page.taken.size() >= proto::kTenantSlots) {
    return Error{ErrorCode::kLimit, "this user has 1023 legacy jobs already"};
  }
  page.taken.push_back(true);
  // Before its first byte stands there, the others look at it.
  if (!Write(page.file.get(), page.taken.size(), offsetof(proto::TenantPage, slots))) {
    page.taken.pop_back();
    return Error{ErrorCode::kSystem, "a tenant's page could not be written"};
  }
  return static_cast<uint32_t>(page.taken.size() - 1);
}

void Seats::Clear(const Page& page, uint32_t slot) {
  for (size_t row = 0; row < proto::kTenantDevices; ++row) {
    uint64_t device = 0;
    const auto read =
        ::pread(page.file.get(), &device, sizeof(device), static_cast<off_t>(RowOffset(row)));
    if (read != sizeof(device) || device == 0) return;
    Write(page.file.get(), 0,
          RowOffset(row) + offsetof(proto::TenantRow, used) + slot * sizeof(uint64_t));
  }
}

}  // namespace ravenstore::daemon
