#include "daemon/process_slots.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

namespace ravenstore::daemon {

using core::Error;
using core::ErrorCode;
using core::Result;

Result<ProcessSlots::Slot> ProcessSlots::Take(uint64_t key, uid_t uid, ProcessName process,
                                              ino_t program) {
  RAVEN_ASSIGN_OR_RETURN(Page* const page, PageOf(uid));
  const auto own =
      std::find_if(process_slots_.begin(), process_slots_.end(), [&](const auto& entry) {
        const Taken& taken = entry.second;
        return process.pid != 0 && taken.uid == uid && taken.process.pid == process.pid &&
               taken.process.start_time == process.start_time;
      });
  Taken taken{uid, 0, process, program};
  if (own != process_slots_.end()) {
    taken.slot = own->second.slot;
    if (own->second.program != program) Clear(*page, taken.slot);
    process_slots_.erase(own);
  } else {
    RAVEN_ASSIGN_OR_RETURN(taken.slot, FreeSlot(*page));
  }
  process_slots_[key] = taken;
  return Slot{page->file.get(), taken.slot};
}

void ProcessSlots::Release(uint64_t key) {
  const auto found = process_slots_.find(key);
  if (found == process_slots_.end()) return;
  Page& page = pages_.at(found->second.uid);
  Clear(page, found->second.slot);
  page.taken[found->second.slot] = false;
  // With the last of the user's processes the page goes: users come and go without end.
  if (std::find(page.taken.begin(), page.taken.end(), true) == page.taken.end())
    pages_.erase(found->second.uid);
  process_slots_.erase(found);
}

Result<ProcessSlots::Page*> ProcessSlots::PageOf(uid_t uid) {
  const auto known = pages_.find(uid);
  if (known != pages_.end()) return &known->second;
  const Error failed{ErrorCode::kSystem, "a tenant's page could not be made"};
  Page page;
  page.file.reset(::memfd_create("ravenstore-tenant", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  const int file = page.file.get();
  if (!page.file || ::ftruncate(file, static_cast<off_t>(proto::kTenantBytes)) != 0 ||
      ::fcntl(file, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
    return failed;
  }
  // Not by pwrite: that waits while a job writes the file, from a page of its own that never comes.
  // No process can shrink the mapped file.
  void* mapped = ::mmap(nullptr, proto::kTenantBytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  if (mapped == MAP_FAILED) return failed;
  page.words.reset(static_cast<proto::TenantPage*>(mapped));
  page.words->magic = proto::kTenantMagic;
  return &pages_.emplace(uid, std::move(page)).first->second;
}

void ProcessSlots::Unmap::operator()(proto::TenantPage* page) const {
  ::munmap(page, proto::kTenantBytes);
}

Result<uint32_t> ProcessSlots::FreeSlot(Page& page) {
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
  page.words->slots.store(page.taken.size());
  return static_cast<uint32_t>(page.taken.size() - 1);
}

void ProcessSlots::Clear(const Page& page, uint32_t slot) {
  for (proto::TenantRow& row : page.words->row) {
    if (row.device.load() == 0) return;
    row.used[slot].store(0);
    proto::TenantDemand& demand = row.demand[slot];
    for (auto* word :
         {&demand.in_use, &demand.waits_for, &demand.expected, &demand.alive, &demand.held})
      word->store(0);
  }
}

}  // namespace ravenstore::daemon
