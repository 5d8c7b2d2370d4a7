// How much of the devices' memory the store holds, and how much is free.
//
// The planner loop knows the first, the driver the second. No call waits for them: the answer comes
// later. What the store holds is read before what is free.
//
// Threads: the control thread, in which `then` runs, too.
#pragma once

#include <cstddef>
#include <functional>
#include <utility>
#include <vector>

#include "core/types.h"
#include "daemon/loop.h"
#include "daemon/mailbox.h"
#include "daemon/threads.h"
#include "device/device.h"

namespace ravenstore::daemon {

class DeviceMemory {
 public:
  // By device.
  struct Usage {
    std::vector<core::Bytes> held;  // by the store
    std::vector<core::Bytes> free;  // held by no process; 0 where the driver does not say
  };
  struct DeviceUsage {
    core::Bytes held;
    core::Bytes kept;  // of what is held: guaranteed to other users than the one who asks
    core::Bytes free;
  };

  virtual ~DeviceMemory() = default;
  virtual void Find(std::function<void(const Usage&)> then) = 0;
  // The same without asking the drivers: `free` is empty.
  virtual void FindHeld(std::function<void(const Usage&)> then) = 0;
  // Of one device, as a part of the user's work.
  virtual void FindFor(core::TenantId user, size_t device,
                       std::function<void(const DeviceUsage&)> then) = 0;
  // From now on the store may hold at most `capacity` of the device.
  virtual void SetLimit(size_t device, core::Bytes capacity) = 0;
};

// That of the daemon's devices. All that is pointed to outlives this, and no worker runs any more
// when it ends.
class StoreDeviceMemory final : public DeviceMemory {
 public:
  // `mailbox`: the control thread's.
  StoreDeviceMemory(device::Devices devices, Loop* loop, WorkerPool* workers, Mailbox* mailbox)
      : devices_(std::move(devices)), loop_(loop), workers_(workers), mailbox_(mailbox) {}

  void Find(std::function<void(const Usage&)> then) override;
  void FindHeld(std::function<void(const Usage&)> then) override;
  void FindFor(core::TenantId user, size_t device,
               std::function<void(const DeviceUsage&)> then) override;
  void SetLimit(size_t device, core::Bytes capacity) override;

 private:
  // In the loop's thread.
  std::vector<core::Bytes> Held() const;
  // Slabs, and what is harvested: that goes first.
  core::Bytes HeldOf(size_t device) const;
  // In a worker's thread: the driver may take its time.
  core::Bytes Free(size_t device) const;

  const device::Devices devices_;
  Loop* const loop_;
  WorkerPool* const workers_;
  Mailbox* const mailbox_;
};

}  // namespace ravenstore::daemon
