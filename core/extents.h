// A range of addresses, backed by memory chunk by chunk, handed out as extents.
//
// Owns: the bookkeeping only. Threads: one at a time. Cost: O(log n) in the number of free extents.
// Source of the fit: best fit with the lowest address on ties (Knuth, TAOCP 1, 2.5); neighbours are
// merged through boundary links.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "core/check.h"
#include "core/chunked.h"
#include "core/types.h"

namespace ravenstore::core {

class ExtentMap {
 public:
  // An extent, free or used, or a range without memory. Valid until it is freed, merged or split.
  using Block = uint32_t;
  static constexpr Block kNone = ~Block{0};
  // kRetired: free, but its memory is to leave, or is being given back; the addresses are not to be
  // used again before that is done.
  enum class Kind : uint8_t { kAbsent, kFree, kUsed, kRetired };

  // Addresses [0, range), none of them backed. REQUIRES: range is a multiple of kExtentAlignment
  // and at most kRangeMax.
  explicit ExtentMap(Bytes range);

  // Memory came to [offset, offset + size). REQUIRES: the range is absent.
  void AddChunk(Bytes offset, Bytes size);
  // The memory of [offset, offset + size) is to leave: what is free there, or comes free, is
  // retired. REQUIRES: no part of it is absent or closed.
  void CloseChunk(Bytes offset, Bytes size);
  // Whether nothing lives in the closed range any more.
  bool IsRetired(Bytes offset, Bytes size) const;
  // It left. REQUIRES: that very range was closed, and all of it is retired.
  void RemoveChunk(Bytes offset, Bytes size);
  bool IsFree(Bytes offset, Bytes size) const;

  // The smallest hole that takes `size` (rounded up to kExtentAlignment); nullopt when none does.
  std::optional<Block> Allocate(Bytes size);
  // The same at `offset`, if a hole begins there that takes it.
  std::optional<Block> AllocateAt(Bytes offset, Bytes size);
  // The same in the middle of the largest hole. REQUIRES: holes begin at multiples of `alignment`.
  std::optional<Block> AllocateInMiddle(Bytes size, Bytes alignment = kExtentAlignment);
  void Free(Block block);

  Kind KindOf(Block block) const { return blocks_[block].kind; }
  Bytes OffsetOf(Block block) const { return Bytes(blocks_[block].offset * kUnit); }
  Bytes SizeOf(Block block) const { return Bytes(blocks_[block].size * kUnit); }
  // The block that holds `offset`. Cost: the blocks around it in 256 KiB, and O(log n).
  Block At(Bytes offset) const;

  Bytes range() const { return Bytes(range_ * kUnit); }
  Bytes held() const { return Bytes(held_ * kUnit); }  // backed by memory
  Bytes used() const { return Bytes(used_ * kUnit); }
  // Free bytes that end at `offset`.
  Bytes FreeBefore(Bytes offset) const;
  // Free bytes that begin at `offset`.
  Bytes FreeFrom(Bytes offset) const;

  // Aborts unless links, lists and sums agree; O(n).
  void CheckInvariants() const;

 private:
  static constexpr uint64_t kUnit = kExtentAlignment.count();
  // Units of one entry of begins_.
  static constexpr uint32_t kStride = 512;

  struct Node {
    uint32_t offset = 0;  // in kUnit
    uint32_t size = 0;
    Block before = kNone;
    Block after = kNone;
    Kind kind = Kind::kAbsent;
  };

  using Holes = std::set<std::pair<uint64_t, Block>>;  // {size << 32 | offset, block}

  // free_.end(): none does.
  Holes::const_iterator SmallestThatTakes(Bytes size) const;
  // The first `units` of a free block.
  Block Take(Block block, uint64_t units);
  Block NewNode(Node node);
  void Insert(Block block);  // into the holes, if it is free
  void Erase(Block block);
  // Splits off the first `size` units; returns the rest.
  Block Split(Block block, uint32_t size);
  // Makes `block` a `kind` and merges it with neighbours of that kind; returns the merged block.
  Block Convert(Block block, Kind kind);
  void Absorb(Block block, Block after);
  void NoteBegin(Block block);
  void ForgetBegin(Block block);
  // Cuts `block`, which holds `offset`, so that one begins there and ends at `offset + size`.
  Block Carve(Block block, uint32_t offset, uint32_t size);
  // Makes what is free in [offset, offset + size) retired.
  void Retire(uint32_t offset, uint32_t size);

  uint32_t range_;
  uint64_t held_ = 0;
  uint64_t used_ = 0;
  Chunked<Node, 128> blocks_;
  Block spare_ = kNone;  // the first node without a block; `after` leads to the next
  Holes free_;
  std::vector<std::pair<uint32_t, uint32_t>> closed_;  // {offset, size}
  // For every kStride units of addresses a block that begins there, if any does: where to look for
  // an address. A block keeps its offset for life.
  std::map<uint32_t, Block> begins_;
};

}  // namespace ravenstore::core
