#include "daemon/client_pages.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <utility>

#include "core/books/page_views.h"
#include "core/check.h"
#include "ipc/clock.h"

namespace ravenstore::daemon {

using core::Bytes;
using core::Status;
using core::TensorNumber;
using core::plan::IsSlot;
using core::plan::PhysicalPage;
using core::plan::PoolNumber;
using core::plan::Unit;
using proto::MapOp;

namespace {

// A device without memory is asked again after that time.
constexpr auto kRetry = std::chrono::milliseconds(10);
// Copies of a client on a link, in each direction. Fewer: the link is idle until the loop has seen
// the end of one. More: a copy that a call waits for is queued behind them.
constexpr uint32_t kQueued = 2;
// A client has one spare for each kPagesPerSpare of its pages, and at most kSparesMost. Fewer
// spares: more creates wait for a page to be made. More: an idle client keeps more memory from
// others.
constexpr uint32_t kPagesPerSpare = 16;
constexpr uint32_t kSparesMost = 4;
// Pages in making at a time: the two that a user's workers make (daemon/threads.h), and the next
// for each. Fewer: a worker waits for the loop. More: other work for the user waits longer.
constexpr uint32_t kMakingMost = 4;
// Maps under way for calls that wait; half of that ahead of need. Fewer: the client's mapper is
// idle while its last answer is read. More: the program's own calls of the driver wait for more
// maps.
constexpr uint32_t kMapsMost = 4;
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

// `to` has the same bytes of the page as `from`, in the same order, in as many ranges or more.
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

}  // namespace

ClientPages::ClientPages(const Options& options, std::shared_ptr<Attachment> attachment,
                         std::shared_ptr<device::Device> device, std::vector<PagePool*> pools,
                         PoolNumber host, MapOrders* maps, WorkerPool* workers, Mailbox* mailbox,
                         Owner* owner)
    : options_(options),
      attachment_(std::move(attachment)),
      device_(std::move(device)),
      pools_(std::move(pools)),
      host_(host),
      maps_(maps),
      workers_(workers),
      mailbox_(mailbox),
      owner_(owner),
      links_(pools_.size()) {}

ClientPages::~ClientPages() {
  if (!gone_ || !IsQuiet()) return;  // the daemon ends
  for (const auto& [unit, copy] : copies_) RAVEN_CHECK(copy.piece.empty());
}

// ---- Tensors.

Bytes ClientPages::AddressOf(TensorNumber tensor) const {
  const core::PageTensors::Row& row = executor_->tensors()[tensor];
  if (!row.units.is_slot()) return AddressOf(row.units.first, {}) + row.offset;
  const core::PageMemory::Place place = core::PlaceOf(executor_->books(), row.units.first);
  return AddressOf(row.units.first, physical_.at(place.page)) + place.offset;
}

Bytes ClientPages::AddressOf(Unit unit, const Physical& physical) const {
  if (!IsSlot(unit)) return page() * (unit / 2);
  return Bytes(options_.arena.count() / 2) + page() * physical.index;
}

std::vector<PagePool::Range> ClientPages::LiveRanges(Unit unit, Bytes granularity) const {
  std::vector<PagePool::Range> ranges;
  for (const TensorNumber tensor : executor_->tensors().In(unit)) {
    const core::PageTensors::Row& row = executor_->tensors()[tensor];
    const uint32_t i = (unit - row.units.first) / 2;
    ranges.push_back({.in_page = i == 0 ? row.offset : Bytes{},
                      .in_pool = {},
                      .bytes = executor_->tensors().BytesIn(tensor, i)});
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

bool ClientPages::Revoke(TensorNumber tensor, uint32_t /*uses*/) {
  return owner_->Revoke(this, tensor);
}

// ---- Physical pages.

bool ClientPages::Map(const MapOrder& order) {
  if (gone_) return true;
  const auto found = physical_.find(order.page);
  if (found != physical_.end() && !order.steps.map) return true;
  if (found != physical_.end()) {
    QueueMap(order, &found->second);
  } else if (!spares_.empty()) {
    UseSpare(order);
  } else {
    unmade_.push_back(order);
  }
  MakeAhead();
  return false;
}

uint32_t ClientPages::MapsMost() const {
  return kMapsMost;
}

void ClientPages::UseSpare(const MapOrder& order) {
  Physical& physical = physical_[order.page];
  physical = spares_.front();
  spares_.pop_front();
  by_memory_[physical.memory] = order.page;
  QueueMap(order, &physical);
}

void ClientPages::QueueMap(const MapOrder& order, Physical* physical) {
  QueueUnmap(physical);
  const Bytes address = AddressOf(order.unit, *physical);
  // A page that has left may be mapped there still.
  if (const auto stale = at_.find(address); stale != at_.end())
    QueueUnmap(&physical_.at(stale->second));
  mapping_[order.page] = order.unit;
  physical->mapped = address;
  at_[address] = order.page;
  maps_->Map(options_.device, physical->memory, *physical->mapped, page());
  owner_->MapsQueued(this);
}

bool ClientPages::QueueUnmap(Physical* physical) {
  if (!physical->mapped) return false;
  maps_->Unmap(options_.device, physical->memory, *physical->mapped);
  at_.erase(*std::exchange(physical->mapped, std::nullopt));
  return true;
}

uint32_t ClientPages::NeverMapped() const {
  return executor_->books().memory().supply().never_used() + static_cast<uint32_t>(unmade_.size());
}

uint32_t ClientPages::AheadWanted() const {
  const Bytes awaited = executor_->books().totals()[core::UnitTotals::Sum::kAwaited];
  const uint64_t spares = std::clamp<uint64_t>(physical_.size() / kPagesPerSpare, 1, kSparesMost);
  const uint64_t wanted =
      awaited.RoundUp(page()).count() / page().count() + unmade_.size() + spares;
  return static_cast<uint32_t>(std::min<uint64_t>(wanted, NeverMapped()));
}

void ClientPages::MakeAhead() {
  while (!gone_ && !retries_ && Ahead() < AheadWanted()) {
    // The first one reserves the arena.
    if (making_ >= (has_arena_ && !is_short_ ? kMakingMost : 1)) return;
    const bool is_needed = !unmade_.empty() && Ahead() == 0;
    if (!is_needed && (is_short_ || !maps_->MayImport(making_))) return;
    if (owner_->MayMakePage(this)) {
      Make();
    } else {
      NoteShort();
    }
  }
}

void ClientPages::NoteShort() {
  is_short_ = true;
  if (unmade_.empty() || Ahead() > 0) return;
  retries_ = true;
  owner_->RetryAt(this, ipc::Now() + kRetry);
}

void ClientPages::Make() {
  uint32_t index = next_index_;
  if (indexes_.empty()) {
    ++next_index_;
  } else {
    index = indexes_.back();
    indexes_.pop_back();
  }
  ++working_;
  ++making_;
  workers_->Run(attachment_->tenant, [this, index] {
    auto descriptor = std::make_shared<ipc::UniqueFd>();
    const Status made = MakeMemory(*attachment_, *device_, options_.device, options_.arena,
                                   page() * index, page(), descriptor.get());
    mailbox_->Post([this, index, descriptor, made] {
      --working_;
      --making_;
      Made(index, made.ok() ? core::Result<ipc::UniqueFd>(std::move(*descriptor)) : made.error());
      owner_->Progressed(this);
    });
  });
}

void ClientPages::Made(uint32_t index, core::Result<ipc::UniqueFd> descriptor) {
  const bool is_made = descriptor.ok();
  failure_.reset();
  if (!is_made) {
    spdlog::debug("client {}: no page of {} bytes on device {}: {}", core::ToInt(attachment_->id),
                  page().count(), core::ToInt(options_.device), core::Describe(descriptor.error()));
    indexes_.push_back(index);
    if (descriptor.error().code != core::ErrorCode::kOutOfMemory) failure_ = descriptor.error();
  } else {
    ++made_;
    has_arena_ = true;
    is_short_ = false;
    if (owed_ > 0 && unmade_.empty()) {
      --owed_;
      Destroy(index);
    } else {
      AddSpare(index, *std::move(descriptor));
    }
  }
  // The page that was to be destroyed is the one that was waited for, or it was not made.
  for (; owed_ > making_; --owed_) owner_->PageGone(this);
  if (!is_made) NoteShort();
  MakeAhead();
}

void ClientPages::AddSpare(uint32_t index, ipc::UniqueFd descriptor) {
  spares_.push_back({.index = index});
  if (gone_) return;
  spares_.back().memory = maps_->Import(options_.device, page(), std::move(descriptor));
  if (unmade_.empty()) return owner_->MapsQueued(this);
  UseSpare(unmade_.front());
  unmade_.pop_front();
}

void ClientPages::Retry() {
  retries_ = false;
  MakeAhead();
}

void ClientPages::Unmap(PhysicalPage page) {
  if (gone_ || !QueueUnmap(&physical_.at(page)))
    return Later([this, page] { owner_->Unmapped(this, page); });
  unmapping_ = page;
  owner_->MapsQueued(this);
}

void ClientPages::Release(const core::plan::PageSupply::Released& released) {
  const auto found = physical_.find(released.page);
  Physical physical;
  if (found != physical_.end()) {
    if (!gone_) QueueUnmap(&found->second);
    physical = found->second;
    physical_.erase(found);
    by_memory_.erase(physical.memory);
  } else if (Ahead() <= NeverMapped()) {
    return owner_->PageGone(this);
  } else if (spares_.empty()) {
    ++owed_;
    return;
  } else {
    physical = spares_.back();
    spares_.pop_back();
  }
  if (gone_) return Destroy(physical.index);
  maps_->Release(options_.device, physical.memory);
  releasing_[physical.memory] = physical.index;
  owner_->MapsQueued(this);
}

// What is mapped still must not count as free.
void ClientPages::Ended(const MapOrders::Ended& ended) {
  if (gone_) return;
  if (ended.op == MapOp::kRelease && ended.ok) {
    if (const auto index = releasing_.extract(ended.memory)) Destroy(index.mapped());
    return;
  }
  const auto found = by_memory_.find(ended.memory);
  if (found == by_memory_.end()) return;
  if (ended.op == MapOp::kMap) {
    if (const auto mapping = mapping_.extract(found->second))
      owner_->Mapped(this, mapping.mapped());
  } else if (ended.op == MapOp::kUnmap && unmapping_ == found->second) {
    unmapping_.reset();
    owner_->Unmapped(this, found->second);
  }
}

void ClientPages::Destroy(uint32_t index) {
  // A copy to or from another device may use the page still.
  if (moving_ > 0) return doomed_.push_back(index);
  ++working_;
  --made_;
  workers_->Run(attachment_->tenant, [this, index] {
    const Status gone = attachment_->arenas[core::ToInt(options_.device)]->Unmap(page() * index);
    if (!gone.ok()) {
      spdlog::error("client {}: page not unmapped: {}", core::ToInt(attachment_->id),
                    core::Describe(gone.error()));
    }
    mailbox_->Post([this, index, ok = gone.ok()] {
      --working_;
      if (ok) {
        indexes_.push_back(index);
        owner_->PageGone(this);
      } else {
        ++made_;
      }
      owner_->Progressed(this);
    });
  });
}

void ClientPages::Later(std::function<void()> work) {
  ++working_;
  mailbox_->Post([this, work = std::move(work)] {
    --working_;
    work();
    owner_->Progressed(this);
  });
}

void ClientPages::Retire() {
  gone_ = true;
  for (const auto& [page, unit] : std::exchange(mapping_, {})) owner_->Mapped(this, unit);
  for (const MapOrder& order : std::exchange(unmade_, {})) owner_->Mapped(this, order.unit);
  if (unmapping_) owner_->Unmapped(this, *std::exchange(unmapping_, std::nullopt));
}

// ---- Copies.

std::byte* ClientPages::Memory(const core::PageMemory::Place& place) const {
  return attachment_->arenas[core::ToInt(options_.device)]->base() +
         (page() * physical_.at(place.page).index + place.offset).count();
}

bool ClientPages::CanCopyIn(PoolNumber pool, bool demanded) const {
  return links_[pool].in < kQueued || (demanded && links_[pool].demanded < kQueued);
}

void ClientPages::CopyIn(const CopyOrder& order) {
  ++links_[order.pool].in;
  ++copying_;
  links_[order.pool].demanded += order.demanded ? 1 : 0;
  const auto urgency =
      order.demanded ? TransferLane::Urgency::kDemand : TransferLane::Urgency::kBackground;
  pools_[order.pool]->Copy(device::Direction::kHostToDevice, options_.device, Memory(order.memory),
                           copies_.at(order.unit).ranges, turn(), urgency,
                           [this, order](const Status& outcome) { EndIn(order, outcome); });
}

bool ClientPages::Checked(bool same, const std::function<bool()>& counts) {
  ++options_.checks->checked;
  if (same) return true;
  if (!counts()) return false;
  ++options_.checks->wrong;
  spdlog::error("client {}: a copy came over wrong", core::ToInt(attachment_->id));
  return false;
}

bool ClientPages::IsRight(const CopyOrder& order, const std::function<bool()>& counts) {
  const auto copy = copies_.find(order.unit);
  if (options_.checks == nullptr || gone_ || copy == copies_.end()) return true;
  return Checked(pools_[order.pool]->HasSame(Memory(order.memory), copy->second.ranges), counts);
}

void ClientPages::EndIn(const CopyOrder& order, const Status& outcome) {
  --links_[order.pool].in;
  --copying_;
  links_[order.pool].demanded -= order.demanded ? 1 : 0;
  const bool ok = outcome.ok() && IsRight(order, [] { return true; });
  owner_->CopiedIn(this, order.unit, ok && !IsLost(order.unit));
  owner_->Progressed(this);
}

bool ClientPages::CanCopyOut(PoolNumber pool) const {
  if (links_[pool].out >= kQueued) return false;
  owner_->UpdateRoom(const_cast<ClientPages*>(this));
  return true;
}

void ClientPages::CopyOut(const CopyOrder& order) {
  owner_->UpdateRoom(this);
  ++links_[order.pool].out;
  ++copying_;
  const Bytes granularity = pools_[order.pool]->memory().granularity();
  std::vector<PagePool::Range> ranges = LiveRanges(order.unit, granularity);
  const Bytes bytes = BytesFor(ranges, granularity);
  pools_[order.pool]->Allocate(
      bytes, [this, order, ranges = std::move(ranges)](std::optional<PagePool::Piece> piece) {
        if (piece) return StartOut(order, ranges, *std::move(piece));
        Later([this, order] { EndOut(order, NoRoom()); });
      });
}

void ClientPages::StartOut(const CopyOrder& order, const std::vector<PagePool::Range>& ranges,
                           PagePool::Piece piece) {
  Copy& copy = copies_[order.unit];
  copy = {.version = ++version_, .pool = order.pool, .piece = std::move(piece)};
  copy.ranges = Spread(ranges, copy.piece, pools_[order.pool]->memory().granularity());
  if (copy.ranges.empty()) return Later([this, order] { EndOut(order, core::Ok()); });
  pools_[order.pool]->Copy(device::Direction::kDeviceToHost, options_.device, Memory(order.memory),
                           copy.ranges, turn(), TransferLane::Urgency::kBackground,
                           [this, order](const Status& outcome) { EndOut(order, outcome); });
}

void ClientPages::EndOut(const CopyOrder& order, const Status& outcome) {
  --links_[order.pool].out;
  --copying_;
  const bool ok = outcome.ok() && IsRight(order, [this, &order] {
                    // A tensor that was used since it began may have been written.
                    const auto tensors = executor_->tensors().In(order.unit);
                    return std::all_of(tensors.begin(), tensors.end(), [this](TensorNumber tensor) {
                      return owner_->IsUnused(this, tensor);
                    });
                  });
  owner_->CopiedOut(this, order.unit, ok && !IsLost(order.unit));
  owner_->Progressed(this);
}

void ClientPages::FreeCopy(Unit unit, PoolNumber pool) {
  const auto copy = copies_.find(unit);
  if (copy == copies_.end() || copy->second.pool != pool) return;
  const PagePool::Piece piece = std::move(copy->second.piece);
  copies_.erase(copy);
  pools_[pool]->Free(piece);
  owner_->UpdateRoom(this);
}

// ---- Memory of pools that is wanted back, or is lost.

bool ClientPages::IsLost(Unit unit) const {
  const auto copy = copies_.find(unit);
  return copy != copies_.end() && copy->second.lost;
}

std::vector<Unit> ClientPages::LoseCopies(PoolNumber pool) {
  std::vector<Unit> lost;
  for (auto& [unit, copy] : copies_) {
    if (copy.pool != pool || copy.lost || !pools_[pool]->memory().IsLost(copy.piece)) continue;
    copy.lost = true;
    lost.push_back(unit);
  }
  return lost;
}

bool ClientPages::Evacuate(PoolNumber pool) {
  bool again = false;
  std::vector<Unit> redundant;
  for (auto& [unit, copy] : copies_) {
    if (copy.pool != pool || !pools_[pool]->memory().IsClosed(copy.piece)) continue;
    again = true;
    if (copy.lost || copy.moves_on || gone_) continue;
    if (executor_->books().copies().Redundant(pool).contains(unit)) redundant.push_back(unit);
    if (!core::CanMoveOn(executor_->books()[unit])) continue;
    // Both ends of each part of the move are at multiples of that.
    const Bytes granularity = pools_[pool]->memory().granularity();
    const Bytes bytes = BytesFor(copy.ranges, granularity);
    if (moving_on_ >= kMovesOnMost || !pools_[pool]->MayMoveOn(bytes)) continue;
    copy.moves_on = true;
    ++moving_on_;
    ++copying_;
    pools_[host_]->AllocateReserved(
        bytes, granularity,
        [this, unit = unit, version = copy.version](std::optional<PagePool::Piece> piece) {
          if (piece) return StartMoveOn(unit, version, *std::move(piece));
          Later([this, unit, version] { EndMoveOn({.unit = unit, .version = version}, NoRoom()); });
        });
  }
  for (const Unit unit : redundant) owner_->DropCopy(this, unit);
  return again;
}

void ClientPages::StartMoveOn(Unit unit, uint64_t version, PagePool::Piece target) {
  MoveOn move{.unit = unit, .version = version, .target = std::move(target)};
  const auto copy = copies_.find(unit);
  if (copy == copies_.end() || copy->second.version != version)
    return Later([this, move] { EndMoveOn(move, NoRoom()); });
  move.from = copy->second.pool;
  move.source = copy->second.piece;
  move.ranges = Spread(copy->second.ranges, move.target, pools_[move.from]->memory().granularity());
  pools_[move.from]->Hold(move.source);
  const auto ways = WaysBetween(copy->second.ranges, move.ranges);
  if (ways.empty()) return Later([this, move] { EndMoveOn(move, core::Ok()); });
  pools_[move.from]->MoveOn(ways, turn(),
                            [this, move](const Status& outcome) { EndMoveOn(move, outcome); });
}

// The page may have been used meanwhile, and its copy be another, or none.
void ClientPages::EndMoveOn(const MoveOn& move, const Status& outcome) {
  --moving_on_;
  --copying_;
  const auto copy = copies_.find(move.unit);
  const bool same = copy != copies_.end() && copy->second.version == move.version;
  if (same) copy->second.moves_on = false;
  bool moved = outcome.ok() && same && !gone_ && !copy->second.lost &&
               core::CanMoveOn(executor_->books()[move.unit]);
  if (moved && options_.checks != nullptr) {
    moved = Checked(pools_[move.from]->HasSame(WaysBetween(copy->second.ranges, move.ranges)),
                    [] { return true; });
  }
  if (moved) {
    copy->second.version = ++version_;
    copy->second.pool = host_;
    copy->second.piece = move.target;
    copy->second.ranges = move.ranges;
    owner_->CopyMoved(this, move.unit, host_);
    pools_[move.from]->Free(move.source);
  } else if (!move.target.empty()) {
    pools_[host_]->Free(move.target);
  }
  if (!move.source.empty()) pools_[move.from]->Unhold(move.source);
  owner_->Progressed(this);
}

// ---- One tensor.

PagePool::Range ClientPages::ArenaRange(TensorNumber tensor, uint32_t part) const {
  const core::PageTensors::Row& row = executor_->tensors()[tensor];
  const core::PageMemory::Place place = core::PlaceOf(executor_->books(), row.units[part]);
  const Bytes begin = page() * physical_.at(place.page).index + place.offset;
  return {.in_page = part == 0 ? begin + row.offset : begin,
          .in_pool = {},
          .bytes = executor_->tensors().BytesIn(tensor, part)};
}

// The copies that move a tensor to another device.
struct ClientPages::Crossing {
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

std::shared_ptr<ClientPages::Crossing> ClientPages::CrossingOf(TensorNumber tensor,
                                                               const ClientPages& to) const {
  const core::PageTensors::Row& row = executor_->tensors()[tensor];
  std::vector<PagePool::Range> targets;
  for (uint32_t i = 0; i < to.executor_->tensors()[tensor].units.count; ++i)
    targets.push_back(to.ArenaRange(tensor, i));
  auto target = targets.begin();
  // Calls add(from, to, bytes) for each piece of [from, from + bytes).
  const auto cut = [&target](Bytes from, Bytes bytes, auto add) {
    while (bytes > Bytes{}) {
      if (target->bytes == Bytes{}) ++target;
      const Bytes part = std::min(bytes, target->bytes);
      add(from, target->in_page, part);
      target->in_page += part;
      target->bytes -= part;
      from += part;
      bytes -= part;
    }
  };
  auto crossing = std::make_shared<Crossing>();
  for (uint32_t i = 0; i < row.units.count; ++i) {
    const Unit unit = row.units[i];
    const core::plan::UnitState& state = executor_->books()[unit];
    if (state.IsResident()) {
      const PagePool::Range range = ArenaRange(tensor, i);
      cut(range.in_page, range.bytes, [&](Bytes from, Bytes in_arena, Bytes bytes) {
        crossing->stretches.push_back(
            {Arena() + from.count(), to.Arena() + in_arena.count(), bytes});
      });
      continue;
    }
    const auto copy = copies_.find(unit);
    if (state.life != core::PageState::kAway || copy == copies_.end() || copy->second.lost)
      return nullptr;
    PagePool* const pool = pools_[copy->second.pool];
    const bool reaches = std::count(to.pools_.begin(), to.pools_.end(), pool) > 0;
    // A link that copies multiples of more than a tensor's alignment would copy neighbours as well.
    if (!reaches || pool->memory().granularity() > core::kExtentAlignment) return nullptr;
    Crossing::Source& source = crossing->pools[pool];
    source.pieces.push_back(copy->second.piece);
    crossing->versions[unit] = copy->second.version;
    const Bytes begin = i == 0 ? row.offset : Bytes{};
    const Bytes end = begin + executor_->tensors().BytesIn(tensor, i);
    for (const PagePool::Range& range : copy->second.ranges) {
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

bool ClientPages::StartMove(TensorNumber tensor, ClientPages* to, const CopyStretches& copy,
                            PagePool::Done done) {
  const auto crossing = CrossingOf(tensor, *to);
  if (crossing == nullptr) return false;
  HoldMemory();
  to->HoldMemory();
  const auto ended = [this, crossing, to, done = std::move(done)](const Status& outcome) {
    if (!outcome.ok()) crossing->outcome = outcome;
    if (--crossing->under_way > 0) return;
    const Status all = EndMove(*crossing, *to);
    UnholdMemory();
    to->UnholdMemory();
    done(all);
  };
  crossing->under_way =
      static_cast<uint32_t>(crossing->pools.size() + (crossing->stretches.empty() ? 0 : 1));
  for (const auto& [pool, source] : crossing->pools) {
    for (const PagePool::Piece& piece : source.pieces) pool->Hold(piece);
    pool->Copy(device::Direction::kHostToDevice, to->device(), to->Arena(), source.ranges, turn(),
               TransferLane::Urgency::kDemand, ended);
  }
  if (!crossing->stretches.empty()) copy(crossing->stretches, ended);
  return true;
}

Status ClientPages::EndMove(const Crossing& crossing, const ClientPages& to) {
  for (const auto& [pool, source] : crossing.pools) {
    for (const PagePool::Piece& piece : source.pieces) pool->Unhold(piece);
  }
  if (!crossing.outcome.ok() || gone_) return crossing.outcome;
  // The place of a copy that has gone meanwhile may be another's.
  for (const auto& [unit, version] : crossing.versions) {
    const auto copy = copies_.find(unit);
    if (copy == copies_.end() || copy->second.version != version || copy->second.lost)
      return core::Error{core::ErrorCode::kDevice, "its copy has gone while it was read"};
  }
  if (options_.checks == nullptr) return core::Ok();
  bool same = true;
  for (const Stretch& stretch : crossing.stretches)
    same &= std::memcmp(stretch.to, stretch.from, stretch.bytes.count()) == 0;
  for (const auto& [pool, source] : crossing.pools)
    same &= pool->HasSame(to.Arena(), source.ranges);
  if (Checked(same, [] { return true; })) return core::Ok();
  return core::Error{core::ErrorCode::kCorrupt, "a copy of its bytes came over wrong"};
}

void ClientPages::HoldMemory() {
  ++copying_;
  ++moving_;
}

void ClientPages::UnholdMemory() {
  --copying_;
  if (--moving_ > 0) return;
  for (const uint32_t index : std::exchange(doomed_, {})) Destroy(index);
}

// Its words are published when this returns: the bytes are there.
void ClientPages::MoveSlot(const core::PageMemory::SlotMove& move, Bytes bytes) {
  if (gone_ || bytes == Bytes{}) return;
  const auto copy = [&]() -> Status {
    if (mover_ == nullptr) {
      RAVEN_ASSIGN_OR_RETURN(mover_, device_->OpenChannel(device::Direction::kHostToDevice));
    }
    RAVEN_RETURN_IF_ERROR(mover_->Copy(Memory(move.to), Memory(move.from), bytes));
    return mover_->Signal(&moved_, ++moves_);
  };
  Status copied = copy();
  while (copied.ok() && moved_.load(std::memory_order_acquire) < moves_) {
    mover_->Poll();
    if (moved_.load(std::memory_order_acquire) < moves_) copied = mover_->Health();
  }
  // The device is lost, and so is all that is on it.
  if (!copied.ok()) spdlog::error("a tensor was not moved: {}", core::Describe(copied.error()));
}

// The pool's bytes stay where they are, and are the slot's from now on. Where a place in the pool
// cannot be any multiple of a tensor's alignment the bytes of neighbours may be in one range.
bool ClientPages::MoveCopy(const CopyMove& move) {
  if (pools_[move.pool]->memory().granularity() > core::kExtentAlignment) return false;
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
