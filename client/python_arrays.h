// The destructors of arrays that the Python package lends to other libraries (DLPack), inside of
// libravenstore.so. No part of its interface: python/ravenstore/_arrays.py alone knows them.
//
// A library may drop an array while a Python exception is on its way, and no function of Python's
// may run then: the exception would be lost, or the process ended. Only C can put it aside before
// the first of them runs. For that nothing of Python's need be linked: the package says where the
// functions are.
//
// Threads: any, with Python's lock or without. ravenstore_python_use comes before the others, once.
#pragma once

#include "client/ravenstore.h"

extern "C" {

struct ravenstore_python_t {
  int (*ensure_lock)();                                    // PyGILState_Ensure
  void (*release_lock)(int);                               // PyGILState_Release
  void (*fetch)(void** type, void** value, void** trace);  // PyErr_Fetch
  void (*restore)(void* type, void* value, void* trace);   // PyErr_Restore
  void (*take_back)(void* managed);                        // of the package: what the two below do
  void (*drop_capsule)(void* capsule);
};

RAVENSTORE_API void ravenstore_python_use(const ravenstore_python_t* python);
// A DLManagedTensor's deleter.
RAVENSTORE_API void ravenstore_python_take_back(void* managed);
// A capsule's destructor.
RAVENSTORE_API void ravenstore_python_drop_capsule(void* capsule);
}
