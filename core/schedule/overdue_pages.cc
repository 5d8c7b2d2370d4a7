#include "core/schedule/overdue_pages.h"

#include <utility>

namespace ravenstore::core {

bool OverduePages::Update(std::span<ScheduledClient* const> clients, Duration now) {
  if (patience_ == Duration{0}) return false;
  uint32_t sum = 0;
  std::map<ClientId, Last> last;
  for (const ScheduledClient* client : clients) {
    const PageMemory& memory = client->executor().books().memory();
    if (memory.releasing() == 0) continue;
    const auto before = last_.find(client->id());
    const bool goes_on = before == last_.end() || before->second.destroyed != memory.destroyed();
    const Last of = goes_on ? Last{memory.destroyed(), now} : before->second;
    last.emplace(client->id(), of);
    if (now - of.at >= patience_) sum += memory.releasing();
  }
  last_ = std::move(last);
  return std::exchange(sum_, sum) != sum;
}

}  // namespace ravenstore::core
