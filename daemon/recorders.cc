#include "daemon/recorders.h"

#include <utility>

#include "core/check.h"

namespace ravenstore::daemon {

void Recorders::Start(uint64_t key, Recorder::Options options) {
  const auto [added, is_new] =
      recorders_.emplace(key, std::make_unique<Recorder>(std::move(options)));
  RAVEN_CHECK(is_new);
  Recorder& recorder = *added->second;
  for (const auto& [id, session] : sessions_.all()) {
    if (recorder.Wants(id, session->attachment().uid)) recorder.Answered(id, state_.now);
  }
}

void Recorders::Stop(uint64_t key) {
  auto stopped = recorders_.extract(key);
  if (stopped.empty()) return;
  // It may know of a million tensors.
  workers_.Run(kNoUser, [recorder = std::shared_ptr<Recorder>(std::move(stopped.mapped()))] {});
}

Recorder* Recorders::Find(uint64_t key) const {
  const auto found = recorders_.find(key);
  return found == recorders_.end() ? nullptr : found->second.get();
}

}  // namespace ravenstore::daemon
