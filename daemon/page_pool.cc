#include "daemon/page_pool.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <utility>

namespace ravenstore::daemon {

using core::Bytes;
using core::DeviceId;
using core::Status;

PagePool::PagePool(Options options, AwayMemory* memory, WorkerPool* workers, Mailbox* mailbox)
    : options_(std::move(options)),
      memory_(memory),
      workers_(workers),
      mailbox_(mailbox),
      capacity_(options_.capacity) {
  for (const auto& [offset, bytes] : memory_->slabs.all()) Grown(bytes, true);
  Grow();
}

Status PagePool::AddDevice(DeviceId device, const std::string& name) {
  Link& link = links_[device];
  RAVEN_ASSIGN_OR_RETURN(link.out, MakeLane(device, name + " to " + options_.name,
                                            device::Direction::kDeviceToHost, &link.out_jobs));
  RAVEN_ASSIGN_OR_RETURN(link.in, MakeLane(device, name + " from " + options_.name,
                                           device::Direction::kHostToDevice, &link.in_jobs));
  return core::Ok();
}

core::Result<std::unique_ptr<TransferLane>> PagePool::MakeLane(
    DeviceId device, const std::string& name, device::Direction direction,
    std::unordered_map<JobId, Done>* jobs) {
  auto lane = std::make_unique<TransferLane>(
      name, [this, device, direction] { return memory_->Open(device, direction); },
      options_.transfers, &words_.emplace_back(0),
      [jobs](JobId job, const Status& outcome) {
        const auto done = jobs->extract(job);
        done.mapped()(outcome);
      });
  RAVEN_RETURN_IF_ERROR(lane->Open());
  return lane;
}

// ---- Memory.

void PagePool::Allocate(Bytes bytes, std::function<void(std::optional<Piece>)> then) {
  waiting_.push_back({bytes, std::move(then)});
  ServeWaiting();
  Grow();
}

void PagePool::ServeWaiting() {
  while (!waiting_.empty()) {
    std::optional<Piece> piece = pieces_.Allocate(waiting_.front().bytes);
    if (!piece && (growing_ || made_ < capacity_)) return;
    const auto then = std::move(waiting_.front().then);
    waiting_.pop_front();
    then(std::move(piece));
  }
}

void PagePool::Grow() {
  Bytes wanted = options_.ahead;
  for (const Waiting& waiting : waiting_) wanted += waiting.bytes;
  if (growing_ || made_ >= capacity_ || pieces_.free() >= wanted) return;
  growing_ = true;
  const Bytes bytes = std::min(options_.step, capacity_ - made_);
  workers_->Run(kNoUser, [this, bytes, offset = made_] {
    const Status made = memory_->Make(offset, bytes);
    if (!made.ok()) {
      spdlog::warn("{}: {} more bytes not had: {}", options_.name, bytes.count(),
                   core::Describe(made.error()));
    }
    mailbox_->Post([this, bytes, offset, ok = made.ok()] {
      growing_ = false;
      if (ok) memory_->slabs.Add(offset, bytes);
      Grown(bytes, ok);
      ServeWaiting();
      Grow();
    });
  });
}

void PagePool::Grown(Bytes bytes, bool ok) {
  if (!ok) {
    capacity_ = made_;
    return;
  }
  pieces_.Free({{made_, bytes}});
  made_ += bytes;
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
  Link& link = links_.at(device);
  const JobId job =
      (out ? link.out : link.in)->Submit(std::move(chunks), owner, urgency, nullptr, 0);
  (out ? link.out_jobs : link.in_jobs).emplace(job, std::move(done));
}

bool PagePool::Poll(core::Tick now) {
  bool busy = false;
  for (auto& [device, link] : links_) {
    busy |= link.in->Pump(now);
    busy |= link.out->Pump(now);
  }
  return busy;
}

bool PagePool::IsCopying() const {
  return std::any_of(links_.begin(), links_.end(), [](const auto& of) {
    return !of.second.in->idle() || !of.second.out->idle();
  });
}

core::Tick PagePool::NextPump(core::Tick poll) const {
  core::Tick next = core::kNever;
  for (const auto& [device, link] : links_)
    next = std::min({next, link.in->NextPump(poll), link.out->NextPump(poll)});
  return next;
}

}  // namespace ravenstore::daemon
