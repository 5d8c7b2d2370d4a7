// The copies of one client's pages and slots of one device in the pools: written, read, moved from
// pool to pool, and lost.
//
// A copy in a chunk that its pool wants back moves on to the host pool, or is dropped.
//
// Owns: the pieces of the pools. Units: bytes. Threads: the planner loop. Errors: a copy that fails
// is reported as such. Cost: O(log copies) a call, O(copies) for DrainPool and Lose.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <vector>

#include "core/execution/page_backend.h"
#include "core/execution/page_executor.h"
#include "core/types.h"
#include "daemon/client_memory.h"
#include "daemon/mailbox.h"
#include "daemon/move_checks.h"
#include "daemon/page_pool.h"

namespace ravenstore::daemon {

class PageCopies {
 public:
  class Owner {
   public:
    virtual ~Owner() = default;
    // For the executor.
    virtual void CopiedIn(ClientPages* pages, core::plan::Unit unit, bool ok) = 0;
    virtual void CopiedOut(ClientPages* pages, core::plan::Unit unit, bool ok) = 0;
    // The executor may have something to do.
    virtual void Progressed(ClientPages* pages) = 0;
    // A copy that moved on is in the other pool now.
    virtual void CopyMoved(ClientPages* pages, core::plan::Unit unit,
                           core::plan::PoolNumber pool) = 0;
    // A copy of a resident unit is in memory that is wanted back.
    virtual void DropCopy(ClientPages* pages, core::plan::Unit unit) = 0;
    // The copies in the host pool take more or less than before, or the executor is about to choose
    // one: the room that the client has there is to be set (PageBooks::SetPool).
    virtual void UpdateRoom(ClientPages* pages) = 0;
    // The client has not used the tensor since its last put.
    virtual bool IsUnused(ClientPages* pages, core::TensorNumber tensor) const = 0;
  };
  struct Options {
    core::TurnOwner turn;
    std::vector<PagePool*> pools;  // by the executor's numbers
    core::plan::PoolNumber host = 0;
    MoveChecks* checks = nullptr;  // as ClientPages::Options
  };
  struct Copy {
    uint64_t version = 0;  // of these bytes in this place
    core::plan::PoolNumber pool = 0;
    PagePool::Piece piece{};
    std::vector<PagePool::Range> ranges{};
    bool moves_on = false;
    bool lost = false;
  };

  // `client`: the owner's name of the client on this device. All that is pointed to outlives this.
  PageCopies(Options options, ClientMemory* memory, Mailbox* mailbox, Owner* owner,
             ClientPages* client);
  ~PageCopies();

  // REQUIRES: before anything else. It outlives this.
  void SetExecutor(const core::PageExecutor* executor) { executor_ = executor; }
  const Options& options() const { return options_; }
  // Null: the unit has none.
  const Copy* Find(core::plan::Unit unit) const;
  // Counts a comparison of a copy's bytes. If they are not the `same`, `counts` returns true for a
  // fault of the copy. REQUIRES: there are checks.
  bool Checked(bool same, const std::function<bool()>& counts);

  // As those of ClientPages.
  bool DrainPool(core::plan::PoolNumber pool);
  std::vector<core::plan::Unit> Lose(core::plan::PoolNumber pool);
  bool IsQuiet() const { return copying_ == 0; }

  // ---- As PageBackend's.
  void CopyIn(const core::PageBackend::CopyOrder& order);
  void CopyOut(const core::PageBackend::CopyOrder& order);
  void Free(core::plan::Unit unit, core::plan::PoolNumber pool);
  bool MoveToSlot(const core::PageBackend::CopyMove& move);
  bool CanCopyIn(core::plan::PoolNumber pool, bool demanded) const;
  bool CanCopyOut(core::plan::PoolNumber pool) const;

 private:
  // A copy that moves on.
  struct MoveOn {
    core::plan::Unit unit = 0;
    uint64_t version = 0;
    core::plan::PoolNumber from = 0;
    PagePool::Piece source{};
    PagePool::Piece target{};
    std::vector<PagePool::Range> ranges{};  // in the target
  };
  // Copies on a link, and of those in the ones that calls wait for.
  struct LinkUse {
    uint32_t in = 0;
    uint32_t out = 0;
    uint32_t demanded = 0;
  };

  PagePool& PoolOf(core::plan::PoolNumber pool) const { return *options_.pools[pool]; }
  void StartOut(const core::PageBackend::CopyOrder& order,
                const std::vector<PagePool::Range>& ranges, PagePool::Piece piece);
  void EndOut(const core::PageBackend::CopyOrder& order, const core::Status& outcome);
  void EndIn(const core::PageBackend::CopyOrder& order, const core::Status& outcome);
  void StartMoveOn(core::plan::Unit unit, uint64_t version, PagePool::Piece target);
  void EndMoveOn(const MoveOn& move, const core::Status& outcome);
  bool IsLost(core::plan::Unit unit) const;
  // Of a copy that has ended well.
  bool IsRight(const core::PageBackend::CopyOrder& order, const std::function<bool()>& counts);

  const Options options_;
  ClientMemory* const memory_;
  Mailbox* const mailbox_;
  Owner* const owner_;
  ClientPages* const client_;
  const core::PageExecutor* executor_ = nullptr;
  std::map<core::plan::Unit, Copy> copies_;
  uint64_t version_ = 0;        // of the last copy
  std::vector<LinkUse> links_;  // by pool
  uint32_t copying_ = 0;
  uint32_t moving_on_ = 0;  // of these
};

}  // namespace ravenstore::daemon
