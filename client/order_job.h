// Orders to the clients of a job, which are other processes: what `ravenctl sleep` asks for.
//
// Threads: any. Cost: a connection of its own, without a segment.
#pragma once

#include <string>

#include "client/wire.h"
#include "core/result.h"

namespace ravenstore::client {

// Returns when all have done it, or when it is undone. `socket`: as ConnectOptions has it.
// Errors: those of the connection; kNotFound, kInvalidArgument, kWrongState, kLimit; kTimedOut and
// other errors of a client, in words that name it; kLost: the daemon ended meanwhile.
core::Result<wire::JobOrdered> OrderJob(const std::string& socket, const wire::OrderJob& order);

}  // namespace ravenstore::client
