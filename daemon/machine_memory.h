// What of the machine's main memory the daemon may still take.
//
// Threads: any. Cost: some small files of the kernel's are read.
#pragma once

#include <string>

#include "core/result.h"
#include "core/types.h"

namespace ravenstore::daemon {

struct MachineMemory {
  core::Bytes total;
  // What can be had without swapping, as the kernel reckons; and no more than the control groups
  // (version 2) that the daemon is in leave it.
  core::Bytes available;
};

// Where the kernel reports memory; tests use other files.
struct MemorySources {
  std::string meminfo = "/proc/meminfo";
  std::string own_group = "/proc/self/cgroup";
  std::string groups = "/sys/fs/cgroup";
};

// Errors: kSystem, naming the file that cannot be read or lacks a value.
core::Result<MachineMemory> ReadMachineMemory(const MemorySources& sources = {});

}  // namespace ravenstore::daemon
