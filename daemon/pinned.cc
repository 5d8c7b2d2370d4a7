#include "daemon/pinned.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "core/check.h"
#include "core/size_text.h"
#include "ipc/clock.h"

namespace ravenstore::daemon {

using core::Bytes;
using core::ClientId;
using core::Error;
using core::ErrorCode;
using core::PinnedBlockId;
using core::PinnedSlabId;
using core::Result;
using core::Status;
using core::TenantId;
using core::Tick;
using core::ToInt;

namespace {

// Daemon memory, in bytes, of a block or of a wait for one; and of a freed block that waits for
// streams, without its tickets.
constexpr uint64_t kBlockMemory = 512;
constexpr uint64_t kEndingMemory = 64;
// Of one user: each is looked at whenever something changed.
constexpr size_t kWaitingMax = 16;
constexpr size_t kTicketsPerPoll = 256;
// Budgets, shares and the pool may change without anybody telling.
constexpr core::Duration kServePeriod = std::chrono::milliseconds(1);
// Slabs come and go and need contiguous addresses: the range is this many times the capacity.
constexpr uint64_t kAddresses = 8;

core::PinnedBooks::Options BooksOptions(const Pinned::Options& options, size_t pools,
                                        bool straddle) {
  return {
      .pools = pools,
      .range =
          std::min(options.capacity * kAddresses, core::kRangeMax).RoundDown(options.granularity),
      .granularity = options.granularity,
      .straddle = straddle};
}

}  // namespace

Result<std::unique_ptr<Pinned>> Pinned::Create(const Options& options, device::Devices devices,
                                               WorkerPool* workers, Mailbox* mailbox, Hooks hooks) {
  std::vector<Pool> pools;
  std::vector<uint32_t> pool_of_device;
  bool straddle = true;
  for (const auto& device : devices) {
    const int node = options.numa_node >= 0 ? options.numa_node : device->info().numa_node;
    auto pool = std::find_if(pools.begin(), pools.end(),
                             [node](const Pool& other) { return other.numa_node == node; });
    if (pool == pools.end()) {
      RAVEN_ASSIGN_OR_RETURN(
          auto range, device->ReserveHostVaRange(BooksOptions(options, 1, true).range, node));
      straddle = straddle && range->CopiesStraddle();
      pool = pools.insert(pools.end(), {node, std::move(range)});
    }
    pool_of_device.push_back(static_cast<uint32_t>(pool - pools.begin()));
  }
  return std::unique_ptr<Pinned>(new Pinned(options, workers, mailbox, std::move(hooks),
                                            std::move(pools), std::move(pool_of_device), straddle));
}

Pinned::Pinned(const Options& options, WorkerPool* workers, Mailbox* mailbox, Hooks hooks,
               std::vector<Pool> pools, std::vector<uint32_t> pool_of_device, bool straddle)
    : options_(options),
      workers_(workers),
      mailbox_(mailbox),
      hooks_(std::move(hooks)),
      pools_(std::move(pools)),
      pool_of_device_(std::move(pool_of_device)),
      books_(BooksOptions(options, pools_.size(), straddle)) {}

Status Pinned::Check(const Client& client, const Ask& ask) const {
  const ClientId id = client.attachment->id;
  if (ask.bytes == Bytes{0}) return Error{ErrorCode::kInvalidArgument, "a block of 0 bytes"};
  if (ToInt(ask.device) >= pool_of_device_.size())
    return Error{ErrorCode::kInvalidArgument, "there is no such device"};
  const auto same = [&](const Waiter& waiter) {
    return waiter.client == id && waiter.ask.block == ask.block;
  };
  if (books_.Has({id, ask.block}) || std::any_of(waiting_.begin(), waiting_.end(), same))
    return Error{ErrorCode::kInvalidArgument, "the client has a block of that number"};
  const auto waiting = std::count_if(waiting_.begin(), waiting_.end(), [&](const Waiter& waiter) {
    return waiter.user == client.attachment->tenant;
  });
  if (static_cast<size_t>(waiting) < kWaitingMax) return core::Ok();
  return Error{ErrorCode::kLimit, std::to_string(kWaitingMax) +
                                      " allocations of pinned memory of this user wait already"};
}

void Pinned::Alloc(const std::shared_ptr<Attachment>& attachment, Ask ask) {
  Client& client = clients_[attachment->id];
  client.attachment = attachment;
  if (Status good = Check(client, ask); !good.ok()) return ask.reply(std::move(good).error());
  // More than the pool has could not be rounded up, and never fits.
  ask.bytes = std::min(ask.bytes, options_.capacity + core::PinnedBooks::kPage);
  if (Status charged = hooks_.charge(attachment->id, kBlockMemory); !charged.ok())
    return ask.reply(std::move(charged).error());
  const uint32_t pool = pool_of_device_[ToInt(ask.device)];
  waiting_.push_back({.client = attachment->id,
                      .user = attachment->tenant,
                      .pool = pool,
                      .ask = std::move(ask),
                      .slab = {}});
  Serve();
}

void Pinned::Serve() {
  served_at_ = ipc::Now();
  for (auto waiter = waiting_.begin(); waiter != waiting_.end();) {
    if (ServeOne(*waiter) == Served::kAnswered) {
      waiter = waiting_.erase(waiter);
    } else {
      ++waiter;
    }
  }
}

Pinned::Served Pinned::Answer(Waiter& waiter, Result<Place> answer) {
  if (!answer.ok()) hooks_.refund(waiter.client, kBlockMemory);
  waiter.ask.reply(std::move(answer));
  return Served::kAnswered;
}

Pinned::Served Pinned::ServeOne(Waiter& waiter) {
  if (waiter.failed) return Answer(waiter, *waiter.failed);
  if (waiter.slab) return Served::kWaits;
  const Bytes bytes = waiter.ask.bytes.RoundUp(core::PinnedBooks::kPage);
  Status room = hooks_.may_pin(waiter.client, bytes, Bytes{0}, {});
  if (room.ok()) {
    const PinnedBlockId id{waiter.client, waiter.ask.block};
    if (const auto offset = books_.Carve(waiter.user, id, waiter.pool, bytes)) {
      ReportUsed(waiter.client);
      SendSlabs(clients_.at(waiter.client), waiter.pool, *offset, bytes);
      const Pool& pool = pools_[waiter.pool];
      return Answer(waiter, Place{waiter.pool, pool.numa_node, pool.range->size(), *offset});
    }
    room = MakeSlab(waiter);
    if (room.ok()) return Served::kWaits;
  }
  if (waiter.ask.deadline > served_at_ && MayGetRoom(waiter)) return Served::kWaits;
  return Answer(waiter, std::move(room).error());
}

Status Pinned::MakeSlab(Waiter& waiter) {
  const Bytes bytes = waiter.ask.bytes.RoundUp(core::PinnedBooks::kPage);
  const Bytes size = books_.PlanSlab(waiter.user, waiter.pool, bytes);
  if (!hooks_.may_pin(waiter.client, bytes, size, {}).ok())
    hooks_.apply(core::PinnedWanted{waiter.client, size});
  if (Status room = hooks_.may_pin(waiter.client, bytes, size, {}); !room.ok()) {
    // One step at a time: what is on its way may do.
    if (books_.releasing() == 0 && unpinning_ == 0) MakeIdleMakeWay(waiter, bytes, size);
    return room;
  }
  const auto slab = books_.Add(waiter.user, waiter.pool, size);
  if (!slab) {
    return Error{ErrorCode::kOutOfMemory,
                 "pinned memory is exhausted: no addresses in one piece for a slab of " +
                     core::SizeText(size) + "; free pinned blocks"};
  }
  users_[slab->id] = waiter.user;
  waiter.slab = slab->id;
  ReportHeld(waiter.user);
  workers_->Run(waiter.user, [this, range = pools_[waiter.pool].range, slab = *slab] {
    Status made = range->Create(slab.id.offset, slab.bytes);
    mailbox_->Post([this, slab, made = std::move(made)] { SlabMade(slab, made); });
  });
  return core::Ok();
}

// The user's own first. None does for what would not fit after all.
void Pinned::MakeIdleMakeWay(const Waiter& waiter, Bytes bytes, Bytes size) {
  const auto sum = [](const std::vector<core::PinnedBooks::Slab>& slabs) {
    Bytes all;
    for (const auto& slab : slabs) all += slab.bytes;
    return all;
  };
  const auto own = books_.Idle(waiter.user);
  const auto others = books_.Idle(waiter.user, /*of_others=*/true);
  const core::CopyQuota::Idle without_own{sum(own), Bytes{0}};
  const core::CopyQuota::Idle without_all{sum(own), sum(others)};
  if (!hooks_.may_pin(waiter.client, bytes, size, without_all).ok()) return;
  for (const auto& slab : own) Release(slab.id);
  if (hooks_.may_pin(waiter.client, bytes, size, without_own).ok()) return;
  for (const auto& slab : others) Release(slab.id);
}

void Pinned::SlabMade(const core::PinnedBooks::Slab& slab, const Status& made) {
  const TenantId user = users_.at(slab.id);
  const auto waiter = std::find_if(waiting_.begin(), waiting_.end(),
                                   [&](const Waiter& one) { return one.slab == slab.id; });
  if (waiter != waiting_.end()) waiter->slab.reset();
  if (made.ok()) {
    books_.Ready(slab.id);
    if (!HasClients(user)) ReleaseIdle(user);  // the last one ended meanwhile
  } else {
    spdlog::warn("pinned memory: a slab of {} was not pinned: {}", core::SizeText(slab.bytes),
                 core::Describe(made.error()));
    books_.Failed(slab.id);
    users_.erase(slab.id);
    ReportHeld(user);
    if (waiter != waiting_.end()) {
      waiter->failed =
          Error{made.error().code, "pinned memory is exhausted: the system pins no more than the " +
                                       core::SizeText(HeldByAll()) +
                                       " of pinned blocks: " + made.error().message};
    }
  }
  Serve();
}

bool Pinned::HasClients(TenantId user) const {
  return std::any_of(clients_.begin(), clients_.end(), [user](const auto& client) {
    return client.second.attachment->tenant == user;
  });
}

bool Pinned::MayGetRoom(const Waiter& waiter) const {
  if (unpinning_ > 0 || books_.releasing() > 0 || hooks_.has_unread(waiter.client)) return true;
  return std::any_of(clients_.begin(), clients_.end(), [&](const auto& client) {
    return client.second.attachment->tenant == waiter.user && !client.second.ending.empty();
  });
}

void Pinned::SendSlabs(const Client& client, uint32_t pool, Bytes offset, Bytes bytes) {
  const ClientId id = client.attachment->id;
  for (const auto& slab : books_.AddNotified(id, pool, offset, bytes)) {
    workers_->Run(client.attachment->tenant, [this, range = pools_[pool].range, id, slab] {
      auto descriptor = range->Export(slab.id.offset);
      if (descriptor.ok()) {
        return hooks_.slab_ready(std::make_shared<PinnedSlabForClient>(
            PinnedSlabForClient{id, slab.id, slab.bytes, *std::move(descriptor)}));
      }
      spdlog::warn("client {}: a slab of pinned memory was not handed over: {}", ToInt(id),
                   core::Describe(descriptor.error()));
      // The next block there tries again.
      mailbox_->Post([this, id, slab] {
        if (books_.RemoveNotified(id, slab.id)) Remove(slab.id);
      });
    });
  }
}

void Pinned::Free(ClientId id, uint64_t block, const std::vector<proto::WordValue>& tickets) {
  const auto found = clients_.find(id);
  if (found == clients_.end()) return;
  Client& client = found->second;
  const auto waiter = std::find_if(waiting_.begin(), waiting_.end(), [&](const Waiter& one) {
    return one.client == id && one.ask.block == block;
  });
  if (waiter != waiting_.end()) {
    hooks_.refund(id, kBlockMemory);
    waiting_.erase(waiter);
    return;
  }
  if (!books_.Has({id, block}) || client.ending.contains(block)) return;
  std::vector<proto::WordValue> open;
  std::copy_if(tickets.begin(), tickets.end(), std::back_inserter(open),
               [&](auto ticket) { return !Reached(*client.attachment->segment.get(), ticket); });
  if (!open.empty()) {
    const Status charged = hooks_.charge(id, kEndingMemory + open.size() * TicketQueues::kMemory);
    if (!charged.ok()) return hooks_.expel(id, charged.error().message);
    const bool awaited = !client.tickets.empty();
    for (const proto::WordValue ticket : open)
      client.tickets.Push(ticket, core::TensorId{block}, 0);
    awaiting_ += !awaited && !client.tickets.empty();
    client.ending[block] = static_cast<uint32_t>(open.size());
    return;
  }
  End(id, block);
  Serve();
}

void Pinned::End(ClientId client, uint64_t block) {
  RAVEN_CHECK(books_.Free({client, block}));
  hooks_.refund(client, kBlockMemory);
  ReportUsed(client);
}

bool Pinned::SlabReleased(ClientId client, PinnedSlabId slab) {
  if (!books_.Unmapped(slab, client)) return false;
  if (books_.IsUnmapped(slab)) Remove(slab);
  return true;
}

void Pinned::RemoveClient(ClientId id) {
  const auto found = clients_.find(id);
  if (found == clients_.end()) return;
  const TenantId user = found->second.attachment->tenant;
  awaiting_ -= !found->second.tickets.empty();
  std::erase_if(waiting_, [id](const Waiter& waiter) { return waiter.client == id; });
  clients_.erase(found);
  for (const PinnedSlabId slab : books_.RemoveClient(id)) Remove(slab);
  // The user has no client left that its slabs could serve.
  if (!HasClients(user)) ReleaseIdle(user);
  Serve();
}

void Pinned::ReleaseIdle(std::optional<TenantId> user) {
  std::vector<core::PinnedBooks::Slab> idle =
      user ? books_.Idle(*user) : books_.Idle(core::TenantId{~0u}, /*of_others=*/true);
  for (const auto& slab : idle) Release(slab.id);
}

void Pinned::Release(PinnedSlabId slab) {
  for (const ClientId client : books_.Release(slab)) hooks_.release_slab(client, slab);
  if (books_.IsUnmapped(slab)) Remove(slab);
}

void Pinned::Remove(PinnedSlabId slab) {
  const TenantId user = users_.at(slab);
  workers_->Run(user, [this, range = pools_[slab.pool].range, slab, user] {
    if (const Status unmapped = range->Unmap(slab.offset); !unmapped.ok()) {
      spdlog::error("a slab of pinned memory was not given back: {}",
                    core::Describe(unmapped.error()));
      mailbox_->Post([this, slab] {
        books_.NotRemoved(slab);
        Serve();
      });
      return;
    }
    mailbox_->Post([this, slab, user] {
      books_.Removed(slab);
      users_.erase(slab);
      ReportHeld(user);
      Serve();
    });
  });
}

void Pinned::EndUnpin() {
  --unpinning_;
  Serve();
}

bool Pinned::Poll(Tick now) {
  bool busy = false;
  if (awaiting_ > 0) {
    for (auto& [id, client] : clients_) {
      if (client.tickets.empty()) continue;
      const size_t before = client.tickets.size();
      client.tickets.Poll(*client.attachment->segment.get(), kTicketsPerPoll,
                          [&, id = id, ending = &client.ending](const auto& reached) {
                            busy = true;
                            const auto block = ending->find(ToInt(reached.tensor));
                            if (block == ending->end() || --block->second > 0) return;
                            ending->erase(block);
                            hooks_.refund(id, kEndingMemory);
                            End(id, ToInt(reached.tensor));
                          });
      hooks_.refund(id, (before - client.tickets.size()) * TicketQueues::kMemory);
      awaiting_ -= client.tickets.empty();
    }
  }
  if (!waiting_.empty() && (busy || now >= NextWake())) Serve();
  return busy;
}

Tick Pinned::NextWake() const {
  return waiting_.empty() ? core::kNever : served_at_ + kServePeriod;
}

Bytes Pinned::HeldByAll() const {
  return books_.HeldByAll();
}

void Pinned::ReportHeld(TenantId user) {
  hooks_.apply(core::PinnedHeld{user, books_.Held(user)});
}

void Pinned::ReportUsed(ClientId client) {
  hooks_.apply(core::PinnedUsed{client, books_.Used(client)});
}

}  // namespace ravenstore::daemon
