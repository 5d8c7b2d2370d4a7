#include "tests/core/fuzz_program.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "core/check.h"
#include "tests/core/rates.h"

namespace ravenstore::core {

using proto::LeaseState;
using std::chrono::microseconds;
using std::chrono::milliseconds;

namespace {

constexpr Bytes kUnit = kExtentAlignment;
constexpr Bytes kGranularity = kUnit * 4;

Bytes Size(int64_t operand, Bytes unit) {
  return Bytes(static_cast<uint64_t>(std::max<int64_t>(operand, 1))).RoundUp(unit);
}

Bytes Count(int64_t operand) {
  return Bytes(static_cast<uint64_t>(std::max<int64_t>(operand, 0)));
}

size_t Number(int64_t operand) {
  return static_cast<size_t>(std::max<int64_t>(operand, 1));
}

Budgets BudgetsOf(int64_t device, int64_t host) {
  return {Count(device), Count(host)};
}

// 0: the normal one, as it is where nothing is said.
TenantPriority PriorityOf(int64_t priority) {
  if (priority == 0) return TenantPriority::kNormal;
  return priority == 1 ? TenantPriority::kLow : TenantPriority::kHigh;
}

NextUse HintOf(int64_t kind, int64_t value, Tick now) {
  switch (static_cast<NextUse::Kind>(kind)) {
    case NextUse::Kind::kAt: return {NextUse::Kind::kAt, now + microseconds(value), 0};
    case NextUse::Kind::kOrder: return {NextUse::Kind::kOrder, {}, value};
    case NextUse::Kind::kNever: return {NextUse::Kind::kNever, {}, 0};
    default: return {};
  }
}

bool DescribesTheNode(Op op) {
  return op <= Op::kLanes;
}

// Without a word about it the node is roomy, its planner does nothing ahead and its logs are long.
void Describe(const Instruction& instruction, World::Options* options) {
  PlannerOptions& planner = options->planner;
  const auto& with = instruction.operands;
  switch (instruction.op) {
    case Op::kSlabs:
      planner.slab = Bytes(std::bit_ceil(Size(with[0], kGranularity).count()));
      break;
    case Op::kDevice:
      planner.device_capacity.push_back(Size(with[0], kGranularity));
      planner.arena.push_back(Size(with[1], kGranularity));
      break;
    case Op::kHost:
      planner.host_capacity = Size(with[0], kUnit);
      planner.host_step = Size(with[1], kUnit);
      planner.host_ahead = Count(with[2]).RoundUp(kUnit);
      break;
    case Op::kInFlight:
      planner.in_flight = Size(with[0], kUnit);
      planner.in_flight_copies = static_cast<uint32_t>(Number(with[1]));
      break;
    case Op::kHabits:
      planner.prefetch = with[0] != 0;
      planner.preclean = with[1] != 0;
      planner.learn = with[2] != 0;
      planner.policy = static_cast<Policy>(with[3]);
      planner.guaranteed_part = Count(with[4]).count();
      break;
    case Op::kLanes: options->lane_entries = Number(with[0]); break;
    default: break;
  }
}

World::Options OptionsOf(const Program& program) {
  World::Options options;
  PlannerOptions& planner = options.planner;
  planner.slab = kUnit * 8;
  planner.granularity = kGranularity;
  planner.host_capacity = KiB(1024);
  planner.host_step = kUnit * 16;
  planner.host_ahead = Bytes(0);
  planner.in_flight = KiB(256);
  planner.incremental_from = kUnit * 4;
  planner.forgotten_per_pass = 2;
  planner.prefetch = planner.preclean = planner.learn = false;
  double rate = 100e6;
  std::vector<OtherPool> others;
  uint16_t harvested = 0;
  for (const Instruction& instruction : program) {
    if (!DescribesTheNode(instruction.op)) break;
    Describe(instruction, &options);
    if (instruction.op == Op::kLink) {
      rate = static_cast<double>(std::max<size_t>(Number(instruction.operands[0]), 1));
    }
    const auto& with = instruction.operands;
    if (instruction.op == Op::kPool) {
      others.push_back({with[0] == 1   ? PoolKind::kFile
                        : with[0] == 3 ? PoolKind::kRemote
                                       : PoolKind::kPeer,
                        Size(with[1], kUnit), static_cast<double>(Number(with[2])),
                        static_cast<double>(Number(with[3]))});
      others.back().chunk = kUnit * 16;
      // Of each device once; what is more than that is of fixed size.
      if (with[0] == 2 && harvested < planner.device_capacity.size())
        others.back().harvest_of = harvested++;
    }
  }
  if (planner.device_capacity.empty()) {
    planner.device_capacity = {KiB(32)};
    planner.arena = {KiB(64)};
  }
  planner.topology = WithPools(DevicesAtRate(planner, rate), others);
  return options;
}

}  // namespace

FuzzProgram::FuzzProgram(const Program& program, std::function<void(const std::string&)> trace) {
  World::Options options = OptionsOf(program);
  options.trace = std::move(trace);
  capacities_ = options.planner.device_capacity;
  topology_ = options.planner.topology;
  for (size_t i = 1 + capacities_.size(); i < topology_.pools().size(); ++i)
    others_.push_back(PoolId{static_cast<uint16_t>(i)});
  for (const PoolId pool : others_) {
    if (topology_.pools()[ToInt(pool)].chunk > Bytes{0}) chunked_.push_back(pool);
  }
  world_ = std::make_unique<World>(std::move(options));
}

bool FuzzProgram::HasDevice(int64_t device) const {
  return device >= 0 && std::cmp_less(device, capacities_.size());
}

std::optional<ClientId> FuzzProgram::Client(int64_t label) const {
  const auto found = clients_.find(label);
  if (found == clients_.end()) return std::nullopt;
  const auto alive = world_->Clients();
  if (std::find(alive.begin(), alive.end(), found->second) == alive.end()) return std::nullopt;
  return found->second;
}

std::optional<Handle> FuzzProgram::Tensor(int64_t label) const {
  const auto found = tensors_.find(label);
  if (found == tensors_.end() || tensor_labels_.at(found->second) != label) return std::nullopt;
  const auto client = client_labels_.find(found->second.client);
  if (client == client_labels_.end() || !Client(client->second)) return std::nullopt;
  if (world_->StateOf(found->second) == LeaseState::kFree) return std::nullopt;
  return found->second;
}

void FuzzProgram::Do(const Instruction& instruction) {
  const Op op = instruction.op;
  const auto& with = instruction.operands;
  switch (op) {
    case Op::kLimits:
    case Op::kTrim:
    case Op::kPin:
    case Op::kKill:
    case Op::kStep:
    case Op::kReadLog:
    case Op::kReadRequests:
      if (const auto client = Client(with[0])) DoForClient(op, *client, with);
      return;
    case Op::kWrite:
    case Op::kPut:
    case Op::kGet:
    case Op::kFree:
    case Op::kRun:
      if (const auto handle = Tensor(with[0])) DoForTensor(op, *handle, with);
      return;
    default: DoForNode(op, with);
  }
}

void FuzzProgram::DoForNode(Op op, const Operands& with) {
  switch (op) {
    case Op::kTenant:
      tenants_[with[0]] = BudgetsOf(with[1], with[2]);
      tenants_[with[0]].device_guarantee = Count(with[3]);
      if (with[4] > 0) tenants_[with[0]].weight = static_cast<uint32_t>(with[4]);
      tenants_[with[0]].priority = PriorityOf(with[5]);
      return world_->SetTenant(TenantId{static_cast<uint32_t>(with[0])}, tenants_[with[0]]);
    case Op::kAttach: {
      if (clients_.contains(with[0]) || !tenants_.contains(with[1])) return;
      const TenantId tenant{static_cast<uint32_t>(with[1])};
      const ClientId client = world_->Attach(tenant, BudgetsOf(with[2], with[3]));
      clients_[with[0]] = client;
      client_labels_[client] = with[0];
      return;
    }
    case Op::kDeviceLimit:
      if (!HasDevice(with[0])) return;
      return world_->SetDevice(DeviceId{static_cast<uint16_t>(with[0])}, Count(with[1]));
    case Op::kPoolLimit:
      if (with[0] < 0 || !std::cmp_less(with[0], chunked_.size())) return;
      return world_->SetPool(chunked_[static_cast<size_t>(with[0])], Count(with[1]));
    case Op::kChunkGoes: return TakeChunk(with);
    case Op::kPoolRate:
      if (with[0] < 0 || !std::cmp_less(with[0], others_.size())) return;
      return world_->SetPoolRate(others_[static_cast<size_t>(with[0])],
                                 static_cast<double>(Number(with[1])));
    case Op::kPoolFails:
      if (with[0] < 0 || !std::cmp_less(with[0], others_.size())) return;
      return world_->FailPool(others_[static_cast<size_t>(with[0])]);
    case Op::kCreate: return Create(with);
    case Op::kCopyEnds: return EndCopy(with[0], with[1] != 0);
    case Op::kSlabEnds: return EndSlab(with[0], with[1] != 0);
    case Op::kReadTickets: return world_->PollTickets();
    case Op::kPass: return world_->Advance(microseconds(std::max<int64_t>(with[0], 0)));
    case Op::kQuiesce: return Quiesce();
    default: return;
  }
}

// Nobody recalls a part of what is harvested: its owner lowers the limit.
void FuzzProgram::TakeChunk(const Operands& with) {
  if (with[0] < 0 || !std::cmp_less(with[0], chunked_.size())) return;
  const PoolId pool = chunked_[static_cast<size_t>(with[0])];
  const Pool& kind = topology_.pools()[ToInt(pool)];
  const Bytes offset = kind.chunk * Count(with[1]).count();
  if (kind.kind != PoolKind::kRemote || offset + kind.chunk > kind.capacity) return;
  switch (with[2]) {
    case 0: return world_->RecallChunk(pool, offset);
    case 1: return world_->LoseChunk(pool, offset);
    default: return world_->KeepChunk(pool, offset);
  }
}

void FuzzProgram::DoForClient(Op op, ClientId client, const Operands& with) {
  switch (op) {
    case Op::kLimits: return world_->SetClient(client, BudgetsOf(with[1], with[2]));
    case Op::kTrim: return world_->Trim(client);
    case Op::kPin: return world_->Pin(client, Bytes(Number(with[1])));
    case Op::kKill: return world_->Kill(client);
    case Op::kStep: return world_->Step(client);
    case Op::kReadLog: return world_->PollLog(client, Number(with[1]));
    case Op::kReadRequests: return world_->PollRequests(client, Number(with[1]));
    default: return;
  }
}

void FuzzProgram::DoForTensor(Op op, Handle handle, const Operands& with) {
  const bool in_use = world_->StateOf(handle) == LeaseState::kInUse;
  switch (op) {
    case Op::kWrite:
      if (in_use) world_->Write(handle);
      return;
    case Op::kPut:
      if (!in_use) return;
      return world_->Put(handle, HintOf(with[1], with[2], world_->now()), microseconds(with[3]),
                         static_cast<Priority>(std::clamp<int64_t>(with[4], 0, 2)));
    case Op::kGet:
      if (!HasDevice(with[1])) return;
      world_->Get(handle, DeviceId{static_cast<uint16_t>(with[1])}, microseconds(with[2]));
      return;
    case Op::kFree: world_->Free(handle); return;
    case Op::kRun: return world_->RunStream(handle);
    default: return;
  }
}

void FuzzProgram::Create(const Operands& with) {
  const auto client = Client(with[1]);
  if (!client || tensors_.contains(with[0]) || !HasDevice(with[3])) return;
  const Handle handle =
      world_->Create(*client, Count(with[2]), DeviceId{static_cast<uint16_t>(with[3])},
                     microseconds(with[4]), with[5] == 1, with[5] == 2);
  tensors_[with[0]] = handle;
  tensor_labels_[handle] = with[0];
}

// Also one of a client that is gone.
void FuzzProgram::EndCopy(int64_t label, bool ok) {
  const auto& copies = world_->copies();
  for (size_t i = 0; i < copies.size(); ++i) {
    if (tensor_labels_.at(copies[i].handle) == label) return world_->FinishCopy(i, ok);
  }
}

// What could not be destroyed would be gone for good, and with it what quiesce promises.
void FuzzProgram::EndSlab(int64_t index, bool ok) {
  const auto& jobs = world_->slab_jobs();
  if (index < 0 || !std::cmp_less(index, jobs.size())) return;
  const auto job = static_cast<size_t>(index);
  world_->FinishSlab(job, ok || jobs[job].kind == World::SlabJob::Kind::kPoolShrinks);
}

// ---- The end of a life.

void FuzzProgram::Quiesce() {
  world_->UnpinAll();
  for (size_t i = 0; i < capacities_.size(); ++i) {
    world_->SetDevice(DeviceId{static_cast<uint16_t>(i)}, capacities_[i]);
  }
  // What one is guaranteed others may wait for in vain.
  for (auto& [label, budgets] : tenants_) {
    budgets.device_guarantee = Bytes{0};
    world_->SetTenant(TenantId{static_cast<uint32_t>(label)}, budgets);
  }
  RunToIdle();
  for (const ClientId client : world_->Clients()) {
    for (const Handle handle : world_->Handles(client)) ReadBack(handle);
  }
  for (const ClientId client : world_->Clients()) {
    for (const Handle handle : world_->Handles(client)) RAVEN_CHECK(world_->Free(handle));
  }
  RunToIdle();
  for (const ClientId client : world_->Clients()) {
    RAVEN_CHECK(world_->Handles(client).empty());
    const ClientView view = world_->planner().View(client);
    RAVEN_CHECK(view.tensors == 0);
    RAVEN_CHECK(view.host_used == Bytes(0));
    RAVEN_CHECK(view.device_used == Bytes(0));
    RAVEN_CHECK(view.in_use == Bytes(0));
  }
  RAVEN_CHECK(world_->planner().HostTier().used == Bytes(0));
  for (const PoolId pool : others_) RAVEN_CHECK(world_->planner().OtherTier(pool).used == Bytes(0));
  for (const ClientId client : world_->Clients()) ExpectRoomFor(client);
}

// Nothing fails any more, and everything under way ends.
void FuzzProgram::RunToIdle() {
  for (int round = 0; round < 60; ++round) {
    while (!world_->slab_jobs().empty()) world_->FinishSlab(0, true);
    while (!world_->copies().empty()) world_->FinishCopy(0, true);
    for (const ClientId client : world_->Clients()) {
      for (const Handle handle : world_->Handles(client)) {
        if (world_->StateOf(handle) == LeaseState::kInUse) {
          world_->RunStream(handle);
          world_->Put(handle, {});
        }
        world_->RunStream(handle);
      }
    }
    world_->PollAll();
    world_->Advance(milliseconds(25));
  }
  RAVEN_CHECK(world_->planner().stats().waiting == 0);
}

void FuzzProgram::ReadBack(Handle handle) {
  if (world_->StateOf(handle) == LeaseState::kLost) return;
  RAVEN_CHECK(world_->Get(handle, world_->DeviceOf(handle), milliseconds(20)));
  for (int round = 0; round < 30 && world_->StateOf(handle) != LeaseState::kInUse; ++round) {
    world_->PollAll();
    while (!world_->slab_jobs().empty()) world_->FinishSlab(0, true);
    while (!world_->copies().empty()) world_->FinishCopy(0, true);
    world_->Advance(milliseconds(1));
  }
  while (!world_->copies().empty()) world_->FinishCopy(0, true);
  // It may be denied (the host may have no room for those that make way), but not lost.
  if (world_->StateOf(handle) == LeaseState::kInUse) {
    world_->RunStream(handle);
    world_->Put(handle, {});
  }
  world_->PollAll();
}

// With nothing left in the store, a client within its budgets gets room.
void FuzzProgram::ExpectRoomFor(ClientId client) {
  if (world_->planner().View(client).budgets.device < kGranularity) return;
  const Handle handle = world_->Create(client, kUnit, DeviceId{0}, milliseconds(500));
  for (int round = 0; round < 300; ++round) {
    world_->PollAll();
    if (world_->AnswerOf(handle) != World::Answer::kWaiting) break;
    while (!world_->slab_jobs().empty()) world_->FinishSlab(0, true);
    world_->Advance(milliseconds(1));
  }
  RAVEN_CHECK(world_->AnswerOf(handle) == World::Answer::kGranted);
  world_->Free(handle);
  world_->RunStream(handle);
  world_->PollAll();
}

void Play(const Program& program) {
  FuzzProgram fuzz(program);
  for (const Instruction& instruction : program) fuzz.Do(instruction);
}

}  // namespace ravenstore::core
