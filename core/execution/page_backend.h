// The port of the executor: what it does to a client's memory and to its lease words.
//
// The daemon implements it with CUDA and shared memory, the simulator in virtual time, and a test
// with a ledger of bytes, delays and faults. Copies and mappings are asynchronous: each ends with
// one call of the executor's Mapped, Unmapped, CopiedIn or CopiedOut, never from within the call
// that began it.
//
// Owns: nothing of the executor's. Threads: that of the executor. Units: bytes.
#pragma once

#include "core/books/page_books.h"
#include "core/books/page_tensors.h"
#include "core/plan/units.h"

namespace ravenstore::core {

class PageBackend {
 public:
  struct MapOrder {
    plan::Unit unit;
    plan::PhysicalPage page;
    plan::PageSupply::Steps steps;  // neither: the page is mapped there, or is made there
  };
  struct CopyOrder {
    plan::Unit unit;
    PageMemory::Place memory;   // on the device
    Bytes bytes;                // that live in the unit
    plan::PoolNumber pool = 0;  // where its copy is, or is made
    bool demanded = false;      // a call waits for it
  };
  // Bytes of a tensor: a part of a page's copy, which is its slot's from now on, in the same pool.
  // The pool may leave them where they are.
  struct CopyMove {
    plan::Unit page;
    Bytes page_offset;
    plan::Unit slot;
    Bytes slot_offset;
    Bytes bytes;
    plan::PoolNumber pool = 0;
  };

  PageBackend() = default;
  PageBackend(const PageBackend&) = delete;
  PageBackend& operator=(const PageBackend&) = delete;
  virtual ~PageBackend() = default;

  // ---- Lease words.
  // Sets the tensor's word from "idle, used `uses` times" to "away". Returns false if it is
  // another: the client has used or freed the tensor, and its report is on its way.
  virtual bool Revoke(TensorNumber tensor, uint32_t uses) = 0;
  // The page leaves, or gives its memory to another: all words of its tensors are "away". Returns
  // false if the client has created a tensor there, and its report is on its way.
  virtual bool RevokePage(plan::Unit /*page*/) { return true; }
  // Sets the word from "away" to "idle"; one that the client has freed stays so.
  virtual void Publish(TensorNumber tensor) = 0;
  // The call that waits for the tensor may go on: its word is "in use".
  virtual void Grant(TensorNumber tensor) = 0;
  // Bytes of the tensor that the call waits for are on their way. Returns true if the call goes on
  // now: its stream waits until Arrived or Break. Otherwise Grant follows when they are there.
  virtual bool GrantEarly(TensorNumber /*tensor*/) { return false; }
  // The bytes of an early grant are there.
  virtual void Arrived(TensorNumber /*tensor*/) {}
  // They do not come. The tensor does not live any more. Another call that waits for it fails, too.
  virtual void Break(TensorNumber /*tensor*/) {}
  // The call that waits fails: the tensor's bytes did not come. Its word stays as it is.
  virtual void Refuse(TensorNumber tensor) = 0;

  // ---- Memory. Returns true if the mapping is done already.
  virtual bool Map(const MapOrder& order) = 0;
  virtual void Unmap(plan::PhysicalPage page) = 0;
  // Maps of pages that calls wait for may be under way at a time. Ahead of need it is half of that,
  // or one, so that a call that waits is queued behind few.
  virtual uint32_t MapsMost() const { return 1; }
  // The client does not own the page any more. The backend unmaps it if it is mapped, then destroys
  // its memory. It reports no end.
  virtual void Release(const plan::PageSupply::Released& page) = 0;
  // From each pool and to each, the executor begins a copy where CanCopyIn or CanCopyOut allows it.
  // While copies occupy the link, a copy in that a call waits for may still begin.
  virtual void CopyIn(const CopyOrder& order) = 0;
  virtual void CopyOut(const CopyOrder& order) = 0;
  // The unit's copy in the pool is not needed any more; it is not being copied. Comes before the
  // unit's next copy begins.
  virtual void FreeCopy(plan::Unit unit, plan::PoolNumber pool) = 0;
  // The away unit has a copy in the pool from now on: a tensor is created there, and kernels write
  // its bytes where they are. Only where calls use copies in place.
  virtual void MakeCopy(plan::Unit /*unit*/, plan::PoolNumber /*pool*/) {}
  // Copies on the device, in order with all other work on this memory.
  virtual void MoveSlot(const PageMemory::SlotMove& move, Bytes bytes) = 0;
  // Has ended when it returns. Returns false if it has failed: this part, and those of the tensor
  // before it, are the pages' still.
  virtual bool MoveCopy(const CopyMove& /*move*/) { return false; }

  // The next copy may begin; `demanded`: one that a call waits for may.
  virtual bool CanCopyIn(plan::PoolNumber pool, bool demanded) const = 0;
  virtual bool CanCopyOut(plan::PoolNumber pool) const = 0;
};

}  // namespace ravenstore::core
