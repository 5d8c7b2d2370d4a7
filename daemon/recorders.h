// The recordings of clients' calls that are under way, by the key of the connection that asked.
//
// Owns: the recorders. Threads: the planner loop; a worker destroys them. Errors: none. Cost:
// O(recordings) a call, and O(clients) for Start.
#pragma once

#include <cstdint>
#include <map>
#include <memory>

#include "daemon/loop_state.h"
#include "daemon/recorder.h"
#include "daemon/session.h"
#include "daemon/sessions.h"
#include "daemon/threads.h"

namespace ravenstore::daemon {

class Recorders {
 public:
  // All of them outlive this.
  Recorders(const LoopState* state, const Sessions* sessions, WorkerPool* workers)
      : state_(*state), sessions_(*sessions), workers_(*workers) {}

  // REQUIRES: there is none under `key`.
  void Start(uint64_t key, Recorder::Options options);
  // Does nothing if there is none.
  void Stop(uint64_t key);
  // Null: there is none.
  Recorder* Find(uint64_t key) const;

  // While a recording lasts its clients' logs are read every loop.poll_us.
  bool empty() const { return recorders_.empty(); }
  // Calls what(recorder) for each recorder of the client's calls.
  template <typename What>
  void Record(const Session& session, What what) const {
    for (const auto& [key, recorder] : recorders_) {
      const Attachment& attachment = session.attachment();
      if (recorder->Wants(attachment.id, attachment.uid)) what(*recorder);
    }
  }
  // The client has waited for an answer until now.
  void Answered(const Session& session) const {
    Record(session, [&](Recorder& recorder) { recorder.Answered(session.id(), state_.now); });
  }
  bool IsRecorded(const Session& session) const {
    bool recorded = false;
    Record(session, [&recorded](Recorder&) { recorded = true; });
    return recorded;
  }

 private:
  const LoopState& state_;
  const Sessions& sessions_;
  WorkerPool& workers_;
  std::map<uint64_t, std::unique_ptr<Recorder>> recorders_;
};

}  // namespace ravenstore::daemon
