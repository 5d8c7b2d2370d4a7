#include "core/extents.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace ravenstore::core {

namespace {
uint64_t UnitsOf(Bytes size) {
  return size.RoundUp(kExtentAlignment).count() / kExtentAlignment.count();
}

uint64_t FitKey(uint32_t size, uint32_t offset) {
  return uint64_t{size} << 32 | offset;
}
}  // namespace

ExtentMap::ExtentMap(Bytes range) : range_(static_cast<uint32_t>(range.count() / kUnit)) {
  RAVEN_CHECK(range.count() % kUnit == 0);
  RAVEN_CHECK(range <= kRangeMax);
  if (range_ == 0) return;
  Node all;
  all.size = range_;
  Insert(NewNode(all));
}

ExtentMap::Block ExtentMap::NewNode(Node node) {
  Block block = spare_;
  if (block == kNone) {
    blocks_.push_back(node);
    block = static_cast<Block>(blocks_.size() - 1);
  } else {
    spare_ = blocks_[block].after;
    blocks_[block] = node;
  }
  NoteBegin(block);
  return block;
}

void ExtentMap::NoteBegin(Block block) {
  begins_[blocks_[block].offset / kStride] = block;
}

void ExtentMap::ForgetBegin(Block block) {
  const uint32_t stride = blocks_[block].offset / kStride;
  const auto begin = begins_.find(stride);
  if (begin->second != block) return;
  // If another begins there, so does a neighbour.
  for (const Block other : {blocks_[block].before, blocks_[block].after}) {
    if (other != kNone && blocks_[other].offset / kStride == stride) begin->second = other;
  }
  if (begin->second == block) begins_.erase(begin);
}

void ExtentMap::Insert(Block block) {
  const Node& node = blocks_[block];
  if (node.kind == Kind::kFree) free_.emplace(FitKey(node.size, node.offset), block);
}

void ExtentMap::Erase(Block block) {
  const Node& node = blocks_[block];
  if (node.kind == Kind::kFree) free_.erase({FitKey(node.size, node.offset), block});
}

ExtentMap::Block ExtentMap::Split(Block block, uint32_t size) {
  RAVEN_CHECK(size > 0);
  RAVEN_CHECK(size < blocks_[block].size);
  Erase(block);
  Node behind = blocks_[block];
  behind.offset += size;
  behind.size -= size;
  behind.before = block;
  const Block rest = NewNode(behind);
  if (behind.after != kNone) blocks_[behind.after].before = rest;
  blocks_[block].size = size;
  blocks_[block].after = rest;
  Insert(block);
  Insert(rest);
  return rest;
}

void ExtentMap::Absorb(Block block, Block after) {
  ForgetBegin(after);
  blocks_[block].size += blocks_[after].size;
  blocks_[block].after = blocks_[after].after;
  if (blocks_[after].after != kNone) blocks_[blocks_[after].after].before = block;
  blocks_[after].after = std::exchange(spare_, after);
}

ExtentMap::Block ExtentMap::Convert(Block block, Kind kind) {
  Erase(block);
  blocks_[block].kind = kind;
  const Block after = blocks_[block].after;
  const bool merges = kind != Kind::kUsed;
  if (merges && after != kNone && blocks_[after].kind == kind) {
    Erase(after);
    Absorb(block, after);
  }
  const Block before = blocks_[block].before;
  if (merges && before != kNone && blocks_[before].kind == kind) {
    Erase(before);
    Absorb(before, block);
    block = before;
  }
  Insert(block);
  return block;
}

ExtentMap::Block ExtentMap::Carve(Block block, uint32_t offset, uint32_t size) {
  if (blocks_[block].offset < offset) block = Split(block, offset - blocks_[block].offset);
  RAVEN_CHECK(blocks_[block].size >= size);
  if (blocks_[block].size > size) Split(block, size);
  return block;
}

void ExtentMap::AddChunk(Bytes offset, Bytes size) {
  const Block block = Carve(At(offset), static_cast<uint32_t>(offset.count() / kUnit),
                            static_cast<uint32_t>(size.count() / kUnit));
  RAVEN_CHECK(blocks_[block].kind == Kind::kAbsent);
  held_ += blocks_[block].size;
  Convert(block, Kind::kFree);
}

void ExtentMap::Retire(uint32_t offset, uint32_t size) {
  const uint32_t end = offset + size;
  // From block to block: a look for each address would pass the same small ones again and again.
  Block block = At(Bytes(offset * kUnit));
  while (offset < end) {
    const Node& node = blocks_[block];
    const uint32_t part = std::min(node.offset + node.size, end) - offset;
    if (node.kind == Kind::kFree) {
      held_ -= part;
      block = Convert(Carve(block, offset, part), Kind::kRetired);
    }
    offset += part;
    // What it merged with may reach farther.
    if (blocks_[block].offset + blocks_[block].size <= offset) block = blocks_[block].after;
  }
}

void ExtentMap::CloseChunk(Bytes offset, Bytes size) {
  const auto first = static_cast<uint32_t>(offset.count() / kUnit);
  const auto units = static_cast<uint32_t>(size.count() / kUnit);
  closed_.emplace_back(first, units);
  Retire(first, units);
}

bool ExtentMap::IsRetired(Bytes offset, Bytes size) const {
  const Block block = At(offset);
  return blocks_[block].kind == Kind::kRetired && OffsetOf(block) + SizeOf(block) >= offset + size;
}

void ExtentMap::RemoveChunk(Bytes offset, Bytes size) {
  RAVEN_CHECK(IsRetired(offset, size));
  const auto first = static_cast<uint32_t>(offset.count() / kUnit);
  const auto units = static_cast<uint32_t>(size.count() / kUnit);
  RAVEN_CHECK(std::erase(closed_, std::pair(first, units)) == 1);
  Convert(Carve(At(offset), first, units), Kind::kAbsent);
}

