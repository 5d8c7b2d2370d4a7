// ravenctl's commands about what jobs take and are expected to take. As those of commands.h.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "client/ctl/commands.h"
#include "core/types.h"

namespace ravenstore::client::ctl {

// What the command will take, by the best that is known of it: of earlier runs, else the Python
// package reckons, which runs the script.
int RunEstimate(const Common& common, const std::vector<std::string>& command, Streams streams);

// The name under which the daemon remembers the command.
int RunKey(const std::vector<std::string>& command, Streams streams);

struct AdmitOptions {
  // "": by earlier runs; "capture": else the package reckons; or a size.
  std::string size{};
  std::optional<core::Duration> wait{};  // not set: however long
  std::string preload{};                 // the job's LD_PRELOAD; empty: as it is
  std::vector<std::string> command{};
};
// Waits until the command is admitted, and becomes it: returns only where it does not run. Without
// a daemon it runs immediately.
int RunAdmit(const Common& common, const AdmitOptions& options, Streams streams);

// Jobs and those that wait to become one: what was expected, from which source, what they took.
int RunJobs(const Common& common, Streams streams);
// The same of all commands that the daemon remembers. `html`: a file for a page of it; empty: none.
int RunEstimates(const Common& common, const std::string& html, Streams streams);

}  // namespace ravenstore::client::ctl
