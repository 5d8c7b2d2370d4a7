// Carries a client's plan out on one device.
//
// The owner reports the client's calls in order, and the backend reports when what it began has
// ended. Start() then begins what there is to do (page_moves.h).
//
// A copy in that fails refuses the calls that wait for the unit; its bytes stay in the other pool,
// and the next get tries again. If a call was granted early, its tensor is lost. A copy out
// that fails leaves the unit where it is. A pool may lose a copy: the tensors of which bytes were
// only there are lost.
//
// Owns: the books, the tensors' rows. The backend outlives it. Units: bytes, positions. Threads:
// one at a time; the same calls have the same result. Errors: through the backend (Refuse).
// Cost: O(units of the tensor x log units) a call; O(log units + tensors of the unit) a move.
#pragma once

#include <cstdint>
#include <vector>

#include "core/books/page_books.h"
#include "core/books/page_tensors.h"
#include "core/books/page_views.h"
#include "core/decide/page_admission.h"
#include "core/execution/in_place_use.h"
#include "core/execution/page_backend.h"
#include "core/execution/page_moves.h"
#include "core/execution/tensor_words.h"
#include "core/plan/units.h"

namespace ravenstore::core {

class PageExecutor {
 public:
  using Stats = PageMoves::Stats;

  PageExecutor(const PageBooks::Options& options, PageBackend* backend);

  PageBooks& books() { return books_; }
  const PageBooks& books() const { return books_; }
  const PageTensors& tensors() const { return tensors_; }
  const Stats& stats() const { return moves_.stats(); }

  // ---- The client's calls.
  // A create in these units finds a place. Without it the create is to fail.
  bool CanCreate(const plan::UnitSpan& units) const {
    return decide::HasPlace(CreateIn(books_, units));
  }
  // A create: the tensor has this place. `offset`: where it begins in its first unit.
  void Place(TensorNumber tensor, const plan::UnitSpan& units, Bytes offset, Bytes size);
  // Appends the pages that have left since the last call, with tensors; each once.
  void TakeLeft(std::vector<plan::Unit>* pages) { moves_.TakeLeft(pages); }
  // A tensor of away pages gets an away slot instead: it then comes alone. Returns false if it
  // stays: it does not live, a page of it is not away or is held by a call, or the copy has no room
  // or failed.
  bool MoveToSlot(TensorNumber tensor, const plan::UnitSpan& slot);
  // A create or a get holds its units. REQUIRES: decide::Admit() of CallIn() is kNow; otherwise
  // calls that wait could hold pages that each other needs. Returns true if all are resident. Else
  // the call waits, and the backend's Grant or Refuse ends that.
  bool Pin(TensorNumber tensor);
  // For calls that use away units where their copies are, instead of Pin().
  InPlaceUse& in_place() { return in_place_; }
  // A call that holds the tensor's units waits for them.
  bool Waits(TensorNumber tensor) const { return words_.Waits(tensor); }
  // No call waits for a unit of the tensor.
  bool IsResident(TensorNumber tensor) const { return words_.IsResident(tensor); }
  // The tensor lives from now on, or again. REQUIRES: it is pinned and resident.
  void Begin(TensorNumber tensor);
  // A put or a free ends the pin, or the use in place, for the CPU; its units stay until the stream
  // has come there. `priority`: the tensor's, from a put on.
  void Unpin(TensorNumber tensor, Priority priority = Priority::kNormal);
  // The stream has come to an Unpin.
  void Reach(TensorNumber tensor);
  // The tensor's bytes have changed, and will be read again.
  void Modify(TensorNumber tensor);
  // Its bytes are not used any more. REQUIRES: it lives.
  void End(TensorNumber tensor) { moves_.End(tensor); }
  // Whether its client can recompute its bytes for less than two copies. If so, its bytes may end
  // where a unit of it would be copied out. A get then begins it again.
  void SetRecomputes(TensorNumber tensor, bool recomputes) {
    tensors_[tensor].recomputes = recomputes;
  }
  // Its place is free. REQUIRES: it does not live, is not pinned, and has no early grant.
  void Remove(TensorNumber tensor);
  // The units as the calls so far leave them: tensors whose create the stream has not come to live.
  std::vector<plan::UnitSnapshot> Snapshot() const;
  // The physical memory of these units stays beneath them, whatever lives there: a network card has
  // its addresses. REQUIRES: they are the units of a tensor in use.
  void KeepInPlace(const plan::UnitSpan& units);
  void EndKeepInPlace(const plan::UnitSpan& units);
  // The client is gone, and so is its stream: no tensor lives. What is under way goes on.
  void Retire();

  // ---- The share of the device. Start() releases pages beyond it, and evicts idle units for that.
  void SetShare(uint32_t pages) { books_.SetShare(pages); }
  // A physical page was made for the client, as books().memory() expects.
  void AddPage() { books_.memory().Add(); }
  // Releases a free page. Returns false if no page is free.
  bool ReleasePage() { return moves_.ReleasePage(); }
  // Idle units leave until `need` bytes are free or on their way out. Returns true if one does.
  bool Leave(Bytes need) { return moves_.Leave(need); }
  // Where a call waits for memory, the owner calls Leave() of some client; else Start() does that.
  void SetOwnerMakesRoom(bool owner) { moves_.SetOwnerMakesRoom(owner); }

  // ---- Pools for copies that change. See also PageBooks::SetPool; MoveCopy, for a copy that the
  // backend has moved; and Demand, for a unit that comes without a call.
  // Copies of resident units are dropped until they have taken `bytes`, or there are none. Returns
  // the bytes that they have taken.
  Bytes DropCopies(plan::PoolNumber pool, Bytes bytes);
  // The copy of the unit is gone; it is not used in place. If it was the only one, the tensors
  // there end: calls that wait for them are refused. Appends those to `lost`; their owner removes
  // them. A copy of the unit that is under way has to fail.
  void Lose(plan::Unit unit, std::vector<TensorNumber>* lost);

  // ---- The backend's reports.
  // Of a mapping or a copy in that has failed, the tensors whose calls are refused are appended to
  // `refused`, if that is not null.
  void Mapped(plan::Unit unit, bool ok = true, std::vector<TensorNumber>* refused = nullptr);
  void Unmapped(plan::PhysicalPage page) { moves_.Unmapped(page); }
  void CopiedIn(plan::Unit unit, bool ok, std::vector<TensorNumber>* refused = nullptr);
  void CopiedOut(plan::Unit unit, bool ok) { moves_.CopiedOut(unit, ok); }

  // Begins what there is to do; without `maps_ahead` no unit comes that no call waits for. Returns
  // true if a unit for which a call waited has become resident since the last time.
  bool Start(bool maps_ahead = true) { return moves_.Start(maps_ahead); }
  // No mapping and no copy is under way.
  bool IsQuiet() const { return moves_.IsQuiet(); }
  // The call that waits for the tensor fails: it has waited too long. REQUIRES: a call waits.
  void Refuse(TensorNumber tensor);

 private:
  void Hold(TensorNumber tensor);
  // The bytes of the early grant do not come. It holds its pages until its client frees it:
  // streams that do not know use the memory.
  void Break(TensorNumber tensor);

  PageBackend* const backend_;
  PageBooks books_;
  PageTensors tensors_;
  TensorWords words_;
  PageMoves moves_;
  InPlaceUse in_place_;
};

}  // namespace ravenstore::core
