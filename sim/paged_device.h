// A device and its links in virtual time: the ports of a scheduler (core/schedule/page_scheduler.h)
// and of each of its clients.
//
// Each pool for copies has a link of its own in each direction. The copies of a pool behind the
// host use the host's link too. Clients share the links of sim/link.h, by turns; a copy that a call
// waits for goes before the pieces of others that are not in flight. So do the bytes that kernels
// use on the host. Each client has a mapper of its own. A page that one client releases is
// destroyed, and another is created for the next client, one at a time. A client's lease words
// agree with its books at all times: a call is reported when it is made.
//
// Owns: the events. Units: simulated time from the replay's beginning. Threads: one at a time; the
// same calls give the same result.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <queue>
#include <vector>

#include "core/execution/page_backend.h"
#include "core/schedule/page_scheduler.h"
#include "core/types.h"
#include "sim/hardware.h"
#include "sim/link.h"
#include "sim/outcome.h"
#include "sim/setup.h"

namespace ravenstore::sim {

// A pool for copies, and its link.
struct PagedPool {
  core::plan::CopyPool pool;
  double duplex = 1;  // the share of its rate that it keeps while the other direction is busy
  core::Duration latency{0};
  bool is_host = false;
  bool behind_host = false;
};

class PagedDevice : public core::PageMaker {
 public:
  // `pools`: as the clients' limits have them; one is the host.
  // `timeline`: each piece that a link copies is kept for AddTo().
  PagedDevice(const Hardware& hardware, const MappingCosts& costs,
              const std::vector<PagedPool>& pools, bool timeline);
  ~PagedDevice() override;

  // The port of a client. Ids are consecutive from 0.
  core::PageBackend* AddClient(core::ClientId id);

  // When the next event is; nullopt: there is none.
  std::optional<core::Duration> NextEvent() const;
  // That event happens and is reported. Returns the client that it is of.
  core::ClientId Advance(core::PageScheduler* scheduler);
  void MakePage(core::ClientId client) override { to_make_ = client; }
  // The time of what executors begin next.
  void SetTime(core::Duration now);
  // A kernel of the client uses these bytes on the host, read and written, until UsesInPlace() is
  // false. REQUIRES: it is false.
  void UseInPlace(core::ClientId client, core::Bytes in, core::Bytes out);
  bool UsesInPlace(core::ClientId client) const;
  // Idle links begin the next copy; a page that is to be made is created.
  void Start();
  // How long mappers were busy.
  core::Duration mapping() const { return mapping_; }
  void AddTo(Outcome* outcome) const {
    outcome->spans.insert(outcome->spans.end(), spans_.begin(), spans_.end());
  }

 private:
  class Client;
  enum class Kind : uint8_t {
    kUnmapped,
    kMapped,
    kPieceIn,
    kIn,
    kPieceOut,
    kOut,
    kReleased,
    kMade
  };
  struct Event {
    core::Duration at;
    uint64_t sequence;
    Kind kind;
    uint32_t client;
    uint32_t number;  // of a unit; kUnmapped: of a page; kPieceIn, kPieceOut: of a pool
    bool operator<(const Event& other) const {
      return at != other.at ? at > other.at : sequence > other.sequence;
    }
  };

  void Schedule(core::Duration after, Kind kind, uint32_t client, uint32_t number);
  // The links of a pool.
  struct Lane {
    PagedPool of;
    Link in;
    Link out;
  };

  void BeginPiece(core::Duration takes, Kind kind, core::plan::PoolNumber pool);
  core::ClientId EndPiece(core::plan::PoolNumber pool, Kind kind, core::PageScheduler* scheduler);

  const MappingCosts costs_;
  const bool timeline_;
  std::deque<Lane> lanes_;  // by pool
  core::plan::PoolNumber host_ = 0;
  std::vector<std::unique_ptr<Client>> clients_;
  std::optional<core::ClientId> to_make_;
  core::Duration now_{0};
  core::Duration mapping_{0};
  uint64_t sequence_ = 0;
  std::priority_queue<Event> events_;
  std::vector<Span> spans_;  // of links
};

}  // namespace ravenstore::sim
