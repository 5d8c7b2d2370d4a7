// A piece that a home holds in other nodes' memory, and the table of all of these pieces.
//
// The home, its transfers (piece_transfers.h) and its repairs (piece_repairs.h) share the table.
// Owns: records and checksums; the loans are Loans'. Threads: one, the transport's. Units: granules
// in a repair, else as the names say. Errors: none. Cost: O(log pieces).
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <vector>

#include "cluster/granule_sums.h"
#include "cluster/ids.h"
#include "cluster/loan.h"
#include "core/types.h"

namespace ravenstore::cluster {

struct PieceCopy {
  Loan* loan = nullptr;
  SlotRef slot;
  core::Tick recalled_until = core::kNever;  // kNever: not recalled
  bool IsRecalled() const { return recalled_until != core::kNever; }
};

// A piece's copy to another lender.
struct PieceRepair {
  uint64_t number = 0;  // of the repair: calls of an earlier one have another
  core::Tick deadline{};
  core::Tick step_at{};  // kNever: it waits for a lender, or for the end of a write
  bool calls = false;    // a call is under way
  PieceCopy target = {};
  size_t granule = 0;  // all before it are copied
  size_t end = 0;      // and those before it are under way
  size_t source = 0;   // which copy is read
  // Shared with the call that uses it, which may outlive the repair.
  std::shared_ptr<std::vector<std::byte>> buffer = {};
};

struct HeldPiece {
  std::vector<PieceCopy> copies = {};
  GranuleSums sums;
  std::set<uint64_t> operations = {};  // of its transfers
  bool leaving = false;                // it is to be emptied, and refuses writes
  bool corrupt = false;                // and that was reported
  core::Tick repair_at{};
  uint32_t repairs_failed = 0;
  std::optional<PieceRepair> repair = {};

  // Copies whose slots are not recalled.
  uint32_t Staying() const {
    return static_cast<uint32_t>(
        std::ranges::count_if(copies, [](const PieceCopy& copy) { return !copy.IsRecalled(); }));
  }
};

struct HeldPieces {
  // Null: it is not held.
  HeldPiece* Find(PieceId id) {
    const auto found = all.find(id);
    return found == all.end() ? nullptr : &found->second;
  }

  std::map<PieceId, HeldPiece> all;
  std::set<PieceId> unsettled;  // those of them that have, or may have, too few copies that stay
};

}  // namespace ravenstore::cluster
