#include "daemon/page_pool.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace ravenstore::daemon {

using core::Bytes;
using core::DeviceId;
using core::Status;

namespace {

Bytes BytesOf(const PagePool::Piece& piece) {
  Bytes bytes;
  for (const PagePool::Part& part : piece) bytes += part.bytes;
  return bytes;
}

}  // namespace

PagePool::PagePool(Options options, AwayMemory* memory, Hooks hooks, Bytes limit)
    : options_(std::move(options)),
      memory_(memory),
      hooks_(std::move(hooks)),
      pieces_(options_.memory) {
  pieces_.SetLimit(limit);
  ChangeMemory();
}

Status PagePool::AddDevice(DeviceId device, const std::string& name, core::Pacer* pacer) {
  Link& link = links_[device];
  const auto opener = [this, device](device::Direction direction) {
    return [this, device, direction] { return memory_->Open(device, direction); };
  };
  RAVEN_RETURN_IF_ERROR(OpenLane(name + " to " + options_.name,
                                 opener(device::Direction::kDeviceToHost), pacer, &link.out));
  return OpenLane(name + " from " + options_.name, opener(device::Direction::kHostToDevice), pacer,
                  &link.in);
}

Status PagePool::AddHost(PagePool* host, bool covered, Bytes exchange) {
  host_ = host;
  covered_ = covered;
  exchange_ = exchange;
  return OpenLane(
      options_.name + " to the host", [this] { return memory_->OpenToHost(); }, nullptr, &to_host_);
}

Status PagePool::OpenLane(const std::string& name, TransferLane::OpenChannel open,
                          core::Pacer* pacer, Lane* lane) {
  *lane = std::make_unique<TransferLane>(name, std::move(open), options_.transfers);
  if (pacer != nullptr) (*lane)->PaceBy(pacer);
  return (*lane)->Open();
}

void PagePool::Submit(TransferLane* lane, std::vector<TransferLane::Chunk> chunks,
                      core::TurnOwner owner, TransferLane::Urgency urgency, Done done) {
  lane->Submit(std::move(chunks), owner, urgency,
               [this, done = std::move(done)](const Status& outcome) {
                 memory_->Ended(outcome.ok(), now_);
                 done(outcome);
               });
}

template <typename Visit>
void PagePool::ForEachLane(Visit visit) const {
  for (const auto& [device, link] : links_) {
    visit(*link.in);
    visit(*link.out);
  }
  if (to_host_ != nullptr) visit(*to_host_);
}

// ---- Memory.

Bytes PagePool::Room() const {
  const Bytes room = Minus(pieces_.Room(), reserved_);
  return covered_ ? std::min(room, Minus(host_->Room(), exchange_)) : room;
}

void PagePool::Allocate(Bytes bytes, Then then) {
  waiting_.push_back({.bytes = bytes, .unit = pieces_.granularity(), .then = std::move(then)});
  ServeWaiting();
  ChangeMemory();
}

void PagePool::AllocateReserved(Bytes bytes, Bytes unit, Then then) {
  waiting_.push_front({.bytes = bytes, .unit = unit, .reserved = true, .then = std::move(then)});
  ServeWaiting();
  ChangeMemory();
}

bool PagePool::Fits(const Waiting& waiting) const {
  if (waiting.bytes > pieces_.free()) return false;
  return waiting.reserved || waiting.bytes <= Room();
}

void PagePool::ServeWaiting() {
  while (!waiting_.empty() && Fits(waiting_.front())) {
    auto piece = pieces_.Allocate(waiting_.front().bytes, waiting_.front().unit);
    if (!piece) return;
    const Then then = std::move(waiting_.front().then);
    waiting_.pop_front();
    if (covered_) host_->reserved_ += BytesOf(*piece);
    then(std::move(piece));
  }
}

void PagePool::Free(const Piece& piece) {
  pieces_.Free(piece);
  if (covered_) {
    host_->reserved_ -= BytesOf(piece);
    host_->ServeWaiting();
  }
  ServeWaiting();
  ChangeMemory();
}

void PagePool::Unhold(const Piece& piece) {
  pieces_.Unhold(piece);
  ChangeMemory();
}

Bytes PagePool::Lack() const {
  if (pieces_.IsGrowing()) return {};
  Bytes wanted;
  for (const Waiting& waiting : waiting_) wanted += waiting.bytes;
  return Minus(wanted, Room());
}

void PagePool::ChangeMemory() {
  Bytes wanted = reserved_;
  for (const Waiting& waiting : waiting_) wanted += waiting.bytes;
  if (const auto part = pieces_.NextGrowth(wanted)) hooks_.grow(*part);
  while (const auto part = pieces_.NextRelease()) hooks_.release(*part);
}

void PagePool::SetLimit(Bytes most) {
  if (most == pieces_.limit()) return;
  pieces_.SetLimit(most);
  ChangeMemory();
}

void PagePool::SetTarget(Bytes most) {
  pieces_.SetTarget(most);
  ChangeMemory();
}

