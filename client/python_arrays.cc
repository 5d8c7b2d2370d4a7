#include "client/python_arrays.h"

namespace {

ravenstore_python_t python;

void CallWithoutError(void (*function)(void*), void* argument) {
  const int state = python.ensure_lock();
  void *type = nullptr, *value = nullptr, *trace = nullptr;
  python.fetch(&type, &value, &trace);
  function(argument);
  python.restore(type, value, trace);
  python.release_lock(state);
}

}  // namespace

void ravenstore_python_use(const ravenstore_python_t* functions) {
  python = *functions;
}

void ravenstore_python_take_back(void* managed) {
  CallWithoutError(python.take_back, managed);
}

void ravenstore_python_drop_capsule(void* capsule) {
  CallWithoutError(python.drop_capsule, capsule);
}
