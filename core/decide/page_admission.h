// Whether a create or a get goes on: it may hold its pages now, later, or not at all.
//
// A call holds all its pages until its put. Two calls that each wait for what the other holds would
// never end. A call therefore begins only when everything it needs fits with all that is in use.
//
// Owns: nothing. Units: pages. Threads: any. Errors: none. Cost: O(1).
#pragma once

#include <cstdint>

namespace ravenstore::core::decide {

struct PageCall {
  uint32_t own = 0;       // pages of the call
  uint32_t in_use = 0;    // pages that calls hold, with these
  uint32_t may_hold = 0;  // pages that calls may hold
};

struct PageCreate {
  uint64_t occupied = 0;  // pages in which tensors live or that are in use, with the create's
  uint32_t classes = 0;   // size classes of slots: each may leave one page in part empty
  uint64_t places = 0;    // pages that fit on the device and into the pools for copies
};

enum class Admission : uint8_t {
  kNow,
  kLater,    // when other calls have ended
  kTooLarge  // not while the client may hold no more: no other call is in its way
};

Admission Admit(const PageCall& call);
// The create finds a place. One page stays empty: without it no page could leave for another to
// come.
bool HasPlace(const PageCreate& create);

}  // namespace ravenstore::core::decide
