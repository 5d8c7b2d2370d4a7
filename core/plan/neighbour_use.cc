#include "core/plan/neighbour_use.h"

#include <utility>

#include "core/tuned.h"

namespace ravenstore::core::plan {

void NeighbourUse::Created(TensorIndex tensor, Bytes size, bool is_small) {
  used_by_all_ += size;
  if (!is_small) return;
  if (groups_[newest_].created >= page_) {
    if (groups_[newest_].live == Bytes{}) groups_.erase(newest_);
    ++newest_;
  }
  Group& group = groups_[newest_];
  group.created += size;
  group.live += size;
  members_.GrowTo(tensor + 1);
  members_[tensor] = {newest_, size, group.interval};
  if (!group.open) return;
  // Its page has to be there for it, too.
  group.total += size;
  group.used += size;
}

void NeighbourUse::Got(TensorIndex tensor, Bytes size) {
  if (IsMember(tensor)) {
    Member& member = members_[tensor];
    Group& group = groups_[member.group];
    if (group.open && used_by_all_ - group.begin >= held_) Close(&group);
    if (!group.open) {
      group.open = true;
      ++group.interval;
      group.begin = used_by_all_;
      group.total = group.live;
      group.used = Bytes{};
    }
    if (member.interval != group.interval) {
      member.interval = group.interval;
      group.used += member.size;
    }
    if (group.used == group.total) Close(&group);
  }
  used_by_all_ += size;
}

void NeighbourUse::Freed(TensorIndex tensor) {
  if (!IsMember(tensor)) return;
  const auto [number, size, interval] = std::exchange(members_[tensor], {});
  Group& group = groups_[number];
  group.live -= size;
  if (group.live > Bytes{}) return;
  if (group.open) Close(&group);
  if (number != newest_) groups_.erase(number);
}

void NeighbourUse::Close(Group* group) {
  group->open = false;
  brought_ += group->total;
  used_ += group->used;
  if (brought_ < held_) return;
  brought_ = Bytes(brought_.count() / 2);
  used_ = Bytes(used_.count() / 2);
}

Bytes NeighbourUse::LargestSlot() const {
  if (!PreferSlots()) return Bytes{};
  return brought_ == Bytes{} ? Bytes(page_.count() / kUnseenPart) : page_;
}

}  // namespace ravenstore::core::plan
