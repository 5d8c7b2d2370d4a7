// The physical pages of one client on one device: made and destroyed on workers, each at an index
// of the daemon's arena.
//
// Owns: the pages, by Attachment::arenas. Units: bytes. Threads: the planner loop. Errors: Owner's
// Made, with the device's error. Cost: a job of a worker for each page.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "core/result.h"
#include "core/types.h"
#include "daemon/attachment.h"
#include "daemon/mailbox.h"
#include "daemon/threads.h"
#include "device/device.h"

namespace ravenstore::daemon {

class PhysicalPages {
 public:
  class Owner {
   public:
    virtual ~Owner() = default;
    // The page at the index is made, and its descriptor is for the client. An error says why the
    // page is not made.
    virtual void Made(uint32_t index, core::Result<ipc::UniqueFd> descriptor) = 0;
    // A page is destroyed; not `ok`: it could not be.
    virtual void Destroyed(bool ok) = 0;
  };
  // A client's arena on a device.
  struct Arena {
    core::DeviceId device{};
    core::Bytes bytes;  // both halves (daemon/page_mappings.h)
    core::Bytes page;
  };

  // All that is pointed to outlives this, and no worker runs any more when it ends.
  PhysicalPages(const Arena& arena, std::shared_ptr<Attachment> attachment,
                std::shared_ptr<device::Device> device, WorkerPool* workers, Mailbox* mailbox,
                Owner* owner);

  void Make();
  void Destroy(uint32_t index);
  // No page is destroyed until each Hold() has had its Unhold().
  void Hold() { ++holds_; }
  void Unhold();

  // Pages that are made, without those that are being destroyed.
  uint32_t made() const { return made_; }
  uint32_t making() const { return making_; }
  // A page has been made. So the daemon's arena is reserved, and pages may be made in parallel.
  bool has_arena() const { return has_arena_; }
  // Why the last page could not be made, unless the device had no memory for it.
  const std::optional<core::Error>& failure() const { return failure_; }
  // Where the daemon's arena begins. REQUIRES: has_arena().
  std::byte* base() const { return attachment_->arenas[core::ToInt(arena_.device)]->base(); }
  // No page is being made or destroyed, or held.
  bool IsQuiet() const { return making_ == 0 && destroying_ == 0 && holds_ == 0; }

 private:
  const Arena arena_;
  const std::shared_ptr<Attachment> attachment_;
  const std::shared_ptr<device::Device> device_;
  WorkerPool* const workers_;
  Mailbox* const mailbox_;
  Owner* const owner_;
  std::vector<uint32_t> indexes_;  // that are free again
  uint32_t next_index_ = 0;
  uint32_t made_ = 0;
  uint32_t making_ = 0;
  uint32_t destroying_ = 0;
  uint32_t holds_ = 0;
  std::vector<uint32_t> doomed_;  // indexes of pages that are destroyed after these
  bool has_arena_ = false;
  std::optional<core::Error> failure_;
};

}  // namespace ravenstore::daemon
