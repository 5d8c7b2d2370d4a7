// Carries the plan out in virtual time: a mapper and a link in each direction.
//
// Each engine does one thing at a time and asks core/plan/move_chooser.h for the next. Copies go
// over the link of sim/link.h; a copy that a call waits for goes before the pieces of others that
// are not in flight. Mapping overlaps with copying.
//
// Not modelled yet: making pages, and handing them to another client.
//
// Owns: the units and the engines. Units: simulated time from the replay's beginning.
// Threads: one at a time; the same calls give the same result.
#pragma once

#include <cstdint>
#include <optional>
#include <queue>
#include <vector>

#include "core/plan/calls.h"
#include "core/types.h"
#include "sim/hardware.h"
#include "sim/link.h"
#include "sim/paged_units.h"

namespace ravenstore::sim {

// What the driver takes, as measured on an H100: cuMemMap and cuMemSetAccess for one device, and
// cuMemUnmap.
struct MappingCosts {
  core::Duration map{std::chrono::microseconds(1)};
  core::Duration access{std::chrono::microseconds(40)};
  core::Duration unmap{std::chrono::microseconds(30)};
};

class PagedMover {
 public:
  struct Stats {
    core::Bytes in;
    core::Bytes out;
    core::Duration mapping{0};  // that the mapper was busy
    uint64_t maps = 0;
    uint64_t emergencies = 0;
    uint64_t exchanges = 0;
  };

  PagedMover(const Hardware& hardware, const MappingCosts& costs,
             const core::plan::PlanLimits& limits);

  PagedUnits& units() { return units_; }
  const PagedUnits& units() const { return units_; }

  // When the next engine is done; nullopt: none is busy.
  std::optional<core::Duration> NextEvent() const;
  // That engine is done. Returns true if a unit that a call waits for is resident.
  bool Advance();
  // The engines that are free begin what there is to do. Returns true as Advance.
  bool Start(core::Duration now);

  Stats stats() const;

 private:
  enum class Kind : uint8_t { kUnmapped, kMapped, kPieceIn, kIn, kPieceOut, kOut };
  struct Event {
    core::Duration at;
    uint64_t sequence;
    Kind kind;
    core::plan::Unit unit;
    bool operator<(const Event& other) const {
      return at != other.at ? at > other.at : sequence > other.sequence;
    }
  };

  void Schedule(core::Duration after, Kind kind, core::plan::Unit unit);
  void DropClean();
  void StartOut();
  void StartIn();
  void StartMaps();
  bool StartMap();
  void StartPiece(Link* link, const Link& other, Kind kind);
  void EndPiece(Link* link, Kind kind);
  // Idle units leave, for as many bytes as calls wait for. Returns true if one does.
  bool LeaveInEmergency();
  core::Bytes Demanded() const;

  const Hardware hardware_;
  const MappingCosts costs_;
  PagedUnits units_;
  Link in_;
  Link out_;
  bool mapping_ = false;
  bool demand_in_ = false;  // the link in has a demand
  bool arrived_ = false;    // a unit that a call waits for has become resident
  core::Duration now_{0};
  uint64_t sequence_ = 0;
  std::priority_queue<Event> events_;
  Stats stats_;
};

}  // namespace ravenstore::sim
