// The order in which copies over one direction of a link are made: which copy goes in flight next,
// and how much of it.
//
// A job is put in flight piece by piece. Demands, which a client waits for, go before all else, in
// turns (round_robin_queue.h): user by user, and for each user client by client. Background jobs,
// which no client waits for, take such turns by user alone. Enough bytes are in flight that the
// link is never idle. Background copies have half as many in flight, in pieces of half the size: a
// demand, which waits for what is in flight, waits half as long for them.
//
// The queue knows nothing of memory, channels or time. Its driver makes the copies in the order in
// which it is given them, and reports when the oldest is over. Threads: one at a time.
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
  // Turns the part of a background job that is not in flight yet into a demand of the given owner.
  // Any other job stays what it is.
  void Promote(Job job, TurnOwner behalf);

  // The job of which a piece goes next; nullopt: none is queued.
  std::optional<Job> Next();
  // The largest size of that piece. REQUIRES: Next().
  Bytes chunk() const { return options_.ChunkOf(NextUrgency()); }
  // Whether `bytes` of the next job may be put in flight in addition to what is. REQUIRES: Next().
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
