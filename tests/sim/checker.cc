#include "tests/sim/checker.h"

#include <algorithm>
#include <utility>
#include <variant>

#include "tests/core/rates.h"

namespace ravenstore::sim {

using core::Bytes;
using core::Duration;
using core::Tick;
using std::chrono::microseconds;

namespace {

constexpr core::DeviceId kDevice{0};
constexpr Bytes kGranularity = core::MiB(2);
constexpr double kBytesPerSecond = 50e9;
// Adding up every row at every event is for small traces.
constexpr uint64_t kLedgersEvery = 8;

core::PlannerOptions OptionsOf(const Checker::Setting& setting) {
  core::PlannerOptions options;
  options.policy = setting.policy;
  options.learn = setting.learn;
  options.prefetch = setting.prefetch;
  options.preclean = setting.preclean;
  options.slab = setting.slab;
  options.granularity = kGranularity;
  options.device_capacity = {setting.budget};
  options.arena = {setting.budget * 2};
  options.host_capacity = setting.host_budget;
  options.topology = core::DevicesAtRate(options, kBytesPerSecond);
  return options;
}

}  // namespace

Checker::Checker(const Trace& trace, const Setting& setting)
    : trace_(trace),
      setting_(setting),
      planner_(OptionsOf(setting)),
      random_(setting.seed),
      rows_(trace.tensors.size()),
      clients_(trace.clients) {
  for (uint32_t i = 0; i < trace.ops.size(); ++i) {
    clients_[trace.ops[i].client].program.push_back(i);
  }
}

void Checker::Expect(bool good, const std::string& what) {
  if (good || !wrong_.empty()) return;
  wrong_ = what + " (event " + std::to_string(counts_.events) + ")";
}

Duration Checker::Jitter(Duration around) {
  return around / 2 + around * static_cast<int64_t>(random_() % 1000) / 1000;
}

// ---- Time.

std::string Checker::Run() {
  for (uint32_t i = 0; i < clients_.size(); ++i) {
    const core::TenantId tenant{i + 1};
    const core::Budgets budgets{setting_.budget, setting_.host_budget};
    Tell(core::TenantLimits{tenant, budgets});
    Tell(core::ClientAttached{IdOf(i), tenant, budgets});
    clients_[i].ready = now_;
  }
  const auto done = [](const Client& one) { return one.next >= one.program.size(); };
  while (wrong_.empty() && !std::all_of(clients_.begin(), clients_.end(), done)) Step();
  // What is still under way comes to its end.
  while (wrong_.empty() && !(up_.empty() && down_.empty() && later_.empty())) Step();
  if (wrong_.empty()) CheckEnd();
  return wrong_;
}

// Whatever is due first.
void Checker::Step() {
  Tick first = planner_.NextWake();
  uint32_t runs = kNone;
  for (uint32_t i = 0; i < clients_.size(); ++i) {
    const Client& client = clients_[i];
    if (client.waits || client.next >= client.program.size() || client.ready > first) continue;
    first = client.ready;
    runs = i;
  }
  std::deque<Job>* lane = nullptr;
  for (std::deque<Job>* one : {&up_, &down_}) {
    if (!one->empty() && one->front().end <= first) {
      first = one->front().end;
      lane = one;
    }
  }
  for (const Later& one : later_) {
    if (one.at <= first) {
      first = one.at;
      lane = nullptr;
      runs = kNone;
    }
  }
  if (first == core::kNever) {
    return Expect(false, "somebody waits, and nothing is under way that could end it");
  }
  now_ = std::max(now_, first);
  const bool reports = std::any_of(later_.begin(), later_.end(),
                                   [this](const Later& one) { return one.at <= now_; });
  if (reports) return ReportLater();
  if (lane != nullptr) return EndCopy(lane);
  if (runs != kNone) return Advance(runs);
  Tell(core::TimePassed{});
  Expect(planner_.NextWake() > now_, "it wants to be woken at once, for ever");
}

void Checker::ReportLater() {
  const auto due = std::find_if(later_.begin(), later_.end(),
                                [this](const Later& one) { return one.at <= now_; });
  const core::Event event = due->event;
  later_.erase(due);
  if (const auto* added = std::get_if<core::SlabAdded>(&event)) {
    clients_[core::ToInt(added->client) - 1].slabs[added->offset] = added->size;
  }
  if (const auto* removed = std::get_if<core::SlabRemoved>(&event)) {
    Client& client = clients_[core::ToInt(removed->client) - 1];
    client.held -= client.vanishing.at(removed->offset);
    client.vanishing.erase(removed->offset);
  }
  Tell(event);
}

// ---- The clients.

void Checker::Advance(uint32_t index) {
  Client& client = clients_[index];
  const Op& op = trace_.ops[client.program[client.next]];
  if (op.kind == OpKind::kCreate || op.kind == OpKind::kGet) return Ask(index, op);
  ++client.next;
  Perform(index, op);
}

void Checker::Ask(uint32_t index, const Op& op) {
  Client& client = clients_[index];
  Row& row = rows_[op.tensor];
  if (op.kind == OpKind::kGet) {
    ++row.uses;
    if (row.state == State::kIdle || row.state == State::kLeaving) {
      row.state = State::kInUse;
      ++client.next;
      return Tell(core::GetSeen{row.id});
    }
    Expect(row.state == State::kAway, "a get of what is neither here nor away");
    row.state = State::kFetching;
    client.waits = true;
    return Tell(core::FetchRequested{row.id, kDevice, core::kNever});
  }
  if (client.free_slots.empty()) {
    client.free_slots.push_back(core::SlotId{static_cast<uint32_t>(client.row_of_slot.size())});
    client.row_of_slot.push_back(kNone);
  }
  row.slot = client.free_slots.back();
  client.free_slots.pop_back();
  client.row_of_slot[core::ToInt(row.slot)] = op.tensor;
  row.state = State::kAsked;
  client.waits = true;
  const TraceTensor& tensor = trace_.tensors[op.tensor];
  const core::NameId name =
      tensor.name.empty()
          ? core::kNoName
          : names_.emplace(tensor.name, core::NameId{static_cast<uint32_t>(names_.size() + 1)})
                .first->second;
  Tell(core::CreateRequested{IdOf(index), row.slot, tensor.bytes, kDevice, name, core::kNever,
                             false});
}

void Checker::Perform(uint32_t index, const Op& op) {
  if (op.kind == OpKind::kStep) return Tell(core::StepMarked{IdOf(index)});
  if (op.kind == OpKind::kCompute) {
    clients_[index].ready = now_ + op.time;
    return;
  }
  Row& row = rows_[op.tensor];
  if (op.kind == OpKind::kFree) {
    row.state = State::kFreed;
    return Tell(core::Freed{row.id});
  }
  if (op.modified) ++row.writes;
  row.state = State::kIdle;
  row.recompute = op.recompute;
  core::NextUse next = op.next_use;
  if (next.kind == core::NextUse::Kind::kAt) next.at = now_ + next.at.time_since_epoch();
  Tell(core::PutSeen{row.id, row.writes, next, op.recompute, op.priority});
  Tell(core::StreamComplete{row.id});
}

void Checker::Resume(uint32_t row, Duration more) {
  Client& client = ClientOf(row);
  Expect(client.waits, "an answer to who does not wait");
  Expect(trace_.ops[client.program[client.next]].tensor == row, "an answer about another tensor");
  client.waits = false;
  ++client.next;
  client.ready = now_ + more;
}

// ---- The executor.

void Checker::Tell(const core::Event& event) {
  pending_events_.push_back(event);
  while (!pending_events_.empty() && wrong_.empty()) {
    const core::Event next = std::move(pending_events_.front());
    pending_events_.pop_front();
    core::Plan plan;
    planner_.Apply(next, now_, &plan);
    ++counts_.events;
    for (const core::Action& action : plan) {
      std::visit([this](const auto& one) { Do(one); }, action);
    }
  }
  if (wrong_.empty()) CheckLedgers();
}

void Checker::Do(const core::AddSlab& action) {
  Client& client = clients_[core::ToInt(action.client) - 1];
  const Bytes end = action.offset + action.size;
  Expect(end <= setting_.budget * 2, "a slab beyond the arena");
  for (const auto* slabs : {&client.slabs, &client.vanishing}) {
    for (const auto& [offset, size] : *slabs) {
      Expect(end <= offset || offset + size <= action.offset, "slabs overlap");
    }
  }
  client.held += action.size;
  Bytes all;
  for (const Client& one : clients_) all += one.held;
  Expect(client.held <= setting_.budget, "a client above its budget");
  Expect(all <= setting_.budget, "the device above its capacity");
  ++counts_.slabs;
  later_.push_back({now_ + Jitter(microseconds(100)),
                    core::SlabAdded{action.client, action.device, action.offset, action.size}});
}

void Checker::Do(const core::RemoveSlab& action) {
  Client& client = clients_[core::ToInt(action.client) - 1];
  const auto slab = client.slabs.find(action.offset);
  if (slab == client.slabs.end()) return Expect(false, "a slab removed that is not there");
  for (const auto& [offset, row] : client.places) {
    const bool apart = offset + SizeOf(row) <= slab->first || slab->first + slab->second <= offset;
    Expect(apart, "a slab removed that a tensor lives in");
  }
  client.vanishing.insert(*slab);
  client.slabs.erase(slab);
  later_.push_back({now_ + Jitter(microseconds(100)),
                    core::SlabRemoved{action.client, action.device, action.offset}});
}

void Checker::Do(const core::GrowPool& action) {
  Expect(action.offset == host_end_, "the host pool grows with a gap");
  host_end_ = action.offset + action.size;
  Expect(host_end_ <= setting_.host_budget, "the host pool beyond its capacity");
  later_.push_back(
      {now_ + Jitter(microseconds(100)), core::PoolGrown{action.pool, action.offset, action.size}});
}

void Checker::Do(const core::AllocReply& action) {
  const uint32_t index =
      clients_[core::ToInt(action.client) - 1].row_of_slot.at(core::ToInt(action.slot));
  Row& row = rows_[index];
  Expect(row.state == State::kAsked, "a grant that nobody asked for");
  row.id = action.tensor;
  row.state = State::kInUse;
  rows_by_id_[action.tensor] = index;
  Place(index, action.offset);
  Resume(index);
}

void Checker::Do(const core::FetchReply& action) {
  const uint32_t index = RowOf(action.tensor);
  Row& row = rows_[index];
  Expect(row.state == State::kFetching, "a promise that nobody waits for");
  row.state = State::kInUse;
  if (action.recompute) {
    Expect(row.recompute > Duration{0}, "bytes discarded that cannot be recomputed");
    Expect(!action.arriving, "bytes that are given up and arrive");
    Place(index, action.offset);
    return Resume(index, row.recompute);
  }
  Expect(row.is_placed && row.offset == action.offset, "a promise of another place");
  Expect(row.copying == action.arriving, "a promise that no copy keeps");
  if (!action.arriving) return Resume(index);
  row.arriving = true;
}

void Checker::Do(const core::Release& action) {
  const uint32_t index = RowOf(action.tensor);
  Row& row = rows_[index];
  Expect(row.state == State::kFreed, "a release of what was not freed");
  Expect(!row.copying, "a release while a copy is under way");
  if (row.is_placed) Unplace(index);
  ClientOf(index).free_slots.push_back(action.slot);
  rows_by_id_.erase(action.tensor);
}

void Checker::Do(const core::Drop& action) {
  const uint32_t index = RowOf(action.tensor);
  Row& row = rows_[index];
  Expect(row.state == State::kIdle, "a drop of what is in use or gone");
  Expect(!row.copying, "a drop while a copy is under way");
  row.state = State::kAway;
  Unplace(index);
  ++counts_.drops;
  pending_events_.push_back(core::Dropped{action.tensor, true});
}

void Checker::Do(const core::Move& action) {
  const uint32_t index = RowOf(action.tensor);
  if (action.to.pool == core::PoolOf(kDevice)) return BeginArrival(index, action);
  BeginLeave(index, action);
}

void Checker::BeginLeave(uint32_t index, const core::Move& action) {
  Row& row = rows_[index];
  Expect(row.state == State::kIdle, "a copy out of what is in use or gone");
  Expect(row.offset == action.from.offset, "a copy from another place");
  Expect(action.to.offset + action.size <= host_end_, "a copy beyond the host pool");
  if (action.source == core::Move::Source::kStays) return Submit(&down_, Kind::kClean, index);
  row.state = State::kLeaving;
  Submit(&down_, Kind::kOut, index);
  if (action.source == core::Move::Source::kLeavesIrrevocably) LeaveIrrevocably(row);
}

void Checker::BeginArrival(uint32_t index, const core::Move& action) {
  const State state = rows_[index].state;
  Expect(state == State::kAway || state == State::kFetching, "a copy in of what is here");
  Expect(action.demand == (state == State::kFetching), "a demand that nobody made, or the reverse");
  Place(index, action.to.offset);
  Submit(&up_, Kind::kIn, index);
}

void Checker::Do(const core::Prioritize& action) {
  const uint32_t row = RowOf(action.tensor);
  const bool cleaned = std::any_of(down_.begin(), down_.end(), [row](const Job& job) {
    return job.row == row && job.kind == Kind::kClean;
  });
  Expect(cleaned || !rows_[row].copying, "a hurry of what is not being cleaned");
  if (!action.irrevocable || rows_[row].state != State::kIdle) return;
  for (Job& job : down_) {
    if (job.row != row || rows_[row].uses != job.uses) continue;
    job.kind = Kind::kOut;
    LeaveIrrevocably(rows_[row]);
  }
}

void Checker::LeaveIrrevocably(Row& row) {
  row.state = State::kAway;
  row.irrevocable = true;
  pending_events_.push_back(core::MoveProgressed{row.id, Bytes{0}});
}

void Checker::Submit(std::deque<Job>* lane, Kind kind, uint32_t row) {
  Expect(!rows_[row].copying, "two copies of a tensor at once");
  rows_[row].copying = true;
  ++counts_.copies_begun;
  const double seconds = static_cast<double>(SizeOf(row).count()) / kBytesPerSecond;
  const Tick begin = lane->empty() ? now_ : std::max(now_, lane->back().end);
  const Duration takes = microseconds(5) + std::chrono::duration_cast<Duration>(
                                               std::chrono::duration<double>(seconds));
  lane->push_back({kind, row, begin + Jitter(takes), rows_[row].uses});
}

void Checker::EndCopy(std::deque<Job>* lane) {
  const Job job = lane->front();
  lane->pop_front();
  Row& row = rows_[job.row];
  Expect(row.copying, "a copy that ends twice");
  row.copying = false;
  const bool untouched = row.uses == job.uses;
  bool whole = true;
  using Outcome = core::Moved::Outcome;
  switch (job.kind) {
    case Kind::kOut:
      whole = std::exchange(row.irrevocable, false) || (row.state == State::kLeaving && untouched);
      if (row.state == State::kLeaving && whole) row.state = State::kAway;
      if (whole) Unplace(job.row);
      Tell(core::Moved{row.id, whole ? Outcome::kDone : Outcome::kRescued});
      break;
    case Kind::kClean:
      whole = row.state == State::kIdle && untouched;
      Tell(core::Moved{row.id, whole ? Outcome::kDone : Outcome::kRescued});
      break;
    case Kind::kIn:
      if (row.state == State::kAway) row.state = State::kIdle;
      Tell(core::Moved{row.id, Outcome::kDone});
      if (std::exchange(row.arriving, false)) Resume(job.row);
      break;
  }
  ++(whole ? counts_.copies_whole : counts_.copies_cancelled);
}

void Checker::Place(uint32_t index, Bytes offset) {
  Row& row = rows_[index];
  Client& client = ClientOf(index);
  Expect(!row.is_placed, "a tensor in two places");
  const Bytes end = offset + SizeOf(index);
  const auto after = client.places.lower_bound(offset);
  if (after != client.places.end()) Expect(end <= after->first, "two tensors overlap");
  if (after != client.places.begin()) {
    const auto before = std::prev(after);
    Expect(before->first + SizeOf(before->second) <= offset, "two tensors overlap");
  }
  // Slabs follow each other without gaps under it.
  Bytes covered = offset;
  auto slab = client.slabs.upper_bound(offset);
  if (slab != client.slabs.begin()) --slab;
  for (; slab != client.slabs.end() && slab->first <= covered && covered < end; ++slab) {
    covered = std::max(covered, slab->first + slab->second);
  }
  Expect(end <= covered, "a tensor where there is no memory");
  client.places[offset] = index;
  row.offset = offset;
  row.is_placed = true;
}

void Checker::Unplace(uint32_t index) {
  Expect(rows_[index].is_placed, "a tensor that leaves where it is not");
  ClientOf(index).places.erase(rows_[index].offset);
  rows_[index].is_placed = false;
}

// ---- The ledgers.

void Checker::CheckLedgers() {
  if (counts_.events % kLedgersEvery != 0) return;
  planner_.CheckInvariants();
  Bytes held;
  Bytes used;
  Bytes host;
  for (uint32_t i = 0; i < clients_.size(); ++i) {
    const core::ClientView view = planner_.View(IdOf(i));
    Bytes placed;
    for (const auto& [offset, row] : clients_[i].places) placed += SizeOf(row);
    Expect(view.device_held == clients_[i].held, "a client's slabs are miscounted");
    Expect(view.device_used == placed, "a client's device bytes are miscounted");
    Expect(view.in_use <= view.device_used, "more in use than there is");
    Expect(view.host_used <= setting_.host_budget, "a client above its host budget");
    held += view.device_held;
    used += view.device_used;
    host += view.host_used;
  }
  const core::TierView device = planner_.DeviceTier(kDevice);
  Expect(device.held == held, "the device's ledger is not the sum of its clients'");
  Expect(device.used == used, "the device's bytes are not the sum of its clients'");
  Expect(device.held <= setting_.budget, "the device above its capacity");
  Expect(planner_.HostTier().used == host, "the host's ledger is not the sum of its clients'");
}

void Checker::CheckEnd() {
  Expect(counts_.copies_begun == counts_.copies_whole + counts_.copies_cancelled,
         "a copy without an end");
  planner_.CheckInvariants();
  for (uint32_t i = 0; i < clients_.size(); ++i) {
    const core::ClientView view = planner_.View(IdOf(i));
    Expect(view.tensors == 0, "tensors are left");
    Expect(view.device_used == Bytes(0), "device bytes are left");
    Expect(view.host_used == Bytes(0), "host bytes are left");
    Expect(view.in_use == Bytes(0), "bytes in use are left");
    Expect(view.waiting == 0, "requests are left");
  }
}

}  // namespace ravenstore::sim
