// The self-test of `ravenrun --check`: at the end of the process, which of the hooked functions the
// program was bound to, and through what.
//
// Threads: runs once, in the thread that ends the process.
#pragma once

namespace ravenstore::interceptor::check {

// Looks at every import of every loaded object, and writes a line for each hooked function to the
// file $RAVENSTORE_INTERCEPT_CHECK: "captured" or
// "ESCAPED", the function, its caller. Does nothing
// without that variable.
void Report();

}  // namespace ravenstore::interceptor::check
