// The self-test of `ravenrun --check`: at the end of the process, which of the hooked functions the
// program was bound to, and through what. Nothing here does anything without the variable
// $RAVENSTORE_INTERCEPT_CHECK, which names a file for it.
//
// Threads: any; Report runs once, in the thread that ends the process.
#pragma once

namespace ravenstore::interceptor::check {

// Looks at every import of every loaded object, and writes a line for each hooked function:
// "captured" or "ESCAPED", the function, its caller.
void Report();
// The import was bound past the hooks, and turned to them when it may have been used already: a
// line that says "LATE".
void Late(const char* symbol, const char* object);

}  // namespace ravenstore::interceptor::check
