#include "daemon/legacy_waits.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <utility>

#include "ipc/clock.h"

namespace ravenstore::daemon {

using core::Bytes;

LegacyWaits::LegacyWaits(device::Devices devices, const LegacyLedger* ledger, DeviceMemory* memory,
                         Connections* connections, LogBudget* log)
    : devices_(std::move(devices)),
      ledger_(ledger),
      memory_(memory),
      connections_(connections),
      log_(log) {}

void LegacyWaits::Add(const Caller& caller, uint64_t request, size_t device, Bytes bytes) {
  const bool may_go = queue_.Add({.process = {caller.peer.pid, caller.peer.start_time},
                                  .user = caller.user(),
                                  .device = device,
                                  .bytes = bytes,
                                  .connection = caller.key,
                                  .request = request});
  if (may_go) return Tell(caller.key, request, 0, bytes);
  LookAgain();
}

void LegacyWaits::LookAgain() {
  if (!queue_.empty()) due_ = std::min(due_, ipc::Now() + kLookEvery);
}

void LegacyWaits::OnTime(core::Tick now) {
  if (now < due_) return;
  due_ = core::kNever;
  if (queue_.empty()) return;
  memory_->Find([this](const DeviceMemory::Usage& usage) { OnFound(usage); });
}

void LegacyWaits::OnFound(const DeviceMemory::Usage& usage) {
  for (size_t i = 0; i < devices_.size(); ++i) {
    if (!queue_.WaitsFor(i)) continue;
    const auto& info = devices_[i]->info();
    const Bytes used = Minus(Minus(info.total, usage.held[i]), usage.free[i]);
    for (const auto& told : queue_.Update(i, info.total, used, ledger_->UsesOf(info.uuid))) {
      // Who does not read is told his turn alone.
      if (told.position != 0 && connections_->HasUnsent(told.connection)) continue;
      if (told.position == 0 && log_->Allow(core::ToInt(told.user), ipc::Now()))
        spdlog::info("legacy job of pid {} waits no more", told.process.pid);
      Tell(told.connection, told.request, told.position, told.bytes);
    }
  }
  LookAgain();
}

void LegacyWaits::Tell(uint64_t key, uint64_t request, uint32_t position, Bytes bytes) {
  proto::DaemonPacket packet;
  packet.set_request(request);
  packet.mutable_legacy_turn()->set_position(position);
  packet.mutable_legacy_turn()->set_bytes(bytes.count());
  connections_->Send(key, packet, {});
}

}  // namespace ravenstore::daemon
