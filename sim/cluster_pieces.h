// The pieces of other nodes' memory that one node of a simulated cluster holds, and which granules
// of them are in use.
//
// A piece grows, is held, and may be wanted back by its lender: it then leaves, and what is in use
// there stays until it is freed.
//
// Owns: the counts. Units: granules. Threads: one at a time. Errors: none; misuse is a broken
// invariant. Cost: O(pieces + granules) for Take, O(log pieces) otherwise.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "cluster/ids.h"

namespace ravenstore::sim {

class ClusterPieces {
 public:
  // Consecutive granules of one piece.
  struct Run {
    cluster::PieceId piece{};
    uint32_t first = 0;
    uint32_t count = 0;
  };

  explicit ClusterPieces(uint32_t granules_per_piece) : granules_(granules_per_piece) {}

  // ---- Pieces.
  // A piece that was neither held nor growing grows.
  cluster::PieceId StartGrowth();
  void FinishGrowth(cluster::PieceId piece, bool ok);
  // It is wanted back, or stays after all. It may be growing: the end of that is reported later.
  void SetLeaves(cluster::PieceId piece, bool leaves);
  // It is not held any more. Runs in it are not freed.
  void Remove(cluster::PieceId piece);
  bool Leaves(cluster::PieceId piece) const;
  bool AnyLeaves() const { return leaving_ > 0; }
  // In which nothing is in use, and that leaves as said.
  std::optional<cluster::PieceId> FindEmpty(bool leaves) const;
  uint32_t staying() const { return static_cast<uint32_t>(held_.size()) - leaving_; }
  uint32_t growing() const { return static_cast<uint32_t>(growing_.size()); }
  // All that are held or grow.
  uint32_t all() const { return static_cast<uint32_t>(held_.size()) + growing(); }

  // ---- Granules.
  // Free ones of pieces that stay.
  uint32_t FreeGranules() const;
  // REQUIRES: there are that number of free ones.
  std::vector<Run> Take(uint32_t granules);
  void Free(const std::vector<Run>& runs);

 private:
  struct Piece {
    std::vector<bool> used;  // by granule
    uint32_t in_use = 0;
    bool leaves = false;
  };

  const uint32_t granules_;
  std::map<cluster::PieceId, Piece> held_;
  uint32_t leaving_ = 0;  // of held_
  // By what it does when its growth has ended.
  enum class Growth : uint8_t { kStays, kLeaves, kIsLost };
  std::map<cluster::PieceId, Growth> growing_;
};

}  // namespace ravenstore::sim
