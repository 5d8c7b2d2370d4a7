// What a client's mapper is to do: the daemon's end of the map ring (proto/layout.h).
//
// Instructions wait here while the ring is full, or while the client has descriptors enough that it
// has not imported (proto::kMemoryUnderWayMax).
//
// Owns: what waits, with its descriptors. Units: bytes. Threads: the planner loop.
#pragma once

#include <cstdint>
#include <deque>
#include <vector>

#include "core/types.h"
#include "ipc/ring.h"
#include "ipc/unique_fd.h"
#include "proto/layout.h"

namespace ravenstore::daemon {

class MapOrders {
 public:
  // Descriptors of the memories `first`, `first` + 1, ..., which go to the client by its socket.
  struct Batch {
    uint32_t first = 0;
    std::vector<ipc::UniqueFd> descriptors;
  };
  // An instruction that the client says it has executed; not `ok`: it could not.
  struct Ended {
    proto::MapOp op;
    core::DeviceId device;
    uint32_t memory = 0;
    core::Bytes offset;
    bool ok = true;
  };

  explicit MapOrders(proto::MapRing* ring) : ring_(ring) {}

  // ---- Instructions, in this order. Nothing is sent before Send().
  // Returns the number that the memory has for this client.
  uint32_t Import(core::DeviceId device, core::Bytes bytes, ipc::UniqueFd descriptor);
  void Map(core::DeviceId device, uint32_t memory, core::Bytes offset, core::Bytes bytes);
  void Unmap(core::DeviceId device, uint32_t memory, core::Bytes offset);
  void Release(core::DeviceId device, uint32_t memory);

  // Whether the descriptor of one more Import would go without a wait for the client, with `ahead`
  // before it that are being made.
  bool MayImport(size_t ahead) const;
  // The client's process executes nothing any more: each instruction counts as executed.
  void ExecuteHere() { is_executed_here_ = true; }
  // Puts into the ring what may go now, and wakes the mapper.
  Batch Send();
  // Whether Poll has something to say: one load.
  bool HasWork() const {
    return is_executed_here_ ? !sent_.empty() || !waiting_.empty() : ring_.HasWork();
  }
  // Appends what has ended since the last time. Returns false when the client's word cannot be
  // true.
  bool Poll(std::vector<Ended>* ended);

 private:
  struct Order {
    proto::MapInstruction instruction;
    ipc::UniqueFd descriptor;  // of an import
  };

  void Append(proto::MapInstruction instruction, ipc::UniqueFd descriptor = {});
  void EndAll(std::vector<Ended>* ended);

  ipc::MapProducer ring_;
  std::deque<Order> waiting_;
  std::deque<proto::MapInstruction> sent_;  // and not executed
  uint32_t memories_ = 0;
  size_t imports_waiting_ = 0;
  size_t under_way_ = 0;  // descriptors that were sent and not imported
  bool is_executed_here_ = false;
};

}  // namespace ravenstore::daemon
