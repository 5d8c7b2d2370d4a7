#include "daemon/legacy_reclaims.h"

#include "ipc/clock.h"

namespace ravenstore::daemon {

using core::Bytes;

LegacyReclaims::LegacyReclaims(std::vector<Bytes> capacities, DeviceMemory* memory,
                               Connections* connections)
    : capacities_(std::move(capacities)),
      memory_(memory),
      connections_(connections),
      requests_(capacities_) {}

void LegacyReclaims::Begin(const Caller& caller, uint64_t request, size_t device, Bytes bytes,
                           Bytes most) {
  memory_->FindFor(caller.user(), device,
                   [this, request, device, bytes, most, key = caller.key,
                    user = caller.user()](const DeviceMemory::DeviceUsage& usage) {
                     if (!connections_->IsOpen(key)) return;
                     requests_.Begin({.requester = key,
                                      .request = request,
                                      .user = user,
                                      .device = device,
                                      .bytes = bytes,
                                      .most = most,
                                      .kept = usage.kept,
                                      .held = usage.held,
                                      .free = usage.free},
                                     ipc::Now());
                     Look();
                   });
}

void LegacyReclaims::OnTime(core::Tick now) {
  if (now < due_) return;
  due_ = core::kNever;
  Look();
}

void LegacyReclaims::Look() {
  const auto then = [this](const DeviceMemory::Usage& usage) { OnFound(usage); };
  // While a job waits nothing goes back to the store anyway.
  if (requests_.waiting()) return memory_->FindHeld(then);
  memory_->Find(then);
}

std::vector<Bytes> LegacyReclaims::UsedByOthers(const DeviceMemory::Usage& usage) const {
  std::vector<Bytes> used;
  for (size_t i = 0; i < usage.free.size(); ++i) {
    // Not what their pages say: a page says what its job likes.
    used.push_back(Minus(Minus(capacities_[i], usage.held[i]), usage.free[i]));
  }
  return used;
}

void LegacyReclaims::OnFound(const DeviceMemory::Usage& usage) {
  const core::Tick now = ipc::Now();
  const auto outcome = requests_.Update(usage.held, UsedByOthers(usage), now);
  for (const auto& limit : outcome.limits) memory_->SetLimit(limit.device, limit.capacity);
  for (const auto& answer : outcome.answers) {
    proto::DaemonPacket packet;
    packet.set_request(answer.request);
    packet.mutable_legacy_reclaimed()->set_bytes(answer.given.count());
    connections_->Send(answer.requester, packet, {});
  }
  due_ = core::kNever;
  if (requests_.lowered()) due_ = now + kWhileLowered;
  if (requests_.waiting()) due_ = now + kWhileWaiting;
}

}  // namespace ravenstore::daemon
