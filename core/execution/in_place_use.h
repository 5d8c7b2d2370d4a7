// The use of a tensor by kernels that can reach the pools for copies (zero-copy access): units that
// are away are used where their copies are. The call then needs no memory for them.
//
// A unit in which some tensor is used in place does not come before that has ended. So a call must
// not wait for a unit of a tensor that IsUsedInPlace(): the use may be of its own kernel.
//
// Owns: nothing; the books, the tensors, the moves and the backend are the executor's. Threads: one
// at a time. Errors: none. Cost: O(units of the tensor x log units).
#pragma once

#include "core/books/page_books.h"
#include "core/books/page_tensors.h"
#include "core/execution/page_backend.h"
#include "core/execution/page_moves.h"
#include "core/plan/copy_pools.h"
#include "core/plan/units.h"

namespace ravenstore::core {

// The tensor lives or is to be created. None of its units is being mapped or copied in, and no call
// waits for one. For a create, a pool has room.
bool CanUseInPlace(const PageBooks& books, const PageTensors& tensors, TensorNumber tensor);
// One of the units is used in place.
bool IsUsedInPlace(const PageBooks& books, const plan::UnitSpan& units);

class InPlaceUse {
 public:
  InPlaceUse(PageBackend* backend, PageBooks* books, PageTensors* tensors, PageMoves* moves)
      : backend_(backend), books_(*books), tensors_(*tensors), moves_(*moves) {}

  // As PageExecutor::Pin(), but of the tensor's units only those that are resident. The call waits
  // for nothing. The tensor of a create lives from now on. PageExecutor::Unpin() follows, then
  // End(). REQUIRES: CanUseInPlace(); decide::Admit() of CallIn() in place is kNow.
  void Begin(TensorNumber tensor);
  // The stream has come to the Unpin. `modifies`: as PageExecutor::Modify().
  void End(TensorNumber tensor, bool modifies);

 private:
  // The created tensor's bytes in its i-th unit live from now on.
  void Create(TensorNumber tensor, uint32_t i, plan::PoolNumber pool);

  PageBackend* const backend_;
  PageBooks& books_;
  PageTensors& tensors_;
  PageMoves& moves_;
};

}  // namespace ravenstore::core
