// The client of a simulated home: it grows, writes, reads and frees at random, and knows what
// each granule must hold.
//
// Threads: one. Owns: the buffers of what is under way.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <vector>

#include "cluster/home.h"
#include "core/types.h"
#include "sim/cluster_ledger.h"
#include "sim/cluster_member.h"

namespace ravenstore::sim {

class ClusterClient final : public ClusterUser {
 public:
  struct Options {
    cluster::Sizes sizes;
    uint32_t pieces = 0;
    bool rots = false;  // bytes change in lent memory, so that kCorrupt is right
    std::function<core::Tick()> now;
    // Whether what is read just now comes of a loan that has expired.
    std::function<bool()> is_late;
  };

  ClusterClient(Options options, cluster::Home* home, std::mt19937_64* random,
                LenderLedger::Violation violation, ClusterCounts* counts);

  // One operation, if one can begin.
  void Act();
  void OnPieceRecalled(cluster::PieceId piece) override;
  void OnPieceKept(cluster::PieceId piece) override;
  void OnPieceLost(cluster::PieceId piece) override;
  void OnPiecesMost(uint32_t) override {}
  // Counts what should have ended before `now`.
  void CheckDeadlines(core::Tick now);
  // Its home ends: nothing is begun any more, and later callbacks mean nothing.
  void Close() { closed_ = true; }

  // At the end, when nothing is wrong any more: everything is given back, and then one piece must
  // be grown, written and read by that instant. Is called again and again until then.
  void ReturnAll();
  void BeginLast(core::Tick deadline);
  bool last_succeeded() const { return last_succeeded_; }

 private:
  enum class Kind : uint8_t { kGrow, kWrite, kRead };
  enum class State : uint8_t { kNone, kGrowing, kHeld, kLeaving };
  struct Granule {
    uint64_t seed = 0;    // of its content; 0: undefined
    uint32_t length = 0;  // of what was written
    uint32_t reads = 0;   // under way
    bool written = false;
  };
  struct Piece {
    State state = State::kNone;
    uint64_t grown = 0;  // how often, so that what ends late is known as such
    std::vector<Granule> granules;
  };
  struct Operation {
    Kind kind;
    uint32_t piece = 0;
    uint64_t grown = 0;
    size_t granule = 0;
    std::vector<Granule> content = {};
    std::shared_ptr<std::vector<std::byte>> buffer = {};
    core::Tick deadline{};
    bool last = false;
  };

  uint64_t Random(uint64_t below) { return (*random_)() % below; }
  core::Tick Deadline();
  void Grow(uint32_t piece, core::Tick deadline, bool last);
  void Write(uint32_t piece);
  void Read(uint32_t piece);
  void Start(Operation operation);
  void Give(uint32_t piece);
  void Done(uint64_t id, const core::Status& status);
  void GrowDone(const Operation& operation, const core::Status& status);
  void WriteDone(const Operation& operation, const core::Status& status);
  void ReadDone(const Operation& operation, const core::Status& status);
  void Last(const Operation& operation, const core::Status& status);

  const Options options_;
  cluster::Home* const home_;
  std::mt19937_64* const random_;
  const LenderLedger::Violation violation_;
  ClusterCounts* const counts_;
  bool closed_ = false;
  bool last_succeeded_ = false;
  std::vector<Piece> pieces_;
  uint64_t last_operation_ = 0;
  std::map<uint64_t, Operation> operations_;
  std::vector<std::shared_ptr<std::vector<std::byte>>> kept_;
};

}  // namespace ravenstore::sim
