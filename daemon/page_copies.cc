#include "daemon/page_copies.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <utility>

#include "core/books/page_views.h"
#include "core/check.h"

namespace ravenstore::daemon {

using core::Bytes;
using core::PageBackend;
using core::Status;
using core::TensorNumber;
using core::plan::PoolNumber;
using core::plan::Unit;

namespace {

// Copies of a client on a link, in each direction. Fewer: the link is idle until the loop has seen
// the end of one. More: a copy that a call waits for is queued behind them.
constexpr uint32_t kQueued = 2;
// Copies of a client that move on at a time. Fewer: the link is idle while others begin. More: a
// client that goes meanwhile waits for them.
constexpr uint32_t kMovesOnMost = 16;

core::Error NoRoom() {
  return {core::ErrorCode::kOutOfMemory, "the pool has no room"};
}

// Each range goes to the parts of the piece that follow those of the range before.
std::vector<PagePool::Range> Spread(const std::vector<PagePool::Range>& ranges,
                                    const PagePool::Piece& piece, Bytes granularity) {
  std::vector<PagePool::Range> spread;
  size_t part = 0;
  Bytes used;  // of the part
  for (PagePool::Range range : ranges) {
    for (Bytes left = range.bytes; left > Bytes{}; left -= range.bytes) {
      if (used == piece[part].bytes) {
        ++part;
        used = Bytes{};
      }
      range.bytes = std::min(left, piece[part].bytes - used);
      range.in_pool = piece[part].offset + used;
      spread.push_back(range);
      range.in_page += range.bytes;
      used += range.bytes.RoundUp(granularity);
    }
  }
  return spread;
}

// That Spread() needs.
Bytes BytesFor(const std::vector<PagePool::Range>& ranges, Bytes granularity) {
  Bytes bytes;
  for (const PagePool::Range& range : ranges) bytes += range.bytes.RoundUp(granularity);
  return std::max(bytes, granularity);
}

// `to` has the same bytes of the page as `from`, in the same order, in at least that number of
// ranges.
std::vector<PagePool::Way> WaysBetween(const std::vector<PagePool::Range>& from,
                                       const std::vector<PagePool::Range>& to) {
  std::vector<PagePool::Way> ways;
  auto source = from.begin();
  for (const PagePool::Range& range : to) {
    while (range.in_page >= source->in_page + source->bytes) ++source;
    ways.push_back({.from = source->in_pool + (range.in_page - source->in_page),
                    .to = range.in_pool,
                    .bytes = range.bytes});
  }
  return ways;
}

// Of the tensors that live in the unit. Ranges with less than `granularity` between them are one.
std::vector<PagePool::Range> LiveRanges(const core::PageTensors& tensors, Unit unit,
                                        Bytes granularity) {
  std::vector<PagePool::Range> ranges;
  for (const TensorNumber tensor : tensors.In(unit)) {
    const core::PageTensors::Row& row = tensors[tensor];
    const uint32_t i = (unit - row.units.first) / 2;
    ranges.push_back({.in_page = i == 0 ? row.offset : Bytes{},
                      .in_pool = {},
                      .bytes = tensors.BytesIn(tensor, i)});
  }
  std::sort(ranges.begin(), ranges.end(),
            [](const auto& a, const auto& b) { return a.in_page < b.in_page; });
  if (granularity == core::kExtentAlignment) return ranges;
  std::vector<PagePool::Range> joined;
  for (const PagePool::Range& range : ranges) {
    if (joined.empty() ||
        range.in_page >= joined.back().in_page + joined.back().bytes + granularity) {
      joined.push_back(range);
    } else {
      joined.back().bytes = range.in_page + range.bytes - joined.back().in_page;
    }
  }
  return joined;
}

}  // namespace

PageCopies::PageCopies(Options options, ClientMemory* memory, Mailbox* mailbox, Owner* owner,
                       ClientPages* client)
    : options_(std::move(options)),
      memory_(memory),
      mailbox_(mailbox),
      owner_(owner),
      client_(client),
      links_(options_.pools.size()) {}

PageCopies::~PageCopies() {
  if (!memory_->is_retired() || !memory_->IsQuiet() || !IsQuiet()) return;  // the daemon ends
  for (const auto& [unit, copy] : copies_) RAVEN_CHECK(copy.piece.empty());
}

const PageCopies::Copy* PageCopies::Find(Unit unit) const {
  const auto copy = copies_.find(unit);
  return copy == copies_.end() ? nullptr : &copy->second;
}

bool PageCopies::IsLost(Unit unit) const {
  const Copy* const copy = Find(unit);
  return copy != nullptr && copy->lost;
}

bool PageCopies::Checked(bool same, const std::function<bool()>& counts) {
  ++options_.checks->checked;
  if (same) return true;
  if (!counts()) return false;
  ++options_.checks->wrong;
  spdlog::error("client {}: a copy came over wrong", core::ToInt(options_.turn.client));
  return false;
}

// ---- To the device, and from it.

bool PageCopies::CanCopyIn(PoolNumber pool, bool demanded) const {
  return links_[pool].in < kQueued || (demanded && links_[pool].demanded < kQueued);
}

void PageCopies::CopyIn(const PageBackend::CopyOrder& order) {
  ++links_[order.pool].in;
  ++copying_;
  links_[order.pool].demanded += order.demanded ? 1 : 0;
  const auto urgency =
      order.demanded ? TransferLane::Urgency::kDemand : TransferLane::Urgency::kBackground;
  PoolOf(order.pool)
      .Copy(device::Direction::kHostToDevice, memory_->device(), memory_->At(order.memory),
            copies_.at(order.unit).ranges, options_.turn, urgency,
            [this, order](const Status& outcome) { EndIn(order, outcome); });
}

bool PageCopies::IsRight(const PageBackend::CopyOrder& order, const std::function<bool()>& counts) {
  const auto copy = copies_.find(order.unit);
  if (options_.checks == nullptr || memory_->is_retired() || copy == copies_.end()) return true;
  return Checked(PoolOf(order.pool).HasSame(memory_->At(order.memory), copy->second.ranges),
                 counts);
}

void PageCopies::EndIn(const PageBackend::CopyOrder& order, const Status& outcome) {
  --links_[order.pool].in;
  --copying_;
  links_[order.pool].demanded -= order.demanded ? 1 : 0;
  const bool ok = outcome.ok() && IsRight(order, [] { return true; });
  owner_->CopiedIn(client_, order.unit, ok && !IsLost(order.unit));
  owner_->Progressed(client_);
}

bool PageCopies::CanCopyOut(PoolNumber pool) const {
  if (links_[pool].out >= kQueued) return false;
  owner_->UpdateRoom(client_);
  return true;
}

void PageCopies::CopyOut(const PageBackend::CopyOrder& order) {
  owner_->UpdateRoom(client_);
  ++links_[order.pool].out;
  ++copying_;
  const Bytes granularity = PoolOf(order.pool).memory().granularity();
  std::vector<PagePool::Range> ranges = LiveRanges(executor_->tensors(), order.unit, granularity);
  const Bytes bytes = BytesFor(ranges, granularity);
  PoolOf(order.pool)
      .Allocate(bytes,
                [this, order, ranges = std::move(ranges)](std::optional<PagePool::Piece> piece) {
                  if (piece) return StartOut(order, ranges, *std::move(piece));
                  mailbox_->Post([this, order] { EndOut(order, NoRoom()); });
                });
}

void PageCopies::StartOut(const PageBackend::CopyOrder& order,
                          const std::vector<PagePool::Range>& ranges, PagePool::Piece piece) {
  Copy& copy = copies_[order.unit];
  copy = {.version = ++version_, .pool = order.pool, .piece = std::move(piece)};
  copy.ranges = Spread(ranges, copy.piece, PoolOf(order.pool).memory().granularity());
  if (copy.ranges.empty()) return mailbox_->Post([this, order] { EndOut(order, core::Ok()); });
  PoolOf(order.pool)
      .Copy(device::Direction::kDeviceToHost, memory_->device(), memory_->At(order.memory),
            copy.ranges, options_.turn, TransferLane::Urgency::kBackground,
            [this, order](const Status& outcome) { EndOut(order, outcome); });
}

void PageCopies::EndOut(const PageBackend::CopyOrder& order, const Status& outcome) {
  --links_[order.pool].out;
  --copying_;
  const bool ok = outcome.ok() && IsRight(order, [this, &order] {
                    // A tensor that was used since it began may have been written.
                    const auto tensors = executor_->tensors().In(order.unit);
                    return std::all_of(tensors.begin(), tensors.end(), [this](TensorNumber tensor) {
                      return owner_->IsUnused(client_, tensor);
                    });
                  });
  owner_->CopiedOut(client_, order.unit, ok && !IsLost(order.unit));
  owner_->Progressed(client_);
}

void PageCopies::Free(Unit unit, PoolNumber pool) {
  const auto copy = copies_.find(unit);
  if (copy == copies_.end() || copy->second.pool != pool) return;
  const PagePool::Piece piece = std::move(copy->second.piece);
  copies_.erase(copy);
  PoolOf(pool).Free(piece);
  owner_->UpdateRoom(client_);
}

// ---- Memory of pools that is wanted back, or is lost.

std::vector<Unit> PageCopies::Lose(PoolNumber pool) {
  std::vector<Unit> lost;
  for (auto& [unit, copy] : copies_) {
    if (copy.pool != pool || copy.lost || !PoolOf(pool).memory().IsLost(copy.piece)) continue;
    copy.lost = true;
    lost.push_back(unit);
  }
  return lost;
}

bool PageCopies::DrainPool(PoolNumber pool) {
  bool again = false;
  std::vector<Unit> redundant;
  for (auto& [unit, copy] : copies_) {
    if (copy.pool != pool || !PoolOf(pool).memory().IsClosed(copy.piece)) continue;
    again = true;
    if (copy.lost || copy.moves_on || memory_->is_retired()) continue;
    if (executor_->books().copies().Redundant(pool).contains(unit)) redundant.push_back(unit);
    if (!core::CanMoveOn(executor_->books()[unit])) continue;
    // Both ends of each part of the move are at multiples of that.
    const Bytes granularity = PoolOf(pool).memory().granularity();
    const Bytes bytes = BytesFor(copy.ranges, granularity);
    if (moving_on_ >= kMovesOnMost || !PoolOf(pool).MayMoveOn(bytes)) continue;
    copy.moves_on = true;
    ++moving_on_;
    ++copying_;
    PoolOf(options_.host)
        .AllocateReserved(
            bytes, granularity,
            [this, unit = unit, version = copy.version](std::optional<PagePool::Piece> piece) {
              if (piece) return StartMoveOn(unit, version, *std::move(piece));
              mailbox_->Post([this, unit, version] {
                EndMoveOn({.unit = unit, .version = version}, NoRoom());
              });
            });
  }
  for (const Unit unit : redundant) owner_->DropCopy(client_, unit);
  return again;
}

void PageCopies::StartMoveOn(Unit unit, uint64_t version, PagePool::Piece target) {
  MoveOn move{.unit = unit, .version = version, .target = std::move(target)};
  const auto copy = copies_.find(unit);
  if (copy == copies_.end() || copy->second.version != version)
    return mailbox_->Post([this, move] { EndMoveOn(move, NoRoom()); });
  move.from = copy->second.pool;
  move.source = copy->second.piece;
  move.ranges = Spread(copy->second.ranges, move.target, PoolOf(move.from).memory().granularity());
  PoolOf(move.from).Hold(move.source);
  const auto ways = WaysBetween(copy->second.ranges, move.ranges);
  if (ways.empty()) return mailbox_->Post([this, move] { EndMoveOn(move, core::Ok()); });
  PoolOf(move.from).MoveOn(ways, options_.turn,
                           [this, move](const Status& outcome) { EndMoveOn(move, outcome); });
}

// The page may have been used meanwhile, and its copy be another, or none.
void PageCopies::EndMoveOn(const MoveOn& move, const Status& outcome) {
  --moving_on_;
  --copying_;
  const auto copy = copies_.find(move.unit);
  const bool same = copy != copies_.end() && copy->second.version == move.version;
  if (same) copy->second.moves_on = false;
  bool moved = outcome.ok() && same && !memory_->is_retired() && !copy->second.lost &&
               core::CanMoveOn(executor_->books()[move.unit]);
  if (moved && options_.checks != nullptr) {
    moved = Checked(PoolOf(move.from).HasSame(WaysBetween(copy->second.ranges, move.ranges)),
                    [] { return true; });
  }
  if (moved) {
    copy->second.version = ++version_;
    copy->second.pool = options_.host;
    copy->second.piece = move.target;
    copy->second.ranges = move.ranges;
    owner_->CopyMoved(client_, move.unit, options_.host);
    PoolOf(move.from).Free(move.source);
  } else if (!move.target.empty()) {
    PoolOf(options_.host).Free(move.target);
  }
  if (!move.source.empty()) PoolOf(move.from).Unhold(move.source);
  owner_->Progressed(client_);
}

// ---- From a page to a slot.

// The pool's bytes stay where they are, and are the slot's from now on. Where a place in the pool
// cannot be any multiple of a tensor's alignment the bytes of neighbours may be in one range.
bool PageCopies::MoveToSlot(const PageBackend::CopyMove& move) {
  if (PoolOf(move.pool).memory().granularity() > core::kExtentAlignment) return false;
  Copy& from = copies_.at(move.page);
  Copy& to = copies_[move.slot];
  const Bytes end = move.page_offset + move.bytes;
  from.version = ++version_;
  to.version = ++version_;
  to.pool = move.pool;
  std::vector<PagePool::Range> stay;
  for (const PagePool::Range& range : from.ranges) {
    const auto part_of = [&range](Bytes begin, Bytes until) {
      begin = std::max(begin, range.in_page);
      until = std::min(until, range.in_page + range.bytes);
      return PagePool::Range{.in_page = begin,
                             .in_pool = range.in_pool + Minus(begin, range.in_page),
                             .bytes = Minus(until, begin)};
    };
    const PagePool::Range before = part_of(Bytes{}, move.page_offset);
    PagePool::Range moved = part_of(move.page_offset, end);
    const PagePool::Range after = part_of(end.RoundUp(core::kExtentAlignment), Bytes(UINT64_MAX));
    if (before.bytes > Bytes{}) stay.push_back(before);
    if (after.bytes > Bytes{}) stay.push_back(after);
    if (moved.bytes == Bytes{}) continue;
    const CopyPieces::Part part{moved.in_pool, moved.bytes.RoundUp(core::kExtentAlignment)};
    CopyPieces::Cut(&from.piece, part);
    to.piece.push_back(part);
    moved.in_page = moved.in_page - move.page_offset + move.slot_offset;
    to.ranges.push_back(moved);
  }
  from.ranges = std::move(stay);
  return true;
}

}  // namespace ravenstore::daemon
