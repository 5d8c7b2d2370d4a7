#include "core/decide/page_retirement.h"

namespace ravenstore::core::decide {

Retirement NextRetirement(const HeldMemory& held) {
  using Step = Retirement::Step;
  if (held.surplus == 0) return {};
  if (held.has_free) return {Step::kRelease};
  if (held.spare > 0 && held.can_empty) return {Step::kEmptySlots};
  const uint64_t expected = held.leaving + held.spare;
  if (held.surplus <= expected) return {};
  return {Step::kLeave, held.surplus - expected};
}

}  // namespace ravenstore::core::decide
