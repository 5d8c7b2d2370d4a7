#include "interceptor/show.h"

#include "interceptor/backing.h"
#include "interceptor/budgets.h"
#include "interceptor/pool.h"

namespace ravenstore::interceptor {

void Show(int row, uint64_t* total, uint64_t* free) {
  const uint64_t visible = VisibleOf(row);
  const Backing& serving = Serving();
  if (free != nullptr) *free = serving.free_to_job(row, *free);
  if (visible == 0) return;
  if (total != nullptr && *total > visible) *total = visible;
  if (free == nullptr) return;
  pool::RefreshAll();
  const uint64_t left = serving.free_to_job(row, Room(row));
  if (*free > left) *free = left;
}

}  // namespace ravenstore::interceptor
