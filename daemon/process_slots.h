// Which process has which slot of its user's page (proto::TenantPage): by these pages the legacy
// jobs of one user keep to a budget together.
//
// A slot is its process's until that has ended, also when the process no longer speaks to the
// daemon: it may still be counting there.
//
// Nothing on a page is believed but the devices' keys, and those only to clear slots. A page is
// there as long as its user has a process with a slot.
//
// Owns: the pages, mapped. Threads: the control thread.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "core/result.h"
#include "ipc/unique_fd.h"
#include "proto/ledger_page.h"

namespace ravenstore::daemon {

// A process, for good: pids come again, with other start times. Pid 0: of a foreign namespace,
// and the same as no other.
struct ProcessName {
  pid_t pid = 0;
  uint64_t start_time = 0;
};

class ProcessSlots {
 public:
  struct Slot {
    int page = -1;  // stays the daemon's
    uint32_t slot = 0;
  };
  // A process slot for the connection `key` of a process of the user `uid`. A process that has one
  // takes it along: with what stands there when it still is the same program (`program` is its
  // ledger's inode), and cleared when it has become another by exec.
  // Errors: kLimit (the user has kTenantSlots processes), kSystem.
  core::Result<Slot> Take(uint64_t key, uid_t uid, ProcessName process, ino_t program);
  // The process of the connection has ended: what it held counts no more.
  void Release(uint64_t key);
  bool Has(uint64_t key) const { return process_slots_.contains(key); }

 private:
  struct Unmap {
    void operator()(proto::TenantPage* page) const;
  };
  struct Page {
    ipc::UniqueFd file;
    std::unique_ptr<proto::TenantPage, Unmap> words;
    std::vector<bool> taken;  // by slot; its size is the page's `slots`
  };
  struct Taken {
    uid_t uid = 0;
    uint32_t slot = 0;
    ProcessName process;
    ino_t program = 0;
  };
  core::Result<Page*> PageOf(uid_t uid);
  static core::Result<uint32_t> FreeSlot(Page& page);
  static void Clear(const Page& page, uint32_t slot);

  std::map<uid_t, Page> pages_;
  std::map<uint64_t, Taken> process_slots_;  // by connection
};

}  // namespace ravenstore::daemon
