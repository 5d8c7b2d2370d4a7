// Finds functions in the objects that are loaded, without dlsym: which is ours here.
//
// Threads: any. Takes only the loader's own (recursive) lock for the list of objects.
#pragma once

#include <cstddef>
#include <cstdint>

namespace ravenstore::interceptor {

// The address of `symbol` in the first loaded object whose file name begins with `library`
// ("libcuda.so"), or null. An object that holds our own code is passed over.
void* FindInLibrary(const char* library, const char* symbol);

// One place in a loaded object through which it calls the function `symbol` of another.
struct Import {
  const char* object;  // path of the importing object; "" for the program
  const char* symbol;
  void** slot;  // where the address stands
  bool jump;    // the linker's own word, which nothing else changes; it may not be bound yet
  bool sealed;  // in what was made read-only once it was bound
};
// Calls visit for every import, of every object but this one, whose symbol's name begins as one of
// the tables does ("cu", "nvml", "dl").
void ForEachImport(void (*visit)(const Import& import, void* argument), void* argument);

// Lets the object call `function`. False when its memory cannot be written. Call it from a visit:
// the loader's lock keeps others of us away, and the object where it is.
bool Rebind(const Import& import, void* function);
// How many objects were ever loaded.
uint64_t ObjectsAdded();

// True when the object brings hooked functions, and calls them itself as it likes.
bool BringsHooked(const char* object);
// True when `address` is in this library.
bool IsOurs(const void* address);
// The file of the loaded object that holds `address`, or "".
const char* ObjectOf(const void* address);

}  // namespace ravenstore::interceptor
