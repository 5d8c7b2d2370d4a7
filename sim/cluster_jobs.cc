#include "sim/cluster_jobs.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>
#include <variant>

#include "core/check.h"
#include "core/topology.h"

namespace ravenstore::sim {
namespace {

using cluster::PieceId;
using core::Bytes;
using core::ClientId;
using core::SlotId;
using core::Status;
using core::TensorId;
using core::Tick;

constexpr core::DeviceId kDevice{0};
constexpr core::PoolId kDevicePool = core::PoolOf(kDevice);
constexpr core::PoolId kRemotePool{2};
constexpr core::TenantId kTenant{1};
// Between device and host.
constexpr double kHostRate = 20e9;
// As the daemon supposes before it has measured.
constexpr double kNetworkRate = 1.1e9;
constexpr core::Duration kNetworkLatency = std::chrono::microseconds(200);
// Of a request of a job, of a piece that is borrowed, and of one transfer.
constexpr core::Duration kTimeout = std::chrono::seconds(30);
constexpr core::Duration kRetry = std::chrono::seconds(1);
// At most so often the planner is told that time passed: requests that wait are looked at again
// each time.
constexpr core::Duration kWakeEvery = std::chrono::milliseconds(50);

core::Topology MakeTopology(const ClusterJobs::Options& options) {
  const Bytes piece = options.sizes.piece * options.scale;
  std::vector<core::Pool> pools = {
      {core::PoolKind::kHost, 0, options.host, core::kExtentAlignment},
      {core::PoolKind::kDevice, 0, options.device, core::MiB(2), /*addressable=*/true},
      {core::PoolKind::kRemote, 0, options.remote, options.sizes.granule * options.scale,
       /*addressable=*/false, piece}};
  std::vector<core::Link> links = {
      {core::kHostPool, kDevicePool, std::chrono::microseconds(12), kHostRate, kHostRate},
      {core::kHostPool, kRemotePool, kNetworkLatency, kNetworkRate, kNetworkRate}};
  return core::Topology::Make(std::move(pools), std::move(links), core::MiB(16)).value();
}

}  // namespace

ClusterJobs::Counts& ClusterJobs::Counts::operator+=(const Counts& other) {
  jobs += other.jobs;
  created += other.created;
  used += other.used;
  lost += other.lost;
  refused += other.refused;
  wrong += other.wrong;
  return *this;
}

core::PlannerOptions ClusterJobs::MakeOptions(const Options& options) {
  core::PlannerOptions planner;
  planner.device_capacity = {options.device};
  planner.arena = {core::ArenaFor(options.device)};
  planner.host_capacity = options.host;
  planner.host_step = options.host;
  planner.topology = MakeTopology(options);
  planner.incremental_from = core::kRangeMax;
  return planner;
}

ClusterJobs::ClusterJobs(Options options, cluster::Home* home, std::mt19937_64* random)
    : options_(std::move(options)),
      home_(*home),
      random_(*random),
      planner_(MakeOptions(options_)) {
  Tell(core::TenantLimits{kTenant, {options_.device, options_.host}});
}

ClusterJobs::~ClusterJobs() = default;

Tick ClusterJobs::Soon() {
  const double gap = -std::log(1 - static_cast<double>(random_() % (1 << 20)) / (1 << 20));
  return options_.now() + core::FromSeconds(core::Seconds(options_.between_uses) * gap);
}

ClusterJobs::Row* ClusterJobs::Find(ClientId client, SlotId slot) {
  const auto job = jobs_.find(client);
  return job == jobs_.end() ? nullptr : &job->second.rows[core::ToInt(slot)];
}

ClusterJobs::Row* ClusterJobs::Find(TensorId tensor) {
  const auto name = rows_.find(tensor);
  return name == rows_.end() ? nullptr : Find(name->second.client, name->second.slot);
}

Bytes ClusterJobs::wanted() const {
  return core::Minus(size_, options_.device + options_.host);
}

Bytes ClusterJobs::useful() const {
  Bytes valid = planner_.OtherTier(kRemotePool).used;
  for (const auto& [tensor, under_way] : moves_) {
    if (under_way.move.to.pool == kRemotePool) valid = core::Minus(valid, under_way.move.size);
  }
  return std::min(wanted(), valid);
}

uint64_t ClusterJobs::RemoteTensors() const {
  return static_cast<uint64_t>(std::ranges::count_if(rows_, [this](const auto& row) {
    if (!planner_.Knows(row.first)) return false;
    const core::TensorView view = planner_.View(row.first);
    return view.has_copy && view.away == kRemotePool;
  }));
}

// ---- Jobs

void ClusterJobs::Begin(const std::vector<Bytes>& tensors, Tick end) {
  const ClientId client{++last_client_};
  Job& job = jobs_[client];
  for (const Bytes size : tensors) {
    job.rows.push_back({.size = size});
    job.size += size;
  }
  size_ += job.size;
  ++counts_.jobs;
  Tell(core::ClientAttached{client, kTenant, {options_.device, options_.host}});
  At(end, [this, client] { End(client); });
  ActSoon(client);
}

void ClusterJobs::End(ClientId client) {
  const auto job = jobs_.extract(client);
  size_ -= job.mapped().size;
  for (const Row& row : job.mapped().rows) rows_.erase(row.id);
  Tell(core::ClientGone{client});
}

void ClusterJobs::ActSoon(ClientId client) {
  At(options_.now(), [this, client] { Act(client); });
}

// Its next create or use; what comes of that goes on from there.
void ClusterJobs::Act(ClientId client) {
  const auto found = jobs_.find(client);
  if (found == jobs_.end()) return;
  Job& job = found->second;
  if (job.missing.empty() && job.created == job.rows.size()) {
    Row& row = job.rows[job.turn];
    job.turn = (job.turn + 1) % job.rows.size();
    return Use(client, &row);
  }
  size_t slot = job.created;
  if (job.missing.empty()) {
    ++job.created;
  } else {
    slot = job.missing.extract(job.missing.begin()).value();
  }
  Row& row = job.rows[slot];
  row = {.size = row.size, .state = State::kCreating};
  Tell(core::CreateRequested{client, SlotId{static_cast<uint32_t>(slot)}, row.size, kDevice,
                             core::kNoName, options_.now() + kTimeout, false});
}

void ClusterJobs::Use(ClientId client, Row* row) {
  ++row->uses;
  switch (row->state) {
    case State::kIdle:
    case State::kLeaving:
      row->state = State::kInUse;
      Tell(core::GetSeen{row->id});
      Put(row);
      At(Soon(), [this, client] { Act(client); });
      return;
    default: break;
  }
  RAVEN_CHECK(row->state == State::kAway);
  row->state = State::kFetching;
  Tell(core::FetchRequested{row->id, kDevice, options_.now() + kTimeout});
}

void ClusterJobs::Put(Row* row) {
  ++counts_.used;
  if (random_() % 2 == 0) ++row->writes;
  row->versions[core::ToInt(kDevicePool)] = row->writes;
  row->state = State::kIdle;
  const TensorId tensor = row->id;
  const uint32_t writes = row->writes;
  Tell(core::PutSeen{tensor, writes, {}});
  Tell(core::StreamComplete{tensor});
}

void ClusterJobs::Lost(TensorId tensor) {
  Row* const row = Find(tensor);
  if (row == nullptr) return;
  ++counts_.lost;
  row->state = State::kFreed;
  Tell(core::Freed{tensor});
}

// ---- Time

Tick ClusterJobs::NextWake() const {
  return std::max(planner_.NextWake(), passed_ + kWakeEvery);
}

Tick ClusterJobs::Next() const {
  const Tick wake = NextWake();
  return later_.empty() ? wake : std::min(wake, later_.begin()->first);
}

void ClusterJobs::Advance() {
  const Tick now = options_.now();
  while (!later_.empty() && later_.begin()->first <= now) {
    const auto what = later_.extract(later_.begin());
    what.mapped()();
  }
  if (NextWake() > now) return;
  passed_ = now;
  Tell(core::TimePassed{});
}

// ---- What the home tells

void ClusterJobs::OnPieceRecalled(PieceId piece) {
  Tell(
      core::ChunkRecalled{kRemotePool, options_.sizes.piece * options_.scale * core::ToInt(piece)});
}

void ClusterJobs::OnPieceKept(PieceId piece) {
  Tell(core::ChunkKept{kRemotePool, options_.sizes.piece * options_.scale * core::ToInt(piece)});
}

void ClusterJobs::OnPieceLost(PieceId piece) {
  Tell(core::ChunkLost{kRemotePool, options_.sizes.piece * options_.scale * core::ToInt(piece)});
}

void ClusterJobs::OnPiecesMost(uint32_t pieces) {
  Tell(core::PoolLimit{kRemotePool, options_.sizes.piece * options_.scale * pieces});
}

// ---- The planner

void ClusterJobs::Tell(core::Event event) {
  events_.push_back(std::move(event));
  if (std::exchange(telling_, true)) return;
  for (size_t i = 0; i < events_.size(); ++i) {
    core::Plan plan;
    planner_.Apply(core::Event(events_[i]), options_.now(), &plan);
    for (const core::Action& action : plan) {
      std::visit([this](const auto& one) { Do(one); }, action);
    }
  }
  events_.clear();
  telling_ = false;
}

void ClusterJobs::Do(const core::AddSlab& action) {
  Tell(core::SlabAdded{action.client, action.device, action.offset, action.size});
}

void ClusterJobs::Do(const core::RemoveSlab& action) {
  Tell(core::SlabRemoved{action.client, action.device, action.offset});
}

void ClusterJobs::Do(const core::GrowPool& action) {
  const core::PoolGrown grown{action.pool, action.offset, action.size};
  if (action.pool != kRemotePool) return Tell(grown);
  const Bytes piece = options_.sizes.piece * options_.scale;
  home_.Grow(PieceId{static_cast<uint32_t>(action.offset.count() / piece.count())},
             options_.now() + kTimeout, [this, grown](const Status& status) {
               if (status.ok()) return Tell(grown);
               Tell(core::PoolGrowFailed{grown.pool});
             });
}

void ClusterJobs::Do(const core::ShrinkPool& action) {
  RAVEN_CHECK(action.pool == kRemotePool);
  const Bytes piece = options_.sizes.piece * options_.scale;
  home_.Shrink(PieceId{static_cast<uint32_t>(action.offset.count() / piece.count())});
  Tell(core::PoolShrunk{action.pool, action.offset, action.size});
}

void ClusterJobs::Do(const core::AllocReply& action) {
  Row* const row = Find(action.client, action.slot);
  if (row == nullptr) return;
  ++counts_.created;
  row->id = action.tensor;
  row->state = State::kInUse;
  rows_[action.tensor] = {action.client, action.slot};
  Put(row);
  ActSoon(action.client);
}

void ClusterJobs::Do(const core::AllocError& action) {
  const auto job = jobs_.find(action.client);
  if (job == jobs_.end()) return;
  ++counts_.refused;
  job->second.rows[core::ToInt(action.slot)].state = State::kNone;
  job->second.missing.insert(core::ToInt(action.slot));
  At(options_.now() + kRetry, [this, client = action.client] { Act(client); });
}

void ClusterJobs::Do(const core::FetchReply& action) {
  Row* const row = Find(action.tensor);
  if (row == nullptr) return;
  row->state = State::kInUse;
  row->arriving = action.arriving;
  if (action.arriving) return;  // MoveEnded goes on
  Put(row);
  At(Soon(), [this, client = action.client] { Act(client); });
}

void ClusterJobs::Do(const core::FetchError& action) {
  Row* const row = Find(action.tensor);
  if (row == nullptr) return;
  if (action.error.code == core::ErrorCode::kLost) return Lost(action.tensor);
  ++counts_.refused;
  row->state = State::kAway;
  At(options_.now() + kRetry, [this, client = action.client] { Act(client); });
}

void ClusterJobs::Do(const core::Release& action) {
  const auto job = jobs_.find(action.client);
  if (job == jobs_.end()) return;
  rows_.erase(action.tensor);
  job->second.rows[core::ToInt(action.slot)].state = State::kNone;
  job->second.missing.insert(core::ToInt(action.slot));
  ActSoon(action.client);
}

void ClusterJobs::Do(const core::Drop& action) {
  Row* const row = Find(action.tensor);
  const bool taken = row != nullptr && row->state == State::kIdle;
  if (taken) row->state = State::kAway;
  Tell(core::Dropped{action.tensor, taken});
}

// ---- Moves

void ClusterJobs::Do(const core::Move& action) {
  Row* const row = Find(action.tensor);
  const bool leaves = action.from.pool == kDevicePool;
  if (row == nullptr || (leaves && row->state != State::kIdle)) {
    return Tell(core::Moved{action.tensor, core::Moved::Outcome::kNotBegun});
  }
  if (leaves && action.source != core::Move::Source::kStays) row->state = State::kLeaving;
  moves_.emplace(action.tensor, UnderWay{.move = action,
                                         .uses = row->uses,
                                         .version = row->versions[core::ToInt(action.from.pool)]});
  const TensorId tensor = action.tensor;
  if (action.from.pool == kRemotePool || action.to.pool == kRemotePool) return Transfer(tensor);
  const auto bytes = static_cast<double>(action.size.count());
  At(options_.now() + core::FromSeconds(bytes / kHostRate),
     [this, tensor] { MoveEnded(tensor, true); });
}

// Of each granule the first bytes: which tensor, which version, and which of its granules.
void ClusterJobs::Fill(const UnderWay& move, std::vector<std::byte>* buffer) const {
  const size_t granule = options_.sizes.granule.count();
  const uint64_t first = move.done.count() / options_.scale / granule;
  for (size_t at = 0; at < buffer->size(); at += granule) {
    const std::array<uint64_t, 2> words = {core::ToInt(move.move.tensor),
                                           uint64_t{move.version} << 32 | (first + at / granule)};
    std::memcpy(buffer->data() + at, words.data(), std::min(sizeof(words), granule));
  }
}

void ClusterJobs::Transfer(TensorId tensor) {
  UnderWay& under_way = moves_.at(tensor);
  const core::Move& move = under_way.move;
  const bool writes = move.to.pool == kRemotePool;
  const Bytes at = (writes ? move.to.offset : move.from.offset) + under_way.done;
  const Bytes piece = options_.sizes.piece * options_.scale;
  const Bytes length = std::min(move.size - under_way.done, at.RoundDown(piece) + piece - at);
  under_way.buffer.assign(length.count() / options_.scale, std::byte{});
  const Tick deadline = options_.now() + kTimeout;
  const Bytes offset(at.count() / options_.scale);
  const auto done = [this, tensor](const Status& status) { Transferred(tensor, status); };
  if (!writes) return home_.Read(offset, under_way.buffer, deadline, done);
  Fill(under_way, &under_way.buffer);
  home_.Write(offset, under_way.buffer, deadline, done);
}

void ClusterJobs::Transferred(TensorId tensor, const Status& status) {
  UnderWay& under_way = moves_.at(tensor);
  if (!status.ok()) return MoveEnded(tensor, false);
  if (under_way.move.from.pool == kRemotePool) {
    std::vector<std::byte> expected(under_way.buffer.size());
    Fill(under_way, &expected);
    if (expected != under_way.buffer) ++counts_.wrong;
  }
  under_way.done += Bytes(under_way.buffer.size()) * options_.scale;
  if (under_way.done < under_way.move.size) return Transfer(tensor);
  MoveEnded(tensor, true);
}

core::Moved::Outcome ClusterJobs::LeaveEnded(Row* row, const UnderWay& ended, bool done) {
  const bool stays = ended.move.source == core::Move::Source::kStays;
  const State expected = stays ? State::kIdle : State::kLeaving;
  if (row == nullptr || row->uses != ended.uses || row->state != expected) {
    return core::Moved::Outcome::kRescued;
  }
  if (!stays) row->state = done ? State::kAway : State::kIdle;
  return done ? core::Moved::Outcome::kDone : core::Moved::Outcome::kFailed;
}

void ClusterJobs::MoveEnded(TensorId tensor, bool done) {
  const UnderWay ended = std::move(moves_.extract(tensor).mapped());
  Row* row = Find(tensor);
  core::Moved moved{tensor, done ? core::Moved::Outcome::kDone : core::Moved::Outcome::kFailed};
  const bool arrives = ended.move.to.pool == kDevicePool;
  if (ended.move.from.pool == kDevicePool) moved.outcome = LeaveEnded(row, ended, done);
  if (row != nullptr && moved.outcome == core::Moved::Outcome::kDone) {
    row->versions[core::ToInt(ended.move.to.pool)] = ended.version;
    if (arrives && ended.version != row->writes) ++counts_.wrong;
    if (arrives && row->state == State::kAway) row->state = State::kIdle;
  }
  Tell(moved);
  row = Find(tensor);
  if (row == nullptr || !arrives || !std::exchange(row->arriving, false)) return;
  if (!done) return Lost(tensor);
  const ClientId client = rows_.at(tensor).client;
  Put(row);
  At(Soon(), [this, client] { Act(client); });
}

}  // namespace ravenstore::sim
