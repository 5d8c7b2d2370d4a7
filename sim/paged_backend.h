// A device, its mapper and its link in virtual time, for core/execution/page_executor.h.
//
// Copies go over the link of sim/link.h; a copy that a call waits for goes before the pieces of
// others that are not in flight. The client's lease words agree with the books at all times: a call
// is reported when it is made.
//
// Not modelled yet: making pages, and handing them to another client.
//
// Owns: the events. Units: simulated time from the replay's beginning. Threads: one at a time; the
// same calls give the same result.
#pragma once

#include <cstdint>
#include <optional>
#include <queue>
#include <vector>

#include "core/execution/page_backend.h"
#include "core/execution/page_executor.h"
#include "core/types.h"
#include "sim/hardware.h"
#include "sim/link.h"

namespace ravenstore::sim {

// What the driver takes, as measured on an H100: cuMemMap and cuMemSetAccess for one device, and
// cuMemUnmap.
struct MappingCosts {
  core::Duration map{std::chrono::microseconds(1)};
  core::Duration access{std::chrono::microseconds(40)};
  core::Duration unmap{std::chrono::microseconds(30)};
};

class PagedBackend : public core::PageBackend {
 public:
  PagedBackend(const Hardware& hardware, const MappingCosts& costs);

  // When the next event is; nullopt: there is none.
  std::optional<core::Duration> NextEvent() const;
  // That event happens and is reported.
  void Advance(core::PageExecutor* executor);
  // The time of what the executor begins next.
  void SetTime(core::Duration now);
  // The links that are idle begin with what was submitted.
  void StartPieces();
  // How long the mapper was busy.
  core::Duration mapping() const { return mapping_; }

  bool Revoke(core::TensorNumber, uint32_t) override { return true; }
  void Publish(core::TensorNumber) override {}
  void Grant(core::TensorNumber) override {}
  void Refuse(core::TensorNumber) override {}
  bool Map(const MapOrder& order) override;
  void Unmap(core::plan::PhysicalPage page) override;
  void CopyIn(const CopyOrder& order) override;
  void CopyOut(const CopyOrder& order) override;
  void MoveSlot(const core::PageBooks::SlotMove&, core::Bytes) override {}
  bool CanCopyIn(bool demanded) const override {
    return !in_.HasWork() || (demanded && !demanded_);
  }
  bool CanCopyOut() const override { return !out_.HasWork(); }

 private:
  enum class Kind : uint8_t { kUnmapped, kMapped, kPieceIn, kIn, kPieceOut, kOut };
  struct Event {
    core::Duration at;
    uint64_t sequence;
    Kind kind;
    uint32_t number;  // of a unit; kUnmapped: of a page
    bool operator<(const Event& other) const {
      return at != other.at ? at > other.at : sequence > other.sequence;
    }
  };

  void Schedule(core::Duration after, Kind kind, uint32_t number);
  void EndPiece(Link* link, Kind kind);

  const Hardware hardware_;
  const MappingCosts costs_;
  Link in_;
  Link out_;
  // Of the copy in that a call waits for.
  std::optional<core::plan::Unit> demanded_;
  core::Duration now_{0};
  core::Duration mapping_{0};
  uint64_t sequence_ = 0;
  std::priority_queue<Event> events_;
};

}  // namespace ravenstore::sim
