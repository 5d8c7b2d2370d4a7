// How far the GPU has come with the job's calls, and how long they took there.
//
// Behind some calls an event is recorded. The calls between two of them are a stretch. All streams
// count as one: its progress is that of the furthest stream.
//
// Owns: its events. Threads: one at a time (the engine's lock). A current context is required.
#pragma once

#include <cuda.h>

#include <cstdint>
#include <deque>
#include <optional>

#include "core/types.h"
#include "elastic/driver.h"
#include "elastic/events.h"

namespace ravenstore::elastic {

class Pace {
 public:
  // Calls from `from` to that before `to` took so long together, waits between them included.
  struct Stretch {
    int64_t from;
    int64_t to;
    core::Duration took;
  };

  explicit Pace(const Driver* driver) : driver_(driver), events_(driver, CU_EVENT_DEFAULT) {}
  ~Pace();
  Pace(const Pace&) = delete;
  Pace& operator=(const Pace&) = delete;

  // The call of that number is on the stream, and a stretch ends with it. Nothing happens on a
  // stream that is being captured, nor where the driver cannot measure.
  void Ends(CUstream stream, int64_t call);
  // Returns each stretch once, when the driver reports its end; nullopt: no further one has ended.
  std::optional<Stretch> Next();
  // So far the GPU has come: to before this call.
  int64_t passed() const { return passed_; }
  // The call that ends the stretch that is under way; nullopt: none is.
  std::optional<int64_t> under_way() const;

 private:
  struct Mark {
    CUevent event;
    int64_t call;
    CUstream stream;
  };

  const Driver* const driver_;
  std::deque<Mark> marks_;    // that have not passed, by call
  std::optional<Mark> last_;  // that has
  int64_t passed_ = 0;
  Events events_;
};

}  // namespace ravenstore::elastic
