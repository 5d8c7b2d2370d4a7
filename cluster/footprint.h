// How much memory containers take, by what the standard library and its allocator are known to do:
// a tree's node has three pointers and a colour before the value, and what is allocated has a word
// before it and comes in units of two.
#pragma once

#include <cstddef>
#include <vector>

#include "core/types.h"

namespace ravenstore::cluster {

inline core::Bytes Allocated(size_t bytes) {
  return core::Bytes(bytes + sizeof(void*)).RoundUp(core::Bytes(2 * sizeof(void*)));
}

// Of a map or set whose value_type it is.
template <typename T>
core::Bytes TreeEntry() {
  return Allocated(4 * sizeof(void*) + sizeof(T));
}

template <typename T>
core::Bytes Array(const std::vector<T>& items) {
  return items.capacity() == 0 ? core::Bytes{} : Allocated(items.capacity() * sizeof(T));
}

}  // namespace ravenstore::cluster
