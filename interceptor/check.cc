#include "interceptor/check.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "interceptor/driver.h"
#include "interceptor/elf.h"
#include "interceptor/hooks.h"

namespace ravenstore::interceptor::check {
namespace {

struct Output {
  int file;
  unsigned captured = 0;
  unsigned escaped = 0;
};

void Line(Output* output, const char* verdict, const char* symbol, const char* object) {
  char text[512];
  const int length = snprintf(text, sizeof(text), "%s %d %s %s\n", verdict, getpid(), symbol,
                              *object == 0 ? "(the program)" : object);
  if (length > 0) [[maybe_unused]]
    const auto written = write(output->file, text, static_cast<size_t>(length));
}

void Visit(const Import& import, void* argument) {
  auto* output = static_cast<Output*>(argument);
  const Hook hook = FindHook(import.symbol);
  if (hook == Hook::kCount || !IsWanted(hook) || BringsHooked(import.object)) return;
  const void* target = *import.slot;
  // Not bound yet: the slot leads back into the object, and the search will find ours first.
  if (target == nullptr || strcmp(ObjectOf(target), import.object) == 0) return;
  if (IsOurs(target)) {
    ++output->captured;
    return Line(output, "captured", import.symbol, import.object);
  }
  // Only a library that was bound deeply finds another's first, and was not turned since (deep.h);
  // what its dlsym finds escapes, too.
  ++output->escaped;
  Line(output, "ESCAPED", import.symbol, import.object);
}

// The report that somebody asked for; else without a file.
Output Open() {
  const char* path = getenv("RAVENSTORE_INTERCEPT_CHECK");
  if (path == nullptr || *path == 0) return {-1};
  return {open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600)};
}

}  // namespace

void Late(const char* symbol, const char* object) {
  Output output = Open();
  if (output.file < 0) return;
  Line(&output, "LATE", symbol, object);
  close(output.file);
}

void Report() {
  Output output = Open();
  if (output.file < 0) return;
  ForEachImport(Visit, &output);
  for (size_t i = 0; i < kHooks; ++i) {
    const auto hook = static_cast<Hook>(i);
    if (CallsOf(hook) == 0) continue;
    char text[128];
    snprintf(text, sizeof(text), "%s (%llu calls)", InfoOf(hook).symbol,
             static_cast<unsigned long long>(CallsOf(hook)));
    Line(&output, "called", text, "");
  }
  const bool loaded = DriverFunction("cuInit") != nullptr;
  Line(&output, loaded ? "driver" : "nodriver", "libcuda.so", "");
  close(output.file);
}

namespace {
// Runs at exit, after the program's own handlers.
__attribute__((destructor)) void AtExit() {
  Report();
}
}  // namespace

}  // namespace ravenstore::interceptor::check
