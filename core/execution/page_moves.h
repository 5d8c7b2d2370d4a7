// The moves beneath a client's tensors on one device: a mapper, and a link in each direction to
// each pool of copies.
//
// Start() begins what there is to do: each engine asks core/plan/move_chooser.h for the next unit.
// Mapping overlaps with copying. The backend limits the maps under way (PageBackend::MapsMost). A
// unit leaves only after the lease words of all tensors in it are revoked; the client may have used
// one since, and the unit then stays.
//
// Owns: nothing but what is under way; the books, the words and the backend are its owner's and
// outlive it. Units: bytes, positions. Threads: one at a time; the same calls have the same result.
// Cost: O(log units + tensors of the unit) a move.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/books/page_books.h"
#include "core/execution/page_backend.h"
#include "core/execution/tensor_words.h"
#include "core/plan/move_chooser.h"
#include "core/plan/units.h"

namespace ravenstore::core {

class PageMoves {
 public:
  struct Stats {
    Bytes in;
    Bytes out;
    uint64_t maps = 0;  // that took calls of the driver
    uint64_t emergencies = 0;
    uint64_t exchanges = 0;
    uint64_t not_revoked = 0;     // units that stayed because the client was faster
    uint64_t dropped_copies = 0;  // because their memory was needed
    uint64_t to_slots = 0;        // tensors that left away pages for slots
    uint64_t discarded = 0;       // tensors that ended because they can be recomputed

    void Add(const Stats& other);
  };

  PageMoves(PageBackend* backend, PageBooks* books, PageTensors* tensors, TensorWords* words);

  const Stats& stats() const { return stats_; }
  // Begins what there is to do; without `maps_ahead` no unit comes that no call waits for. Returns
  // true if a unit for which a call waited has become resident since the last time.
  bool Start(bool maps_ahead);
  // No mapping and no copy is under way.
  bool IsQuiet() const { return mapping_ == 0 && under_way_ == 0; }

  // ---- The backend has ended a move.
  void Mapped(plan::Unit unit, bool ok);
  void Unmapped(plan::PhysicalPage page);
  void CopiedIn(plan::Unit unit, bool ok);
  void CopiedOut(plan::Unit unit, bool ok);
  // The tensor's bytes are not used any more. REQUIRES: it lives.
  void End(TensorNumber tensor);
  // The tensors in these units, or their priorities, have become others.
  void UpdatePriorities(const plan::UnitSpan& units);
  // A tensor of away pages has a slot.
  void CountMoveToSlot() { ++stats_.to_slots; }
  // Redundant copies are dropped until the pool has room. Returns whether it has.
  bool MakeRoomForCopy(Bytes bytes, plan::PoolNumber pool);
  // The backend frees what no unit needs any more.
  void FreeCopies();

  // ---- Memory that others need.
  // Releases a free page. Returns false if no page is free.
  bool ReleasePage();
  // Idle units leave until `need` bytes are free or on their way out. Returns true if one does.
  bool Leave(Bytes need);
  // Where a call waits for memory, the owner calls Leave() of some client; else Start() does that.
  void SetOwnerMakesRoom(bool owner) { owner_makes_room_ = owner; }
  // Appends the pages that have left since the last call, with tensors; each once.
  void TakeLeft(std::vector<plan::Unit>* pages);

 private:
  bool Revoke(std::span<const plan::Unit> units);
  // The same for tensors that the client may have created there.
  bool RevokePage(plan::Unit page);
  bool Drop(plan::Unit unit);
  void DropClean();
  void ReleaseSurplus();
  // All tensors of the unit can be recomputed.
  bool CanRecompute(plan::Unit unit) const;
  // The tensors of the unit end if they can be recomputed. Returns true if one does.
  bool Discard(plan::Unit unit);
  void StartOut();
  void StartOut(plan::PoolNumber pool);
  void StartIn();
  void StartIn(plan::PoolNumber pool);
  void StartMaps(bool ahead);
  void StartMap(plan::MapChoice choice);
  // The map may begin though another is under way.
  bool MayOverlap(const plan::MapChoice& choice) const;
  bool Compact();
  // Idle units leave until the bytes that calls wait for are free. Returns true if one does.
  bool LeaveInEmergency();
  void HandleArrivals();
  PageBackend::CopyOrder OrderFor(plan::Unit unit) const;

  PageBackend* const backend_;
  PageBooks& books_;
  PageTensors& tensors_;
  TensorWords& words_;
  std::vector<PageBooks::Arrival> arrivals_;  // kept for its memory
  std::vector<plan::Unit> left_;              // until TakeLeft
  std::vector<bool> has_left_;                // by unit: it is in left_
  bool owner_makes_room_ = false;
  uint32_t mapping_ = 0;    // maps and unmaps under way
  uint32_t under_way_ = 0;  // copies
  bool arrived_ = false;
  Stats stats_;
};

}  // namespace ravenstore::core
