// A client's control segment, as memory of this process.
//
// The daemon creates one per client and sends its descriptor; the client maps it. The seals make
// it safe to touch: neither side can shrink it under the other. Its contents stay a stranger's
// memory.
#pragma once

#include <cstdint>
#include <memory>

#include "core/result.h"
#include "ipc/unique_fd.h"
#include "proto/layout.h"

namespace ravenstore::ipc {

// Owns: the descriptor and the mapping. A moved-from segment holds neither.
// Threads: get() and fd() from any; the rest by the owner.
// Fork: a child does not inherit the mapping (touching it there faults), and destroying the object
//   there leaves the child's address space alone.
// Cost: 64 MiB of addresses; memory only for the pages that were touched. Reading an untouched
//   page allocates it too, so walk no rows that were never used.
class ControlSegment {
 public:
  // A new segment for `client`: zeroed, header filled, sealed against shrinking, growing and
  // further sealing, close-on-exec.
  // Errors: kSystem, kUnsupported (a kernel without sealed memfds).
  static core::Result<ControlSegment> Create(uint32_t client);

  // Maps the segment behind `memory`, which Create() made in another process.
  // Errors: kCorrupt (not such a segment: seals, size or magic), kVersionMismatch, kSystem.
  static core::Result<ControlSegment> Map(UniqueFd memory);

  ControlSegment(ControlSegment&&) noexcept;
  ControlSegment& operator=(ControlSegment&&) noexcept;
  ~ControlSegment();

  // Page-aligned; valid as long as this object.
  proto::Segment* get() const;
  proto::Segment* operator->() const { return get(); }
  // For sending to the client.
  int fd() const { return memory_.get(); }

 private:
  class Mapping;
  ControlSegment(UniqueFd memory, std::unique_ptr<Mapping> mapping);
  static core::Result<ControlSegment> MapUnchecked(UniqueFd memory);
  void Drop();

  UniqueFd memory_;
  std::unique_ptr<Mapping> mapping_;
};

}  // namespace ravenstore::ipc
