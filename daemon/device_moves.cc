#include "daemon/device_moves.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

namespace ravenstore::daemon {

using core::CallResult;
using core::ClientId;
using core::DeviceId;
using core::Error;
using core::TensorNumber;

namespace {

const core::PageExecutor& ExecutorOf(const DeviceMoves::Side& side, ClientId client) {
  return side.scheduler->client(client).executor();
}

}  // namespace

DeviceMoves::DeviceMoves(device::Devices devices, const TransferLane::Options& options,
                         Owner* owner)
    : devices_(std::move(devices)), options_(options), owner_(owner) {}

void DeviceMoves::Begin(ClientId client, TensorNumber tensor, const Side& from, const Side& to,
                        bool is_reached) {
  const Key key{client, tensor};
  moves_[key] = {.from = from, .to = to, .is_reached = is_reached};
  const core::Bytes size = ExecutorOf(from, client).tensors()[tensor].size;
  Handle(key, to, owner_->Create(to.pages, tensor, size));
}

void DeviceMoves::Handle(const Key& key, const Side& side, CallResult result) {
  const auto [client, tensor] = key;
  ClientPages* const pages = side.pages;
  owner_->Progressed(pages);
  if (result == CallResult::kWaits) return;
  if (result != CallResult::kHeld) return Fail(key, owner_->ErrorOf(pages, tensor, result));
  if (ExecutorOf(side, client).IsResident(tensor)) Granted(client, tensor, pages);
}

std::optional<DeviceId> DeviceMoves::WaitsOn(ClientId client, TensorNumber tensor) const {
  const auto found = moves_.find({client, tensor});
  if (found == moves_.end() || found->second.stage != Stage::kCreates) return std::nullopt;
  return found->second.to.pages->device();
}

void DeviceMoves::Reached(ClientId client, TensorNumber tensor) {
  const auto found = moves_.find({client, tensor});
  if (found == moves_.end()) return;
  found->second.is_reached = true;
  if (found->second.stage == Stage::kIsReached) Copy(found->first, &found->second);
}

void DeviceMoves::Granted(ClientId client, TensorNumber tensor, const ClientPages* on) {
  const auto found = moves_.find({client, tensor});
  if (found == moves_.end()) return;
  Move& move = found->second;
  if (move.stage == Stage::kCreates && on == move.to.pages) {
    Created(found->first, &move);
  } else if (move.stage == Stage::kFetches && on == move.from.pages) {
    Fetched(found->first, &move);
  }
}

void DeviceMoves::Refused(ClientId client, TensorNumber tensor, Error error) {
  const auto found = moves_.find({client, tensor});
  if (found == moves_.end()) return;
  const Stage stage = found->second.stage;
  if (stage == Stage::kCreates || stage == Stage::kFetches) Fail(found->first, std::move(error));
}

void DeviceMoves::Expire(ClientId client, TensorNumber tensor) {
  const Key key{client, tensor};
  Move& move = moves_.at(key);
  const Side side = move.stage == Stage::kCreates ? move.to : move.from;
  const Error error = owner_->ErrorOf(side.pages, tensor, CallResult::kWaits);
  switch (move.stage) {
    case Stage::kCreates:
      // A call whose pages are there is granted soon, and is none any more then.
      if (!move.to.scheduler->Refuse(client, tensor)) {
        move.to.scheduler->BeginUse(client, tensor);
        Free(key, move.to);
      }
      break;
    case Stage::kFetches:
      if (!move.from.scheduler->Refuse(client, tensor)) Unpin(key, move);
      break;
    case Stage::kIsReached: break;
    case Stage::kCopies: move.has_expired = true; return;
  }
  owner_->Progressed(side.pages);
  Fail(key, error);
}

void DeviceMoves::Forget(ClientId client) {
  const auto begin = moves_.lower_bound({client, 0});
  auto end = begin;
  while (end != moves_.end() && end->first.first == client) ++end;
  moves_.erase(begin, end);
}

// ---- Steps.

void DeviceMoves::Created(const Key& key, Move* move) {
  const auto [client, tensor] = key;
  move->stage = Stage::kIsReached;
  move->to.scheduler->BeginUse(client, tensor);
  if (ExecutorOf(move->from, client).tensors()[tensor].is_discarded()) return End(key, true);
  if (move->is_reached) Copy(key, move);
}

void DeviceMoves::Fetched(const Key& key, Move* move) {
  const auto [client, tensor] = key;
  move->is_in_use = true;
  // Its bytes may have been discarded while the call waited for room.
  const bool is_discarded = !ExecutorOf(move->from, client).tensors()[tensor].lives();
  move->from.scheduler->BeginUse(client, tensor);
  if (is_discarded) return End(key, true);
  Copy(key, move);
}

void DeviceMoves::Copy(const Key& key, Move* move) {
  move->stage = Stage::kCopies;
  const Key moved = key;
  const auto [client, tensor] = moved;
  const Side from = move->from;
  const core::PageExecutor& executor = ExecutorOf(from, client);
  // Resident units stay resident until they are copied.
  std::vector<core::plan::UnitSpan> kept;
  const core::plan::UnitSpan& units = executor.tensors()[tensor].units;
  for (uint32_t i = 0; i < units.count; ++i) {
    if (executor.books()[units[i]].IsResident()) kept.push_back(units.Part(i));
  }
  const auto ended = [this, moved, from, kept](const core::Status& outcome) {
    const auto found = moves_.find(moved);
    if (found == moves_.end()) return;  // the client is gone
    for (const auto& unit : kept) from.scheduler->Moved(moved.first).EndKeepInPlace(unit);
    EndCopy(moved, &found->second, outcome);
  };
  const DeviceLink link{links_.at(from.pages->device()).get(),
                        options_.ChunkOf(TransferLane::Urgency::kDemand)};
  if (!from.pages->StartMove(tensor, move->to.pages, link, ended)) return Fetch(moved, move);
  for (const auto& unit : kept) from.scheduler->Moved(client).KeepInPlace(unit);
}

void DeviceMoves::EndCopy(const Key& key, Move* move, const core::Status& outcome) {
  owner_->Progressed(move->from.pages);
  if (outcome.ok()) return End(key, false);
  if (!move->is_in_use && !move->has_expired) return Fetch(key, move);
  if (move->is_in_use) Unpin(key, *move);
  Fail(key, outcome.error());
}

void DeviceMoves::Fetch(const Key& key, Move* move) {
  move->stage = Stage::kFetches;
  Handle(key, move->from, owner_->Get(move->from.pages, key.second));
}

void DeviceMoves::End(const Key& key, bool recompute) {
  const auto [client, tensor] = key;  // it may be the entry's
  const Move move = moves_.extract(key).mapped();
  Free({client, tensor}, move.from);
  owner_->Progressed(move.to.pages);
  owner_->Moved(client, tensor, move.to.pages, recompute);
}

void DeviceMoves::Unpin(const Key& key, const Move& move) {
  const auto [client, tensor] = key;
  core::PageScheduler& scheduler = *move.from.scheduler;
  scheduler.EndUse(client, scheduler.Put(client, tensor, false, {}, owner_->ClockOf(client)));
  owner_->Progressed(move.from.pages);
}

void DeviceMoves::Free(const Key& key, const Side& side) {
  const auto [client, tensor] = key;
  side.scheduler->EndUse(client, side.scheduler->Free(client, tensor, owner_->ClockOf(client)));
  owner_->Progressed(side.pages);
}

void DeviceMoves::Fail(const Key& key, Error error) {
  const Key failed = key;  // it may be the entry's
  const Move move = moves_.extract(failed).mapped();
  if (move.stage > Stage::kCreates) Free(failed, move.to);
  owner_->NotMoved(failed.first, failed.second, std::move(error));
}

// ---- Links.

core::Status DeviceMoves::Open() {
  for (uint16_t i = 0; i < devices_.size() && devices_.size() > 1; ++i) {
    auto& lane = links_[DeviceId{i}];
    lane = std::make_unique<TransferLane>(
        "device " + std::to_string(i) + " to others",
        [this, i] { return devices_[i]->OpenPeerChannel(); }, options_);
    RAVEN_RETURN_IF_ERROR(lane->Open());
  }
  return core::Ok();
}

bool DeviceMoves::Poll(core::Tick now) {
  bool busy = false;
  for (const auto& [device, lane] : links_) busy |= lane->Pump(now);
  return busy;
}

bool DeviceMoves::IsCopying() const {
  for (const auto& [device, lane] : links_) {
    if (!lane->idle()) return true;
  }
  return false;
}

core::Tick DeviceMoves::NextPump(core::Tick poll) const {
  core::Tick next = core::kNever;
  for (const auto& [device, lane] : links_) next = std::min(next, lane->NextPump(poll));
  return next;
}

}  // namespace ravenstore::daemon
