#include "core/decide/page_admission.h"

namespace ravenstore::core::decide {

Admission Admit(const PageCall& call) {
  if (call.in_use <= call.may_hold) return Admission::kNow;
  return call.own > call.may_hold ? Admission::kTooLarge : Admission::kLater;
}

bool HasPlace(const PageCreate& create) {
  return create.occupied + create.classes + 1 <= create.places;
}

}  // namespace ravenstore::core::decide
