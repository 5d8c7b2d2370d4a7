#include "cluster/lend_limit.h"

#include <algorithm>

namespace ravenstore::cluster {

core::Result<LendLimit> LendLimit::Make(const core::IdleMemory::Options& options, core::Bytes most,
                                        core::Bytes total) {
  RAVEN_ASSIGN_OR_RETURN(auto idle, core::IdleMemory::Make(options, total));
  return LendLimit(std::move(idle), options.reserve, most);
}

core::Bytes LendLimit::Look(core::Tick now, core::Bytes free, core::Bytes lent) {
  idle_.Look(now, free);
  const core::Bytes missing = core::Minus(reserve_, free);
  return std::min(most_, core::Minus(lent + idle_.idle(), missing));
}

}  // namespace ravenstore::cluster
