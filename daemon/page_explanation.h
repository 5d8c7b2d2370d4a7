// Why a tensor on pages is where it is, from its pages, the plan and what its client said.
//
// Owns: nothing. Units: the client's virtual time. Threads: the planner loop. Errors: none.
// Cost: O(pages of the tensor).
#pragma once

#include <cstdint>

#include "core/schedule/scheduled_client.h"
#include "core/store_views.h"
#include "core/types.h"

namespace ravenstore::daemon {

// The store keeps this of each tensor.
struct TensorPast {
  core::NextUse next_use{};  // of its last put
  core::Duration put_at{0};  // when that was
  uint32_t gets = 0;
  core::Priority priority = core::Priority::kNormal;
  bool prefetched = false;  // it came unasked, and was not used since
};

// Fills all but `tensor`. `now`: the client's virtual time.
void ExplainOnPages(const core::ScheduledClient& client, core::TensorNumber tensor,
                    const TensorPast& past, core::Duration now, core::Explanation* why);

}  // namespace ravenstore::daemon
