// The line to the daemon: who we are and the page it reads, and the request for memory.
//
// A thread of ours ("raven-link", every signal blocked) notices that the daemon went and attaches
// to the next one; the page goes with it, so nothing is told twice. Without a daemon it tries again
// from time to time and nothing else happens.
//
// Threads: any. Every wait is bounded.
#pragma once

#include <cstdint>

namespace ravenstore::interceptor::link {

// Tries to attach, once, and starts the thread.
void Begin();
// Attached to a daemon at this moment.
bool Attached();
// Until when a call that begins now may wait for the store, however often it asks: milliseconds of
// CLOCK_MONOTONIC.
int64_t ReclaimDeadline();
// The driver is out of memory: asks the daemon to give up `bytes` of what the store holds of the
// device. True when it gave some: try again.
bool Reclaim(int row, uint64_t bytes, int64_t deadline);
void ForgetInChild();

}  // namespace ravenstore::interceptor::link
