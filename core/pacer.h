// Paces what several senders send over one link to one rate together.
//
// A token bucket: what is sent may run ahead of the rate by a burst, so that a sender that looks
// late loses nothing. Senders that are refused stand in line, and only the first in line may send
// next: none starves another, however often each asks.
//
// Knows no clock. Threads: one at a time. Cost: O(senders in line).
#pragma once

#include <cstdint>
#include <deque>

#include "core/types.h"

namespace ravenstore::core {

class Pacer {
 public:
  enum class Sender : uint32_t {};

  // Without a rate at first.
  explicit Pacer(Bytes burst) : burst_(burst) {}

  // From now on; 0: all may send immediately. REQUIRES: 0, or at least one byte per second.
  void SetRate(double bytes_per_second);
  double rate() const { return bytes_per_second_; }

  // Adds a sender; the result identifies it.
  Sender Join() { return Sender{senders_++}; }
  // Whether the sender may send `bytes` now. If so, they count as sent. Otherwise the sender stands
  // in line, and must ask again at NextTurn, or leave. Pieces beyond the burst go alone.
  // REQUIRES: `now` is not before that of the last call.
  bool MaySend(Sender sender, Bytes bytes, Tick now);
  // The sender sends nothing for now.
  void Leave(Sender sender);
  // When the first in line may send; immediately if the line is empty.
  Tick NextTurn() const { return line_.empty() ? Tick{} : TurnOf(line_.front().bytes); }

 private:
  struct Waiting {
    Sender sender{};
    Bytes bytes;
  };

  Tick TurnOf(Bytes bytes) const;
  Duration TimeOf(Bytes bytes) const;

  const Bytes burst_;
  double bytes_per_second_ = 0;
  Tick sent_until_{};  // when all that was sent so far has gone at the rate
  std::deque<Waiting> line_;
  uint32_t senders_ = 0;
};

}  // namespace ravenstore::core
