// Waits until the daemon admits the calling process as a job, which it then becomes.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "client/ctl/estimate.h"
#include "core/result.h"
#include "core/types.h"

namespace ravenstore::client::ctl {

struct Admitted {
  std::string uuid{};  // of the device
  core::Bytes bytes{};
  std::string words{};  // worth knowing; may be empty
};

// The message that asks for it: of what is expected, on any of the devices with these UUIDs (none:
// of the daemon's), for a program of that name.
proto::ClientPacket AdmitPacket(const Estimate& estimate, const std::vector<std::string>& uuids,
                                const std::string& name);
// Which of the daemon's devices $CUDA_VISIBLE_DEVICES, `visible`, names: by number, as the daemon
// counts them, or by UUID or its beginning. Errors: kInvalidArgument: one that is none of them.
core::Result<std::vector<std::string>> VisibleDevices(const std::string& visible,
                                                      const proto::Welcome& welcome);

// Asks, and waits until `deadline` (core::kNever: without limit). Calls the callback with each
// place in the line and what is waited for. The reservation is this process's until it ends,
// whatever program it becomes.
// Errors: kOutOfMemory: it never fits, and why; kTimedOut; kUnavailable: the daemon is gone; any of
// the daemon's.
core::Result<Admitted> AwaitAdmission(const std::string& socket, const proto::ClientPacket& packet,
                                      core::Tick deadline,
                                      const std::function<void(const proto::LegacyTurn&)>& on_turn);

}  // namespace ravenstore::client::ctl
