// Memory that another allocator hands out, such as PyTorch's, and that sleeps and wakes by tag.
//
// A region has a store of its own, whose tensors have fixed addresses. Each allocation is a tensor
// that stays in use but while the region sleeps. So pointers into it, and graphs that were captured
// with it, are valid again after the wake.
//
//     Region region({.name = "weights"});
//     Region::Enter(&region);                  // for this thread
//     void* p = Region::AllocateInCurrent(bytes, device);
//     Region::Enter(nullptr);
//     region.Sleep({});                        // a kernel that reads p would fault
//     region.Wake({});
//
// Other processes may order a region to sleep, if it takes orders: Obey() executes them, where the
// program has no work under way.
//
// Owns: the store and its tensors. Threads: any. Units: bytes. Errors: Sleep and Wake throw what
// Store::sleep, wake and get do. Fork: in a child no memory of a region is there; AllocateInCurrent
// returns null, and Free does nothing.
#pragma once

#include <cstdint>
#include <exception>
#include <map>
#include <mutex>
#include <set>
#include <string>

#include "client/client.h"

namespace ravenstore::client {

class Region {
 public:
  struct SleepOptions {
    bool keeps_bytes = true;  // else they are undefined after the wake
    bool unchanged = false;   // since the last wake: the copies from before are kept
    Timeout timeout = {};     // the store's
  };
  struct WakeOptions {
    Stream stream = nullptr;  // whose later work has the bytes
    bool waits = true;        // until the bytes are there, for work of any stream
    bool in_order = false;    // or for nothing: each allocation is waited for by Await()
    Timeout timeout = {};
  };
  struct View {
    uint64_t bytes = 0;
    uint64_t allocations = 0;
    uint64_t devices = 0;  // a bit for each on which it has memory
    bool is_asleep = false;
  };

  // `options.fixed_addresses` is set. Throws as Store::connect.
  explicit Region(ConnectOptions options);
  // Frees the remaining allocations. REQUIRES: no thread is in it.
  ~Region();
  Region(const Region&) = delete;
  Region& operator=(const Region&) = delete;

  // Whose memory this thread gets from AllocateInCurrent(); null: of none.
  static void Enter(Region* region) noexcept;
  static Region* Current() noexcept;
  // Of whose allocation the address is; null: of no region's.
  static Region* Of(const void* address) noexcept;
  // Of the thread's region. Null: it has none, or no memory; ravenstore_last_error() says why.
  static void* AllocateInCurrent(uint64_t bytes, int device) noexcept;
  // Returns false if the address is no region's. REQUIRES: work that uses it has ended.
  static bool Free(void* address) noexcept;

  // The bytes of device memory that went back. REQUIRES: work that uses the region's memory has
  // ended. If it throws the region is awake.
  uint64_t Sleep(const SleepOptions& options);
  // If it throws the region is asleep, and may be woken again. No error if it is awake. After a
  // wake in order it waits for the rest; if it throws then, the rest may be waited for again.
  void Wake(const WakeOptions& options);
  // Later work on the stream has the bytes of the allocation with the address, whose region was
  // woken in order. Throws Error: NOT_FOUND, WRONG_STATE (it sleeps), and what Store::get does.
  static void Await(const void* address, Stream stream, Timeout timeout = {});
  // From now on other processes of the user may order the region, as memory of that name and of the
  // job (daemon/job_orders.h). Throws Error: INVALID_ARGUMENT, LOST.
  void TakeOrders(std::string job, uint32_t run);
  // Executes the orders that have come; failures are reported to the process that ordered it.
  // Returns whether the region sleeps since it was ordered to. REQUIRES: as Sleep. Throws Error:
  // LOST.
  bool Obey();
  // Whether a region of this process has an order to execute, or sleeps by one. Two relaxed loads.
  static bool IsAnyOrdered() noexcept;
  // The physical memory beneath the allocation with the address stays there, so that the region
  // does not sleep; or not any more. Throws Error: NOT_FOUND, WRONG_STATE (it sleeps).
  static void Keep(void* address, bool stays);
  // Copies bytes of an allocation, whose region sleeps, to host memory. Meanwhile the device needs
  // room for the allocation. Throws Error: NOT_FOUND (no region has them, or it sleeps without),
  // WRONG_STATE (it is awake), and what Wake throws; it sleeps on.
  static void Read(const void* address, uint64_t bytes, void* to, Timeout timeout = {});
  View view() const;

 private:
  // An allocation, whose region stays locked. Owns: the lock.
  struct Found {
    Region* region;
    void* begin;
    Tensor* tensor;
    uint64_t offset;  // of the address in it
    std::unique_lock<std::mutex> lock;
  };
  // That of any region that has the range. Throws Error: NOT_FOUND.
  static Found Find(const void* address, uint64_t bytes = 0);
  void* Allocate(uint64_t bytes, int device);
  // As without "Locked". REQUIRES: mutex_ is held.
  uint64_t SleepLocked(const SleepOptions& options);
  void WakeLocked(const WakeOptions& options);
  void SetAsleepByOrder(bool asleep);
  // Puts all that are held.
  void PutAll(const SleepOptions& options);
  // All are asked for, in the order of their addresses, and none is held.
  void BeginGets(Timeout timeout);
  // Those that are not held, as well as the streams' waits for those that are. The first error, if
  // there is one; all others were tried.
  std::exception_ptr GetAll(const WakeOptions& options);
  void GetOne(void* address, Tensor& tensor, const WakeOptions& options);
  void ReadAsleep(Tensor& tensor, void* to, Timeout timeout);

  const std::string name_;
  mutable std::mutex mutex_;
  Store store_;                        // guarded by mutex_, as all below
  std::map<void*, Tensor> allocated_;  // by address
  bool is_asleep_ = false;
  bool keeps_bytes_ = true;  // while it sleeps
  // It was woken in order, and streams may have to wait for bytes.
  bool is_coming_ = false;
  std::set<void*> not_held_;  // then: allocations whose gets have not ended
  bool asleep_by_order_ = false;
};

}  // namespace ravenstore::client
