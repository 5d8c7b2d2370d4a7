// The lease words of a client's tensors, and the calls that wait for tensors.
//
// A tensor's word is "away" from the revocation before one of its units leaves until all of them
// are resident. A get of such a tensor asks and waits. When all of its units are there or are being
// copied in, the call may go on before they arrive: an early grant.
//
// Owns: which calls wait, and the early grants. The rows are the executor's; the words are the
// backend's. Threads: one at a time. Errors: none. Cost: O(tensors of a unit) for each unit;
// O(waiting calls and early grants) when any arrives or begins to.
#pragma once

#include <optional>
#include <set>
#include <span>
#include <vector>

#include "core/books/page_books.h"
#include "core/books/page_tensors.h"
#include "core/execution/page_backend.h"

namespace ravenstore::core {

class TensorWords {
 public:
  // All outlive it.
  TensorWords(PageBackend* backend, const PageBooks& books, PageTensors* tensors)
      : backend_(backend), books_(books), tensors_(tensors) {}

  // No call waits for a unit of the tensor.
  bool IsResident(TensorNumber tensor) const;
  // The words of all tensors of these units say "away" from now on; or none does, and the unit
  // returned has a tensor that the client uses.
  std::optional<plan::Unit> Revoke(std::span<const plan::Unit> units);
  // The tensors of the unit that can be recomputed and that the client does not use. Their words
  // say "away" from now on.
  std::vector<TensorNumber> RevokeRecomputed(plan::Unit unit);
  // The words of the units' tensors that are resident say so again.
  void Publish(std::span<const plan::Unit> units);

  // A call waits for the tensor, until it is granted or taken.
  void Wait(TensorNumber tensor) { waiting_.insert(tensor); }
  bool Waits(TensorNumber tensor) const { return waiting_.count(tensor) > 0; }
  void EndWait(TensorNumber tensor) { waiting_.erase(tensor); }
  // These units are resident: words say so, and calls that wait for nothing else are granted.
  void Arrive(std::span<const PageBooks::Arrival> arrivals);
  // Calls that wait only for copies under way go on, if the backend says so.
  void GrantWaitingEarly();
  bool IsGrantedEarly(TensorNumber tensor) const { return granted_early_.count(tensor) > 0; }
  void EndEarlyGrant(TensorNumber tensor) { granted_early_.erase(tensor); }
  // The calls that wait for tensors of the unit. They wait no more; the caller refuses them.
  std::vector<TensorNumber> TakeWaiting(plan::Unit unit);
  // The tensors of the unit that were granted early. The caller breaks these grants.
  std::vector<TensorNumber> TakeGrantedEarly(plan::Unit unit);
  // No call waits any more, and there is no early grant.
  void Clear() {
    waiting_.clear();
    granted_early_.clear();
  }

 private:
  void Publish(TensorNumber tensor);
  // The tensor lives, and each unit of it is there or is being copied in.
  bool Arrives(TensorNumber tensor) const;
  bool IsIn(TensorNumber tensor, plan::Unit unit) const {
    return (*tensors_)[tensor].units.Contains(unit);
  }
  // Those that match are erased from the set.
  template <typename Matches>
  static std::vector<TensorNumber> Take(std::set<TensorNumber>* from, Matches matches);

  PageBackend* const backend_;
  const PageBooks& books_;
  PageTensors* const tensors_;
  std::set<TensorNumber> waiting_;
  std::set<TensorNumber> granted_early_;
};

}  // namespace ravenstore::core
