// `ravenrun --wait`: the process waits, before it takes any of a device, until the daemon promises
// it what it may use there. Once in each process: what it takes of other devices it does not wait
// for.
//
// Without a daemon, or when it ends meanwhile, the process goes on.
//
// Threads: any; all wait for the one that asked first.
#pragma once

namespace ravenstore::interceptor::turn {

// False: it may have nothing of any device, for the time that --wait named is over or a signal
// asked the program to end meanwhile. REQUIRES: Start() succeeded.
bool Await(int row);
void ForgetInChild();

}  // namespace ravenstore::interceptor::turn
