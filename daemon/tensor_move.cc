#include "daemon/tensor_move.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "core/books/page_views.h"

namespace ravenstore::daemon {

using core::Bytes;
using core::Status;
using core::TensorNumber;
using core::plan::Unit;

namespace {

// Bytes that are resident on both devices.
struct Stretch {
  const std::byte* from = nullptr;
  std::byte* to = nullptr;
  Bytes bytes;
};

// The copies that move a tensor to another device.
struct Crossing {
  struct Source {
    std::vector<PagePool::Range> ranges;  // between the pool and the other device's arena
    std::vector<PagePool::Piece> pieces;
  };

  std::vector<Stretch> stretches;
  std::map<PagePool*, Source> pools;
  std::map<Unit, uint64_t> versions;  // of the copies
  uint32_t under_way = 0;
  Status outcome = core::Ok();
};

// Of a part of the tensor, in the daemon's arena. REQUIRES: it is resident.
PagePool::Range ArenaRange(const MoveSide& side, TensorNumber tensor, uint32_t part) {
  const core::PageTensors::Row& row = side.executor->tensors()[tensor];
  const Bytes begin = side.memory->OffsetOf(core::PlaceOf(side.executor->books(), row.units[part]));
  return {.in_page = part == 0 ? begin + row.offset : begin,
          .in_pool = {},
          .bytes = side.executor->tensors().BytesIn(tensor, part)};
}

// Null where StartMove returns false.
std::shared_ptr<Crossing> CrossingOf(TensorNumber tensor, const MoveSide& from,
                                     const MoveSide& to) {
  const core::PageExecutor& executor = *from.executor;
  const core::PageTensors::Row& row = executor.tensors()[tensor];
  std::vector<PagePool::Range> targets;
  for (uint32_t i = 0; i < to.executor->tensors()[tensor].units.count; ++i)
    targets.push_back(ArenaRange(to, tensor, i));
  auto target = targets.begin();
  // Calls add(source, to, bytes) for each piece of [source, source + bytes).
  const auto cut = [&target](Bytes source, Bytes bytes, auto add) {
    while (bytes > Bytes{}) {
      if (target->bytes == Bytes{}) ++target;
      const Bytes part = std::min(bytes, target->bytes);
      add(source, target->in_page, part);
      target->in_page += part;
      target->bytes -= part;
      source += part;
      bytes -= part;
    }
  };
  auto crossing = std::make_shared<Crossing>();
  for (uint32_t i = 0; i < row.units.count; ++i) {
    const Unit unit = row.units[i];
    const core::plan::UnitState& state = executor.books()[unit];
    if (state.IsResident()) {
      const PagePool::Range range = ArenaRange(from, tensor, i);
      cut(range.in_page, range.bytes, [&](Bytes begin, Bytes in_arena, Bytes bytes) {
        crossing->stretches.push_back(
            {from.memory->base() + begin.count(), to.memory->base() + in_arena.count(), bytes});
      });
      continue;
    }
    const PageCopies::Copy* const copy = from.copies->Find(unit);
    if (state.life != core::PageState::kAway || copy == nullptr || copy->lost) return nullptr;
    PagePool* const pool = from.copies->options().pools[copy->pool];
    const std::vector<PagePool*>& reached = to.copies->options().pools;
    const bool reaches = std::count(reached.begin(), reached.end(), pool) > 0;
    // A link that copies multiples of more than a tensor's alignment would copy neighbours as well.
    if (!reaches || pool->memory().granularity() > core::kExtentAlignment) return nullptr;
    Crossing::Source& source = crossing->pools[pool];
    source.pieces.push_back(copy->piece);
    crossing->versions[unit] = copy->version;
    const Bytes begin = i == 0 ? row.offset : Bytes{};
    const Bytes end = begin + executor.tensors().BytesIn(tensor, i);
    for (const PagePool::Range& range : copy->ranges) {
      const Bytes first = std::max(begin, range.in_page);
      cut(range.in_pool + Minus(first, range.in_page),
          Minus(std::min(end, range.in_page + range.bytes), first),
          [&](Bytes in_pool, Bytes in_arena, Bytes bytes) {
            source.ranges.push_back({.in_page = in_arena, .in_pool = in_pool, .bytes = bytes});
          });
    }
  }
  return crossing;
}

// Its copies have ended.
Status EndMove(const Crossing& crossing, const MoveSide& from, const MoveSide& to) {
  for (const auto& [pool, source] : crossing.pools) {
    for (const PagePool::Piece& piece : source.pieces) pool->Unhold(piece);
  }
  if (!crossing.outcome.ok() || from.memory->is_retired()) return crossing.outcome;
  // The place of a copy that has gone meanwhile may be another's.
  for (const auto& [unit, version] : crossing.versions) {
    const PageCopies::Copy* const copy = from.copies->Find(unit);
    if (copy == nullptr || copy->version != version || copy->lost)
      return core::Error{core::ErrorCode::kDevice, "its copy has gone while it was read"};
  }
  if (from.copies->options().checks == nullptr) return core::Ok();
  bool same = true;
  for (const Stretch& stretch : crossing.stretches)
    same &= std::memcmp(stretch.to, stretch.from, stretch.bytes.count()) == 0;
  for (const auto& [pool, source] : crossing.pools)
    same &= pool->HasSame(to.memory->base(), source.ranges);
  if (from.copies->Checked(same, [] { return true; })) return core::Ok();
  return core::Error{core::ErrorCode::kCorrupt, "a copy of its bytes came over wrong"};
}

// In chunks for the link.
std::vector<TransferLane::Chunk> ChunksOf(const std::vector<Stretch>& stretches, Bytes most) {
  std::vector<TransferLane::Chunk> chunks;
  for (const Stretch& stretch : stretches) {
    const SlabMap whole(stretch.bytes);
    const auto cut = Cut(stretch.to, {}, whole, stretch.from, {}, whole, stretch.bytes, most);
    chunks.insert(chunks.end(), cut.begin(), cut.end());
  }
  return chunks;
}

}  // namespace

bool StartMove(TensorNumber tensor, const MoveSide& from, const MoveSide& to,
               const DeviceLink& link, TransferLane::Done done) {
  constexpr auto kUrgency = TransferLane::Urgency::kDemand;
  const auto crossing = CrossingOf(tensor, from, to);
  if (crossing == nullptr) return false;
  from.memory->Hold();
  to.memory->Hold();
  const auto ended = [crossing, from, to, done = std::move(done)](const Status& outcome) {
    if (!outcome.ok()) crossing->outcome = outcome;
    if (--crossing->under_way > 0) return;
    const Status all = EndMove(*crossing, from, to);
    from.memory->Unhold();
    to.memory->Unhold();
    done(all);
  };
  crossing->under_way =
      static_cast<uint32_t>(crossing->pools.size() + (crossing->stretches.empty() ? 0 : 1));
  const core::TurnOwner turn = from.copies->options().turn;
  for (const auto& [pool, source] : crossing->pools) {
    for (const PagePool::Piece& piece : source.pieces) pool->Hold(piece);
    pool->Copy(device::Direction::kHostToDevice, to.memory->device(), to.memory->base(),
               source.ranges, turn, kUrgency, ended);
  }
  if (!crossing->stretches.empty())
    link.lane->Submit(ChunksOf(crossing->stretches, link.chunk), turn, kUrgency, ended);
  return true;
}

}  // namespace ravenstore::daemon
