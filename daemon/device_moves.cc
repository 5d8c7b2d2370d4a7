#include "daemon/device_moves.h"

#include <string>

#include "core/size_text.h"

namespace ravenstore::daemon {

using core::Bytes;
using core::CallResult;
using core::ClientId;
using core::Error;
using core::ErrorCode;
using core::TensorNumber;
using core::ToInt;

namespace {

const core::PageExecutor& ExecutorOf(const DeviceMoves::Side& side, ClientId client) {
  return side.scheduler->client(client).executor();
}

}  // namespace

void DeviceMoves::Begin(ClientId client, TensorNumber tensor, const Side& from, const Side& to,
                        bool is_reached) {
  const Key key{client, tensor};
  const core::PageTensors::Row& row = ExecutorOf(from, client).tensors()[tensor];
  Move& move = moves_[key];
  move = {.from = from,
          .to = to,
          .size = row.size,
          .is_reached = is_reached,
          .is_discarded = row.is_discarded()};
  if (move.is_discarded) return Create(key, &move);
  Handle(key, from, from.scheduler->Get(client, tensor, owner_->ClockOf(client)));
}

void DeviceMoves::Handle(const Key& key, const Side& side, CallResult result) {
  const auto [client, tensor] = key;
  ClientPages* const pages = side.pages;
  owner_->Progressed(pages);
  if (result == CallResult::kWaits) return;
  if (result != CallResult::kHeld) return Fail(key, owner_->ErrorOf(pages, tensor, result));
  if (ExecutorOf(side, client).IsResident(tensor)) Granted(client, tensor, pages);
}

bool DeviceMoves::MayLeave(ClientId client, TensorNumber tensor) const {
  const auto move = moves_.find({client, tensor});
  return move != moves_.end() &&
         (move->second.stage == Stage::kWaits || move->second.stage == Stage::kCopiesIn);
}

std::optional<core::DeviceId> DeviceMoves::WaitsOn(ClientId client, TensorNumber tensor) const {
  const auto move = moves_.find({client, tensor});
  if (move == moves_.end() || move->second.stage != Stage::kWaits) return std::nullopt;
  return move->second.to.pages->device();
}

Bytes DeviceMoves::CopiesOf(ClientId client, const ClientPages* from) const {
  Bytes sum;
  for (auto next = moves_.lower_bound({client, 0}); next != moves_.end(); ++next) {
    if (next->first.first != client) break;
    const Move& move = next->second;
    if (move.from.pages == from && move.stage >= Stage::kCopiesOut && !move.is_discarded)
      sum += move.size;
  }
  return sum;
}

void DeviceMoves::Reached(ClientId client, TensorNumber tensor) {
  const auto found = moves_.find({client, tensor});
  if (found == moves_.end()) return;
  found->second.is_reached = true;
  if (found->second.stage == Stage::kIsThere) StartOut(found->first, &found->second);
}

void DeviceMoves::Granted(ClientId client, TensorNumber tensor, const ClientPages* on) {
  const auto found = moves_.find({client, tensor});
  if (found == moves_.end()) return;
  Move& move = found->second;
  if (move.stage == Stage::kWaits && on == move.to.pages) return StartIn(found->first, &move);
  if (move.stage != Stage::kComes || on != move.from.pages) return;
  move.stage = Stage::kIsThere;
  // Its bytes may have been discarded while the call waited for room.
  move.is_discarded = !ExecutorOf(move.from, client).tensors()[tensor].lives();
  move.from.scheduler->BeginUse(client, tensor);
  if (move.is_discarded) {
    move.from.scheduler->EndBytes(client, tensor);
    Unpin(found->first, move);
    Create(found->first, &move);
  } else if (move.is_reached) {
    StartOut(found->first, &move);
  }
}

void DeviceMoves::Refused(ClientId client, TensorNumber tensor, Error error) {
  const auto found = moves_.find({client, tensor});
  if (found == moves_.end()) return;
  const Stage stage = found->second.stage;
  if (stage == Stage::kComes || stage == Stage::kWaits) Fail(found->first, std::move(error));
}

void DeviceMoves::Expire(ClientId client, TensorNumber tensor) {
  const Key key{client, tensor};
  Move& move = moves_.at(key);
  const Side side = move.stage == Stage::kWaits ? move.to : move.from;
  const Error error = owner_->ErrorOf(side.pages, tensor, CallResult::kWaits);
  switch (move.stage) {
    case Stage::kComes:
      // A call whose bytes are there is granted soon, and is none any more then.
      if (!move.from.scheduler->Refuse(client, tensor)) Unpin(key, move);
      break;
    case Stage::kIsThere: Unpin(key, move); break;
    case Stage::kWaits:
      if (!move.to.scheduler->Refuse(client, tensor)) return;
      break;
    case Stage::kCopiesOut: move.has_expired = true; return;
    case Stage::kCopiesIn: return;
  }
  owner_->Progressed(side.pages);
  Fail(key, error);
}

void DeviceMoves::Forget(ClientId client) {
  const auto begin = moves_.lower_bound({client, 0});
  auto end = begin;
  for (; end != moves_.end() && end->first.first == client; ++end) pool_->Free(end->second.piece);
  moves_.erase(begin, end);
}

// ---- Steps.

void DeviceMoves::StartOut(const Key& key, Move* move) {
  const auto [client, tensor] = key;
  ClientPages* const from = move->from.pages;
  // Of this client's other moves, too.
  owner_->UpdateRoom(from);
  if (!move->from.scheduler->Moved(client).MakeRoom(move->size, from->host())) {
    Unpin(key, *move);
    return Fail(
        key, {ErrorCode::kOutOfMemory, "the host pool has no room for " +
                                           core::SizeText(move->size) + " on their way to device " +
                                           std::to_string(ToInt(move->to.pages->device())) +
                                           "; free tensors, or raise the client's host budget"});
  }
  move->stage = Stage::kCopiesOut;
  from->Export(tensor,
               [this, key](const core::Result<PagePool::Piece>& piece) { EndOut(key, piece); });
}

void DeviceMoves::EndOut(const Key& key, const core::Result<PagePool::Piece>& piece) {
  const auto found = moves_.find(key);
  if (found == moves_.end()) {
    if (piece.ok()) pool_->Free(*piece);
    return;
  }
  Move& move = found->second;
  Unpin(key, move);
  if (!piece.ok()) return Fail(key, piece.error());
  move.piece = *piece;
  const auto [client, tensor] = key;
  if (move.has_expired)
    return Fail(key, owner_->ErrorOf(move.from.pages, tensor, CallResult::kWaits));
  Create(key, &move);
}

void DeviceMoves::Create(const Key& key, Move* move) {
  move->stage = Stage::kWaits;
  Handle(key, move->to, owner_->Create(move->to.pages, key.second, move->size));
}

void DeviceMoves::StartIn(const Key& key, Move* move) {
  move->stage = Stage::kCopiesIn;
  if (move->is_discarded) return EndIn(key, {}, core::Ok());
  PagePool::Piece piece = std::exchange(move->piece, {});
  move->to.pages->Import(key.second, piece, [this, key, piece](const core::Status& outcome) {
    EndIn(key, piece, outcome);
  });
}

void DeviceMoves::EndIn(const Key& key, const PagePool::Piece& piece, const core::Status& outcome) {
  pool_->Free(piece);
  const auto found = moves_.find(key);
  if (found == moves_.end()) return;
  const Move move = found->second;
  const auto [client, tensor] = key;
  move.to.scheduler->BeginUse(client, tensor);
  if (!outcome.ok()) {
    Free(key, move.to);
    return Fail(key, outcome.error());
  }
  Free(key, move.from);
  owner_->Progressed(move.to.pages);
  moves_.erase(found);
  owner_->Moved(client, tensor, move.to.pages, move.is_discarded);
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
  pool_->Free(moves_.extract(failed).mapped().piece);
  owner_->NotMoved(failed.first, failed.second, std::move(error));
}

}  // namespace ravenstore::daemon
