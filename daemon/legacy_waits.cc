#include "daemon/legacy_waits.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <utility>

#include "ipc/clock.h"

namespace ravenstore::daemon {

using core::Bytes;

void LegacyWaits::Add(const Caller& caller, uint64_t request, size_t device, Bytes bytes) {
  WaitQueue::Waiter waiter;
  waiter.devices.set(device);
  waiter.need.bytes = bytes;
  Enqueue(caller, request, std::move(waiter));
}

void LegacyWaits::Admit(const Caller& caller, uint64_t request, WaitQueue::Waiter wanted) {
  wanted.slowdown_most = options_.slowdown_most;
  Enqueue(caller, request, std::move(wanted));
}

void LegacyWaits::Enqueue(const Caller& caller, uint64_t request, WaitQueue::Waiter waiter) {
  waiter.process = {caller.peer.pid, caller.peer.start_time};
  waiter.user = caller.user();
  waiter.connection = caller.key;
  waiter.request = request;
  if (!queue_.Add(waiter)) return LookAgain();
  const auto* reservation = queue_.ReservationOf(waiter.process);
  waiter.slowdown_most = 0;  // how it came there was said
  waiter.need.bytes = reservation->bytes;
  Notify({std::move(waiter), 0, reservation->device, {}});
}

void LegacyWaits::LookAgain() {
  if (!queue_.empty()) due_ = std::min(due_, ipc::Now() + kLookEvery);
}

void LegacyWaits::OnTime(core::Tick now) {
  if (now < due_) return;
  due_ = core::kNever;
  if (queue_.empty()) return;
  options_.memory->Find([this](const DeviceMemory::Usage& usage) { OnFound(usage); });
}

void LegacyWaits::OnFound(const DeviceMemory::Usage& usage) {
  const std::vector<ResourceUse> measured =
      options_.measure ? options_.measure() : std::vector<ResourceUse>(options_.devices.size());
  auto uses = options_.ledger->UsesByDevice();
  std::vector<WaitQueue::Device> devices;
  for (size_t i = 0; i < options_.devices.size(); ++i) {
    const auto& info = options_.devices[i]->info();
    devices.push_back({.total = info.total,
                       .used = Minus(Minus(info.total, usage.held[i]), usage.free[i]),
                       .held = usage.held[i],
                       .return_bytes_per_s =
                           i < options_.links.size() ? options_.links[i].down_bytes_per_second : 0,
                       .measured = measured[i],
                       .uses = std::move(uses[i])});
  }
  const WaitQueue::News news = queue_.Update(ipc::Now(), devices);
  for (const auto& corrected : news.corrected)
    options_.ledger->LowerRun(corrected.process, corrected.user, corrected.bytes);
  for (const auto& notification : news.notifications) {
    // A client that does not read is notified only when its turn comes.
    if (notification.position != 0 && options_.connections->HasUnsent(notification.connection))
      continue;
    if (notification.position == 0 &&
        options_.log->Allow(core::ToInt(notification.user), ipc::Now()))
      spdlog::info("legacy job of pid {} waits no more", notification.process.pid);
    Notify(notification);
  }
  LookAgain();
}

void LegacyWaits::Notify(const WaitQueue::Notification& notification) {
  proto::DaemonPacket packet;
  packet.set_request(notification.request);
  proto::LegacyTurn& turn = *packet.mutable_legacy_turn();
  turn.set_position(notification.position);
  turn.set_bytes(notification.need.bytes.count());
  if (notification.estimate) {
    if (notification.position == 0)
      turn.set_uuid(options_.devices[notification.device]->info().uuid);
    turn.set_words(WordsOf(notification.judgement, notification.slowdown_most));
  }
  options_.connections->Send(notification.connection, packet, {});
}

}  // namespace ravenstore::daemon
