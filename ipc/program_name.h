// The name of this process: shown to users, and the name of its job in orders.
//
// The C library only and no allocation: the interceptor asks this, too. Threads: any.
#pragma once

#include <cstddef>

namespace ravenstore::ipc {

// Writes into `name` what a process is called whose program is `program`, at most `room` bytes with
// the zero at its end, and returns how many without. `words` are those of its command line, a zero
// behind each, `size` bytes in all. A Python interpreter is called as the file of its script, or as
// the last part of the module that it runs; without either as any other program: as `program`.
size_t NameOfProgram(const char* program, const char* words, size_t size, char* name, size_t room);

// The same of this process.
size_t ProgramName(char* name, size_t room);

}  // namespace ravenstore::ipc
