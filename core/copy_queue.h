// In which order the copies over one direction of a link are made: what is put in flight next, and
// how much of it.
//
// A job is put in flight piece by piece. Demands, which somebody waits for, go before all else, in
// turns (round_robin_queue.h): user by user, and of each user client by client. What nobody waits
// for goes in such turns by user alone. So much is in flight at once that the link is never idle,
// and for background copies half as much, in pieces of half the size, so that a demand, which
// waits for what is in flight, waits half as long for them.
//
// Knows nothing of memory, channels or time: who drives it makes the copies, in the order in which
// it is given them, and says when the oldest is over. Threads: one at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <unordered_map>

#include "core/round_robin_queue.h"
#include "core/tuned.h"
#include "core/types.h"

namespace ravenstore::core {

class CopyQueue {
 public:
  using Job = uint64_t;
  enum class Urgency : uint8_t { kDemand, kBackground };
  struct Options {
    Bytes chunk = MiB(16);  // a demand's piece, at most
    Bytes in_flight = MiB(32);
    uint32_t in_flight_copies = 64;
    Bytes turn = kTurn;  // of a client, while others wait

    Bytes ChunkOf(Urgency urgency) const { return OfDemands(chunk, urgency); }
    Bytes InFlightOf(Urgency urgency) const { return OfDemands(in_flight, urgency); }

   private:
    static Bytes OfDemands(Bytes bytes, Urgency urgency) {
      return urgency == Urgency::kDemand ? bytes : Bytes(bytes.count() / 2);
    }
  };
  struct Piece {
    Job job;
    Bytes bytes;
  };

  explicit CopyQueue(const Options& options)
      : options_(options), demands_(options.turn), background_(options.turn) {}

  // REQUIRES: the job is not queued.
  void Submit(Job job, TurnOwner owner, Urgency urgency);
  // What of a background job is not in flight yet goes among the demands of `behalf`. Any other job
  // stays what it is.
  void Promote(Job job, TurnOwner behalf);

  // The job of which a piece goes next; nullopt: none is queued.
  std::optional<Job> Next();
  // So large that piece may be. REQUIRES: Next().
  Bytes chunk() const { return options_.ChunkOf(NextUrgency()); }
  // Whether so much of the next job may be put in flight beside what is. REQUIRES: Next().
  bool MayBegin(Bytes bytes) const;
  // Puts it in flight, with `whole` its last. False: enough is in flight, and nothing has changed.
  // REQUIRES: Next().
  bool Begin(Bytes bytes, bool whole);
  // The piece that has been in flight for longest is over. REQUIRES: pieces() > 0.
  Piece End();
  const Piece& oldest() const { return in_flight_.front(); }  // REQUIRES: pieces() > 0

  size_t pieces() const { return in_flight_.size(); }  // in flight
  Bytes in_flight() const { return in_flight_bytes_; }
  void Clear();

 private:
  struct Queued {
    TurnOwner owner;
    Urgency urgency;
  };

  Urgency NextUrgency() const { return demands_.empty() ? Urgency::kBackground : Urgency::kDemand; }
  RoundRobinQueue<Job>& QueueOf(Urgency urgency) {
    return urgency == Urgency::kDemand ? demands_ : background_;
  }

  const Options options_;
  RoundRobinQueue<Job> demands_;
  RoundRobinQueue<Job> background_;
  std::unordered_map<Job, Queued> queued_;
  std::deque<Piece> in_flight_;  // the oldest first
  Bytes in_flight_bytes_;
};

}  // namespace ravenstore::core
