// The requests that wait for room, in one line for each arena, first come first served, and each
// with a deadline.
//
// Who is served when, and with what answer, is the caller's affair. So are clients that are gone:
// their lines are abandoned, and what stood in them is taken out a bounded number at a time.
//
// Owns: the requests. Threads: one at a time. Cost: O(log n), but for PopAbandoned and
// CheckInvariants.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <vector>

#include "core/timers.h"
#include "core/types.h"

namespace ravenstore::core {

// Whose memory on which device.
struct ArenaId {
  ClientId client{};
  DeviceId device{};
  auto operator<=>(const ArenaId&) const = default;
};

// A create or a fetch that waits for room in an arena.
struct Request : ArenaId {
  uint64_t id = 0;  // rises from request to request
  Bytes size;
  Tick deadline{};
  Tick since{};
  TensorId tensor = kNoTensor;  // a fetch's; kNoTensor for a create
  SlotId slot{};
  NameId name = kNoName;
  bool fail_fast = false;   // it fails rather than wait for what may take long
  bool fail_stuck = false;  // it fails once only its own client could make room
  bool long_lived = false;  // a create's: what it makes will stay in use for long

  bool is_fetch() const { return tensor != kNoTensor; }
};

// References to requests are good until these are taken out.
class RequestQueue {
 public:
  // Gives the request its id and puts it last in its arena's line. REQUIRES: no other fetch of the
  // same tensor is in.
  const Request& Push(Request request);
  // Takes it out, wherever it stands. REQUIRES: it is in.
  Request Pop(uint64_t id);

  // How many stand in the arena's line.
  size_t Waiting(const ArenaId& arena) const;
  // REQUIRES: Waiting(arena) > 0.
  const Request& First(const ArenaId& arena) const;
  // The first of them that fails rather than waits; null: all wait.
  const Request* FirstFailingFast(const ArenaId& arena) const;
  // The first for `arena` came before the first for `other`, or none waits for that.
  // REQUIRES: Waiting(arena) > 0.
  bool IsOlder(const ArenaId& arena, const ArenaId& other) const;
  // REQUIRES: a fetch of the tensor is in.
  const Request& FetchOf(TensorId tensor) const;

  struct Line {
    std::set<uint64_t> ids;
    std::set<uint64_t> failing_fast;  // of them
  };
  // Those in which a request stands.
  const std::map<ArenaId, Line>& lines() const { return lines_; }

  // The request whose deadline passed first, of an abandoned line too; null: none has.
  const Request* Overdue(Tick now) const;
  // The next deadline; kNever: there is none.
  Tick NextDeadline() const { return deadlines_.Next(); }

  // The arena's client is gone: its line, if it has one, is none any more.
  void Abandon(const ArenaId& arena);
  // Takes out what stood in abandoned lines, oldest line first, after a look at `most` of it at
  // most; some of that may be out already.
  std::vector<Request> PopAbandoned(uint32_t most);
  bool HasAbandoned() const { return !abandoned_.empty(); }

  // All that are in, by id.
  const std::map<uint64_t, Request>& all() const { return requests_; }
  // Aborts where lines, deadlines and fetches disagree with the requests; O(n).
  void CheckInvariants() const;

 private:
  // Trees, since a table of a million would be moved at once as it grows.
  std::map<uint64_t, Request> requests_;
  std::map<TensorId, uint64_t> fetches_;
  std::map<ArenaId, Line> lines_;             // no empty ones
  std::deque<std::set<uint64_t>> abandoned_;  // and what was taken out of them since
  Timers<uint64_t> deadlines_;
  uint64_t last_id_ = 0;
};

}  // namespace ravenstore::core
