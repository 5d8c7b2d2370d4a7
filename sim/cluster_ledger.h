// What a simulated cluster is judged by, kept apart from what the nodes believe: whose the memory
// of a slot is, which transfers use it, which connection of a home is its newest, and until when
// its lease holds by the lender's own clock.
//
// It reads the headers that go by, and the memory that is asked for. Threads: one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "cluster/ids.h"
#include "cluster/lent_memory.h"
#include "cluster/protocol.h"
#include "core/types.h"
#include "transport/transport.h"

namespace ravenstore::sim {

// What must never happen, and what did happen.
struct ClusterCounts {
  uint64_t wrong_bytes = 0;  // read, or not those that were acknowledged
  uint64_t late_calls = 0;   // not ended by their deadline
  uint64_t lent_twice = 0;   // memory that another home, or its owner, was to have
  uint64_t served_late = 0;  // after the end of a lease, or by a connection that was replaced
  uint64_t operations = 0;   // of homes, that succeeded
  uint64_t bytes_read = 0;
  uint64_t pieces_lost = 0;
  uint64_t pieces_moved = 0;
  std::string first = {};  // of the violations, in words

  ClusterCounts& operator+=(const ClusterCounts& other);
  uint64_t Violations() const { return wrong_bytes + late_calls + lent_twice + served_late; }
};

// A home, in one start of it.
using HomeKey = std::pair<std::string, cluster::Incarnation>;

// Of one lender, for one start of it.
class LenderLedger final : public cluster::LentMemory {
 public:
  // Called for each violation, with its counter and a description.
  using Violation = std::function<void(uint64_t ClusterCounts::*which, const std::string& words)>;
  LenderLedger(std::function<core::Tick()> lease_clock, core::Duration lease, Violation violation)
      : lease_clock_(std::move(lease_clock)), lease_(lease), violation_(std::move(violation)) {}

  // The number of slots that the lender may lend.
  void SetLimit(size_t slots) { limit_ = slots; }
  size_t lent() const { return regions_.size(); }

  core::Result<std::span<std::byte>> Make(core::Bytes bytes) override;
  void Release(std::span<std::byte> memory) override;
  // Changes a byte of what is lent. Whether there is one.
  bool CorruptByte(uint64_t random);

  // A request was accepted; returns its sink with the ledger's own check behind the lender's.
  transport::Sink OnAccepted(const transport::IncomingCall& call,
                             const cluster::AnyRequest& request, transport::Sink sink);
  // It is answered.
  transport::Answer OnAnswered(transport::CallId call, transport::Answer answer);
  void OnEnded(transport::CallId call);

  // How long its lease holds by the lender's own clock; 0 where it has none.
  core::Duration LeaseLeft(const HomeKey& home) const;
  bool Opened(const HomeKey& home) const { return expires_.contains(home); }
  // Whether the lender would, by its own clock, refuse that home now.
  bool IsExpired(const HomeKey& home) const;

 private:
  struct Region {
    uint64_t number = 0;  // of all that were made: its address differs between runs of a seed
    std::unique_ptr<std::vector<std::byte>> bytes;
    // The first that used it: whose, and under which lending.
    std::optional<std::pair<HomeKey, cluster::SlotRef>> user = {};
  };
  struct Call {
    std::string node;
    cluster::AnyRequest request;
    std::span<const std::byte> uses = {};
  };

  // The call, a transfer, uses its memory now.
  void Uses(transport::ConnectionId connection, const Call& call);
  transport::ChunkCheck Checks(transport::ConnectionId connection, const Call& call,
                               transport::ChunkCheck check);

  const std::function<core::Tick()> lease_clock_;
  const core::Duration lease_;
  const Violation violation_;
  size_t limit_ = 0;
  uint64_t made_ = 0;
  std::map<const std::byte*, Region> regions_;
  std::map<transport::CallId, Call> calls_;
  std::map<transport::ConnectionId, HomeKey> opened_;
  std::map<HomeKey, transport::ConnectionId> newest_;
  std::map<HomeKey, core::Tick> expires_;
};

}  // namespace ravenstore::sim
