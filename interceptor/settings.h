// What the environment asks of the interceptor, and the log that it asks for.
//
// Threads: any, once ReadSettings has returned; AskedMode and Log also before.
#pragma once

#include <cstdint>

namespace ravenstore::interceptor {

// Who serves what the job allocates: backing.h.
enum class Mode : uint8_t { kAccount, kStore, kElastic };

struct Settings {
  char socket[256];  // empty: too long
  char log[4096];    // empty: nowhere
  Mode mode;
  uint64_t elastic_host;  // what may be pinned; 0: not set
  uint64_t elastic_part;  // the size of one move; 0: not set
  bool elastic_report;
  bool elastic_still;  // nothing is moved
  bool elastic_maps_away;
  char elastic_record[4096];  // the file; empty: none, or too long
  int64_t wait_seconds;       // for its turn; 0: however long; -1: not at all
  char job[64];               // the command that the process belongs to; empty: not known
  uint32_t run;               // and with which process it began
  char estimate[64];          // as which it was admitted, in words; empty: it was not
};

// Reads the environment, the first time. Later the program may change it while a thread of ours
// would read it. Not thread-safe.
void ReadSettings();
// As read then.
const Settings& Asked();
// Of the mode alone, also before.
Mode AskedMode();
const char* NameOf(Mode mode);
// The size that the variable names now, as core/size_text.h reads sizes. 0: there is none, or it is
// no size; then it is said, with what holds `without` it.
uint64_t AskedSize(const char* variable, const char* without);

// Says something, once asked by $RAVENSTORE_INTERCEPT_LOG ("stderr" or a file).
void Log(const char* format, ...) __attribute__((format(printf, 1, 2)));

}  // namespace ravenstore::interceptor
