// Pages that clients were to release, and have not for a while: a client may be stopped.
//
// Others do not wait for them: the device has fewer pages to divide until they are there.
//
// Owns: when each client released a page last. Units: pages. Threads: one at a time. Errors: none.
// Cost: O(clients) an update.
#pragma once

#include <cstdint>
#include <map>
#include <span>

#include "core/schedule/scheduled_client.h"
#include "core/types.h"

namespace ravenstore::core {

class OverduePages {
 public:
  // A client is late if it has released none of its pages for that time. 0: it never is.
  explicit OverduePages(Duration patience) : patience_(patience) {}

  // Returns true if the sum is another than before.
  bool Update(std::span<ScheduledClient* const> clients, Duration now);
  uint32_t sum() const { return sum_; }

 private:
  struct Last {
    uint64_t destroyed = 0;
    Duration at{0};
  };

  const Duration patience_;
  std::map<ClientId, Last> last_;  // of clients that are to release pages
  uint32_t sum_ = 0;
};

}  // namespace ravenstore::core
