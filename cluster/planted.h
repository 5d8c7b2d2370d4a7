// Bugs that the simulation of faults must find: what shows that it finds bugs.
//
// Only a build with RAVENSTORE_PLANTED (//cluster:planted_node) can have one; everywhere else Has
// is the constant false, and what it guards is not there.
#pragma once

#include <cstdint>

namespace ravenstore::cluster {

enum class Planted : uint8_t {
  kNone,
  kNoGenerationCheck,    // the lender does not ask which lending of a slot is meant
  kLeaseFromAnswer,      // the home counts from when the renewal's answer came
  kReusedUnderTransfer,  // the lender gives memory back while a transfer uses it
  kCommitBeforeAnswer,   // the home says that a write is done when it was sent
  kWholeLease,           // the home does not take 10% off
  kOldConnectionServed,  // the lender serves connections that a newer one replaced
  kNotCleared,           // the lender lends memory on as it is
  kSumsNotCompared,      // the home serves what the lender sent
  kLendsDuringRecall,    // the lender lends slots while it asks others back
  kExpiredServed,        // the lender serves loans that expired
};
inline constexpr Planted kPlantedLast = Planted::kExpiredServed;

#ifdef RAVENSTORE_PLANTED
inline Planted planted = Planted::kNone;
inline bool Has(Planted bug) {
  return planted == bug;
}
#else
constexpr bool Has(Planted) {
  return false;
}
#endif

}  // namespace ravenstore::cluster
