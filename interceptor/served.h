// --mode=store: plain allocations of 2 MiB and more come from the daemon's pages, through
// libravenstore.so, a file next to this library. The first of them loads it privately.
//
// A tensor made here stays in use as long as the job holds it: the store never moves it.
//
// Threads: any.
#pragma once

#include "interceptor/backing.h"

namespace ravenstore::interceptor::served {

extern const Backing kBacking;

}  // namespace ravenstore::interceptor::served
