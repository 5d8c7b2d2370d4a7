// The page on which a legacy job's interceptor keeps its sums, for the daemon to read.
//
// One page per process: a memfd that the interceptor makes, seals against shrinking and growing,
// and sends with LegacyHello. It outlives the daemon: the next one is sent the same page, so that
// what it reads is exact immediately. The daemon reads it with pread and maps it only to write
// `visible`, `together` and `paused`. Aligned 64-bit words, little-endian.
//
// What the jobs of one user hold together stands on a second page, one for each user: see
// TenantPage.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace ravenstore::proto {

inline constexpr uint64_t kLedgerMagic = 0x32474c4e56415221;  // "!RAVNLG2"
inline constexpr uint32_t kLedgerDevices = 16;

// What a job holds, by how it came by it.
enum class LegacyKind : uint8_t {
  kDevice = 0,   // cuMemAlloc
  kPitch = 1,    // cuMemAllocPitch
  kManaged = 2,  // cuMemAllocManaged
  kAsync = 3,    // cuMemAllocAsync and from pools
  kVmm = 4,      // cuMemCreate on a device
  kArray = 5,
  kMipmap = 6,
  kGraph = 7,    // what the driver holds for memory nodes of graphs
  kContext = 8,  // what making a context took
  kPool = 9,     // what the devices' default pools hold beyond what was asked of them
};
inline constexpr uint32_t kLegacyKinds = 10;
inline constexpr const char* kLegacyKindNames[kLegacyKinds] = {
    "device", "pitch", "managed", "async", "vmm", "array", "mipmap", "graph", "context", "pool"};

// One device. Bytes are as asked for.
struct alignas(64) LedgerRow {
  char uuid[48];  // the interceptor; "GPU-...", empty: no such row
  std::atomic<uint64_t>
      visible;                  // the daemon: the device's size as the job is shown it; 0: no limit
  std::atomic<uint64_t> asked;  // the interceptor: a smaller size that the job asked for; 0: none
  std::atomic<uint64_t> used;   // the interceptor: the kinds' sum, and what is being allocated
  std::atomic<uint64_t> served;  // of it, held in the store's pages
  std::atomic<uint64_t> kinds[kLegacyKinds];
  std::atomic<uint64_t> together;  // the daemon: what the tenant's jobs may hold together; 0: all
  std::atomic<uint64_t> paused;    // the daemon: 1: an elastic job shall hold nothing of the device
  std::atomic<uint64_t> peak;  // the interceptor: the largest sum of the kinds so far, or what it
                               // would be if an elastic job's device were large enough
  uint64_t reserved[1];
};
static_assert(sizeof(LedgerRow) == 192);

struct LedgerPage {
  uint64_t magic;
  uint32_t rows;
  uint32_t reserved;
  LedgerRow row[kLedgerDevices];
};
inline constexpr size_t kLedgerBytes = 4096;
static_assert(sizeof(LedgerPage) <= kLedgerBytes);
static_assert(std::atomic<uint64_t>::is_always_lock_free);

// What the processes of one user hold together: a memfd that the daemon makes, seals, and sends
// with LegacyWelcome to each of them with the number of its slot. Every process maps it, adds and
// subtracts at its own slot alone, and sums over all to know whether an allocation fits; the daemon
// clears a slot once its process has ended. No word has two writers, so a process that is killed
// leaves nothing half done, and what the slots say needs no repair.
inline constexpr uint64_t kTenantMagic = 0x32544e4556415221;  // "!RAVENT2"
inline constexpr uint32_t kTenantSlots = 1023;
inline constexpr uint32_t kTenantDevices = 64;

// What a process's elastic engine wants of the device, in bytes, for those that share it with the
// user's other engines (elastic/job_share.h). All 0: it has no engine.
struct alignas(64) TenantDemand {
  std::atomic<uint64_t> in_use;     // that the calls under way use
  std::atomic<uint64_t> waits_for;  // the same, with a call that waits for memory; 0: none waits
  std::atomic<uint64_t> expected;   // that its calls will use at one time
  std::atomic<uint64_t> alive;      // that allocations occupy at most
  std::atomic<uint64_t> held;       // that it has
  uint64_t reserved[3];
};

struct TenantRow {
  std::atomic<uint64_t> device;  // DeviceKey, reserved by the first process that needs it; 0: free
  std::atomic<uint64_t> used[kTenantSlots];  // as LedgerRow::used
  TenantDemand demand[kTenantSlots];
};
struct TenantPage {
  uint64_t magic;
  std::atomic<uint64_t> slots;  // the daemon: those from here on were never given out
  uint64_t reserved[510];
  TenantRow row[kTenantDevices];  // memory only where there is a device
};
inline constexpr size_t kTenantBytes = sizeof(TenantPage);
static_assert(sizeof(TenantDemand) == 64);
static_assert(kTenantBytes == 4096 + kTenantDevices * (8192 + kTenantSlots * 64));

// A device's name on a tenant's page: processes number devices differently.
constexpr uint64_t DeviceKey(const char* uuid) {
  uint64_t hash = 0xcbf29ce484222325;
  for (size_t i = 0; i < sizeof(LedgerRow::uuid) && uuid[i] != 0; ++i) {
    hash = (hash ^ static_cast<unsigned char>(uuid[i])) * 0x100000001b3;
  }
  return hash == 0 ? 1 : hash;
}

}  // namespace ravenstore::proto
