// Memory without addresses, and the ends of a copy, which may lie in it.
//
// A Medium is bytes that this process reaches only by copying: those of a file, or of another node.
// Pieces of memory are copied to it and from it by the channels of medium_channel.h.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <type_traits>

#include "core/result.h"
#include "core/types.h"

namespace ravenstore::device {

// Threads: any. Completions come on any thread, also on the caller's own before a call returns.
// REQUIRES of Read and Write: `offset` is a multiple of the granularity, [offset, offset + bytes)
// is within the size, and the memory stays until the completion.
class Medium {
 public:
  // How many bytes, from the first on, were moved, or why none may be relied on. Fewer than were
  // asked for is a failure, too. Called once.
  using Completion = std::function<void(core::Result<core::Bytes>)>;

  // REQUIRES: every completion was called, or the medium's destructor waits for it.
  virtual ~Medium() = default;

  // How error messages call it.
  virtual const std::string& name() const = 0;
  virtual core::Bytes size() const = 0;
  // A power of two. What is written takes whole units: the rest of its last one is undefined.
  virtual core::Bytes granularity() const = 0;

  // Both begin a transfer and return immediately. Several may be under way, and end in any order.
  virtual void Read(core::Bytes offset, std::byte* to, core::Bytes bytes,
                    Completion completion) = 0;
  virtual void Write(core::Bytes offset, const std::byte* from, core::Bytes bytes,
                     Completion completion) = 0;
};

// A medium whose memory comes and goes in pieces of one size, as what other nodes lend does. Each
// piece fails by itself: a transfer from or to one that is not there, or is lost, fails, and none
// to another does because of that.
// Threads: any; Make and Destroy of one piece one at a time, and no transfer touches it meanwhile.
// REQUIRES of Read and Write also: the range is inside one piece that was made.
class PiecedMedium : public Medium {
 public:
  // A power of two and a multiple of the granularity; the size is a multiple of it.
  virtual core::Bytes piece() const = 0;
  // Makes the piece at `offset`, a multiple of piece(). May take long, but ends by itself.
  // Errors: any; it is not there then.
  virtual core::Status Make(core::Bytes offset) = 0;
  // Releases or forgets the piece made at `offset`, even if it is lost. May block, as Make may.
  // Errors: any; then its offsets are not used again.
  virtual core::Status Destroy(core::Bytes offset) = 0;
};

// One end of a copy: an address of this process, or a place in a medium, which outlives the copy.
// `Byte` is std::byte where bytes go to, const std::byte where they come from.
template <typename Byte>
class Endpoint {
 public:
  using Address = std::conditional_t<std::is_const_v<Byte>, const void*, void*>;

  Endpoint(Address address) : address_(static_cast<Byte*>(address)) {}
  Endpoint(Medium& medium, core::Bytes offset) : medium_(&medium), offset_(offset) {}

  // Null for an address.
  Medium* medium() const { return medium_; }
  Byte* address() const { return address_; }
  core::Bytes offset() const { return offset_; }

  friend Endpoint operator+(Endpoint end, core::Bytes bytes) {
    if (end.medium_ == nullptr) {
      end.address_ += bytes.count();
    } else {
      end.offset_ += bytes;
    }
    return end;
  }

 private:
  Byte* address_ = nullptr;
  Medium* medium_ = nullptr;
  core::Bytes offset_;
};

using Target = Endpoint<std::byte>;
using Source = Endpoint<const std::byte>;

}  // namespace ravenstore::device