bool ExtentMap::IsFree(Bytes offset, Bytes size) const {
  // Holes that large are few, while walking to the offset may pass every extent.
  const auto units = static_cast<uint32_t>(size.count() / kUnit);
  for (auto hole = free_.lower_bound({FitKey(units, 0), 0}); hole != free_.end(); ++hole) {
    const Bytes begin = OffsetOf(hole->second);
    if (begin <= offset && begin + SizeOf(hole->second) >= offset + size) return true;
  }
  return false;
}

ExtentMap::Holes::const_iterator ExtentMap::SmallestThatTakes(Bytes size) const {
  const uint64_t units = UnitsOf(size);
  if (units == 0 || units > UINT32_MAX) return free_.end();
  return free_.lower_bound({FitKey(static_cast<uint32_t>(units), 0), 0});
}

std::optional<ExtentMap::Block> ExtentMap::Allocate(Bytes size) {
  const auto hole = SmallestThatTakes(size);
  if (hole == free_.end()) return std::nullopt;
  return Take(hole->second, UnitsOf(size));
}

std::optional<ExtentMap::Block> ExtentMap::AllocateAt(Bytes offset, Bytes size) {
  if (size == Bytes{0} || offset >= range()) return std::nullopt;
  const Block hole = At(offset);
  if (KindOf(hole) != Kind::kFree || OffsetOf(hole) != offset || SizeOf(hole) < size)
    return std::nullopt;
  return Take(hole, UnitsOf(size));
}

std::optional<ExtentMap::Block> ExtentMap::AllocateInMiddle(Bytes size, Bytes alignment) {
  if (size == Bytes{0} || free_.empty()) return std::nullopt;
  const Block hole = free_.rbegin()->second;
  const auto step = static_cast<uint32_t>(alignment.count() / kUnit);
  const uint32_t middle = blocks_[hole].size / 2 / step * step;
  if (UnitsOf(size) > blocks_[hole].size - middle) return std::nullopt;
  return Take(middle > 0 ? Split(hole, middle) : hole, UnitsOf(size));
}

ExtentMap::Block ExtentMap::Take(Block block, uint64_t units) {
  if (blocks_[block].size > units) Split(block, static_cast<uint32_t>(units));
  Convert(block, Kind::kUsed);
  used_ += units;
  return block;
}

void ExtentMap::Free(Block block) {
  RAVEN_CHECK(blocks_[block].kind == Kind::kUsed);
  const uint32_t begin = blocks_[block].offset;
  const uint32_t end = begin + blocks_[block].size;
  used_ -= blocks_[block].size;
  Convert(block, Kind::kFree);
  for (const auto& [offset, size] : closed_) {
    const uint32_t from = std::max(begin, offset);
    const uint32_t to = std::min(end, offset + size);
    if (from < to) Retire(from, to - from);
  }
}

ExtentMap::Block ExtentMap::At(Bytes offset) const {
  const auto unit = static_cast<uint32_t>(offset.count() / kUnit);
  RAVEN_CHECK(unit < range_);
  Block block = std::prev(begins_.upper_bound(unit / kStride))->second;  // some block begins at 0
  while (blocks_[block].offset > unit) block = blocks_[block].before;
  while (blocks_[block].offset + blocks_[block].size <= unit) block = blocks_[block].after;
  return block;
}

Bytes ExtentMap::FreeBefore(Bytes offset) const {
  if (offset == Bytes{0}) return Bytes{0};
  const Block block = At(offset - Bytes(kUnit));
  if (blocks_[block].kind != Kind::kFree) return Bytes{0};
  return offset - OffsetOf(block);
}

Bytes ExtentMap::FreeFrom(Bytes offset) const {
  if (offset >= range()) return Bytes{0};
  const Block block = At(offset);
  if (blocks_[block].kind != Kind::kFree) return Bytes{0};
  return OffsetOf(block) + SizeOf(block) - offset;
}

void ExtentMap::CheckInvariants() const {
  if (range_ == 0) return;
  uint64_t held = 0;
  uint64_t used = 0;
  size_t free = 0;
  std::set<uint32_t> begun;
  uint32_t offset = 0;
  Block before = kNone;
  Block block = At(Bytes{0});
  for (; block != kNone; before = block, block = blocks_[block].after) {
    const Node& node = blocks_[block];
    RAVEN_CHECK(node.offset == offset);
    RAVEN_CHECK(node.before == before);
    RAVEN_CHECK(node.size > 0);
    begun.insert(node.offset / kStride);
    if (before != kNone && (node.kind == Kind::kFree || node.kind == Kind::kAbsent)) {
      RAVEN_CHECK(blocks_[before].kind != node.kind);
    }
    if (node.kind == Kind::kFree || node.kind == Kind::kUsed) held += node.size;
    if (node.kind == Kind::kUsed) used += node.size;
    free += node.kind == Kind::kFree && free_.contains({FitKey(node.size, node.offset), block});
    offset += node.size;
  }
  RAVEN_CHECK(offset == range_);
  RAVEN_CHECK(begun.size() == begins_.size());
  for (const auto& [stride, begin] : begins_) {
    RAVEN_CHECK(At(OffsetOf(begin)) == begin);
    RAVEN_CHECK(blocks_[begin].offset / kStride == stride);
  }
  RAVEN_CHECK(held == held_);
  RAVEN_CHECK(used == used_);
  RAVEN_CHECK(free == free_.size());
}

}  // namespace ravenstore::core
