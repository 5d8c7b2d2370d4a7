// The jobs of one node of a simulated cluster, and the planner that says where their tensors lie:
// on a device, in the host pool, and beyond those in other nodes' memory.
//
// The planner is the daemon's. What executes its plans is a model: leases change hands at once,
// bytes go between device and host at a fixed rate, and to and from other nodes by the home's own
// reads and writes. A job creates its tensors one after the other, then uses one after the other,
// of which half write, until it ends. What was lost it creates anew.
//
// One byte in a piece stands for `scale` bytes of a tensor, so that a large cluster fits into one
// process. Each granule holds which tensor's it is, and which version: what is read is compared.
//
// Threads: one, the node's. Owns: the planner. Units: bytes of tensors, but for `sizes`.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <unordered_map>
#include <vector>

#include "cluster/home.h"
#include "core/planner.h"
#include "core/types.h"
#include "sim/cluster_member.h"

namespace ravenstore::sim {

class ClusterJobs final : public ClusterUser {
 public:
  struct Options {
    cluster::Sizes sizes = {};  // as the node has them: scaled
    uint64_t scale = 1;
    core::Bytes device;
    core::Bytes host;
    core::Bytes remote;                                    // at most, whole pieces
    core::Duration between_uses{std::chrono::seconds(5)};  // of one job, on average
    std::function<core::Tick()> now;
  };
  // In all.
  struct Counts {
    uint64_t jobs = 0;
    uint64_t created = 0;  // tensors
    uint64_t used = 0;
    uint64_t lost = 0;
    uint64_t refused = 0;  // creates and uses that found no room, or not in time
    uint64_t wrong = 0;    // reads of bytes that were not written there
    Counts& operator+=(const Counts& other);
  };

  ClusterJobs(Options options, cluster::Home* home, std::mt19937_64* random);
  ~ClusterJobs() override;

  // A job with tensors of these sizes, which are whole granules, begins now and ends at `end`.
  void Begin(const std::vector<core::Bytes>& tensors, core::Tick end);
  void Advance();
  core::Tick Next() const;

  // What all jobs have, or will have once it is created, beyond device and host pool.
  core::Bytes wanted() const;
  // What of it has a valid copy in other nodes' memory: no more than is wanted.
  core::Bytes useful() const;
  // Tensors that have a copy there.
  uint64_t RemoteTensors() const;
  const Counts& counts() const { return counts_; }

  // ClusterUser.
  void OnPieceRecalled(cluster::PieceId piece) override;
  void OnPieceKept(cluster::PieceId piece) override;
  void OnPieceLost(cluster::PieceId piece) override;
  void OnPiecesMost(uint32_t pieces) override;

 private:
  enum class State : uint8_t {
    kNone,
    kCreating,
    kInUse,
    kIdle,
    kLeaving,
    kAway,
    kFetching,
    kFreed
  };
  struct Row {
    core::TensorId id{};
    core::Bytes size;
    State state = State::kNone;
    bool arriving = false;  // its fetch is answered, and its copy is not there yet
    uint64_t uses = 0;
    uint32_t writes = 0;
    std::array<uint32_t, 3> versions = {};  // of its bytes, by pool
  };
  struct Job {
    std::vector<Row> rows;          // by slot
    size_t created = 0;             // from here on none was asked for
    std::set<size_t> missing = {};  // of those before, to be created anew
    size_t turn = 0;                // which is used next
    core::Bytes size;
  };
  struct UnderWay {
    core::Move move;
    uint64_t uses = 0;  // the row's when it began
    uint32_t version = 0;
    core::Bytes done = {};
    std::vector<std::byte> buffer = {};  // of the part that is under way to or from other nodes
  };

  static core::PlannerOptions MakeOptions(const Options& options);
  core::Tick NextWake() const;
  void At(core::Tick when, std::function<void()> what) { later_.emplace(when, std::move(what)); }
  core::Tick Soon();
  Row* Find(core::TensorId tensor);
  Row* Find(core::ClientId client, core::SlotId slot);

  // Jobs.
  void End(core::ClientId client);
  void Act(core::ClientId client);
  void ActSoon(core::ClientId client);
  void Use(core::ClientId client, Row* row);
  void Put(Row* row);
  void Lost(core::TensorId tensor);

  // Takes the event to the planner and does what it proposes, and what that leads to.
  void Tell(core::Event event);
  void Do(const core::AddSlab& action);
  void Do(const core::RemoveSlab& action);
  void Do(const core::GrowPool& action);
  void Do(const core::ShrinkPool& action);
  void Do(const core::AllocReply& action);
  void Do(const core::AllocError& action);
  void Do(const core::FetchReply& action);
  void Do(const core::FetchError& action);
  void Do(const core::Release& action);
  void Do(const core::Drop& action);
  void Do(const core::Move& action);
  void Do(const core::Prioritize&) {}
  void Do(const core::ReclaimPinned&) {}
  void Do(const core::DeferDestroy&) {}

  // Of a move to or from other nodes: its next part.
  void Transfer(core::TensorId tensor);
  void Transferred(core::TensorId tensor, const core::Status& status);
  void MoveEnded(core::TensorId tensor, bool done);
  core::Moved::Outcome LeaveEnded(Row* row, const UnderWay& ended, bool done);
  void Fill(const UnderWay& move, std::vector<std::byte>* buffer) const;

  const Options options_;
  cluster::Home& home_;
  std::mt19937_64& random_;
  core::Planner planner_;
  std::vector<core::Event> events_;  // to be told
  bool telling_ = false;
  core::Tick passed_{};  // when it was last told that time passed
  uint32_t last_client_ = 0;
  std::map<core::ClientId, Job> jobs_;
  struct RowName {
    core::ClientId client;
    core::SlotId slot;
  };
  std::unordered_map<core::TensorId, RowName> rows_;
  std::unordered_map<core::TensorId, UnderWay> moves_;
  core::Bytes size_;  // of all jobs
  std::multimap<core::Tick, std::function<void()>> later_;
  Counts counts_;
};

}  // namespace ravenstore::sim