void PagePool::Grown(core::Tick now, bool ok) {
  if (ok) {
    pieces_.Grown();
  } else {
    pieces_.GrowFailed(now);
  }
  ServeWaiting();
  ChangeMemory();
}

void PagePool::Released(Bytes offset, bool ok) {
  if (ok) {
    pieces_.Released(offset);
  } else {
    pieces_.ReleaseFailed(offset);
  }
  ChangeMemory();
}

void PagePool::Recall(Bytes offset) {
  pieces_.Recall(offset);
  ChangeMemory();
}

void PagePool::Keep(Bytes offset) {
  pieces_.Keep(offset);
  ServeWaiting();
}

void PagePool::Lose(Bytes offset) {
  pieces_.Lose(offset);
  ChangeMemory();
}

void PagePool::Fail() {
  pieces_.Fail();
  ChangeMemory();
}

void PagePool::Abort(const core::Error& why) {
  ForEachLane([&why](TransferLane& lane) { lane.Abort(why); });
}

// ---- Copies.

Bytes PagePool::ChunkOf(TransferLane::Urgency urgency) const {
  const Bytes unit = memory_->granularity();
  return std::max(unit, options_.transfers.ChunkOf(urgency).RoundDown(unit));
}

void PagePool::Copy(device::Direction direction, DeviceId device, std::byte* page,
                    const std::vector<Range>& ranges, core::TurnOwner owner,
                    TransferLane::Urgency urgency, Done done) {
  const bool out = direction == device::Direction::kDeviceToHost;
  const Bytes chunk = ChunkOf(urgency);
  std::vector<TransferLane::Chunk> chunks;
  for (const Range& range : ranges) {
    std::byte* const here = page + range.in_page.count();
    const SlabMap whole(range.bytes);
    const auto cut = out ? Cut(memory_->TargetAt(Bytes{}), range.in_pool, memory_->slabs, here,
                               Bytes{}, whole, range.bytes, chunk)
                         : Cut(here, Bytes{}, whole, memory_->SourceAt(Bytes{}), range.in_pool,
                               memory_->slabs, range.bytes, chunk);
    chunks.insert(chunks.end(), cut.begin(), cut.end());
  }
  const Link& link = links_.at(device);
  Submit((out ? link.out : link.in).get(), std::move(chunks), owner, urgency, std::move(done));
}

void PagePool::MoveOn(const std::vector<Way>& ways, core::TurnOwner owner, Done done) {
  const auto urgency = TransferLane::Urgency::kDemand;
  std::vector<TransferLane::Chunk> chunks;
  for (const Way& way : ways) {
    // A medium's bytes are written by the CPU, which reaches all of the host pool.
    const SlabMap whole(way.to + way.bytes);
    const auto cut = Cut(
        host_->memory_->TargetAt(Bytes{}), way.to, memory_->owner() ? host_->memory_->slabs : whole,
        memory_->SourceAt(Bytes{}), way.from, memory_->slabs, way.bytes, ChunkOf(urgency));
    chunks.insert(chunks.end(), cut.begin(), cut.end());
  }
  Submit(to_host_.get(), std::move(chunks), owner, urgency, std::move(done));
}

bool PagePool::HasSame(const std::byte* page, const std::vector<Range>& ranges) const {
  const std::byte* const memory = memory_->TargetAt(Bytes{}).address();
  if (memory == nullptr) return true;
  return std::all_of(ranges.begin(), ranges.end(), [&](const Range& range) {
    return std::memcmp(page + range.in_page.count(), memory + range.in_pool.count(),
                       range.bytes.count()) == 0;
  });
}

bool PagePool::HasSame(const std::vector<Way>& ways) const {
  const std::byte* const host = host_->memory_->TargetAt(Bytes{}).address();
  std::vector<Range> ranges;
  for (const Way& way : ways)
    ranges.push_back({.in_page = way.to, .in_pool = way.from, .bytes = way.bytes});
  return HasSame(host, ranges);
}

void PagePool::EndCopies() {
  links_.clear();
  to_host_.reset();
}

bool PagePool::Poll(core::Tick now) {
  now_ = now;
  pieces_.Advance(now);
  ChangeMemory();
  bool busy = false;
  ForEachLane([&](TransferLane& lane) { busy |= lane.Pump(now); });
  ServeWaiting();
  // Nothing helps the first one that waits.
  while (!waiting_.empty() && !pieces_.IsGrowing()) {
    const Then then = std::move(waiting_.front().then);
    waiting_.pop_front();
    then(std::nullopt);
    ServeWaiting();
    busy = true;
  }
  return busy;
}

bool PagePool::IsCopying() const {
  bool copying = !waiting_.empty();
  ForEachLane([&copying](const TransferLane& lane) { copying |= !lane.idle(); });
  return copying;
}

core::Tick PagePool::NextPump(core::Tick poll) const {
  core::Tick next = waiting_.empty() ? core::kNever : poll;
  ForEachLane([&](const TransferLane& lane) { next = std::min(next, lane.NextPump(poll)); });
  return next;
}

}  // namespace ravenstore::daemon
