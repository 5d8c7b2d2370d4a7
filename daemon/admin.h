// The planner's and the loop's state as control messages. All on the loop's thread but
// ResidentBytes, which opens a file.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "core/types.h"
#include "daemon/connections.h"
#include "daemon/loop.h"
#include "daemon/names.h"
#include "proto/control.pb.h"

namespace ravenstore::daemon {

// The name that the client gave; empty for a number that is none of its tenant's.
std::string NameOf(Loop& loop, const Names& names, core::ClientId client, core::NameId name);
void FillStats(Loop& loop, std::optional<core::ClientId> client, size_t devices, core::Tick started,
               core::Tick now, proto::Stats* stats);
// This process's private memory; the host pool is part of it where the daemon uses huge pages with
// CUDA. 0 when the system does not say.
uint64_t ResidentBytes();
// By client and slot. The cursors of both lists are made of the audience's own numbers: what others
// have neither shows in them nor makes pages.
void FillTensors(Loop& loop, const Names& names, const Audience& audience,
                 const proto::ListTensors& query, proto::Tensors* tensors);
// False when there is no such tensor, or it is none of the audience's business.
bool FillExplanation(Loop& loop, const Names& names, const Audience& audience, core::TensorId id,
                     core::Tick now, proto::TensorExplained* explained);
void FillClients(Loop& loop, const Audience& audience, const proto::ListClients& query,
                 proto::Clients* clients);

}  // namespace ravenstore::daemon
