#include "sim/cluster_pages.h"

#include <algorithm>
#include <utility>

#include "core/check.h"
#include "core/plan/page_size.h"

namespace ravenstore::sim {
namespace {

using cluster::PieceId;
using core::Bytes;
using core::TensorNumber;
using core::Tick;
using core::plan::PhysicalPage;
using core::plan::PoolNumber;
using core::plan::Unit;

constexpr PoolNumber kHost = 0;
constexpr PoolNumber kRemote = 1;
// Between device and host.
constexpr double kHostRate = 20e9;
constexpr core::Duration kHostLatency = std::chrono::microseconds(12);
// As the daemon supposes before it has measured.
constexpr double kNetworkRate = 1.1e9;
constexpr core::Duration kNetworkLatency = std::chrono::microseconds(200);
// Copies of one pool in one direction. Fewer: the link is idle while one begins. More: a call
// waits behind copies that were begun for others.
constexpr uint32_t kCopiesMost = 4;
// Of one transfer, or of a piece that is borrowed.
constexpr core::Duration kTimeout = std::chrono::seconds(30);
constexpr core::Duration kRetry = std::chrono::seconds(1);
constexpr core::Duration kWriteAgain = std::chrono::milliseconds(50);
constexpr uint32_t kGrowingMost = 8;
// Empty pieces that are kept. Fewer: pieces are returned and borrowed again.
constexpr uint32_t kSparePieces = 2;

core::PageBooks::Options BooksFor(const ClusterMemory& memory, Bytes page) {
  core::PageBooks::Options books;
  books.limits.page = page;
  books.limits.pages = static_cast<uint32_t>(memory.device.count() / page.count());
  books.limits.pools = {{.capacity = memory.host,
                         .in_rate = kHostRate,
                         .out_rate = kHostRate,
                         .per_copy = kHostLatency},
                        {.capacity = Bytes{},
                         .in_rate = kNetworkRate,
                         .out_rate = kNetworkRate,
                         .per_copy = kNetworkLatency}};
  books.coming_most = page * 2;
  return books;
}

bool IsIn(const std::vector<ClusterPieces::Run>& runs, PieceId piece) {
  return std::ranges::any_of(runs, [piece](const auto& run) { return run.piece == piece; });
}

}  // namespace

ClusterPages::ClusterPages(ClusterMemory memory, std::function<void()> changed, cluster::Home* home)
    : options_(std::move(memory)),
      changed_(std::move(changed)),
      page_(core::plan::PageSizeFor(options_.device, false)),
      granule_(options_.sizes.granule * options_.scale),
      home_(*home),
      executor_(BooksFor(options_, page_), this),
      pieces_(static_cast<uint32_t>(options_.sizes.piece.count() / options_.sizes.granule.count())),
      contents_(&executor_, page_, granule_) {}

Tick ClusterPages::RetryAfter(core::Duration time) {
  const Tick at = options_.now() + time;
  later_.Add(at, [this] { changed_(); });
  return at;
}

void ClusterPages::Advance() {
  while (const auto what = later_.Take(options_.now())) what();
}

ClusterPages::Ends ClusterPages::Run(Bytes needed) {
  Balance(needed);
  std::vector<PhysicalPage> unmapped;
  do {
    executor_.Start();
    unmapped = std::exchange(unmapped_, {});
    for (const PhysicalPage page : unmapped) executor_.Unmapped(page);
  } while (!unmapped.empty());
  return std::exchange(ends_, {});
}

Bytes ClusterPages::remote() const {
  Bytes bytes = executor_.books().copies().pools().used(kRemote);
  for (const auto& [unit, transfer] : transfers_) {
    if (transfer.writes && !transfer.runs.empty())
      bytes = core::Minus(bytes, granule_ * GranulesOf(transfer.parts));
  }
  return bytes;
}

bool ClusterPages::IsRemote(TensorNumber tensor) const {
  const auto& units = executor_.tensors()[tensor].units;
  for (uint32_t i = 0; i < units.count; ++i) {
    if (executor_.books()[units[i]].pool == kRemote) return true;
  }
  return false;
}

// ---- Copies.

// The bytes there are of another page of addresses.
bool ClusterPages::Map(const MapOrder& order) {
  contents_.SetParts(order.page, {});
  return true;
}

bool ClusterPages::CanCopyIn(PoolNumber pool, bool demanded) const {
  return copying_[pool][0] < kCopiesMost / (demanded ? 1 : 2);
}

bool ClusterPages::CanCopyOut(PoolNumber pool) const {
  if (pool == kRemote && options_.now() < write_at_) return false;
  return copying_[pool][1] < kCopiesMost;
}

void ClusterPages::CopyIn(const CopyOrder& order) {
  const Copy& copy = copies_.at(order.unit);
  RAVEN_CHECK(copy.pool == order.pool);
  Begin(order, {.page = order.memory.page, .parts = copy.parts, .runs = copy.runs});
}

void ClusterPages::CopyOut(const CopyOrder& order) {
  Copy copy{.pool = order.pool, .parts = contents_.PartsOf(order.memory.page)};
  const uint32_t granules = GranulesOf(copy.parts);
  if (granule_ * granules != order.bytes) ++ends_.wrong;
  if (const auto old = copies_.find(order.unit); old != copies_.end()) Erase(old);
  if (order.pool == kRemote) {
    if (pieces_.FreeGranules() < granules) Sweep();
    copy.runs = pieces_.Take(granules);
  }
  Transfer transfer{.writes = true, .parts = copy.parts, .runs = copy.runs};
  copies_.emplace(order.unit, std::move(copy));
  Begin(order, std::move(transfer));
}

void ClusterPages::Begin(const CopyOrder& order, Transfer transfer) {
  const Unit unit = order.unit;
  const bool writes = transfer.writes;
  RAVEN_CHECK(transfers_.emplace(unit, std::move(transfer)).second);
  ++copying_[order.pool][writes];
  if (order.pool == kRemote) return TransferRun(unit);
  Tick& free = host_free_[writes];
  const double seconds = static_cast<double>(order.bytes.count()) / kHostRate;
  free = std::max(free, options_.now() + kHostLatency) + core::FromSeconds(seconds);
  later_.Add(free, [this, unit] {
    End(unit, true);
    changed_();
  });
}

void ClusterPages::TransferRun(Unit unit) {
  Transfer& transfer = transfers_.at(unit);
  const ClusterPieces::Run& run = transfer.runs[transfer.run];
  const Bytes offset =
      options_.sizes.piece * core::ToInt(run.piece) + options_.sizes.granule * run.first;
  transfer.buffer.assign((options_.sizes.granule * run.count).count(), std::byte{});
  const Tick deadline = options_.now() + kTimeout;
  const auto done = [this, unit](const core::Status& status) { RunTransferred(unit, status); };
  if (!transfer.writes) return home_.Read(offset, transfer.buffer, deadline, done);
  transfer.FillRun(options_.sizes.granule.count(), &transfer.buffer);
  home_.Write(offset, transfer.buffer, deadline, done);
}

void ClusterPages::RunTransferred(Unit unit, const core::Status& status) {
  Transfer& transfer = transfers_.at(unit);
  const bool ok = status.ok() && !transfer.lost;
  if (ok && !transfer.writes) {
    std::vector<std::byte> expected(transfer.buffer.size());
    transfer.FillRun(options_.sizes.granule.count(), &expected);
    if (expected != transfer.buffer) ++ends_.wrong;
  }
  transfer.done += transfer.runs[transfer.run].count;
  if (ok && ++transfer.run < transfer.runs.size()) return TransferRun(unit);
  End(unit, ok);
  changed_();
}

void ClusterPages::End(Unit unit, bool ok) {
  Transfer transfer = std::move(transfers_.extract(unit).mapped());
  const PoolNumber pool = transfer.runs.empty() ? kHost : kRemote;
  --copying_[pool][transfer.writes];
  if (transfer.writes) {
    if (!ok) write_at_ = RetryAfter(kWriteAgain);
    return executor_.CopiedOut(unit, ok);
  }
  if (ok) {
    contents_.SetParts(transfer.page, std::move(transfer.parts));
  } else if (const auto copy = copies_.find(unit); copy != copies_.end()) {
    copy->second.fetch_at = RetryAfter(kRetry);
  }
  executor_.CopiedIn(unit, ok);
}

void ClusterPages::Erase(std::map<Unit, Copy>::iterator copy) {
  pieces_.Free(copy->second.runs);
  copies_.erase(copy);
}

// A lost piece may have taken it already.
void ClusterPages::FreeCopy(Unit unit, PoolNumber pool) {
  if (const auto copy = copies_.find(unit); copy != copies_.end() && copy->second.pool == pool)
    Erase(copy);
}

void ClusterPages::Sweep() {
  for (auto next = copies_.begin(); next != copies_.end();) {
    const auto copy = next++;
    if (executor_.books()[copy->first].pool != copy->second.pool) Erase(copy);
  }
}

// ---- Pieces.

void ClusterPages::OnPieceLost(PieceId piece) {
  Sweep();
  pieces_.Remove(piece);
  for (auto next = copies_.begin(); next != copies_.end();) {
    const auto copy = next++;
    if (!IsIn(copy->second.runs, piece)) continue;
    const Unit unit = copy->first;
    if (const auto transfer = transfers_.find(unit); transfer != transfers_.end())
      transfer->second.lost = true;
    Erase(copy);
    executor_.Lose(unit, &ends_.lost);
  }
}

void ClusterPages::Balance(Bytes needed) {
  const Bytes piece = options_.sizes.piece * options_.scale;
  const Bytes remote = core::Minus(needed, options_.device + options_.host).RoundUp(piece);
  const auto target = static_cast<uint32_t>(remote.count() / piece.count());
  const auto most = static_cast<uint32_t>(options_.remote.count() / piece.count());
  while (pieces_.staying() + pieces_.growing() < target &&
         pieces_.all() < std::min(pieces_most_, most) && pieces_.growing() < kGrowingMost &&
         options_.now() >= grow_at_)
    Grow();
  if (pieces_.staying() > target + kSparePieces && options_.now() >= sweep_at_)
    ShrinkEmpty(target + kSparePieces);
  core::plan::CopyPool remote_pool = executor_.books().view().limits.pools[kRemote];
  remote_pool.capacity = piece * pieces_.staying();
  executor_.books().SetPool(kRemote, remote_pool);
  if (pieces_.AnyLeaves()) Evacuate();
}

void ClusterPages::Grow() {
  const PieceId piece = pieces_.StartGrowth();
  home_.Grow(piece, options_.now() + kTimeout, [this, piece](const core::Status& status) {
    pieces_.FinishGrowth(piece, status.ok());
    if (!status.ok()) grow_at_ = RetryAfter(kRetry);
    changed_();
  });
}

void ClusterPages::ShrinkEmpty(uint32_t target) {
  Sweep();
  while (pieces_.staying() > target) {
    const auto piece = pieces_.FindEmpty(false);
    if (!piece) break;
    pieces_.Remove(*piece);
    home_.Shrink(*piece);
  }
  sweep_at_ = options_.now() + kRetry;
  if (pieces_.staying() > target) RetryAfter(kRetry);
}

void ClusterPages::Evacuate() {
  Sweep();
  const core::PageBooks& books = executor_.books();
  for (auto& [unit, copy] : copies_) {
    const auto leaves = [this](const auto& run) { return pieces_.Leaves(run.piece); };
    if (transfers_.count(unit) > 0 || !std::ranges::any_of(copy.runs, leaves)) continue;
    if (books.copies().Redundant(copy.pool).contains(unit)) {
      executor_.Lose(unit, &ends_.lost);
    } else if (options_.now() >= copy.fetch_at &&
               core::decide::HasPlace(core::CreateIn(books, {}))) {
      executor_.books().Demand(unit);
    }
  }
  Sweep();
  while (const auto piece = pieces_.FindEmpty(true)) {
    pieces_.Remove(*piece);
    home_.Shrink(*piece);
  }
}

}  // namespace ravenstore::sim
