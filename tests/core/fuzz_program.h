// Fuzz programs: what happens to a small node, as a value that can be replayed, shrunk and printed.
//
// An instruction names clients and tensors by labels that it or an earlier one gave, so that a
// program from which instructions were taken out still is a program: what can no longer be done is
// skipped.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tests/core/world.h"

namespace ravenstore::core {

// Sizes are bytes, times microseconds. The first group describes the node and comes first.
enum class Op : uint8_t {
  kSlabs,     // size of a slab
  kDevice,    // capacity, arena; one for each device, one of each size when there is none
  kHost,      // capacity, step, ahead
  kInFlight,  // bytes, copies
  kLink,      // bytes per second, as the planner reckons
  kPool,      // one more: a peer's, a file, harvested or lent by other nodes, capacity, bytes per
              // second in and out
  kHabits,    // prefetch, preclean, learn, policy, part of each pool that is guaranteed
  kLanes,     // entries of each log lane

  kTenant,        // tenant, device budget, host budget, device guarantee, weight or 0, priority
  kAttach,        // client, tenant, device budget, host budget
  kLimits,        // client, device budget, host budget
  kDeviceLimit,   // device, bytes
  kPoolLimit,     // its number among those that come and go, bytes
  kChunkGoes,     // the same, the chunk's number, whether it is recalled, lost or kept
  kPoolRate,      // its number among those of kPool, bytes per second
  kPoolFails,     // its number among those of kPool
  kTrim,          // client
  kPin,           // client, bytes of pinned memory, or 0: its tenant's goes back
  kKill,          // client
  kStep,          // client
  kCreate,        // tensor, client, size, device, timeout, fail fast
  kWrite,         // tensor
  kPut,           // tensor, kind of hint, its time from now or order, recompute, priority
  kGet,           // tensor, device, timeout
  kFree,          // tensor
  kRun,           // tensor: its stream runs
  kCopyEnds,      // tensor, whether it succeeds
  kSlabEnds,      // index among the slab jobs, whether it succeeds
  kReadLog,       // client, entries
  kReadRequests,  // client, requests
  kReadTickets,   //
  kPass,          // time
  kQuiesce,       // all work ends, everything is read back and freed; nothing may be left over
};

struct Instruction {
  static constexpr size_t kOperands = 6;
  Op op;
  std::array<int64_t, kOperands> operands{};
  bool operator==(const Instruction&) const = default;
};
using Program = std::vector<Instruction>;

// Executes a program; a broken contract of the planner ends the process.
class FuzzProgram {
 public:
  // Looks at the first instructions of `program`, up to the first that describes no node.
  explicit FuzzProgram(const Program& program, std::function<void(const std::string&)> trace = {});

  // Skipped when it cannot be done; of those that describe the node only the constructor knows.
  void Do(const Instruction& instruction);

  const World& world() const { return *world_; }
  const PlannerStats& stats() const { return world_->planner().stats(); }
  size_t devices() const { return capacities_.size(); }
  // REQUIRES: the handle or client is one that an instruction made.
  int64_t LabelOf(Handle handle) const { return tensor_labels_.at(handle); }
  int64_t LabelOf(ClientId client) const { return client_labels_.at(client); }

 private:
  using Operands = std::array<int64_t, Instruction::kOperands>;

  bool HasDevice(int64_t device) const;
  std::optional<ClientId> Client(int64_t label) const;  // none: unknown or gone
  std::optional<Handle> Tensor(int64_t label) const;    // none: unknown, its row is another's, gone
  void DoForNode(Op op, const Operands& with);
  void DoForClient(Op op, ClientId client, const Operands& with);
  void DoForTensor(Op op, Handle handle, const Operands& with);
  void TakeChunk(const Operands& with);
  void Create(const Operands& with);
  void EndCopy(int64_t label, bool ok);
  void EndSlab(int64_t index, bool ok);
  void Quiesce();
  void RunToIdle();
  void ReadBack(Handle handle);
  void ExpectRoomFor(ClientId client);

  std::unique_ptr<World> world_;
  std::vector<Bytes> capacities_;
  Topology topology_;
  std::vector<PoolId> others_;   // pools beside devices and host
  std::vector<PoolId> chunked_;  // those of them that come and go
  std::map<int64_t, ClientId> clients_;
  std::map<ClientId, int64_t> client_labels_;
  std::map<int64_t, Handle> tensors_;
  std::map<Handle, int64_t> tensor_labels_;  // of a row used again, the last tensor's
  std::map<int64_t, Budgets> tenants_;
};

// The whole of it.
void Play(const Program& program);

// ---- For the shrinker.

// Instructions that do less, or do it more plainly; nearest to plain first.
std::vector<Instruction> Simpler(const Instruction& instruction);
// The same with labels from 1 on in the order in which they come up.
Program Relabelled(const Program& program);

// As source: `{Op::kPut, {3, 1}}`, and the list of them that Play takes.
std::string Describe(const Instruction& instruction);
std::string Describe(const Program& program);

}  // namespace ravenstore::core
