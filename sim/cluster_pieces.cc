#include "sim/cluster_pieces.h"

#include <utility>

#include "core/check.h"

namespace ravenstore::sim {

using cluster::PieceId;

PieceId ClusterPieces::StartGrowth() {
  PieceId piece{0};
  while (held_.count(piece) > 0 || growing_.count(piece) > 0)
    piece = PieceId{core::ToInt(piece) + 1};
  growing_[piece] = Growth::kStays;
  return piece;
}

void ClusterPieces::FinishGrowth(PieceId piece, bool ok) {
  const auto growth = growing_.extract(piece);
  RAVEN_CHECK(!growth.empty());
  if (!ok || growth.mapped() == Growth::kIsLost) return;
  held_[piece] = {.used = std::vector<bool>(granules_)};
  SetLeaves(piece, growth.mapped() == Growth::kLeaves);
}

void ClusterPieces::Remove(PieceId piece) {
  SetLeaves(piece, false);
  held_.erase(piece);
  if (const auto growth = growing_.find(piece); growth != growing_.end())
    growth->second = Growth::kIsLost;
}

void ClusterPieces::SetLeaves(PieceId piece, bool leaves) {
  const auto found = held_.find(piece);
  if (found != held_.end() && std::exchange(found->second.leaves, leaves) != leaves)
    leaving_ += leaves ? 1 : -1;
  const auto growth = growing_.find(piece);
  if (growth != growing_.end() && growth->second != Growth::kIsLost)
    growth->second = leaves ? Growth::kLeaves : Growth::kStays;
}

bool ClusterPieces::Leaves(PieceId piece) const {
  const auto found = held_.find(piece);
  return found != held_.end() && found->second.leaves;
}

std::optional<PieceId> ClusterPieces::FindEmpty(bool leaves) const {
  for (const auto& [id, piece] : held_) {
    if (piece.in_use == 0 && piece.leaves == leaves) return id;
  }
  return std::nullopt;
}

uint32_t ClusterPieces::FreeGranules() const {
  uint32_t free = 0;
  for (const auto& [id, piece] : held_) free += piece.leaves ? 0 : granules_ - piece.in_use;
  return free;
}

std::vector<ClusterPieces::Run> ClusterPieces::Take(uint32_t granules) {
  std::vector<Run> runs;
  for (auto& [id, piece] : held_) {
    if (piece.leaves || piece.in_use == granules_) continue;
    for (uint32_t i = 0; i < granules_ && granules > 0; ++i) {
      if (piece.used[i]) continue;
      piece.used[i] = true;
      ++piece.in_use;
      --granules;
      const bool goes_on =
          !runs.empty() && runs.back().piece == id && runs.back().first + runs.back().count == i;
      if (goes_on) {
        ++runs.back().count;
      } else {
        runs.push_back({id, i, 1});
      }
    }
    if (granules == 0) return runs;
  }
  RAVEN_CHECK(granules == 0);
  return runs;
}

void ClusterPieces::Free(const std::vector<Run>& runs) {
  for (const Run& run : runs) {
    const auto found = held_.find(run.piece);
    if (found == held_.end()) continue;
    for (uint32_t i = run.first; i < run.first + run.count; ++i) found->second.used[i] = false;
    found->second.in_use -= run.count;
  }
}

}  // namespace ravenstore::sim
