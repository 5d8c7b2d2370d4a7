#include "daemon/harvests.h"

#include <algorithm>
#include <utility>

#include "core/size_text.h"
#include "ipc/clock.h"

namespace ravenstore::daemon {

Harvests::Harvests(LoopState* state, const std::vector<Options>& harvests) : state_(*state) {
  for (const auto& [pool, device, options] : harvests)
    harvests_.emplace(device, One{pool, Harvest(options)});
}

void Harvests::Look(const std::vector<MemoryWatch::Seen>& seen) {
  for (auto& [device, one] : harvests_) {
    const MemoryWatch::Seen& of_device = seen[ToInt(device)];
    if (!of_device.fault.empty()) continue;  // what is there stays, and nothing more comes
    const bool stale = one.in_motion > 0 || of_device.at <= one.moved;
    const core::Bytes before = one.harvest.most();
    const core::Bytes most =
        one.harvest.Look(state_.now, HeldOf(device), {of_device.free, of_device.idle, stale});
    if (most != before) state_.Apply(core::PoolLimit{one.pool, most});
  }
}

core::Status Harvests::Return(core::DeviceId device, core::Bytes bytes, core::Duration within,
                              Harvest::Then then) {
  const auto found = harvests_.find(device);
  const std::string name = "device " + std::to_string(ToInt(device));
  if (found == harvests_.end())
    return core::Error{core::ErrorCode::kInvalidArgument, "nothing is harvested of " + name};
  const core::Bytes held = HeldOf(device);
  if (bytes > held) {
    return core::Error{core::ErrorCode::kInvalidArgument,
                       "of " + name + ' ' + core::SizeText(held) +
                           " are harvested, less than the " + core::SizeText(bytes) +
                           " to give back"};
  }
  One& one = found->second;
  state_.Apply(core::PoolLimit{
      one.pool, one.harvest.Return(state_.now, held, bytes, within, std::move(then))});
  return core::Ok();
}

void Harvests::NoteChunk(core::PoolId pool, bool begins) {
  for (auto& [device, one] : harvests_) {
    if (one.pool != pool) continue;
    one.in_motion += begins ? 1 : -1;
    one.moved = ipc::Now();  // the pass may have begun before
  }
}

void Harvests::Lose(core::PoolId pool, core::Bytes bytes) {
  for (auto& [device, one] : harvests_) {
    if (one.pool == pool) one.harvest.Lose(bytes);
  }
}

void Harvests::Update() {
  for (auto& [device, one] : harvests_) {
    one.harvest.Update(state_.now, HeldOf(device),
                       [this, pool = one.pool] { return WhyNotGiven(pool); });
  }
}

core::Tick Harvests::NextWake() const {
  core::Tick next = core::kNever;
  for (const auto& [device, one] : harvests_) next = std::min(next, one.harvest.deadline());
  return next;
}

std::optional<Harvest::View> Harvests::View(core::DeviceId device) const {
  const auto found = harvests_.find(device);
  if (found == harvests_.end()) return std::nullopt;
  const One& one = found->second;
  const core::TierView there = state_.views().OtherTier(one.pool);
  return Harvest::View{there.capacity, there.used, one.harvest.counts()};
}

std::string Harvests::WhyNotGiven(core::PoolId pool) const {
  return state_.views().OtherTier(pool).used > core::Bytes{0}
             ? "copies to it or from it are under way"
             : "the driver has not released its memory yet";
}

}  // namespace ravenstore::daemon
