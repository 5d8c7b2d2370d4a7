// The mapper of a client that speaks the protocol by hand: it says that all is mapped, and maps
// nothing.
#pragma once

#include "ipc/ring.h"

namespace ravenstore::ipc {

// Returns true if there were instructions: a daemon that sleeps is to be woken.
inline bool AcknowledgeMaps(MapConsumer* maps) {
  proto::MapInstruction instruction;
  bool any = false;
  for (; maps->Next(&instruction) == Take::kEntry; any = true) maps->Acknowledge(0);
  return any;
}

}  // namespace ravenstore::ipc
