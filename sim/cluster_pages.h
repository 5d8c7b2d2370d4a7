// The memory of one node of a simulated cluster, for the jobs of sim/cluster_jobs.h: a device in
// pages, a host pool, and memory of other nodes. It is a port of core/execution/page_executor.h.
//
// Mappings take no time. Copies between device and host take the time of their bytes. A copy to or
// from other nodes goes granule by granule into pieces that the home borrows, by the home's own
// reads and writes. Pieces are borrowed as memory is needed, and returned when they are empty.
//
// A piece that its lender wants back is emptied: copies of resident pages are dropped, other pages
// are fetched, if the rest of the memory has room. If the piece is lost before, so are the tensors
// of which bytes were only there.
//
// One byte in a piece stands for `scale` bytes of a tensor. Bytes that come from other nodes are
// compared with what the copy is to hold (sim/cluster_contents.h).
//
// Owns: executor and books. The home outlives it. Threads: one, the node's. Units: bytes of
// tensors, but for `sizes`; tensors are whole granules. Errors: through Ends.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <vector>

#include "cluster/home.h"
#include "core/execution/page_backend.h"
#include "core/execution/page_executor.h"
#include "core/types.h"
#include "sim/cluster_contents.h"
#include "sim/cluster_pieces.h"
#include "transport/event_queue.h"

namespace ravenstore::sim {

// The memory that a node has.
struct ClusterMemory {
  cluster::Sizes sizes = {};  // as the node has them: scaled
  uint64_t scale = 1;
  core::Bytes device;
  core::Bytes host;
  core::Bytes remote;  // at most, whole pieces
  std::function<core::Tick()> now;
};

class ClusterPages final : private core::PageBackend {
 public:
  // How calls have ended.
  struct Ends {
    std::vector<core::TensorNumber> granted = {};
    std::vector<core::TensorNumber> refused = {};
    std::vector<core::TensorNumber> lost = {};  // the owner removes them
    uint64_t wrong = 0;                         // reads of bytes that were not written there
    bool empty() const { return granted.empty() && refused.empty() && lost.empty() && wrong == 0; }
  };

  // `changed`: Run() is to be called.
  ClusterPages(ClusterMemory memory, std::function<void()> changed, cluster::Home* home);

  core::PageExecutor& executor() { return executor_; }
  const core::PageExecutor& executor() const { return executor_; }
  core::Bytes page() const { return page_; }

  ClusterContents& contents() { return contents_; }
  // Begins what there is to do; `needed`: the bytes that all pools should hold soon. Returns how
  // calls have ended since the last time.
  Ends Run(core::Bytes needed);

  void Advance();
  core::Tick Next() const { return later_.Next(); }

  // Bytes of whole copies in other nodes' memory.
  core::Bytes remote() const;
  // The tensor has bytes there.
  bool IsRemote(core::TensorNumber tensor) const;

  // What the home reports.
  void OnPieceRecalled(cluster::PieceId piece) { pieces_.SetLeaves(piece, true); }
  void OnPieceKept(cluster::PieceId piece) { pieces_.SetLeaves(piece, false); }
  void OnPieceLost(cluster::PieceId piece);
  void OnPiecesMost(uint32_t pieces) { pieces_most_ = pieces; }

 private:
  struct Copy {
    core::plan::PoolNumber pool = 0;
    ClusterParts parts;
    std::vector<ClusterPieces::Run> runs = {};  // of a remote one
    core::Tick fetch_at{};                      // not before: it has failed
  };
  struct Transfer {
    bool writes = false;
    core::plan::PhysicalPage page = 0;
    ClusterParts parts;
    std::vector<ClusterPieces::Run> runs = {};
    size_t run = 0;                      // under way
    uint32_t done = 0;                   // granules before it
    std::vector<std::byte> buffer = {};  // of the run
    bool lost = false;

    // What the run under way holds, with granules of that many bytes.
    void FillRun(size_t granule, std::vector<std::byte>* buffer) const {
      FillGranules(parts, done, done + runs[run].count, granule, buffer);
    }
  };

  // ---- core::PageBackend.
  bool Revoke(core::TensorNumber, uint32_t) override { return true; }
  void Publish(core::TensorNumber) override {}
  void Grant(core::TensorNumber tensor) override { ends_.granted.push_back(tensor); }
  void Refuse(core::TensorNumber tensor) override { ends_.refused.push_back(tensor); }
  bool Map(const MapOrder& order) override;
  void Unmap(core::plan::PhysicalPage page) override { unmapped_.push_back(page); }
  void Release(const core::plan::PageSupply::Released&) override {}
  void CopyIn(const CopyOrder& order) override;
  void CopyOut(const CopyOrder& order) override;
  void FreeCopy(core::plan::Unit unit, core::plan::PoolNumber pool) override;
  void MoveSlot(const core::PageMemory::SlotMove&, core::Bytes) override {}
  bool MoveCopy(const CopyMove&) override { return false; }
  bool CanCopyIn(core::plan::PoolNumber pool, bool demanded) const override;
  bool CanCopyOut(core::plan::PoolNumber pool) const override;

  // Run() is called then. Returns when.
  core::Tick RetryAfter(core::Duration time);

  // ---- Copies.
  void Begin(const CopyOrder& order, Transfer transfer);
  void TransferRun(core::plan::Unit unit);
  void RunTransferred(core::plan::Unit unit, const core::Status& status);
  void End(core::plan::Unit unit, bool ok);
  // Forgets copies that the books do not have any more.
  void Sweep();
  void Erase(std::map<core::plan::Unit, Copy>::iterator copy);

  // ---- Pieces.
  void Balance(core::Bytes needed);
  void Grow();
  void ShrinkEmpty(uint32_t target);
  // Of pieces that leave.
  void Evacuate();

  const ClusterMemory options_;
  const std::function<void()> changed_;
  const core::Bytes page_;
  const core::Bytes granule_;  // of tensors
  cluster::Home& home_;
  core::PageExecutor executor_;
  ClusterPieces pieces_;
  uint32_t pieces_most_ = 0;
  core::Tick grow_at_{};   // not before
  core::Tick sweep_at_{};  // for empty pieces: not before
  core::Tick write_at_{};  // to other nodes: not before
  ClusterContents contents_;
  std::map<core::plan::Unit, Copy> copies_;
  std::map<core::plan::Unit, Transfer> transfers_;
  uint32_t copying_[2][2] = {};   // by pool; in, and out
  core::Tick host_free_[2] = {};  // of the link, in, and out
  std::vector<core::plan::PhysicalPage> unmapped_;
  transport::EventQueue later_;
  Ends ends_;
};

}  // namespace ravenstore::sim
