#include "daemon/sleepers.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "core/size_text.h"

namespace ravenstore::daemon {

using core::Bytes;
using core::ClientId;
using core::Error;
using core::ErrorCode;

void Sleepers::Sleep(ClientId id, core::Tick deadline, Reply reply) {
  const StoreTables::Client& client = *tables_.clients.at(id);
  if (waiting_.count(id) > 0)
    return reply(Error{ErrorCode::kWrongState, "it is being put to sleep already"});
  waiting_[id] = {.deadline = deadline, .bytes = HeldBy(client), .reply = std::move(reply)};
  SetAsleep(id, true);
}

void Sleepers::Wake(ClientId id) {
  if (const auto waited = waiting_.extract(id))
    waited.mapped().reply(Error{ErrorCode::kWrongState, "it was woken before it was asleep"});
  if (tables_.quotas.IsAsleep(id)) SetAsleep(id, false);
}

void Sleepers::SetAsleep(ClientId id, bool is_asleep) {
  tables_.quotas.SetAsleep(id, is_asleep);
  limits_changed_(id);
}

void Sleepers::Poll() {
  // A reply may put the client to sleep again.
  std::vector<std::pair<Reply, core::Result<Bytes>>> answers;
  for (auto it = waiting_.begin(); it != waiting_.end();) {
    auto& [id, waiting] = *it;
    const StoreTables::Client* client = tables_.FindPresent(id);
    if (client == nullptr) {
      answers.emplace_back(std::move(waiting.reply),
                           Error{ErrorCode::kNotFound, "the client is gone"});
    } else if (HeldBy(*client) == Bytes{0}) {
      answers.emplace_back(std::move(waiting.reply), waiting.bytes);
    } else if (tables_.now >= waiting.deadline) {
      answers.emplace_back(std::move(waiting.reply), WhyLate(*client));
      SetAsleep(id, false);
    } else {
      ++it;
      continue;
    }
    it = waiting_.erase(it);
  }
  for (auto& [reply, answer] : answers) reply(std::move(answer));
}

core::Tick Sleepers::NextWake() const {
  core::Tick next = core::kNever;
  for (const auto& [id, waiting] : waiting_) next = std::min(next, waiting.deadline);
  return next;
}

Bytes Sleepers::HeldBy(const StoreTables::Client& client) const {
  Bytes held;
  for (const auto& [device, part] : client.parts)
    held += tables_.On(device).page * part.pages->held();
  return held;
}

Error Sleepers::WhyLate(const StoreTables::Client& client) const {
  return {ErrorCode::kTimedOut,
          core::SizeText(HeldBy(client)) +
              " had not left the devices in time: copies have room for " +
              core::SizeText(tables_.quotas.copies().Room(client.id)) +
              " more in the host pool, and work that uses the tensors must end first"};
}

}  // namespace ravenstore::daemon
