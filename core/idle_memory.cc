#include "core/idle_memory.h"

#include <algorithm>

#include "core/size_text.h"

namespace ravenstore::core {

Result<IdleMemory> IdleMemory::Make(const Options& options, Bytes total) {
  if (options.reserve > total) {
    return Error{ErrorCode::kInvalidArgument, "a reserve of " + SizeText(options.reserve) +
                                                  " is more than the " + SizeText(total) +
                                                  " that there are"};
  }
  return IdleMemory(options);
}

void IdleMemory::Look(Tick now, Bytes free) {
  const Bytes beyond = Minus(free, options_.reserve);
  beyond_.Add(now, beyond);
  idle_ = std::min(idle_, beyond);
  if (beyond_.IsWhole() && beyond_.least() > idle_ && beyond_.least() - idle_ >= options_.step)
    idle_ = beyond_.least();
}

void IdleMemory::Forget() {
  beyond_ = SlidingMinimum(options_.rise_time);
  idle_ = Bytes{0};
}

}  // namespace ravenstore::core
