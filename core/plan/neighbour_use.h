// Whether small tensors that were created one after the other are used together.
//
// Small tensors that share a page leave and come together. If the client then uses few of them, the
// link copies the others for nothing. They are then better in slots, which move alone
// (core/plan/small_tensors.h).
//
// The tensors are watched in groups of at least a page's bytes, by the order of their creates,
// wherever their places are. A group thus has the tensors that a page would have in part only. The
// first get in a group begins an interval. It ends when creates and gets have
// used the bytes that the client may hold: by then a page of these tensors would have left. The
// share of the group that was used in between is the useful part of such a page. A create in an
// interval is a use, since it needs the page. An interval ends early if all of the group was used.
//
// Source: working sets (Denning, "The working set model for program behavior", 1968), with a window
// in bytes.
//
// Owns: the tensors' groups. Units: bytes. Threads: one at a time. Cost: O(1) a call.
#pragma once

#include <cstdint>
#include <unordered_map>

#include "core/chunked.h"
#include "core/plan/call_history.h"
#include "core/types.h"

namespace ravenstore::core::plan {

class NeighbourUse {
 public:
  // `held`: the bytes that the client may hold on the device.
  NeighbourUse(Bytes page, Bytes held) : page_(page), held_(held) {}

  // `is_small`: the tensor may have a slot; others only make time pass.
  void Created(TensorIndex tensor, Bytes size, bool is_small);
  void Got(TensorIndex tensor, Bytes size);
  void Freed(TensorIndex tensor);

  // The largest tensor that is to have a slot; zero: none is. It is a page, but a part of a page
  // before an interval has ended: a tensor in a slot keeps it.
  Bytes LargestSlot() const;
  // Small tensors are to have slots: less than half of their pages' bytes would be used. Before an
  // interval has ended: pages would have left by now, and the client has got no tensor of them.
  bool PreferSlots() const {
    return brought_ == Bytes{} ? used_by_all_ >= held_ : used_ * 2 < brought_;
  }

 private:
  struct Group {
    Bytes created;
    Bytes live;
    // Of the interval.
    uint64_t interval = 0;  // counts them; 0: none has begun
    bool open = false;
    Bytes begin;  // NeighbourUse::used_by_all_ when it began
    Bytes total;  // in the group when it began, and created since
    Bytes used;
  };
  struct Member {
    size_t group = 0;
    Bytes size;
    uint64_t interval = 0;  // of the group: the last one that counts it
  };

  bool IsMember(TensorIndex tensor) const {
    return tensor < members_.size() && members_[tensor].size > Bytes{};
  }
  void Close(Group* group);

  const Bytes page_;
  const Bytes held_;
  size_t newest_ = 0;  // the group that the next tensor joins if it has room
  std::unordered_map<size_t, Group> groups_;
  Chunked<Member, 256> members_;  // by tensor; those of no bytes are none
  Bytes used_by_all_;             // by creates and gets of all tensors
  // Of intervals that have ended, the latest count most.
  Bytes brought_;  // of their groups
  Bytes used_;     // of these, those that were used
};

}  // namespace ravenstore::core::plan
