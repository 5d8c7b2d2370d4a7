#include "core/plan/address_range.h"

#include <algorithm>
#include <iterator>

#include "core/check.h"

namespace ravenstore::core::plan {

namespace {
// The search for a hole that others do not use ends after this number of holes, and after this
// number that others use. A client may make very many.
constexpr uint32_t kHolesSeen = 256;
constexpr uint32_t kOthersSeen = 8;
// Later frees have smaller keys.
uint64_t FreedKey(uint64_t freed) {
  return ~freed;
}

AddressRange::Request Rounded(AddressRange::Request request) {
  request.size = request.size.RoundUp(kExtentAlignment);
  return request;
}
}  // namespace

template <typename ConstNode, typename Node, typename Compare, typename Allocator>
void AddressRange::LargestBelow<ConstNode, Node, Compare, Allocator>::operator()(Node node,
                                                                                 ConstNode end) {
  Bytes largest = (*node)->second.size;
  for (const ConstNode child : {ConstNode(node.get_l_child()), ConstNode(node.get_r_child())}) {
    if (child != end) largest = std::max(largest, Bytes(child.get_metadata()));
  }
  const_cast<Bytes&>(node.get_metadata()) = largest;  // the container's own policies do so, too
}

const AddressRange::Hole* AddressRange::FirstFit(const Holes& holes, Bytes size) {
  const auto fits_below = [&](Holes::node_const_iterator node) {
    return node != holes.node_end() && node.get_metadata() >= size;
  };
  auto node = holes.node_begin();
  if (!fits_below(node)) return nullptr;
  while (true) {
    if (fits_below(node.get_l_child())) {
      node = node.get_l_child();
    } else if ((*node)->second.size >= size) {
      return &(*node)->second;
    } else {
      node = node.get_r_child();
    }
  }
}

Bytes AddressRange::BeginIn(Bytes offset, Bytes size, uint32_t most) const {
  const uint64_t first = offset.count() / page_.count();
  const uint64_t last = (offset + size).count() - 1;
  return last / page_.count() - first < most ? offset : offset.RoundUp(page_);
}

AddressRange::Hole AddressRange::PreferredHole(Bytes size, uint32_t most) const {
  const Holes& holes = size >= page_ ? by_freed_ : by_offset_;
  const Hole* fit = FirstFit(holes, size);
  if (fit != nullptr && BeginIn(fit->offset, size, most) + size > fit->end())
    fit = FirstFit(holes, size + page_ - kExtentAlignment);
  if (fit != nullptr) return *fit;
  Hole hole{.offset = end_, .size = {}, .freed = 0};
  if (!by_offset_.empty()) {
    const Hole& last = std::prev(by_offset_.end())->second;
    if (last.end() == end_) hole = last;
  }
  hole.size = std::max(hole.size, BeginIn(hole.offset, size, most) + size - hole.offset);
  return hole;
}

AddressRange::Hole AddressRange::HoleFor(const Request& request) const {
  const Hole hole = PreferredHole(request.size, request.most);
  return IsOthers(request, hole.offset) ? HoleAvoidingOthers(request) : hole;
}

AddressRange::Hole AddressRange::HoleAvoidingOthers(const Request& request) const {
  uint32_t seen = 0;
  uint32_t others = 0;
  for (const auto& [offset, hole] : by_offset_) {
    if (++seen > kHolesSeen || others == kOthersSeen) break;
    if (BeginIn(hole.offset, request.size, request.most) + request.size > hole.end()) continue;
    if (!IsOthers(request, hole.offset)) return hole;
    ++others;
  }
  // Nothing was ever there.
  return {.offset = end_,
          .size = BeginIn(end_, request.size, request.most) + request.size - end_,
          .freed = 0};
}

bool AddressRange::IsOthers(const Request& request, Bytes hole) const {
  if (request.others == nullptr) return false;
  const Bytes begin = BeginIn(hole, request.size, request.most);
  return request.others->HasOthers(begin, request.size, request.stream);
}

bool AddressRange::CanAllocate(const Request& request, Bytes limit) const {
  if (request.size > limit) return false;
  const Request rounded = Rounded(request);
  const Bytes begin = HoleFor(rounded).offset;
  return BeginIn(begin, rounded.size, rounded.most) + rounded.size <= limit;
}

Bytes AddressRange::Allocate(const Request& request) {
  RAVEN_CHECK(request.size > Bytes{});
  const Request rounded = Rounded(request);
  const Hole hole = HoleFor(rounded);
  const Bytes begin = BeginIn(hole.offset, rounded.size, rounded.most);
  Take(hole, begin, begin + rounded.size);
  return begin;
}

std::optional<AddressRange::Hole> AddressRange::HoleAround(Bytes offset, Bytes end) const {
  const auto next = by_offset_.upper_bound(offset.count());
  Hole hole{.offset = end_, .size = {}, .freed = 0};
  if (next != by_offset_.begin()) {
    const Hole& before = std::prev(next)->second;
    if (end <= before.end()) return before;
    if (before.end() == end_) hole = before;
  }
  if (offset < hole.offset) return std::nullopt;
  hole.size = end - hole.offset;
  return hole;
}

bool AddressRange::AllocateAt(Bytes offset, Bytes size) {
  const Bytes end = offset + size.RoundUp(kExtentAlignment);
  const auto hole = HoleAround(offset, end);
  if (hole) Take(*hole, offset, end);
  return hole.has_value();
}

void AddressRange::Take(const Hole& hole, Bytes begin, Bytes end) {
  if (const auto old = by_offset_.find(hole.offset.count()); old != by_offset_.end())
    Erase(Hole(old->second));
  end_ = std::max(end_, hole.end());
  if (hole.end() > end) Insert({end, hole.end() - end, hole.freed});
  if (begin > hole.offset) Free(hole.offset, begin - hole.offset);
}

void AddressRange::Free(Bytes offset, Bytes size) {
  Hole hole{offset, size.RoundUp(kExtentAlignment), ++frees_};
  RAVEN_CHECK(hole.end() <= end_);
  auto next = by_offset_.lower_bound(offset.count());
  if (next != by_offset_.begin()) {
    const Hole before = std::prev(next)->second;
    RAVEN_CHECK(before.end() <= offset);
    if (before.end() == offset) {
      Erase(before);
      hole = {before.offset, before.size + hole.size, hole.freed};
    }
  }
  next = by_offset_.lower_bound(offset.count());
  if (next != by_offset_.end()) {
    const Hole after = next->second;
    RAVEN_CHECK(hole.end() <= after.offset);
    if (hole.end() == after.offset) {
      Erase(after);
      hole.size += after.size;
    }
  }
  Insert(hole);
}

void AddressRange::Insert(const Hole& hole) {
  by_offset_.insert({hole.offset.count(), hole});
  by_freed_.insert({FreedKey(hole.freed), hole});
}

void AddressRange::Erase(const Hole& hole) {
  RAVEN_CHECK(by_freed_.erase(FreedKey(hole.freed)));
  RAVEN_CHECK(by_offset_.erase(hole.offset.count()));
}

}  // namespace ravenstore::core::plan
