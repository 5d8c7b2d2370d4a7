// The jobs of one node of a simulated cluster. Their tensors are in the node's memory
// (sim/cluster_pages.h): on a device, in the host pool, and beyond those in other nodes' memory.
//
// All jobs of a node are one client of the product's core: one range of addresses, one executor.
// Nothing is known of their calls to come. A job creates its tensors one after the other, then uses
// one after the other, of which half write, until it ends. A tensor that it finds lost it creates
// again. A call that finds no room waits, and is refused after kTimeout.
//
// Threads: one, the node's. Owns: the node's memory. Units: bytes of tensors, but for `sizes`.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <random>
#include <set>
#include <unordered_map>
#include <vector>

#include "cluster/home.h"
#include "core/plan/places.h"
#include "core/types.h"
#include "sim/cluster_member.h"
#include "sim/cluster_pages.h"
#include "transport/event_queue.h"

namespace ravenstore::sim {

class ClusterJobs final : public ClusterUser {
 public:
  struct Options {
    ClusterMemory memory = {};
    core::Duration between_uses{std::chrono::seconds(5)};  // of one job, on average
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

  // A job with tensors of these sizes, which are whole granules, begins now and ends at `end`.
  void Begin(const std::vector<core::Bytes>& tensors, core::Tick end);
  void Advance();
  core::Tick Next() const;

  // The bytes that all jobs have, or will have when they are created, beyond device and host pool.
  core::Bytes wanted() const;
  // Those of them that have a valid copy in other nodes' memory: no more than are wanted.
  core::Bytes useful() const;
  // Tensors that have bytes there.
  uint64_t RemoteTensors() const;
  const Counts& counts() const { return counts_; }

  // ClusterUser.
  void OnPieceRecalled(cluster::PieceId piece) override;
  void OnPieceKept(cluster::PieceId piece) override;
  void OnPieceLost(cluster::PieceId piece) override;
  void OnPiecesMost(uint32_t pieces) override;

 private:
  using JobNumber = uint32_t;
  struct Row {
    enum class State : uint8_t { kNone, kPlaced, kLives, kLost };
    core::Bytes size;
    State state = State::kNone;
    core::TensorNumber tensor = 0;
    core::plan::Place place = {};
    uint32_t version = 0;
  };
  // A create or a use that has not ended.
  struct Call {
    uint64_t number = 0;
    size_t row = 0;
    bool pinned = false;  // the executor has it
  };
  struct Job {
    std::vector<Row> rows;
    size_t created = 0;             // from here on none was asked for
    std::set<size_t> missing = {};  // of those before, to be created again
    size_t turn = 0;                // which is used next
    core::Bytes size;
    std::optional<Call> call = {};
  };
  struct RowName {
    JobNumber job;
    size_t row;
  };

  core::Tick NextUse();

  // ---- Jobs.
  void End(JobNumber job);
  void Act(JobNumber job);
  void ActAt(core::Tick when, JobNumber job);
  // The row that the job creates or uses next.
  size_t NextRow(Job* job);
  void Place(JobNumber job, size_t row);
  void Remove(Row* row);

  // ---- Calls.
  // There is room for the call.
  bool MayPin(const Job& job) const;
  void Expire(JobNumber job, uint64_t call);
  void Granted(JobNumber job);
  void Refused(JobNumber job);
  // The bytes that the memory of all pools should hold soon.
  core::Bytes Needed() const;
  // Goes on until nothing is left to do now.
  void Run();
  void PinWaiting();
  void HandleEnds(const ClusterPages::Ends& ends);

  const Options options_;
  std::mt19937_64& random_;
  ClusterPages pages_;
  core::plan::Places places_;
  bool settling_ = false;
  bool changed_ = false;
  JobNumber last_job_ = 0;
  core::TensorNumber last_tensor_ = 0;
  uint64_t last_call_ = 0;
  std::map<JobNumber, Job> jobs_;
  std::vector<JobNumber> waiting_;  // for room
  std::unordered_map<core::TensorNumber, RowName> tensors_;
  core::Bytes size_;     // of all jobs
  core::Bytes created_;  // of these
  transport::EventQueue later_;
  Counts counts_;
};

}  // namespace ravenstore::sim
