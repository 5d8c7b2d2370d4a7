// The line to the daemon: who we are and the page it reads, and the request for memory.
//
// A thread of ours ("raven-link", every signal blocked) notices that the daemon went and attaches
// to the next one; the page goes with it, so nothing is reported twice. Without a daemon it tries
// again from time to time and nothing else happens.
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

// A place among those who wait for a device; no descriptor: there is no daemon, or it does not
// know us. Others may close the descriptor and have another file under its number.
struct Place {
  int descriptor = -1;
  uint64_t inode = 0;
};
// `bytes` of 0: for the whole device.
Place TakePlace(int row, uint64_t bytes);
struct News {
  enum Kind : uint8_t { kNone, kMoved, kTurn, kOver } kind = kNone;
  uint64_t position = 0;
  uint64_t bytes = 0;
  char why[256] = {};  // it is over
};
// The next, awaited for so long.
News AwaitNews(const Place& place, int milliseconds);
void LeavePlace(const Place& place);

void ForgetInChild();

}  // namespace ravenstore::interceptor::link
