// Questions about the store that only the planner loop can answer: figures, listings, explanations
// (daemon/admin.h).
//
// Threads: the control thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "core/types.h"
#include "daemon/cluster.h"
#include "daemon/connections.h"
#include "daemon/legacy.h"
#include "daemon/loop.h"
#include "daemon/memory_watch.h"
#include "daemon/names.h"
#include "device/device.h"
#include "proto/control.pb.h"

namespace ravenstore::daemon {

// Removes nodes until the figures have at most `bytes_most` bytes, and counts the removed ones.
// Nodes that share no memory with this one are removed first.
void LeaveOutNodes(size_t bytes_most, proto::Stats* stats);

class Queries {
 public:
  // All that is pointed to outlives this.
  struct Options {
    device::Devices devices;
    std::vector<core::Bytes> peer_pools;  // of each device's memory
    core::Tick started{};
    const Names* names = nullptr;
    const LegacyLedger* ledger = nullptr;
    const MemoryWatch* watch = nullptr;
    const Cluster* cluster = nullptr;              // null: there is none
    std::optional<core::PoolId> remote_pool = {};  // which that makes
    Loop* loop = nullptr;
    Connections* connections = nullptr;
  };
  explicit Queries(Options options) : options_(std::move(options)) {}

  // Answers with what the caller may see. False when the message is no such question: nothing was
  // done.
  bool Handle(const Caller& caller, const proto::ClientPacket& packet);

 private:
  // What the loop's thread does not know and should not ask for.
  struct Gathered {
    uint64_t resident = 0;
    std::vector<MemoryWatch::Seen> devices;
    std::vector<core::Bytes> jobs;  // of each device
  };
  // In the loop's thread.
  void FillWhole(const Gathered& gathered, bool to_administrator, proto::Stats* stats) const;
  void FillReplica(core::TensorId tensor, bool to_administrator,
                   proto::TensorExplained* explained) const;
  proto::DaemonPacket AnswerOf(const proto::ClientPacket& packet, const Gathered& gathered,
                               const Audience& audience, core::ClientId client) const;

  const Options options_;
};

}  // namespace ravenstore::daemon
