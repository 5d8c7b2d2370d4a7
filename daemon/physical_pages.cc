#include "daemon/physical_pages.h"

#include <spdlog/spdlog.h>

#include <utility>

namespace ravenstore::daemon {

using core::Status;
using core::ToInt;

PhysicalPages::PhysicalPages(const Arena& arena, std::shared_ptr<Attachment> attachment,
                             std::shared_ptr<device::Device> device, WorkerPool* workers,
                             Mailbox* mailbox, Owner* owner)
    : arena_(arena),
      attachment_(std::move(attachment)),
      device_(std::move(device)),
      workers_(workers),
      mailbox_(mailbox),
      owner_(owner) {}

void PhysicalPages::Make() {
  uint32_t index = next_index_;
  if (indexes_.empty()) {
    ++next_index_;
  } else {
    index = indexes_.back();
    indexes_.pop_back();
  }
  ++making_;
  // Many may be destroyed at a time, and a call may wait for this one.
  workers_->RunFirst(attachment_->tenant, [this, index] {
    auto descriptor = std::make_shared<ipc::UniqueFd>();
    const Status made = MakeMemory(*attachment_, *device_, arena_.device, arena_.bytes,
                                   arena_.page * index, arena_.page, descriptor.get());
    mailbox_->Post([this, index, descriptor, made] {
      --making_;
      failure_.reset();
      if (made.ok()) {
        ++made_;
        has_arena_ = true;
        return owner_->Made(index, std::move(*descriptor));
      }
      spdlog::debug("client {}: no page of {} bytes on device {}: {}", ToInt(attachment_->id),
                    arena_.page.count(), ToInt(arena_.device), core::Describe(made.error()));
      indexes_.push_back(index);
      if (made.error().code != core::ErrorCode::kOutOfMemory) failure_ = made.error();
      owner_->Made(index, made.error());
    });
  });
}

void PhysicalPages::Destroy(uint32_t index) {
  if (holds_ > 0) return doomed_.push_back(index);
  ++destroying_;
  --made_;
  workers_->Run(attachment_->tenant, [this, index] {
    const Status unmapped = attachment_->arenas[ToInt(arena_.device)]->Unmap(arena_.page * index);
    if (!unmapped.ok()) {
      spdlog::error("client {}: page not unmapped: {}", ToInt(attachment_->id),
                    core::Describe(unmapped.error()));
    }
    mailbox_->Post([this, index, ok = unmapped.ok()] {
      --destroying_;
      if (ok) {
        indexes_.push_back(index);
      } else {
        ++made_;
      }
      owner_->Destroyed(ok);
    });
  });
}

void PhysicalPages::Unhold() {
  if (--holds_ > 0) return;
  for (const uint32_t index : std::exchange(doomed_, {})) Destroy(index);
}

}  // namespace ravenstore::daemon
