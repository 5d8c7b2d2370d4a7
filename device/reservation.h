// Address ranges and sealed memfds: what an arena is made of where no driver makes it.
#pragma once

#include <cstddef>

#include "core/result.h"
#include "core/types.h"
#include "ipc/unique_fd.h"

namespace ravenstore::device {

// A range of addresses that nothing else of this process will be given. A forked child does not
// inherit it. Owns: the range, and unmaps all of it at its end.
class Reservation {
 public:
  // Its base is a multiple of `alignment`, a power of two.
  static core::Result<Reservation> Make(core::Bytes size, core::Bytes alignment = core::KiB(4));
  Reservation() = default;
  Reservation(Reservation&& other) noexcept;
  Reservation& operator=(Reservation&& other) noexcept;
  ~Reservation();

  std::byte* base() const { return base_; }
  core::Bytes size() const { return size_; }

  // Maps the first `bytes` of `memory`, shared and writable, at `offset`.
  core::Status Map(core::Bytes offset, core::Bytes bytes, int memory);
  // The same of memory that came from elsewhere. kInvalidArgument: it is not of that size.
  core::Status MapWhole(core::Bytes offset, core::Bytes bytes, int memory);
  // Maps the shared memory that `mapped`, an address of this process, begins. It needs no
  // descriptor.
  core::Status MapSame(core::Bytes offset, core::Bytes bytes, std::byte* mapped);
  // Maps memory of this process alone, in huge pages where the system has some.
  core::Status MapOwn(core::Bytes offset, core::Bytes bytes);
  // Gives the mapped range its pages now rather than at the first touch of each; kSystem if there
  // are too few. A kernel before 5.14 cannot, and leaves it to the touches.
  core::Status Populate(core::Bytes offset, core::Bytes bytes);
  // The same on all cores: what takes long is clearing the pages.
  core::Status PopulateInParallel(core::Bytes offset, core::Bytes bytes);
  // A mapped range is only read from now on.
  core::Status MakeReadOnly(core::Bytes offset, core::Bytes bytes);
  // Makes the range inaccessible again.
  core::Status Unmap(core::Bytes offset, core::Bytes bytes);

 private:
  // A new mapping is not inherited by a forked child.
  core::Status KeepFromChildren(core::Bytes offset, core::Bytes bytes);

  std::byte* base_ = nullptr;
  core::Bytes size_;
};

// Whether memory of MapOwn comes in huge pages, as long as there are some.
bool HasHugePages();

// A memfd of this size, zeroed, closed on exec, sealed against shrinking and growing: with another
// size, another process that holds it could make our access fault.
core::Result<ipc::UniqueFd> NewMemory(core::Bytes bytes);

// Another descriptor of the same memory, closed on exec.
core::Result<ipc::UniqueFd> Duplicate(int descriptor);

// The size of the memory behind `descriptor`.
core::Result<core::Bytes> SizeOf(int descriptor);

// kLimit: `what` was refused a descriptor. The message says what to do.
core::Error NoDescriptors(const char* what);
// kSystem with what was tried and errno's words; out of descriptors, the one above.
core::Error SystemError(const char* what);

}  // namespace ravenstore::device
